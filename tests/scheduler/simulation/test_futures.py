"""Queues that are played forward: what a future knows, and what comes of many."""

from dataclasses import replace
from random import Random
from statistics import mean, median, pstdev
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.engine.model.values import Checkpoint, Placed, Scenario
from scheduler.scenarios.reading import parse
from scheduler.simulation import future
from scheduler.simulation.futures import A_PLAN, FEWEST, FUTURES, SET_UP, UNKNOWN, Past, Stage, past_of, quantile, run_times, waits_foreseen
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
    return {"name": name, "quota": quota, "submitted": at - 10_000, "roles": [role], "estimate_s": round(3600 * hours), "work_s": round(3600 * hours)}


def alone(scenario: Scenario, past: Past = EXACT) -> dict[str, int]:
    """One future, of everyone."""
    return Stage(scenario, past).played(Random(1), {each.name for each in scenario.jobs}, 10_000)


def test_who_finds_room_starts_and_others_follow_in_order() -> None:
    waits = alone(fleet([job("first", 8, 1), job("second", 8, 2, at=1), job("third", 8, 1, at=2)]))

    assert waits == {"first": 0, "second": HOUR, "third": 3 * HOUR}


def test_a_small_job_slips_in_before_one_that_is_blocked_only_where_it_ends_in_time() -> None:
    jobs = [job("runs", 4, 2), job("large", 8, 1, at=1), job("short", 4, 1, at=2), job("long", 4, 3, at=3) | {"preemptible": False}]

    assert alone(fleet(jobs, quotas=[{"name": "a", "guaranteed": 16}])) == {"runs": 0, "large": 2 * HOUR, "short": 0, "long": 3 * HOUR}


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


def test_those_who_share_a_gpu_with_others_stand_in_nobodys_way() -> None:
    quotas = [{"name": "a", "guaranteed": 4}, {"name": "b", "guaranteed": 4}]
    part = {"quota": "a", "submitted": 1, "sharing": "mps", "limit_s": 7200, "roles": [{"name": "worker", "min": 1, "max": 1, "gpu_share": 0.5}]}
    scenario = fleet([job("one", 4, 5), job("borrows", 3, 5, at=1), {"name": "half", **part}, {"name": "rest", **part}], quotas=quotas)
    seated = [
        replace(each, run=replace(each.run, state="running", started=scenario.now - HOUR, workers=_on(scenario, gpus, share)))
        for each, gpus, share in zip(scenario.jobs, (0b1111, 0b1110000, 1 << 7, 1 << 7), (None, None, 500, 500), strict=True)
    ]
    coming = fleet([job("comes", 3, 1, quota="b", at=2)], quotas=quotas).jobs

    assert alone(replace(scenario, jobs=(*seated, *coming))) == {"comes": 0}


def _on(scenario: Scenario, gpus: int, share: int | None = None) -> Any:
    return (Placed(0, 0, scenario.nodes[0].name, gpus, share),)


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


def submissions(days: int, quota: str) -> tuple[Any, ...]:
    """One job an hour later in the day than now, on each of the last days, and one long before."""
    now = fleet([]).now
    one = fleet([job("again", 8, 5, quota=quota)], quotas=[{"name": name, "guaranteed": 4} for name in "ab"]).jobs[0]
    return tuple(replace(one, submitted=at) for at in (now - days * 24 * HOUR, *(now - day * 24 * HOUR + HOUR for day in range(days, 0, -1))))


@pytest.mark.parametrize("seed", range(5))
def test_what_is_submitted_at_that_time_comes_on_every_day_ahead(seed: int) -> None:
    """Also beyond as many days as are known."""
    scenario = fleet([], quotas=[{"name": name, "guaranteed": 4} for name in "ab"])
    past = Past(submitted={"a": submissions(3, "a")})
    found = [each.submitted - scenario.now for each, _ in Stage(scenario, past).coming(Random(seed))]

    assert [at for at in found if at % (24 * HOUR) == HOUR] == [day * 24 * HOUR + HOUR for day in range(14)]


def test_of_whom_little_is_known_may_do_what_another_team_did() -> None:
    """A team that submitted nothing on its one day; of seven days it is believed more."""
    quotas = [{"name": name, "guaranteed": 4} for name in "ab"]

    def part(days: int) -> float:
        scenario = fleet([], quotas=quotas)
        busy = submissions(days, "a")
        stage = Stage(scenario, Past(submitted={"a": busy, "b": busy[:1]}))
        teams = [each.quota for seed in range(20) for each, _ in stage.coming(Random(seed))]
        return sum(team != "a" for team in teams) / len(teams)

    assert 0.1 < part(1) < 0.6
    assert part(7) < part(1) / 2


def test_what_still_runs_counts_with_what_it_has_lasted() -> None:
    assert run_times([3.0, 1.0, 2.0], []) == (1.0, 2.0, 3.0)
    assert run_times([1.0] * 5 + [4.0], [2.0] * 4) == (1.0, 1.0, 1.0, 4.0, 4.0, 4.0), "half of them have outlasted the short ones"
    past = past_of([("a", 100, 50)] * 30 + [("a", 100, 300)], running=[("a", 100, 60)] * 30)
    assert sum(part > 1 for part in past.own["a"]) == 16
    assert sum(past.everyone) > sum(past_of([("a", 100, 50)] * 30 + [("a", 100, 300)]).everyone)


@given(st.lists(st.floats(0.01, 9), min_size=1, max_size=30), st.lists(st.floats(0.01, 9), max_size=30))
def test_what_still_runs_makes_run_times_longer_and_never_shorter(ended: list[float], gone: list[float]) -> None:
    found = run_times(ended, gone)

    assert len(found) == len(ended)
    assert set(found) <= set(ended)
    assert all(one >= other for one, other in zip(found, sorted(ended), strict=True))


def test_run_times_are_those_of_the_team_as_far_as_it_has_any() -> None:
    past = past_of([("a", 100, 50)] * 200 + [("b", 100, 300)] * 3)

    assert past.own == {"a": (0.5,) * 200, "b": (3.0,) * 3}
    assert len(past.everyone) == 203 + len(UNKNOWN)
    waits = waits_foreseen(Stage(fleet([job("first", 8, 10), job("second", 8, 1, at=1)]), past), {"second"}, seed=3)["second"]
    assert waits.middle == 5 * HOUR


jobs_drawn = st.lists(st.tuples(st.sampled_from([1, 2, 4, 8]), st.integers(1, 8), st.sampled_from("ab"), st.integers(1, 2)), min_size=1, max_size=12)


def test_the_middle_of_few_futures_is_hardly_by_chance() -> None:
    """Each job takes each sixteenth of its run times once, so that the middle of sixteen is about that of very many."""
    scenario = fleet([job(f"j{number:02d}", 8, 1, at=number) for number in range(12)])
    stage = Stage(scenario)

    def drawn(seed: int) -> float:
        return median(stage.played(Random(100 * seed + number), {"j11"}, 100)["j11"] for number in range(FUTURES))

    middles = [waits_foreseen(stage, {"j11"}, seed=seed)["j11"] for seed in range(15)]
    assert pstdev(waits.middle for waits in middles) < 0.5 * pstdev(drawn(seed) for seed in range(15))
    law = pstdev(UNKNOWN) * HOUR * 11**0.5
    assert 0.7 < mean(waits.high - waits.low for waits in middles) / (2.56 * law) < 1.3, "and they spread as far as drawn ones"


@settings(max_examples=15, deadline=None)
@given(jobs_drawn, st.integers(0, 1000))
def test_quantiles_are_in_order_and_the_same_seed_says_the_same(drawn: list[tuple[int, int, str, int]], seed: int) -> None:
    quotas = [{"name": "a", "guaranteed": 8, "limit": 16}, {"name": "b", "guaranteed": 8}]
    jobs = [job(f"j{n}", gpus, hours, quota=quota, workers=workers, at=n) for n, (gpus, hours, quota, workers) in enumerate(drawn)]
    scenario = fleet(jobs, nodes=2, quotas=quotas)
    names = {each.name for each in scenario.jobs}
    stage = Stage(scenario)

    found = waits_foreseen(stage, names, seed=seed, futures=6)

    assert found == waits_foreseen(Stage(scenario), names, seed=seed, futures=6) == waits_foreseen(stage, names, seed=seed, futures=6)
    assert set(found) == names
    assert all(0 <= waits.low <= waits.middle <= waits.high for waits in found.values())


def played_by_the_engine(scenario: Scenario) -> dict[str, int]:
    """When those who wait start first, in the world that replays have."""
    world = World(scenario)
    world.run()
    return {each.name: (world.lives[each.name].first_start or 0) - scenario.now for each in scenario.jobs if not each.run.workers}


def crowded(seed: int) -> Scenario:
    """Three teams on three nodes, of which two have borrowed what the third now wants back."""
    draw = Random(seed)
    shapes = [
        job(f"j{n:02d}", draw.choice([1, 1, 2, 2, 4, 8]), draw.choice([0.5, 1, 2, 3, 5]), quota=draw.choice("abc" if n > 8 else "aab"), at=n - 1000)
        for n in range(24)
    ]
    scenario = fleet(shapes, nodes=3, quotas=[{"name": name, "guaranteed": 8} for name in "abc"])
    held = dict.fromkeys(("n0", "n1", "n2"), 0)
    jobs = []
    for number, each in enumerate(scenario.jobs):
        gpus = each.kind.roles[0].gpus
        node = next((node for node, count in held.items() if count + gpus <= 8), None) if number < 9 else None
        if node is not None:
            place = Placed(0, 0, node, ((1 << gpus) - 1) << held[node])
            held[node] += gpus
            ran = draw.randrange(600, 1700) * 1000
            run = replace(each.run, state="running", started=scenario.now - ran, workers=(place,))
            each = replace(each, run=run, checkpoint=Checkpoint(60_000, None, 0, 0))  # a future takes who is put out as saved
        jobs.append(each)
    return replace(scenario, jobs=tuple(jobs))


@pytest.mark.parametrize("seed", range(20))
def test_with_a_fine_clock_a_future_is_what_the_engine_does(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Where run times are known and nobody comes, nothing is left to chance: teams take back what is theirs, wait and follow."""
    monkeypatch.setattr(future, "FINEST", 0)
    monkeypatch.setattr(future, "COARSE", 1 << 60)
    scenario = crowded(seed)

    assert alone(scenario) == played_by_the_engine(scenario)


def test_with_the_clock_that_futures_have_most_starts_are_the_engine_s_nearly() -> None:
    near = count = 0
    for seed in range(20):
        scenario = crowded(seed)
        found = alone(scenario)
        for name, wait in played_by_the_engine(scenario).items():
            count += 1
            near += abs(found[name] - wait) <= max(60_000, wait / 5)

    assert count > 300
    assert near > 0.85 * count


def test_who_wants_a_whole_node_has_one_cleared() -> None:
    """What is borrowed stands here and there; taking it node by node makes no room before the borrower is back at his guarantee."""
    quotas = [{"name": "a", "guaranteed": 16}, {"name": "b", "guaranteed": 16}]
    shapes = [job("gang", 8, 5, workers=2), job("a2", 4, 5), job("a3", 4, 5), job("b2", 4, 5, quota="b"), job("b3", 4, 5, quota="b")]
    scenario = fleet([*shapes, job("comes", 8, 1, quota="b", at=1)], nodes=4, quotas=quotas)
    seats = {"gang": [("n0", 255), ("n1", 255)], "a2": [("n2", 15)], "a3": [("n3", 15)], "b2": [("n2", 240)], "b3": [("n3", 240)]}
    jobs = tuple(
        replace(
            each,
            run=replace(
                each.run,
                state="running" if each.name in seats else "queued",
                started=scenario.now - HOUR if each.name in seats else None,
                workers=tuple(Placed(0, place, node, gpus) for place, (node, gpus) in enumerate(seats.get(each.name, []))),
            ),
        )
        for each in scenario.jobs
    )

    assert alone(replace(scenario, jobs=jobs))["comes"] == 0
    without = replace(scenario, jobs=jobs, settings=replace(scenario.settings, passes=("allocate", "backfill")))
    assert alone(without)["comes"] == 4 * HOUR


def test_who_has_outlived_his_estimate_is_expected_to_go_on() -> None:
    """Nothing is kept free on his node from the next moment on, so a job that fits before he is expected to have left starts."""
    scenario = fleet([job("late", 4, 1), job("large", 8, 1, at=1), job("short", 4, 0.25, at=2), job("long", 4, 1, at=3)])
    late, *others = scenario.jobs
    run = replace(late.run, state="running", started=scenario.now - 3 * HOUR // 2, workers=_on(scenario, 15))
    kept = replace(scenario, jobs=(replace(late, run=run), *others), quotas=fleet([], quotas=[{"name": "a", "guaranteed": 16}]).quotas)

    waits = alone(kept, Past(everyone=(2.0,) * 8))
    assert waits["short"] == 0
    assert waits["large"] == HOUR // 2
    assert waits["long"] > waits["large"]


def test_where_too_many_jobs_are_there_nothing_is_played() -> None:
    scenario = fleet([job(f"j{number:02d}", 8, 1, at=number) for number in range(40)])
    stage = Stage(scenario)

    assert "j39" in waits_foreseen(stage, {"j39"}, seed=1, most_looks=FUTURES * (40 + A_PLAN) * (SET_UP + 1))
    assert waits_foreseen(stage, {"j39"}, seed=1, most_looks=FUTURES * (40 + A_PLAN) * (SET_UP + 1) - 1) == {}
    assert waits_foreseen(stage, set(), seed=1) == {}


@pytest.mark.parametrize("played", [0, FEWEST - 1, FEWEST, FUTURES])
def test_whoever_has_no_more_time_is_told_by_the_futures_so_far(played: int) -> None:
    scenario = fleet([job(f"j{number:02d}", 8, 1, at=number) for number in range(12)])
    left = iter(range(played))

    found = waits_foreseen(Stage(scenario), {"j11"}, seed=1, goes_on=lambda: next(left, None) is not None)

    assert set(found) == ({"j11"} if played >= FEWEST else set())
    whole = waits_foreseen(Stage(scenario), {"j11"}, seed=1)["j11"]
    for waits in found.values():
        assert abs(waits.middle - whole.middle) < 0.25 * whole.middle
        assert (waits == whole) is (played == FUTURES)


def test_a_future_in_which_the_engine_breaks_a_rule_is_given_up_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    scenario = fleet([job("one", 4, 5), job("two", 4, 5, at=1), job("waits", 8, 1, at=2)])
    *twice, waits = scenario.jobs
    seated = [replace(each, run=replace(each.run, state="running", started=scenario.now, workers=_on(scenario, 15))) for each in twice]

    assert waits_foreseen(Stage(replace(scenario, jobs=(*seated, waits))), {"waits"}, seed=1, futures=2) == {}
    assert [record.exc_info is not None for record in caplog.records] == [True, True]


def test_time_goes_on_and_who_comes_within_a_minute_is_planned_for_at_once() -> None:
    moments: list[int] = []

    class Watched(future.Future):
        def _plan(self) -> None:
            moments.append(self.now - self.begin)
            super()._plan()

    scenario = fleet([job("runs", 8, 5), job("waits", 8, 1, at=1)])
    (again,) = fleet([job("again", 8, 1)]).jobs
    seconds = [5, 20, 21, 22, 58, 600, 601, 7000]
    coming = [(replace(again, submitted=scenario.now + 1000 * at), HOUR) for at in seconds]
    found = Watched(scenario, {"runs": 5 * HOUR, "waits": HOUR}, iter(coming), {"waits"}, 100).waits()

    assert moments == sorted(moments)
    assert len(moments) <= 6
    assert found["waits"] == 5 * HOUR


@pytest.mark.parametrize("nodes", [1, 2, 5])
@pytest.mark.parametrize("most_plans", [1, 3, 10])
@pytest.mark.parametrize("overrun", [1.0, 2.5])
def test_who_is_beyond_the_plans_waits_for_those_before_him(most_plans: int, nodes: int, overrun: float) -> None:
    """The engine tells his start of run times that are known, as if it had been played to the end: they are no estimates that a factor corrects."""
    scenario = fleet([job(f"j{number:02d}", 8, 1, at=number) for number in range(40 * nodes)], nodes=nodes, overrun=overrun)
    asked = {each.name for each in scenario.jobs}
    stage = Stage(scenario, EXACT)
    whole, begun = (stage.played(Random(1), asked, events) for events in (10_000, most_plans))

    assert begun == whole


def test_a_queue_that_nobody_serves_is_told_nothing() -> None:
    """Its limit lets nobody start, however few plans are made."""
    quotas = [{"name": "a", "guaranteed": 0, "limit": 0}, {"name": "b", "guaranteed": 8}]
    scenario = fleet([job("never", 8, 1), *(job(f"b{number}", 8, 1, quota="b", at=number) for number in range(9))], quotas=quotas)

    assert alone(scenario, EXACT).keys() == {f"b{number}" for number in range(9)}
    assert Stage(scenario, EXACT).played(Random(1), {"never", "b8"}, 2).keys() == {"b8"}


@pytest.mark.parametrize("most_plans", [2, 4])
def test_who_is_beyond_the_plans_starts_no_sooner_than_limits_above_him_allow(most_plans: int) -> None:
    """Nobody is ahead of the gang in its queue, but a job of a sibling holds what their limit leaves it no room beside, inside its guarantee."""
    quotas = [
        {"name": "t", "guaranteed": 16, "limit": 24},
        *({"name": f"t/{name}", "parent": "t", "guaranteed": 8} for name in "ab"),
        {"name": "c", "guaranteed": 16},
    ]
    others = [job(f"c{number:02d}", 8, 0.5, quota="c", at=number) for number in range(20)]
    works = [job("holds", 8, 10, quota="t/a"), job("small", 1, 0.25, quota="t/b"), job("gang", 8, 1, quota="t/b", workers=3, at=1), *others]
    stage = Stage(fleet(works, quotas=quotas, nodes=6), EXACT)
    whole, begun = (stage.played(Random(1), {"gang"}, events)["gang"] for events in (10_000, most_plans))

    assert whole == 10 * HOUR
    assert begun == whole


def test_whose_own_size_is_beyond_the_limit_is_told_nothing_and_nobody_waits_for_him() -> None:
    quotas = [{"name": "a", "guaranteed": 0, "limit": 8}]
    works = [job(f"j{number}", 8, 1, at=number) for number in range(9)]
    asked = {"never", *(each["name"] for each in works)}
    with_him, without = (Stage(fleet(jobs, quotas=quotas, nodes=2), EXACT) for jobs in ([job("never", 8, 30, workers=2), *works], works))

    told = with_him.played(Random(1), asked, 2)

    assert "never" not in told
    assert told == without.played(Random(1), asked, 2)
    assert told.keys() == asked - {"never"}


@pytest.mark.parametrize(("part", "value"), [(0, 1), (0.5, 3), (1, 9), (0.25, 2), (0.875, 7)])
def test_a_quantile_lies_between_two_values(part: float, value: int) -> None:
    assert quantile([1, 2, 3, 5, 9], part) == value
