"""The factor on estimates: learned from jobs that have ended, kept, and what plans make of it."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.core.times import millis, now
from quotas.models import QuotaNode
from scheduler.engine.cycle import make_plan
from scheduler.loop.overrun import LEAST, LEAST_JOBS, MILLION, MOST, MOST_OF_ONE, Learned, Ran, learned
from scheduler.loop.policy import policy
from scheduler.models import Attempt, Checkpoint, Job, JobState, LearnedOverrun, PlanRecord
from scheduler.scenarios.reading import load
from scheduler.selectors.nodes import node_guests
from scheduler.services.forecasts.sides import begun
from scheduler.services.loop.overrun import overrun_turn
from scheduler.services.loop.plans import plan_export, plan_replay
from scheduler.snapshots import Snapshot, Snapshots
from scheduler.snapshots.spelling import Speller
from scheduler.tasks import overrun_learn
from scheduler.whatifs.wanted import Wanted
from tests import builders
from tests.builders import NOON
from tests.personas import Personas
from tests.scheduler.loop.worlds import Loop, leaf, state, submit

HOUR = timedelta(hours=1)
ratios = st.floats(0, 100)


def runs(*parts: float, whose: int | None = None) -> list[Ran]:
    """Each of somebody else, unless it is said whose they are."""
    owners = range(len(parts)) if whose is None else [whose] * len(parts)
    return [Ran((1, owner), 1000, round(1000 * part), NOON - owner * HOUR) for owner, part in zip(owners, parts, strict=True)]


# Learning


def test_a_few_that_are_wrong_by_far_move_nothing() -> None:
    found = learned(runs(*[1.2] * 40, *[500.0] * 15, *[0.0] * 15))

    assert found == Learned(1_200_000, 1_200_000, 70, NOON - 69 * HOUR)


@pytest.mark.parametrize(("jobs", "factor"), [(0, MILLION), (LEAST_JOBS - 1, MILLION), (LEAST_JOBS, 1_500_000)])
def test_of_too_few_jobs_nothing_is_learned(jobs: int, factor: int) -> None:
    found = learned(runs(*[1.5] * jobs))

    assert (found.factor, found.jobs) == (factor, jobs)
    assert found.median == (1_500_000 if jobs else None)


@pytest.mark.parametrize(("part", "factor"), [(0.001, LEAST), (0.5, LEAST), (0.834, 830_000), (2.99, 2_990_000), (40.0, MOST)])
def test_it_stays_within_bounds_in_steps_of_a_hundredth(part: float, factor: int) -> None:
    assert learned(runs(*[part] * LEAST_JOBS)).factor == factor


def test_one_sweep_does_not_stand_for_the_fleet() -> None:
    others = runs(*[1.4] * (MOST_OF_ONE + 1))

    found = learned([*runs(*[0.6] * 5000, whose=-1), *others])
    assert (found.factor, found.jobs) == (1_400_000, 2 * MOST_OF_ONE + 1)


@given(st.lists(ratios, max_size=80), st.lists(ratios, max_size=20))
def test_the_factor_is_bounded_and_no_minority_takes_it_beyond_the_others(most: list[float], few: list[float]) -> None:
    found = learned(runs(*most, *few))

    assert LEAST <= found.factor <= MOST
    if len(most) > len(few) and found.jobs >= LEAST_JOBS:
        low, high = (MILLION * bound for bound in (min(most), max(most)))
        assert min(MOST, low) - MILLION / 100 <= found.factor <= max(LEAST, high) + MILLION / 100


def ended(took: float, *, estimate: int | None = 3600, outcome: str = "completed", ago: timedelta = HOUR, **fields: Any) -> Job:
    """A job that ended so long ago, after a part of an hour."""
    number = fields.pop("number", 1)
    final = {"completed": JobState.COMPLETED, "failed": JobState.FAILED}.get(outcome, JobState.CANCELLED)
    made = builders.job("x", state=final, estimate_seconds=estimate, ended_at=NOON - ago, **fields)
    since = NOON - ago - took * HOUR
    Attempt.objects.create(job=made, number=number, started_at=since - HOUR / 60, running_at=since, ended_at=NOON - ago, outcome=outcome)
    return made


def learn(at: datetime = NOON) -> LearnedOverrun:
    assert overrun_turn(now=at)
    return LearnedOverrun.objects.get()


@pytest.mark.django_db
def test_only_jobs_that_completed_by_themselves_with_an_estimate_and_no_limit_count() -> None:
    for number in range(LEAST_JOBS):
        ended(2, ago=HOUR * (number + 1))
    for _ in range(LEAST_JOBS):
        ended(0.01, outcome="cancelled")
        ended(0.01, outcome="failed")
        ended(0.01, outcome="lost")
        ended(0.01, estimate=None)
        ended(0.9, limit_seconds=3600)
        ended(0.01, number=2)
        ended(0.01, ago=timedelta(days=28, hours=1))
        ended(0.01, ago=-HOUR)
    # By a clock that went back it took less than nothing.
    Attempt.objects.filter(job=ended(0.01)).update(running_at=NOON)

    found = learn()
    assert (found.factor_millionths, found.median_millionths, found.jobs) == (2_000_000, 2_000_000, LEAST_JOBS)
    assert found.since == NOON - LEAST_JOBS * HOUR


@pytest.mark.django_db
def test_a_run_that_went_on_from_a_checkpoint_or_still_goes_on_says_nothing() -> None:
    other = ended(0.01, estimate=None)
    saved = Checkpoint.objects.create(job=other, attempt=other.attempts.get(), step=1, reported_at=NOON)
    Attempt.objects.filter(job=ended(0.01)).update(resumed_from=saved)
    builders.attempt(builders.job("runs", state=JobState.RUNNING, estimate_seconds=60), running_at=NOON - HOUR)

    assert learn().jobs == 0


@pytest.mark.django_db
def test_it_is_learned_once_an_hour_and_anew_where_the_clock_went_back() -> None:
    assert learn().factor_millionths == MILLION
    for _ in range(LEAST_JOBS):
        ended(0.7)
    assert not overrun_turn(now=NOON + timedelta(minutes=59))
    assert LearnedOverrun.objects.get().jobs == 0
    assert learn(NOON + HOUR).factor_millionths == 700_000
    assert learn(NOON).learnt_at == NOON
    assert overrun_learn() and LearnedOverrun.objects.get().factor_millionths in (700_000, MILLION)


# What plans make of it


def take(snapshots: Snapshots | None = None) -> Snapshot:
    chosen = policy()
    return (snapshots or Snapshots()).take(settings=chosen.engine, now=NOON, start_timeout=chosen.start_timeout)


@pytest.mark.django_db
def test_a_snapshot_its_export_and_a_replay_of_the_past_state_it_and_a_rule_leaves_it_out() -> None:
    builders.node(gpus=8)
    top, snapshots = builders.quota(), Snapshots()
    assert take(snapshots).scenario.settings.overrun_millionths == MILLION

    LearnedOverrun.objects.create(learnt_at=NOON, factor_millionths=830_000, jobs=LEAST_JOBS)
    found = take(snapshots)
    assert found.scenario.settings.overrun_millionths == 830_000
    assert load(Speller().spell(found.scenario)).settings.overrun_millionths == 830_000
    assert b'"overrun":0.83' in Speller().spell(found.scenario).replace(b" ", b"")
    assert [replayed(found, factor) for factor in (None, 1.5)] == [830_000, 1_500_000]

    QuotaNode.objects.filter(pk=top.pk).update(policy={"estimates": "stated"})
    stated = take(snapshots)
    assert (stated.scenario.settings.overrun_millionths, stated.unruled.overrun_millionths) == (MILLION, 830_000)
    assert replayed(stated) == MILLION and replayed(stated, tree=found) == 830_000, "as the drafted tree has the rule"


def replayed(snapshot: Snapshot, factor: float | None = None, tree: Snapshot | None = None) -> int:
    wanted = Wanted(policy={} if factor is None else {"overrun": factor})
    scenario, *_ = begun(snapshot, (tree or snapshot).tree.rows, frozenset(), NOON - HOUR, NOON, wanted)
    return scenario.settings.overrun_millionths


LIMITED = {"limit_seconds": 6000}  # 100 minutes


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("minutes", "factor", "limit", "starts"),
    [
        (90, None, {}, True),
        (90, 1.5, {}, False),
        (90, 1.5, LIMITED, True),
        (180, None, {}, False),
        (180, 0.6, {}, True),
        (180, 0.6, {"limit_seconds": 10_800}, False),
    ],
)
def test_a_gap_before_a_reservation_is_used_by_the_learned_factor(minutes: int, factor: float | None, limit: dict[str, int], starts: bool) -> None:
    """Half of a node is free for two hours, until a wide job may have all of it."""
    builders.node(gpus=8)
    team, loop = leaf("team", 8), Loop()
    runs_on = submit(team, gpus=4, limit_seconds=7200)
    loop.tick()
    loop.up(runs_on)
    if factor is not None:
        LearnedOverrun.objects.create(learnt_at=NOON, factor_millionths=round(factor * MILLION), jobs=LEAST_JOBS)
    loop.after(seconds=2)
    wide = submit(team, gpus=8, estimate_seconds=3600, at=NOON + timedelta(seconds=1))
    # It would need longer to stop than others wait for a gap.
    small = submit(team, gpus=4, estimate_seconds=60 * minutes, spec={"grace_s": 600}, at=loop.now, **limit)
    loop.tick()

    assert (state(small) == JobState.STARTING, state(wide)) == (starts, JobState.QUEUED)
    record = PlanRecord.objects.latest("pk")  # one that changed nothing is not kept
    if starts:
        assert load(plan_export(record=record)).settings.overrun_millionths == round(MILLION * (factor or 1))
        assert plan_replay(record=record)["identical"]


@pytest.mark.django_db
def test_a_start_behind_an_estimate_is_foreseen_by_the_factor_and_no_job_ends_by_it() -> None:
    builders.node(gpus=8)
    team, loop = leaf("team", 8), Loop()
    runs_on = submit(team, gpus=8, estimate_seconds=3600)
    loop.tick()
    loop.up(runs_on)
    submit(team, gpus=8, estimate_seconds=3600)

    def foreseen() -> list[int | None]:
        scenario = take().scenario
        return [one.predicted_start for one in make_plan(replace(scenario, settings=replace(scenario.settings, forecast="all"))).waiting]

    assert foreseen() == [millis(NOON + HOUR)]
    LearnedOverrun.objects.create(learnt_at=NOON, factor_millionths=2 * MILLION, jobs=LEAST_JOBS)
    assert foreseen() == [millis(NOON + 2 * HOUR)]
    loop.after(hours=3).tick(force=True)
    assert state(runs_on) == JobState.RUNNING, "an estimate, however it is corrected, ends nobody"


@pytest.mark.django_db
@pytest.mark.parametrize(("limit", "hours"), [(None, 3), (7200, 2)])
def test_pages_expect_a_run_to_end_when_plans_do(personas: Personas, limit: int | None, hours: int) -> None:
    """Whether it meets its deadline, and whether it is gone before a drain."""
    moment = now()
    machine = builders.node("n1", gpus=1)
    times: dict[str, Any] = {"estimate_seconds": 7200, "limit_seconds": limit, "deadline": moment + 2.5 * HOUR}
    runs_on = builders.job(on=personas.nodes["acme/research/nlp"], state=JobState.RUNNING, submitted_at=moment, **times)
    builders.attempt(runs_on, started_at=moment, running_at=moment)
    builders.placement(runs_on, machine.gpus.get(), since=moment)
    LearnedOverrun.objects.create(learnt_at=moment, factor_millionths=1_500_000, jobs=LEAST_JOBS)

    (guest,) = node_guests(personas.access("operator"), machine, now=moment)
    assert guest.ends_at == moment + hours * HOUR
    page = personas.client("operator").get(f"/jobs/{runs_on.public_id}/").content.decode()
    assert ("will be missed" if hours == 3 else "will be met") in page
