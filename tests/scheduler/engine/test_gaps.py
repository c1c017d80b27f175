"""Who runs in the gap before a reservation, and whether he leaves it when its time has come."""

from typing import Any

import pytest

from scheduler.engine.cycle import make_plan
from scheduler.scenarios.reading import parse
from tests.scheduler.twin.strategies import scenario_random

from .scenes import actions, at, job, leafed, node, plan_of, quota, reasons, running, scene

ALL = tuple(range(8))


def kept(plan: dict[str, Any], name: str) -> list[str]:
    """From when on places are kept for a job."""
    return [one["at"] for one in plan["decisions"] if one["action"] == "reserve" and one["job"] == name]


def told(plan: dict[str, Any], name: str) -> dict[str, Any]:
    return next(one for one in plan["waiting"] if one["job"] == name)


def in_the_gap(guaranteed: int, **holder: Any) -> dict[str, Any]:
    """Four nodes, of which two are half held by work that nobody may put out; one runs in the gap before a gang, which needs both others."""
    half = at("n002", 0, 1, 2, 3), at("n003", 0, 1, 2, 3)
    return scene(
        leafed(4),
        [quota("a", guaranteed, weight=holder.pop("weight", 1)), quota("b", 8), quota("c", 8)],
        [
            *[running(f"c{number}", [place], "c", preemptible=False) for number, place in enumerate(half)],
            running("lent", [at("n001", *ALL)], "b", backfilled=True, grace_s=60, **holder.pop("lent", {})),
            job("gang", "a", 8, 2, topology={"required": "leaf"}, **holder),
            job("small", "a", 8, submitted=-50, grace_s=500),
        ],
    )


def test_at_its_time_it_leaves_though_its_queue_would_be_served_first() -> None:
    """Whatever the shares say, as long as its queue has no right to take the place back."""
    plan = plan_of(in_the_gap(16))

    assert actions(plan) == {"lent": "evict", "gang": "start"}
    assert plan["decisions"][0]["why"]["code"] == "reservation_due"


def test_it_leaves_also_where_the_notice_has_become_shorter_since() -> None:
    """That it could be off its place within the notice was the condition on which it got it."""
    scenario = in_the_gap(16)
    plan = plan_of({**scenario, "settings": {**scenario.get("settings", {}), "backfill_notice_s": 0}})

    assert actions(plan) == {"lent": "evict", "gang": "start"}


@pytest.mark.parametrize("limit", [None, 1050])
def test_where_its_queue_would_take_the_place_back_the_time_has_not_come(limit: int | None) -> None:
    """Then the date is when it ends by itself, and where nobody knows when that is nothing is kept free."""
    plan = plan_of(in_the_gap(0, weight=0, lent={"limit_s": limit} if limit else {}))

    assert kept(plan, "gang") == ([] if limit is None else ["2026-11-20T09:16:40Z"])
    assert told(plan, "gang")["predicted_start"] == (None if limit is None else "2026-11-20T09:16:40Z")
    assert actions(plan) == ({"small": "start"} if limit is None else {})


def test_who_ranks_higher_in_the_holders_own_queue_does_not_leave() -> None:
    lent = running("lent", [at("n1", *ALL)], "q", backfilled=True, priority=9, limit_s=1050)
    plan = plan_of(scene([node("n1"), node("n2")], [quota("q", 16)], [lent, job("gang", "q", 8, 2)]))

    assert actions(plan) == {}
    assert kept(plan, "gang") == ["2026-11-20T09:16:40Z"]


@pytest.mark.parametrize("settings", [{"backfill": False}, {"backfill_depth": 0}])
def test_where_no_place_is_kept_nobody_leaves_for_it(settings: dict[str, Any]) -> None:
    lent = running("lent", [at("n1", *ALL)], "b", backfilled=True, limit_s=1050)
    made = scene(
        [node("n1"), node("n2")], [quota("a", 16), quota("b", 0)], [lent, job("gang", "a", 8, 2)], settings={**settings, "passes": ["allocate"]}
    )

    assert told(plan_of(made), "gang")["predicted_start"] == "2026-11-20T09:16:40Z"


def beside_a_host(gpus: int, **later: Any) -> dict[str, Any]:
    """A gang needs all processors of two nodes, one of which comes free at 09:16:40; somebody behind it asks for what it leaves."""
    return scene(
        [node("n1", cpus=8, host_memory_gb=64), node("n2", cpus=8, host_memory_gb=64)],
        [quota("a", 16), quota("b", 0)],
        [
            running("before", [at("n1", *ALL)], "b", preemptible=False, limit_s=1050),
            job("gang", "a", 6, 2, role={"cpus": 8, "host_memory_gb": 32}),
            job("later", "a", gpus, submitted=-50, preemptible=False, **later),
        ],
    )


@pytest.mark.parametrize("gpus", [0, 2])
@pytest.mark.parametrize("host", [{"cpus": 1}, {"host_memory_gb": 33}])
def test_a_reservation_keeps_the_processors_and_the_memory_of_its_hosts(gpus: int, host: dict[str, int]) -> None:
    plan = plan_of(beside_a_host(gpus, role=host))

    assert actions(plan) == {}
    assert kept(plan, "gang") == ["2026-11-20T09:16:40Z"]
    assert "reservation" in reasons(plan, "later")


@pytest.mark.parametrize("more", [{"role": {"cpus": 1}, "limit_s": 1000}, {"role": {"host_memory_gb": 32}}])
def test_who_is_gone_by_then_or_leaves_enough_starts_beside_it(more: dict[str, Any]) -> None:
    plan = plan_of(beside_a_host(2, **more))

    assert actions(plan) == {"later": "start"}
    assert kept(plan, "gang") == ["2026-11-20T09:16:40Z"]


def test_gates_are_kept_for_a_job_that_asks_in_its_second_type_behind_others() -> None:
    """Its date is known although another job, for which nothing is kept, asked before it: j-15 comes before j-11 in their queue."""
    scenario = parse(scenario_random(78000315, "medium"))
    reserved = [decision.job for decision in make_plan(scenario).decisions if decision.action == "reserve"]
    assert "j-15" in reserved
    assert "j-11" not in reserved
