"""Queues that are played forward: what a future knows, and what comes of many."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.engine.scenario import parse
from scheduler.engine.values import Placed, Scenario
from scheduler.simulation.futures import FUTURES, JOBS_AN_EVENT, UNKNOWN, Past, Stage, past_of, quantile, waits_foreseen
from scheduler.simulation.world import World

HOUR = 3_600_000
NOON = "2026-11-02T12:00:00Z"
EXACT = Past(everyone=(1.0,) * 8)


def fleet(jobs: list[dict[str, Any]], *, nodes: int = 1, quotas: list[dict[str, Any]] | None = None, **settings_: Any) -> Scenario:
    return parse(
        {
            "format": "gpufleet-scenario/1",
            "now": NOON,
            "settings": {"preempt_min_runtime_s": 300, "reclaim_min_runtime_s": 300, **settings_},
            "topology": {"levels": ["leaf"]},
            "nodes": [{"name": f"n{number}", "gpu_type": "H100-SXM-80GB", "gpus": 8, "path": {"leaf": "l0"}} for number in range(nodes)],
            "quotas": quotas or [{"name": "a", "guaranteed": 8 * nodes}],
            "jobs": jobs,
        }
    )


def job(name: str, gpus: int, hours: float, *, quota: str = "a", workers: int = 1, at: int = 0) -> dict[str, Any]:
    role = {"name": "worker", "min": workers, "gpus": gpus}
    return {"name": name, "quota": quota, "submitted": at, "roles": [role], "estimate_s": round(3600 * hours), "work_s": round(3600 * hours)}


def alone(scenario: Scenario, past: Past = EXACT) -> dict[str, int]:
    """One future, of everyone."""
    return Stage(scenario, past).played(Random(1), {each.name for each in scenario.jobs}, 10_000)


def test_who_finds_room_starts_and_others_follow_in_order() -> None:
    waits = alone(fleet([job("first", 8, 1), job("second", 8, 2, at=1), job("third", 8, 1, at=2)]))

    assert waits == {"first": 0, "second": HOUR, "third": 3 * HOUR}


def test_a_small_job_slips_in_before_one_that_is_blocked_only_where_it_ends_in_time() -> None:
    jobs = [job("runs", 4, 2), job("large", 8, 1, at=1), job("short", 4, 1, at=2), job("long", 4, 3, at=3)]

    assert alone(fleet(jobs, quotas=[{"name": "a", "guaranteed": 16}])) == {"runs": 0, "large": 2 * HOUR, "short": 0, "long": 3 * HOUR}
    above = alone(fleet(jobs))
    assert above["long"] == HOUR, "what stays within its guarantee is not held back by what would be above it"


def test_a_limit_holds_a_team_back_and_not_others() -> None:
    quotas = [{"name": "a", "guaranteed": 4, "limit": 4}, {"name": "b", "guaranteed": 4}]
    waits = alone(fleet([job("one", 4, 1), job("two", 4, 1, at=1), job("other", 4, 1, quota="b", at=2)], quotas=quotas))

    assert waits == {"one": 0, "two": HOUR, "other": 0}


def test_who_is_within_his_share_takes_back_what_others_borrow() -> None:
    quotas = [{"name": "a", "guaranteed": 4}, {"name": "b", "guaranteed": 4}]
    scenario = fleet([job("one", 4, 5), job("borrows", 4, 5, at=1)], quotas=quotas)
    seated = [
        replace(each, run=replace(each.run, state="running", started=scenario.now - HOUR, workers=_on(scenario, 15 << 4 * place)))
        for place, each in enumerate(scenario.jobs)
    ]
    coming = fleet([job("comes", 4, 1, quota="b", at=2)], quotas=quotas).jobs

    assert alone(replace(scenario, jobs=(*seated, *coming))) == {"comes": 0}
    without = replace(scenario, jobs=(*seated, *coming), settings=replace(scenario.settings, passes=("allocate", "backfill")))
    assert alone(without) == {"comes": 4 * HOUR}


def _on(scenario: Scenario, gpus: int) -> Any:
    return (Placed(0, 0, scenario.nodes[0].name, gpus),)


def test_what_runs_has_lasted_so_long_already() -> None:
    """Of jobs that take half or the double of what they say, one that has run for longer than half will take the double."""
    past = Past(everyone=(0.5,) * 50 + (2.0,) * 50)
    scenario = fleet([job("runs", 8, 1), job("waits", 8, 1, at=1)])
    running, waiting = scenario.jobs

    def middle(ran: int) -> int:
        run = replace(running.run, state="running", started=scenario.now - ran, workers=_on(scenario, 255))
        stage = Stage(replace(scenario, jobs=(replace(running, run=run), waiting)), past)
        found = waits_foreseen(stage, {"waits"}, seed=1)["waits"]
        return found.low if ran < HOUR // 2 else found.middle

    assert middle(0) == HOUR // 2
    assert middle(40 * 60_000) == 2 * HOUR - 40 * 60_000


def test_a_team_submits_again_what_it_submitted_at_that_time_of_the_day() -> None:
    """What is of another team and within its guarantee comes first."""
    quotas = [{"name": "a", "guaranteed": 0}, {"name": "b", "guaranteed": 8}]
    scenario = fleet([job("mine", 8, 2), job("next", 8, 1, at=1)], quotas=quotas)
    theirs = fleet([job("theirs", 8, 5, quota="b")], quotas=quotas).jobs[0]
    days = [replace(theirs, submitted=scenario.now - day * 24 * HOUR + HOUR) for day in range(1, 5)]
    known = replace(theirs, submitted=scenario.now - 4 * 24 * HOUR)

    assert alone(scenario) == {"mine": 0, "next": 2 * HOUR}
    again = alone(scenario, Past((1.0,) * 8, {}, past_of([], [*days, known]).submitted))
    assert again["mine"] == 0
    assert again["next"] > 6 * HOUR


def test_run_times_are_those_of_the_team_as_far_as_it_has_any() -> None:
    past = past_of([("a", 100, 50)] * 200 + [("b", 100, 300)] * 3)

    assert past.own == {"a": (0.5,) * 200, "b": (3.0,) * 3}
    assert len(past.everyone) == 203 + len(UNKNOWN)
    waits = waits_foreseen(Stage(fleet([job("first", 8, 10), job("second", 8, 1, at=1)]), past), {"second"}, seed=3)["second"]
    assert waits.middle == 5 * HOUR


jobs_drawn = st.lists(st.tuples(st.sampled_from([1, 2, 4, 8]), st.integers(1, 8), st.sampled_from("ab"), st.integers(1, 2)), min_size=1, max_size=12)


@settings(max_examples=40, deadline=None)
@given(jobs_drawn, st.integers(0, 1000))
def test_quantiles_are_in_order_and_the_same_seed_says_the_same(drawn: list[tuple[int, int, str, int]], seed: int) -> None:
    quotas = [{"name": "a", "guaranteed": 8, "limit": 16}, {"name": "b", "guaranteed": 8}]
    jobs = [job(f"j{n}", gpus, hours, quota=quota, workers=workers, at=n) for n, (gpus, hours, quota, workers) in enumerate(drawn)]
    scenario = fleet(jobs, nodes=2, quotas=quotas)
    names = {each.name for each in scenario.jobs}
    stage = Stage(scenario)

    found = waits_foreseen(stage, names, seed=seed)

    assert found == waits_foreseen(Stage(scenario), names, seed=seed) == waits_foreseen(stage, names, seed=seed)
    assert set(found) == names
    assert all(0 <= waits.low <= waits.middle <= waits.high for waits in found.values())


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([1, 2, 4, 8]), st.integers(1, 8)), min_size=1, max_size=12))
def test_where_run_times_are_known_a_future_is_what_the_engine_does(drawn: list[tuple[int, int]]) -> None:
    """One team, no reservations: then nothing is left to chance."""
    scenario = fleet([job(f"j{n:02d}", gpus, hours) for n, (gpus, hours) in enumerate(drawn)], passes=["allocate"])
    world = World(scenario)
    world.run()

    starts = {name: (life.first_start or 0) - scenario.now for name, life in world.lives.items()}
    assert alone(scenario) == starts


def test_no_more_events_are_taken_than_may_be() -> None:
    scenario = fleet([job(f"j{number:02d}", 8, 1, at=number) for number in range(2 * JOBS_AN_EVENT)])
    stage = Stage(scenario)

    assert "j39" in waits_foreseen(stage, {"j39"}, seed=1)
    assert waits_foreseen(stage, {"j39", "j01"}, seed=1, most_events=FUTURES * 7).keys() == {"j01"}
    assert waits_foreseen(stage, {"j39"}, seed=1, most_events=FUTURES * 2) == {}
    assert waits_foreseen(stage, set(), seed=1) == {}


@pytest.mark.parametrize(("part", "value"), [(0, 1), (0.5, 3), (1, 9), (0.25, 2), (0.875, 7)])
def test_a_quantile_lies_between_two_values(part: float, value: int) -> None:
    assert quantile([1, 2, 3, 5, 9], part) == value
