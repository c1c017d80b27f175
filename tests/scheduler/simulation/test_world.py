"""The simulated world keeps its own books straight, whatever the engine decides."""

import json

import pytest

from scheduler.benchmarks import cases
from scheduler.engine.cycle import make_plan
from scheduler.engine.kept import Kept
from scheduler.engine.plan import Plan
from scheduler.engine.scenario import parse
from scheduler.engine.values import Scenario
from scheduler.simulation.policies import POLICIES, fifo
from scheduler.simulation.result import saturated, summary
from scheduler.simulation.workload import works_drawn
from scheduler.simulation.world import World

from ..engine.scenes import job, node, quota, scene


def played(scenario: dict, policy: str = "tree", seed: int = 0) -> dict:
    world = World(parse(scenario), POLICIES[policy][0], works_drawn(parse(scenario), seed))
    world.run()
    return summary(world, policy=policy, seed=seed, wall_s=0.0, per_job=True)


def test_jobs_run_one_after_the_other_on_a_full_fleet() -> None:
    jobs = [job(f"j{i}", gpus=8, submitted=i, work_s=100) for i in range(3)]
    result = played(scene([node("n0")], [quota("q")], jobs))

    assert [row["ended"] for row in result["per_job"]] == [100, 200, 300]
    assert result["jobs"] == {"arrived": 3, "completed": 3, "unfinished": 0, "failed": 0}
    assert result["utilization"] == pytest.approx(1.0)


def test_a_victim_without_checkpoint_begins_anew_and_one_with_goes_on() -> None:
    for checkpoint, expected in ((None, 400), ({"interval_s": 10, "save_s": 0}, 300)):
        low = job("low", gpus=8, submitted=0, work_s=200) | ({"checkpoint": checkpoint} if checkpoint else {})
        high = job("high", gpus=8, submitted=100, work_s=100, priority=10)
        result = played(scene([node("n0")], [quota("q")], [low, high]))
        ended = {row["job"]: row["ended"] for row in result["per_job"]}
        assert ended == {"high": 200, "low": expected}
        assert result["preemptions"] == 1


def test_a_job_beyond_its_limit_has_failed() -> None:
    result = played(scene([node("n0")], [quota("q")], [job("long", submitted=0, work_s=100, limit_s=50)]))

    assert result["jobs"]["failed"] == 1
    assert result["per_job"][0]["ended"] == 50


def test_what_can_never_start_is_counted_as_unfinished() -> None:
    result = played(scene([node("n0")], [quota("q")], [job("wide", gpus=8, workers=2, submitted=0), job("fits", submitted=0, work_s=10)]))

    assert result["jobs"] == {"arrived": 2, "completed": 1, "unfinished": 1, "failed": 0}


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_the_same_seed_gives_the_same_result(policy: str) -> None:
    scenario = cases.simulated(3, 40)
    first, second = (json.dumps(played(scenario, policy, 5)) for _ in range(2))

    assert first == second
    assert json.loads(first)["jobs"]["completed"] == 40


def test_first_come_first_served_lets_nobody_pass() -> None:
    jobs = [
        job("a", gpus=4, submitted=0, work_s=100),
        job("b", gpus=8, submitted=1, work_s=100),
        job("c", gpus=4, submitted=2, work_s=10),
    ]
    world = World(parse(scene([node("n0")], [quota("q")], jobs)), fifo)
    world.run()

    assert {name: life.first_start - world.template.now for name, life in world.lives.items()} == {"a": 0, "b": 100_000, "c": 200_000}


def test_a_queue_that_only_grows_is_saturated() -> None:
    assert saturated([(1000, 10 * place) for place in range(100)])
    assert not saturated([(1000, 5 + place % 3) for place in range(100)])
    assert not saturated([])


def test_what_is_kept_between_plans_changes_none() -> None:
    kept = Kept()

    def both(scenario: Scenario) -> Plan:
        plan = make_plan(scenario, kept)
        assert plan == make_plan(scenario)
        return plan

    world = World(parse(cases.simulated(7, 150)), both)
    world.run()
    assert all(life.ended is not None for life in world.lives.values())
