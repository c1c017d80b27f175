"""The simulated world keeps its own books straight, whatever the engine decides."""

import json
from dataclasses import replace

import pytest

from scheduler.benchmarks import cases
from scheduler.engine.cycle import make_plan
from scheduler.engine.model.plan import Plan
from scheduler.engine.model.values import Checkpoint, Run, Scenario
from scheduler.engine.state.state import Kept
from scheduler.scenarios.reading import parse
from scheduler.simulation.policies import POLICIES, fifo
from scheduler.simulation.result import saturated, summary
from scheduler.simulation.workload import works_drawn
from scheduler.simulation.world import World

from ..engine.scenes import at, job, node, quota, running, scene


def played(scenario: dict, policy: str = "tree", seed: int = 0) -> dict:
    world = World(parse(scenario), POLICIES[policy][0], works_drawn(parse(scenario), seed))
    world.run()
    return summary(world, policy=policy, seed=seed, wall_s=0.0, per_job=True)


def test_a_job_with_another_run_is_the_same_in_all_else() -> None:
    fields = {"not_before": 60, "checkpoint": {"interval_s": 10}, "estimate_s": 5, "limit_s": 7, "work_s": 6, "deadline": 900}
    (one,) = parse(scene([node("n0")], [quota("q")], [job("a", **fields)])).jobs
    run = Run("running", 1, 2)
    assert one.with_run(run) == replace(one, run=run) != one
    saved = Checkpoint(10, 20, 3, 4)
    assert one.with_run(run, saved) == replace(one, run=run, checkpoint=saved) != one.with_run(run)


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


def test_events_are_what_happens_and_each_moment_of_them_is_planned_once() -> None:
    """A job that is put out has no end at the time that was expected before, so nothing happens then and nothing is planned."""
    low = job("low", gpus=8, submitted=0, work_s=100, checkpoint={"interval_s": 10, "save_s": 0})
    high = job("high", gpus=8, submitted=60, work_s=300, priority=10)
    others = [job(f"other-{place}", gpus=8, submitted=70, work_s=50) for place in range(2)]
    world = World(parse(scene([node("n0")], [quota("q")], [low, high, *others])))
    world.run()

    # Four arrivals, two of them at one moment, and four ends; at 100, when "low" was to end, nothing.
    assert (world.totals.preemptions, world.totals.events, world.totals.plans) == (1, 8, 6)


def test_the_engine_is_asked_again_at_an_end_that_its_own_plan_prevents() -> None:
    """It was asked only about what comes before that, and something could be due then."""
    low = job("low", gpus=8, submitted=0, work_s=100, checkpoint={"interval_s": 10, "save_s": 0})
    high = job("high", gpus=8, submitted=60, work_s=300, priority=10)
    world = World(parse(scene([node("n0")], [quota("q")], [low, high])))
    moments = []
    course = world.policy
    world.policy = lambda scenario: moments.append((scenario.now - world.template.now) // 1000) or course(scenario)
    world.run()

    assert moments == [0, 60, 100, 360]


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
    bursts = [(500, waiting) for number in range(24) for waiting in (10 * number, 0)]
    assert not saturated(bursts), "they grow, each worked off before the next"
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


def test_parts_of_gpus_count_as_what_they_are() -> None:
    halves = [job(f"j{i}", submitted=0, sharing="mps", roles=[{"gpu_share": 0.5}], work_s=100) for i in range(2)]
    sevenths = [job(f"j{i}", submitted=0, roles=[{"mig": "1g.10gb"}], work_s=100) for i in range(7)]
    by_memory = [job("j", submitted=0, sharing="mps", roles=[{"gpu_memory_gb": 20}], work_s=100)]
    for jobs, part in ((halves, 1.0), (sevenths, 0.875), (by_memory, 0.25)):
        result = played(scene([node("n0", 1)], [quota("q")], jobs))
        assert (result["allocation"], result["utilization"]) == (part, part)


def test_who_ran_before_the_beginning_has_done_so_much_and_has_waited_so_long() -> None:
    ran = running("ran", [at("n0", *range(8))], submitted=-150, started=-100, work_s=150)
    result = played(scene([node("n0")], [quota("q")], [ran, job("next", gpus=8, submitted=-10, work_s=50)]))

    assert [(row["job"], row["started"], row["ended"]) for row in result["per_job"]] == [("ran", -100, 50), ("next", 50, 100)]
    assert result["jct_s"]["mean"] == (200 + 110) / 2
    assert result["wait_s"]["by_class"]["batch"]["mean"] == (50 + 60) / 2
    assert result["utilization"] == 1, "what was done before is none of the simulation's"


def test_who_has_outlived_what_was_drawn_for_him_goes_on() -> None:
    result = played(scene([node("n0")], [quota("q")], [running("ran", [at("n0", 0)], submitted=-1000, started=-1000, estimate_s=1)]))

    assert 0 < result["per_job"][0]["ended"] <= 1000


def test_what_is_under_way_at_the_end_counts_as_used() -> None:
    world = World(parse(scene([node("n0")], [quota("q")], [job("long", gpus=8, submitted=0, work_s=1000)])))
    world.run(world.now + 250_000)

    assert summary(world, policy="tree", seed=0, wall_s=0.0, per_job=False)["utilization"] == 1


def test_a_plan_is_made_at_the_beginning_though_nobody_comes() -> None:
    lacks = running("lacks", [at("n0", 0)], least=2, started=-10, work_s=110, degraded_since=-10, submitted=-10)
    result = played(scene([node("n0")], [quota("q")], [lacks]))

    assert result["per_job"][0]["ended"] == 105  # half as fast for ten seconds


def test_an_eviction_before_the_beginning_is_not_forgotten() -> None:
    put_out = job("put-out", submitted=-60, last_evicted=-10, evictions=1, work_s=20)
    result = played(scene([node("n0")], [quota("q")], [put_out], settings={"hysteresis_s": 100}))

    assert result["per_job"][0]["started"] == 90


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_nobody_waits_behind_who_may_not_or_can_never_start(policy: str) -> None:
    jobs = [
        job("later", submitted=0, not_before=500, work_s=10),
        job("never", gpus=9, submitted=1, work_s=10),
        job("fixed", gpus=8, submitted=2, work_s=10, preemptible=False),
    ]
    window = {"name": "w", "quota": "q", "gpus": 1, "start": 7000, "end": 8000}
    result = played(scene([node("n0")], [quota("q", 8)], jobs, reservations=[window]), policy)

    assert {row["job"]: row["started"] for row in result["per_job"]} == {"later": 500, "never": None, "fixed": 2}
    assert result["simulated_s"] == 510, "that one waits on for nothing is no part of the simulation"


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_gpus_are_split_for_who_asks_for_instances_as_often_as_they_may(policy: str) -> None:
    jobs = [job(f"j{place}", submitted=place, roles=[{"mig": mig}], work_s=100) for place, mig in enumerate(("1g.10gb", "7g.80gb"))]
    result = played(scene([node("n0", 1)], [quota("q")], jobs, settings={"repartition_per_hour": 1}), policy)

    assert [row["started"] for row in result["per_job"]] == [0, 3600]
