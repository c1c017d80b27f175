"""What fairness goes by: past usage as ledger and timeline have it, once a step, and when a job came to its place by reclaim."""

import json
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from quotas.models import LedgerEntry, QuotaNode, QuotaShare
from quotas.services.nodes import node_move
from scheduler.engine.model.values import Fairness, Quota
from scheduler.loop.policy import policy
from scheduler.models import Attempt, CapacityEntry, JobState, Node, PlanRecord, Promise, UsageStep
from scheduler.scenarios.reading import load
from scheduler.scenarios.spelling import spelt
from scheduler.services.forecasts.sides import begun
from scheduler.services.jobs.jobs import Seat, job_create, job_release, job_start, job_transition
from scheduler.services.loop.past import past_usage_take
from scheduler.services.loop.plans import plan_replay
from scheduler.snapshots import Snapshots
from scheduler.whatifs.wanted import Wanted
from tests import builders
from tests.builders import NOON
from tests.scheduler.loop.worlds import H100, SOMEBODY, Loop, attempt_of, leaf, state, submit
from tests.scheduler.test_usage import root

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)
HALF_LIFE = timedelta(hours=2)


@pytest.fixture(autouse=True)
def fair(settings: Any) -> None:
    settings.SCHEDULER = {**settings.SCHEDULER, "USAGE_WEIGHT": 1.0, "USAGE_HALF_LIFE_S": 7200, "USAGE_STEP_S": 3600, "MIN_RUNTIME_S": 0}


def fairness() -> Fairness:
    return policy().engine.fairness


def used(team: QuotaNode, node: Node, gpus: int, since: datetime, until: datetime, first: int = 0) -> None:
    """So many GPUs of a node were a team's from one moment to another."""
    facts: dict[str, Any] = {"name": "past", "owner": None, "job_class": "batch", "spec": builders.spec_of(workers=gpus, gpus=1), "actor": SOMEBODY}
    job = job_create(quota=team, gpus_milli=1000 * gpus, now=since, **facts)
    seats = [Seat(node.pk, gpu.pk, worker) for worker, gpu in enumerate(node.gpus.order_by("index")[first : first + gpus])]
    job_start(job=job, seats=seats, now=since, cause="")
    job_transition(job=job, to=JobState.RUNNING, now=since + timedelta(seconds=7), cause="")
    job_release(job=job, to=JobState.COMPLETED, outcome="completed", now=until, cause="")


def quotas(now: datetime, snapshots: Snapshots | None = None) -> dict[str, Quota]:
    chosen = policy()
    taken = (snapshots or Snapshots()).take(settings=chosen.engine, now=now, start_timeout=chosen.start_timeout)
    assert load(json.dumps(spelt(taken.scenario))).quotas == taken.scenario.quotas
    return {quota.name: quota for quota in taken.scenario.quotas}


def slowly(rows: list[tuple[int, datetime, datetime | None]], until: datetime) -> float:
    """The integral by small steps."""
    step, total, first = timedelta(seconds=10), 0.0, min(since for _, since, _ in rows)
    moment = first
    while moment < until:
        middle = moment + step / 2
        held = sum(milli for milli, since, end in rows if since <= middle and (end is None or middle < end))
        total += held * (step / timedelta(milliseconds=1)) * 0.5 ** ((until - middle) / HALF_LIFE)
        moment += step
    return total


def busy_day() -> tuple[QuotaNode, QuotaNode]:
    """Five hours on eight GPUs: one team holds half of them at first, another two of them later, and one goes out of the fleet."""
    node = builders.node(gpus=8)
    early, late = leaf("early"), leaf("late")
    used(early, node, 4, NOON, NOON + 2.5 * HOUR)
    used(late, node, 2, NOON + 3 * HOUR, NOON + 5 * HOUR, first=4)
    return early, late


def test_past_usage_is_the_decayed_ledger_over_the_decayed_timeline() -> None:
    early, late = busy_day()
    begin = NOON + 4 * HOUR

    assert past_usage_take(now=begin + timedelta(minutes=20), fairness=fairness())

    step = UsageStep.objects.get()
    assert step.at == begin, "as of the beginning of the step, whenever it is taken"
    capacity = slowly(list(CapacityEntry.objects.extra(select={"milli": "1000"}).values_list("milli", "since", "until")), begin)
    assert step.capacity == {H100: pytest.approx(capacity, rel=1e-4)}
    for team in (early, late):
        mine = slowly(list(LedgerEntry.objects.filter(quota=team).values_list("gpu_milli", "since", "until")), begin)
        assert step.used[str(team.pk)] == {H100: pytest.approx(mine, rel=1e-4)}
    told = quotas(begin + timedelta(minutes=30))
    shares = {name: dict(quota.usage).get(H100, 0) for name, quota in told.items()}
    assert shares["acme/late"] == pytest.approx(1_000_000 * step.used[str(late.pk)][H100] / step.capacity[H100], abs=1)
    assert shares["acme"] == pytest.approx(shares["acme/early"] + shares["acme/late"], abs=2), "charged to every ancestor"


def test_steps_that_carry_on_say_what_one_from_scratch_says() -> None:
    busy_day()
    for hours in (1, 2, 4, 5):
        assert past_usage_take(now=NOON + hours * HOUR + timedelta(seconds=5), fairness=fairness())
    carried = UsageStep.objects.latest("at")
    UsageStep.objects.all().delete()
    past_usage_take(now=NOON + 5 * HOUR + timedelta(minutes=59), fairness=fairness())
    afresh = UsageStep.objects.get()

    assert (carried.at, carried.capacity) == (afresh.at, {H100: pytest.approx(afresh.capacity[H100], rel=1e-9)})
    assert carried.used == {quota: {H100: pytest.approx(kinds[H100], rel=1e-9)} for quota, kinds in afresh.used.items()}


@pytest.mark.parametrize("half_life_s", [7200, 3600])
def test_a_what_if_begins_with_what_was_used_before_whatever_steps_are_kept(half_life_s: int) -> None:
    """Steps are kept for a week, and of today's half-life alone."""
    early, _ = busy_day()
    snapshot = Snapshots().take(settings=policy().engine, now=NOON + 30 * HOUR, start_timeout=policy().start_timeout)
    begin, wanted = NOON + 3 * HOUR, Wanted(policy={"half_life_s": half_life_s})
    scenario, *_ = begun(snapshot, snapshot.tree.rows, frozenset(), begin, NOON + 30 * HOUR, wanted)

    past_usage_take(now=begin, fairness=replace(fairness(), half_life_ms=1000 * half_life_s))
    step = UsageStep.objects.get()
    share = 1_000_000 * step.used[str(early.pk)][H100] // step.capacity[H100]
    assert share > 100_000 and {quota.name: dict(quota.usage) for quota in scenario.quotas}["acme/early"] == {H100: share}


def test_inside_a_step_usage_stays_and_the_tree_is_the_same_object() -> None:
    busy_day()
    past_usage_take(now=NOON + 4 * HOUR, fairness=fairness())
    snapshots = Snapshots()
    before = quotas(NOON + 4 * HOUR, snapshots)

    assert not past_usage_take(now=NOON + 4.9 * HOUR, fairness=fairness())
    assert quotas(NOON + 4.9 * HOUR, snapshots)["acme"] is before["acme"]
    assert past_usage_take(now=NOON + 5 * HOUR, fairness=fairness())
    assert quotas(NOON + 5 * HOUR, snapshots)["acme"] != before["acme"]


def test_a_team_that_moves_takes_its_past_along() -> None:
    early, _ = busy_day()
    other = builders.quota("other", parent=builders.quota())
    past_usage_take(now=NOON + 4 * HOUR, fairness=fairness())
    before = quotas(NOON + 4 * HOUR)
    node_move(access=root(), node=early, parent=other, name="early", revision=early.revision, now=NOON + 5 * HOUR)

    after = quotas(NOON + 5.5 * HOUR)
    assert before["acme/other"].usage == ()
    assert after["acme/other"].usage == after["acme/other/early"].usage == before["acme/early"].usage


def test_without_a_weight_nothing_is_summed_up(settings: Any) -> None:
    settings.SCHEDULER = {**settings.SCHEDULER, "USAGE_WEIGHT": 0.0}
    busy_day()

    assert not past_usage_take(now=NOON + 4 * HOUR, fairness=fairness())
    assert quotas(NOON + 4 * HOUR)["acme/early"].usage == ()


def test_the_loop_divides_by_past_usage_and_looks_again_when_the_next_step_begins(settings: Any) -> None:
    """Both teams want everything; the one that had much of late gets less."""
    node = builders.node(gpus=8)
    settings.SCHEDULER = {**settings.SCHEDULER, "USAGE_WEIGHT": 3.0}
    hungry, modest = leaf("hungry"), leaf("modest")
    used(hungry, node, 8, NOON - 3 * HOUR, NOON - 2 * HOUR)
    used(modest, node, 1, NOON - 2 * HOUR, NOON - HOUR)
    loop = Loop()
    for number in range(8):
        submit(hungry, gpus=1, at=loop.now, name=f"hungry {number}")
        submit(modest, gpus=1, at=loop.now, name=f"modest {number}")
    loop.tick()

    shares = {quota: dict(kinds) for quota, kinds in UsageStep.objects.get().used.items()}
    assert shares[str(hungry.pk)][H100] > shares[str(modest.pk)][H100]
    started = [run.job.name.split()[0] for run in Attempt.objects.filter(ended_at__isnull=True)]
    assert started.count("modest") > started.count("hungry") > 0
    record = PlanRecord.objects.latest("id")
    assert plan_replay(record=record)["identical"]
    assert record.next_wake_at is not None
    assert record.next_wake_at <= NOON + HOUR


def test_a_weight_and_a_priority_of_a_type_reach_the_engine() -> None:
    builders.node(gpus=4)
    builders.node(gpus=4, type_name="A100-SXM-40GB")
    team = leaf("team", 2)
    QuotaShare.objects.filter(node=team).update(weight=7, priority=300)
    QuotaNode.objects.filter(pk=team.pk).update(weight=2)

    told = quotas(NOON)["acme/team"]

    assert dict(told.weights) == {H100: 7000, "A100-SXM-40GB": 2000}
    assert dict(told.priorities) == {H100: 300, "A100-SXM-40GB": 100}
    assert quotas(NOON)["acme"].weights == ()


def test_the_engine_is_told_when_a_job_came_to_its_place_by_reclaim() -> None:
    builders.node(gpus=8)
    owner, borrower = leaf("owner", 8), leaf("borrower")
    loop = Loop()
    lent = [submit(borrower, gpus=4) for _ in range(2)]
    loop.tick()
    for job in lent:
        loop.up(job)
    taker = submit(owner, gpus=4, at=loop.after(minutes=10).now)
    loop.tick()
    decided = loop.now

    def told() -> Any:
        chosen = policy()
        taken = Snapshots().take(settings=chosen.engine, now=loop.now, start_timeout=chosen.start_timeout)
        return {job.name: job.run for job in taken.scenario.jobs}[taker.public_id]

    assert Promise.objects.get(job=taker).reclaimed_at == decided
    moment = told().reclaimed
    assert (told().state, moment) == ("reserved", round(decided.timestamp() * 1000))
    victim = next(job for job in lent if state(job) == JobState.CHECKPOINTING)
    loop.after(seconds=20).over(victim, 143)
    loop.tick()
    assert (state(taker), attempt_of(taker).reclaimed_at) == (JobState.STARTING, decided)
    assert told().reclaimed == moment
    loop.after(seconds=5).up(taker)
    assert (told().state, told().reclaimed) == ("running", moment)
    assert attempt_of(next(job for job in lent if job != victim)).reclaimed_at is None
