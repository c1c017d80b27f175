"""A trial says what the plan would say if the job were submitted, and leaves nothing behind."""

import random
from dataclasses import replace

import pytest

from scheduler.engine.cycle import make_plan
from scheduler.engine.model.plan import Decision
from scheduler.engine.model.values import QUEUED, Job, Scenario
from scheduler.engine.state.state import Kept
from scheduler.engine.trial import NAME, Ground, Trial, starts_at_once, unlike
from scheduler.scenarios.reading import parse
from scheduler.simulation.applying import changed
from tests.scheduler.twin.focused import split_random
from tests.scheduler.twin.strategies import scenario_random

from .scenes import H100, at, job, node, quota, running, scene


def wish(scenario: Scenario, like: Job) -> Job:
    return replace(like, name=unlike(scenario.jobs), submitted=scenario.now, run=QUEUED, not_before=None)


def compared(scenario: Scenario, tried: Job, found: Trial) -> tuple[int | None, int | None]:
    """Both dates, after everything else was found to be the same."""
    forecast = replace(scenario.settings, forecast="all")
    plan = make_plan(replace(scenario, settings=forecast, jobs=(*scenario.jobs, tried)))
    start = next((one for one in plan.decisions if one.job == tried.name and one.action == "start"), None)
    if start is not None:
        assert found.stands == start.workers
        assert found.after == start.after
        assert not found.reasons
        return found.at, found.at
    waiting = next(one for one in plan.waiting if one.job == tried.name)
    told = tuple(one for one in waiting.reasons if one.code != "deadline")
    assert found.reasons == told
    assert not found.stands
    predicted = waiting.predicted_start
    return None if found.at is None else scenario.now + found.at, predicted


@pytest.mark.parametrize("first", [*range(0, 120, 40), *(pytest.param(first, marks=pytest.mark.soak) for first in range(120, 240, 40))])
def test_a_trial_is_what_the_plan_would_say(first: int) -> None:
    """The date may differ where the job's request changes the shares, and so the order, of others: that is seldom."""
    dates = alike = 0
    for seed in range(first, first + 40):
        scenario = parse(scenario_random(seed))
        if not scenario.jobs or any(one.not_before for one in scenario.jobs):
            continue
        chance = random.Random(seed)
        ground = Ground(scenario)
        before = make_plan(scenario)
        for like in chance.sample(scenario.jobs, min(3, len(scenario.jobs))):
            tried = wish(scenario, like)
            one, other = compared(scenario, tried, ground.trial(tried))
            dates += 1
            alike += one == other
        assert make_plan(scenario) == before
    assert alike >= 0.9 * dates, f"{alike} of {dates}"


def test_who_starts_at_once_can_stand_before_anybody_is_tried() -> None:
    """Then a plan has nothing left to start without somebody leaving, and what is tried finds the fleet as it will be."""
    begun = left = 0
    for seed in range(120):
        scenario = parse(scenario_random(seed))
        kept = Kept()
        starts = {one.job: one for one in starts_at_once(scenario, kept)}
        jobs = tuple(changed(one, starts[one.name], scenario.now) if one.name in starts else one for one in scenario.jobs)
        ground = Ground(replace(scenario, jobs=jobs), kept)
        begun += len(starts)
        left += len(starts_at_once(ground.scenario, Kept()))
        for like in random.Random(seed).sample(scenario.jobs, min(2, len(scenario.jobs))):
            tried = wish(ground.scenario, like)
            assert ground.trial(tried) == Ground(replace(scenario, jobs=jobs)).trial(tried), seed
    assert begun > 50
    assert left < begun / 10


def test_who_starts_where_a_gpu_is_split_anew_does_not_stand_before_that() -> None:
    """Whoever it is split for: another job may share it, or have taken the place of the one that asked."""
    split = begun = 0
    for seed in range(400):
        scenario = parse(split_random(seed))
        kept = Kept()
        starts = {one.job: one for one in starts_at_once(scenario, kept)}
        decisions = make_plan(scenario).decisions
        anew = {(one.node, one.gpu): one.for_job for one in decisions if one.action == "repartition"}
        assert not anew.keys() & {gpu for one in starts.values() for gpu in gpus_of(one)}, seed
        there = {(one.job, gpu) for one in decisions for gpu in gpus_of(one)}
        assert all((name, gpu) in there for gpu, name in anew.items() if any(gpu == other for _, other in there)), seed
        jobs = tuple(changed(one, starts[one.name], scenario.now) if one.name in starts else one for one in scenario.jobs)
        Ground(replace(scenario, jobs=jobs), kept)
        split += bool(anew)
        begun += len(starts)
    assert split >= 40
    assert begun >= 40


def gpus_of(decision: Decision) -> set[tuple[str, int]]:
    """Where it places a job."""
    return {(seat.node, gpu) for seat in decision.workers for gpu in range(8) if seat.gpus >> gpu & 1}


def test_trials_do_not_see_each_other() -> None:
    scenario = parse(scene([node("n1"), node("n2")], [quota("q", 16)], [running("r", [at("n1", *range(8))], "q", limit_s=3600, started=-600)]))
    ground = Ground(scenario)
    large = parse(scene([node("n1")], [quota("q")], [job("a", "q", gpus=8, workers=2, limit_s=600)])).jobs[0]
    small = parse(scene([node("n1")], [quota("q")], [job("a", "q", gpus=8, limit_s=600)])).jobs[0]
    seen = [(ground.trial(replace(one, name=NAME)).at, one is small) for one in (large, small, large, small)]

    assert seen == [(3_000_000, False), (0, True), (3_000_000, False), (0, True)]


def test_it_says_under_which_quota_and_who_could_take_it_back() -> None:
    quotas = [quota("org", 16), quota("org/a", 8, parent="org"), quota("org/b", 8, parent="org")]
    scenario = parse(scene([node("n1"), node("n2")], quotas, [running("r", [at("n1", *range(8))], "org/a", started=-600)]))
    found = Ground(scenario).trial(parse(scene([node("n1")], quotas, [job("this", "org/a", gpus=8)])).jobs[0])

    assert found.at == 0
    assert not found.guaranteed
    assert found.claimants == ("org/b",)
    assert [(level.quota, level.used, level.guaranteed) for level in found.levels] == [("org/a", 8000, 8000), ("org", 8000, 16_000)]


def test_what_can_never_run_says_so() -> None:
    scenario = parse(scene([node("n1")], [quota("q", 8, limit=4)], []))
    never = parse(scene([node("n1")], [quota("q")], [job("a", "q", gpus=8, workers=3)])).jobs[0]
    limited = parse(scene([node("n1")], [quota("q")], [job("a", "q", gpus=8)])).jobs[0]
    ground = Ground(scenario)

    assert (ground.trial(never).never, [one.code for one in ground.trial(never).reasons]) == (True, ["empty_fleet"])
    assert (ground.trial(limited).never, [one.code for one in ground.trial(limited).reasons]) == (True, ["limit"])
    assert ground.trial(limited).quota_type == H100


def test_whom_it_would_put_out_is_told() -> None:
    quotas = [quota("org", 8), quota("org/a", 0, parent="org"), quota("org/b", 8, parent="org")]
    scenario = parse(scene([node("n1")], quotas, [running("r", [at("n1", *range(8))], "org/a", started=-6000)]))
    found = Ground(scenario).trial(parse(scene([node("n1")], quotas, [job("this", "org/b", gpus=8)])).jobs[0])

    assert [(one.action, one.job) for one in found.others] == [("evict", "r")]
    assert found.after == ("r",)
    assert found.at == found.others[0].grace_ms
    assert found.guaranteed


def test_going_along_a_known_line_finds_the_dates_that_going_through_the_queues_does() -> None:
    dated = skipped = 0
    for seed in range(120):
        scenario = parse(scenario_random(seed))
        chance = random.Random(seed)
        ground = Ground(scenario)
        walks = ground._line.walks
        for like in chance.sample(scenario.jobs, min(4, len(scenario.jobs))):
            tried = wish(scenario, like)
            ground._line.walks = walks
            found = ground.trial(tried)
            ground._line.walks = {}
            assert found == ground.trial(tried), seed
            dated += found.at not in (None, 0)
        skipped += sum(len(walk.turns) > 1 for walk in walks.values())
    assert dated > 20
    assert skipped > 20


@pytest.mark.parametrize(("each", "most"), [(2, 100), (1, 2)], ids=["many copies", "few copies far apart"])
def test_a_date_is_the_same_from_whichever_copy_of_the_look_ahead_it_is_found(monkeypatch: pytest.MonkeyPatch, each: int, most: int) -> None:
    dated = copies = 0
    for seed in range(60):
        scenario = parse(scenario_random(seed))
        with monkeypatch.context() as patch:
            patch.setattr("scheduler.engine.trial.COPY_EVERY", 1000)
            one = Ground(scenario)
            patch.setattr("scheduler.engine.trial.COPY_EVERY", each)
            patch.setattr("scheduler.engine.trial.MOST_COPIES", most)
            other = Ground(scenario)
            for like in random.Random(seed).sample(scenario.jobs, min(4, len(scenario.jobs))):
                tried = wish(scenario, like)
                found = one.trial(tried)
                assert found == other.trial(tried), seed
                dated += found.at not in (None, 0)
            copies = max(copies, len(other._line.copies))
    assert dated > 20
    assert 2 < copies <= most + 1


def test_a_job_in_place_of_one_that_is_equal_to_it_is_found_among_many() -> None:
    """Long lists of jobs are compared by what they say: the state may go on with the one that it knows."""
    many = [job(f"job-{number:03d}", gpus=8) for number in range(300)]
    scenario = parse(scene([node("n1")], [quota("q", 8)], many))
    ground = Ground(scenario)
    waits = scenario.jobs[200]

    assert ground.trial(replace(waits), instead_of=waits.name) == ground.trial(waits, instead_of=waits.name)
