"""What runs on a cluster while nobody hears of it: charged for as long as it ran, as soon as that is told, and never for what nobody knows."""

from collections.abc import Sequence
from datetime import date, datetime, timedelta
from typing import Any

import pytest

from quotas.chargeback.months import month_close, month_refresh
from quotas.models import CHARGED, Budget, ChargeLine, LedgerEntry, QuotaShare
from quotas.services.budgets import budgets_turn
from quotas.services.ledger import ledger_hour
from scheduler.backends.base import BackendSilent, RunState, SeenRun, SeenWorker, WorkerSeat
from scheduler.backends.memory import DatabaseStore
from scheduler.backends.registry import Backends
from scheduler.backends.simulated import SimulatedBackend
from scheduler.models import Attempt, Cluster, Job, JobState, Order, Placement, UsageStep
from scheduler.services.hardware.giving_up import cluster_give_up
from scheduler.services.loop.observe import runs_observe
from tests import builders
from tests.builders import NOON
from tests.invariants import fleet_faults
from tests.scheduler.loop.worlds import H100, Loop, leaf, submit

pytestmark = pytest.mark.django_db
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
DARK = NOON + MINUTE  # since when it does not answer


class Telling(SimulatedBackend):
    """Says what it is to say, or nothing."""

    told: Sequence[SeenRun] = ()
    is_dark = False

    def probe(self) -> None:
        if self.is_dark:
            raise BackendSilent("Nobody answers.")

    def observe(self, *, now: datetime) -> tuple[SeenRun, ...]:
        self.probe()
        return tuple(self.told)

    news = observe


class World:
    """A job of two GPUs that runs since NOON, on a cluster that falls silent a minute later."""

    def __init__(self) -> None:
        self.cluster = builders.cluster("hpc")
        builders.node("gpu001", of=self.cluster, gpus=8)
        self.team, loop = leaf("team", 8), Loop()
        self.job = submit(self.team, gpus=2)
        loop.tick()
        self.run = loop.up(self.job)
        Order.objects.update(done_at=NOON)
        self.key = f"{self.job.public_id}.1"
        self.backend = Telling(DatabaseStore(self.cluster.pk))
        self.backends = Backends({self.cluster.pk: self.backend})
        self.says(RunState.RUNNING)

    def says(self, state: RunState, **fields: Any) -> None:
        gpus = tuple(Placement.objects.filter(job=self.job).order_by("gpu__index").values_list("gpu__index", flat=True))
        worker = SeenWorker(WorkerSeat("worker", 0, "gpu001", gpus), state, fields.get("exit_code"))
        self.backend.told = [SeenRun(self.key, 1, state, (worker,), **({"started_at": NOON} | fields))]

    def look(self, *moments: datetime) -> None:
        for moment in moments:
            runs_observe(backends=self.backends, now=moment)

    def goes_dark(self) -> None:
        self.look(NOON + 30 * timedelta(seconds=1))
        self.backend.is_dark = True
        self.look(DARK, DARK + timedelta(seconds=15))
        self.cluster.refresh_from_db()
        assert self.cluster.silent_since == DARK

    def is_back(self, *moments: datetime) -> None:
        self.backend.is_dark = False
        self.look(*moments)

    def is_guaranteed(self) -> None:
        """From now on: until then it runs on what is lent."""
        for node in (self.team, self.team.parent):
            QuotaShare.objects.update_or_create(node=node, gpu_type=H100, defaults={"guaranteed_milli": 8000})

    def charged(self) -> timedelta:
        """Of what is over."""
        entries = LedgerEntry.objects.filter(CHARGED, job=self.job.public_id)
        return sum((entry.until - entry.since for entry in entries if entry.until is not None), timedelta())

    def ended_at(self) -> datetime | None:
        return Attempt.objects.get(pk=self.run.pk).ended_at


@pytest.fixture
def world(personas) -> World:
    return World()


def test_a_run_that_ended_in_the_silence_is_charged_until_it_ended(world):
    """Also where past usage was summed up meanwhile, and though its end is longer ago than is written down otherwise."""
    world.goes_dark()
    UsageStep.objects.create(at=NOON + 30 * MINUTE, half_life_seconds=60, used={}, capacity={})
    world.says(RunState.ENDED, ended_at=NOON + 10 * MINUTE, exit_code=0)

    world.is_back(NOON + HOUR)

    assert Job.objects.get().state == JobState.COMPLETED
    assert (world.charged(), world.ended_at()) == (10 * MINUTE, NOON + 10 * MINUTE)
    assert fleet_faults() == []


def test_one_that_goes_on_is_charged_all_the_time(world):
    world.goes_dark()
    world.is_back(NOON + HOUR, NOON + HOUR + MINUTE)
    world.says(RunState.ENDED, ended_at=NOON + 65 * MINUTE, exit_code=0)
    world.look(NOON + 65 * MINUTE + timedelta(seconds=3))

    assert world.charged() == 65 * MINUTE
    assert fleet_faults() == []


@pytest.mark.parametrize("forgotten", [True, False], ids=["its end is not known", "nothing is known of it"])
def test_one_of_which_nobody_knows_that_it_ran_is_charged_until_it_was_seen_last(world, forgotten):
    world.goes_dark()
    if forgotten:
        world.says(RunState.STARTING)  # it may still run: its back-end waits a moment before it says that it does not know it
        world.is_back(NOON + HOUR)
        world.says(RunState.ENDED, ended_at=NOON + HOUR, node_lost=True, why="Slurm no longer knows it.")
        world.look(NOON + HOUR + timedelta(seconds=21))
    else:
        world.backend.told = ()
        world.is_back(NOON + HOUR, NOON + HOUR + MINUTE, NOON + HOUR + 2 * MINUTE)

    assert Job.objects.get().state == JobState.QUEUED
    assert (world.charged(), world.ended_at()) == (MINUTE, DARK)
    assert fleet_faults() == []


def test_one_that_was_seen_after_the_silence_and_is_lost_then_is_charged_until_then(world):
    world.goes_dark()
    world.is_back(NOON + HOUR)
    world.says(RunState.STARTING)
    world.look(NOON + HOUR + 5 * MINUTE)
    world.says(RunState.ENDED, ended_at=NOON + HOUR, node_lost=True)
    world.look(NOON + HOUR + 6 * MINUTE)

    assert world.charged() == HOUR + 6 * MINUTE
    assert fleet_faults() == []


def test_what_is_given_up_is_charged_until_it_was_seen_last(world, personas):
    world.goes_dark()

    cluster_give_up(
        access=personas.access("operator"), cluster=world.cluster, after="fail", reason="It burned down.", confirm="hpc", now=NOON + 3 * HOUR
    )

    assert (world.charged(), world.ended_at()) == (MINUTE, DARK)
    assert fleet_faults() == []
    assert Cluster.objects.get().silent_since == DARK


def test_its_class_is_decided_again_when_the_cluster_answers(world):
    """At each full hour an entry may be split, and no end lies before the last one."""
    world.goes_dark()
    world.is_guaranteed()
    ledger_hour(now=NOON + HOUR)
    assert LedgerEntry.objects.filter(CHARGED).count() == 1

    world.is_back(NOON + 2 * HOUR)

    assert list(LedgerEntry.objects.filter(CHARGED).order_by("id").values_list("share_class", "since", "until")) == [
        ("borrowed", NOON, NOON + 2 * HOUR),
        ("guaranteed", NOON + 2 * HOUR, None),
    ]
    assert fleet_faults() == []


def test_one_that_ended_before_a_full_hour_of_the_silence_is_charged_until_then(world):
    world.goes_dark()
    world.is_guaranteed()
    ledger_hour(now=NOON + HOUR)
    world.says(RunState.ENDED, ended_at=NOON + 10 * MINUTE, exit_code=0)

    world.is_back(NOON + 2 * HOUR)

    assert world.charged() == 10 * MINUTE
    assert fleet_faults() == []


def test_budgets_and_months_are_counted_again(world):
    budget = Budget.objects.create(
        public_id="b-1", quota=world.team, name="all", unit="gpu_hours", amount=10**9, period="month", zone="UTC", warn_percent=80, created_at=NOON
    )
    world.goes_dark()
    first = date(NOON.year, NOON.month, 1)
    later = NOON + 30 * HOUR
    budgets_turn(now=later)
    month_refresh(first=first, now=later)
    assert sum(budget.days.values_list("milli_millis", flat=True)) > 2000 * 29 * 3_600_000
    world.says(RunState.ENDED, ended_at=NOON + 10 * MINUTE, exit_code=0)

    world.is_back(later)
    budgets_turn(now=later + HOUR)
    month_refresh(first=first, now=later + HOUR)

    assert sum(budget.days.values_list("milli_millis", flat=True)) == 2000 * 600_000
    assert sum(ChargeLine.objects.values_list("milli_millis", flat=True)) == 2000 * 600_000


def test_of_a_month_that_was_closed_meanwhile_the_difference_is_charged_in_the_next(world, personas):
    world.goes_dark()
    first = date(NOON.year, NOON.month, 1)
    later = datetime(NOON.year + NOON.month // 12, NOON.month % 12 + 1, 2, tzinfo=NOON.tzinfo)
    month_close(access=personas.access("superuser"), first=first, mode="showback", now=later)
    world.says(RunState.ENDED, ended_at=NOON + 10 * MINUTE, exit_code=0)

    world.is_back(later)

    assert sum(ChargeLine.objects.values_list("milli_millis", flat=True)) == 2000 * 600_000
    assert set(ChargeLine.objects.filter(corrects__isnull=False).values_list("corrects__first", "month__first")) == {
        (first, later.date().replace(day=1))
    }
