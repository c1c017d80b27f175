"""Past usage is taken once a step, and who came by reclaim is not put out for it again within the step."""

from typing import Any

import pytest

from scheduler.scenarios.faults import ScenarioError
from scheduler.scenarios.reading import parse
from scheduler.scenarios.spelling import spelt

from .scenes import actions, at, job, node, plan_of, quota, running, scene

Json = dict[str, Any]
STEP = {"fairness": {"usage_weight": 1, "step_s": 7200}}  # 09:00 lies in the step that began at 08:00


def world(usage: float = 0.9, settings: Json = STEP, guaranteed: int = 0, **fields: Any) -> Json:
    """b holds all eight GPUs and used much of late; a, which used nothing, is within its share with four."""
    held = [running(f"b{place}", [at("n0", 2 * place, 2 * place + 1)], "b", **fields) for place in range(4)]
    quotas = [quota("a", guaranteed, weight=1, usage=0), quota("b", 0, weight=3, usage=usage)]
    return scene([node("n0")], quotas, [*held, job("mine", "a", 4)], settings=settings)


def evicted(scenario: Json) -> list[str]:
    return sorted(name for name, action in actions(plan_of(scenario)).items() if action == "evict")


def test_past_usage_lets_a_queue_reclaim() -> None:
    assert len(evicted(world())) == 2
    assert evicted(world(usage=0.0)) == []


def test_who_came_by_reclaim_in_the_step_is_not_put_out_for_past_usage() -> None:
    assert evicted(world(reclaimed=-1)) == []


def test_the_next_step_may_put_it_out() -> None:
    assert len(evicted(world(reclaimed=-3601))) == 2
    assert plan_of(world(reclaimed=-1))["next_wake"] == "2026-11-20T10:00:00Z"


def test_without_steps_or_without_a_weight_of_usage_nobody_is_spared() -> None:
    assert len(evicted(world(settings={"fairness": {"usage_weight": 1}}, reclaimed=-1))) == 2
    fair = world(settings={"fairness": {"step_s": 7200}}, guaranteed=4, reclaimed=-1)
    assert len(evicted(fair)) == 2


def test_a_guarantee_is_taken_back_within_the_step() -> None:
    assert len(evicted(world(guaranteed=4, reclaimed=-1))) == 2


@pytest.mark.parametrize("bad", ["soon", [], True, float("inf")])
def test_a_time_that_is_none_is_refused_at_its_path(bad: Any) -> None:
    with pytest.raises(ScenarioError) as refused:
        parse(world(reclaimed=bad))

    assert {fault.path for fault in refused.value.faults} == {f"$.jobs[{place}].reclaimed" for place in range(4)}


def test_the_time_survives_being_written_down() -> None:
    scenario = parse(world(reclaimed=-12.5))

    assert {one.run.reclaimed for one in parse(spelt(scenario)).jobs} == {None, scenario.now - 12_500}
