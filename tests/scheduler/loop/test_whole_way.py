"""The loop with the simulated back-end behind it: whole lives on a clock that the test turns, with what must always hold checked after every tick."""

import random
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from gpufleet.core.live.feed import feed_revision
from gpufleet.core.models import Change
from quotas.models import LedgerEntry, Phase
from scheduler.backends.base import Facts
from scheduler.backends.simulated import MemoryStore, SimulatedBackend
from scheduler.jobs.reading import change_read
from scheduler.models import ENDED, Attempt, CapacityEntry, Cluster, Job, JobState, Order, Outlook, Placement, Promise
from scheduler.services.forecasts import forecasting
from scheduler.services.forecasts.forecasting import ForecastMemory, forecast_run
from scheduler.services.jobs.edits import job_edit
from scheduler.services.jobs.jobs import job_hold, job_stop
from scheduler.services.loop.tick import TickResult, tick_run
from tests import builders
from tests.builders import NOON
from tests.invariants import fleet_faults
from tests.personas import Personas
from tests.scheduler.loop.worlds import Loop, gpus_of, leaf, state, submit

pytestmark = pytest.mark.django_db


class Fleet(Loop):
    """Ticks with a simulated back-end for every cluster."""

    def __init__(self, facts: Facts | None = None) -> None:
        super().__init__()
        self.backends = {cluster.pk: SimulatedBackend(MemoryStore(), facts=facts) for cluster in Cluster.objects.all()}

    def tick(self, **options: Any) -> TickResult:
        result = tick_run(holder=self.holder, now=self.now, backends=self.backends, memory=self.memory, **options)
        assert not result.fault
        assert fleet_faults() == []
        return result

    def until(self, done: Any, *, step: float = 5, most: float = 7200) -> None:
        """Tick until it is so."""
        end = self.now + timedelta(seconds=most)
        while not done():
            assert self.now < end, Counter(Job.objects.values_list("state", flat=True))
            self.after(seconds=step).tick()


@pytest.mark.parametrize("creates_mig", [True, False])
def test_a_gpu_is_only_split_anew_where_a_back_end_can_do_it(creates_mig: bool) -> None:
    gpu = builders.mig_gpu(builders.node(gpus=1))
    fleet = Fleet(Facts(creates_mig=creates_mig))
    job = submit(gpus=1, spec={"work_s": 60})
    fleet.tick()

    assert state(job) == (JobState.STARTING if creates_mig else JobState.QUEUED)
    assert Order.objects.filter(kind="repartition").exists() == creates_mig
    gpu.refresh_from_db()
    assert gpu.mode == ("whole" if creates_mig else "mig")


def test_where_only_some_back_ends_split_gpus_no_other_is_asked_to() -> None:
    other = builders.cluster("south")
    gpu = builders.mig_gpu(builders.node(gpus=1, of=other))
    fleet = Fleet()
    fleet.backends[other.pk] = SimulatedBackend(MemoryStore(), facts=Facts(creates_mig=False))
    fleet.backends[builders.cluster("north").pk] = SimulatedBackend(MemoryStore())
    job = submit(gpus=1, spec={"work_s": 60})
    result = fleet.tick()

    assert (state(job), result.dropped > 0) == (JobState.QUEUED, True)
    assert not Order.objects.exists()
    gpu.refresh_from_db()
    assert gpu.mode == "mig"


def elastic(quota: Any, least: int, most: int, **fields: Any) -> Job:
    role = {"name": "worker", "min": least, "max": most, "gpus": 2}
    return submit(quota, gpus=2, workers=least, spec={"roles": [role], "work_s": 3600, "grace_s": 20}, **fields)


def test_workers_that_join_a_run_are_starting_until_their_back_end_says_that_they_are_up() -> None:
    builders.node(gpus=8)
    first, owner = leaf("first"), leaf("owner", 8)
    fleet = Fleet()
    other = submit(owner, gpus=4, spec={"work_s": 600, "grace_s": 10})
    fleet.tick()
    job = elastic(first, 1, 4)
    fleet.until(lambda: state(job) == state(other) == JobState.RUNNING)
    fleet.until(lambda: state(other) == JobState.COMPLETED)
    fleet.until(lambda: len(gpus_of(job)) == 8, step=1)
    joined = LedgerEntry.objects.filter(job=job.public_id, worker__gte=2, until__isnull=True)
    assert set(joined.values_list("phase", flat=True)) == {Phase.STARTING}
    assert set(LedgerEntry.objects.filter(job=job.public_id, worker__lt=2, until__isnull=True).values_list("phase", flat=True)) == {Phase.RUNNING}
    assert CapacityEntry.objects.filter(until__isnull=True, starting_milli=1000).count() == 4
    assert state(job) == JobState.RUNNING
    fleet.until(lambda: not joined.filter(phase=Phase.STARTING).exists(), step=1, most=5)

    assert set(joined.values_list("phase", flat=True)) == {Phase.RUNNING}
    assert not CapacityEntry.objects.filter(until__isnull=True, starting_milli__gt=0).exists()
    assert job.events.order_by("-id")[0].cause == "2 added workers are up."
    assert not Placement.objects.filter(joining=True).exists()


@pytest.mark.parametrize(
    ("facts", "stated", "in_place"),
    [
        (Facts(), False, True),
        (Facts(resizes_in_place=False), True, False),
        (Facts(resizes_in_place=False, resizes_stated=True), False, False),
        (Facts(resizes_in_place=False, resizes_stated=True), True, True),
    ],
)
def test_an_elastic_job_gives_surplus_back_and_grows_again_whatever_its_back_end_can_do(facts: Facts, stated: bool, in_place: bool) -> None:
    builders.node(gpus=8)
    lender, borrower = leaf("lender", 8), leaf("borrower")
    fleet = Fleet(facts)
    job = elastic(borrower, 1, 4, launch={"in_place": stated})
    fleet.tick()
    fleet.until(lambda: state(job) == JobState.RUNNING)
    assert len(gpus_of(job)) == 8
    fleet.after(minutes=10).tick()
    owner = submit(lender, gpus=4, spec={"work_s": 60}, at=fleet.now)
    fleet.until(lambda: state(owner) == JobState.RUNNING, most=300)
    fleet.until(lambda: state(job) == JobState.RUNNING, most=300)
    assert len(gpus_of(job)) == 4
    fleet.until(lambda: state(owner) == JobState.COMPLETED, most=600)
    fleet.until(lambda: len(gpus_of(job)) == 8 and state(job) == JobState.RUNNING, most=900)

    kinds = set(Order.objects.filter(attempt__job=job).values_list("kind", flat=True))
    assert ("resize" in kinds) is in_place
    assert Attempt.objects.filter(job=job).count() == (1 if in_place else 3)
    fleet.until(lambda: state(job) == JobState.COMPLETED, step=300)


def test_a_winner_runs_soon_after_its_victims_grace() -> None:
    builders.node(gpus=8)
    lender, borrower = leaf("lender", 8), leaf("borrower")
    fleet = Fleet()
    taken = submit(borrower, gpus=8, spec={"work_s": 3600, "grace_s": 40}, launch={"simulated": {"stubborn": True}})
    fleet.until(lambda: state(taken) == JobState.RUNNING)
    fleet.after(hours=0.5).tick()
    owner = submit(lender, gpus=4, spec={"work_s": 60}, at=fleet.now)
    began = fleet.now
    fleet.tick()
    assert state(taken) == JobState.CHECKPOINTING
    fleet.until(lambda: state(owner) == JobState.RUNNING, step=1)

    assert fleet.now - began <= timedelta(seconds=40 + 6)  # the grace, and what the back-end takes to end and to start
    fleet.until(lambda: state(taken) == JobState.COMPLETED, step=300, most=9000)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 7))])
def test_a_busy_hour_with_changes_of_mind_ends_with_everything_done(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(3):
        builders.node(gpus=8)
    quotas = [leaf("red", 16), leaf("blue", 8), leaf("grey")]
    fleet = Fleet(Facts(resizes_in_place=seed % 2 == 0))
    jobs: list[Job] = []
    for _ in range(30):
        for _ in range(rng.randrange(3)):
            quota, kind = rng.choice(quotas), rng.randrange(4)
            saving = {"checkpoint": {"interval_s": 60, "save_s": 2, "restore_s": 2}}
            play = {"simulated": {"fails": rng.choice([0, 0, 0.5]), "stubborn": rng.random() < 0.2}}
            common = {"at": fleet.now, "priority": rng.choice([10, 50, 90])}
            if kind == 0:
                jobs.append(elastic(quota, 1, rng.choice([2, 4]), **common))
            else:
                spec = {"work_s": rng.choice([20, 300, 900]), "grace_s": rng.choice([0, 10, 30]), **(saving if kind == 1 else {})}
                limit = rng.choice([None, 400, 2000])
                jobs.append(submit(quota, gpus=rng.choice([1, 2, 4, 8]), workers=rng.choice([1, 1, 2]), spec=spec, limit_seconds=limit, **common))
            Job.objects.filter(pk=jobs[-1].pk).update(launch=play, retry_limit=rng.choice([0, 2]))
        if jobs and rng.random() < 0.3:
            unlucky = Job.objects.get(pk=rng.choice(jobs).pk)
            if unlucky.state not in ENDED:
                job_stop(job=unlucky, to=JobState.CANCELLED, outcome="cancelled", cause="Changed my mind.", now=fleet.now)
        fleet.after(seconds=rng.choice([1, 10, 60])).tick()
    fleet.until(lambda: not Job.objects.exclude(state__in=ENDED).exists(), step=60, most=6 * 3600)

    assert not Promise.objects.exists()
    assert not Order.objects.filter(done_at__isnull=True).exists()
    assert {"completed", "cancelled"} <= set(Job.objects.values_list("state", flat=True))
    assert not Attempt.objects.filter(ended_at__isnull=True).exists()


def test_a_forecast_tells_everyone_who_waits_when_and_why_at_most_every_ten_seconds() -> None:
    builders.node(gpus=8)
    quota = leaf("team", 8)
    fleet = Fleet()
    running = submit(quota, gpus=8, limit_seconds=3600, spec={"work_s": 3000})
    fleet.until(lambda: state(running) == JobState.RUNNING)
    waiting, held = submit(quota, gpus=4, at=fleet.now), submit(quota, gpus=1, at=fleet.now)
    later = submit(quota, gpus=1, at=fleet.now)
    Job.objects.filter(pk=later.pk).update(not_before=fleet.now + timedelta(hours=2))
    job_hold(job=held, now=fleet.now)
    fleet.tick()
    memory = ForecastMemory.empty()

    assert forecast_run(holder="one", now=fleet.now, memory=memory) == 3
    told = {outlook.job_id: outlook for outlook in Outlook.objects.all()}
    found = told[waiting.pk]
    assert found.earliest_start is not None
    assert found.predicted_start is not None
    assert found.latest_start is not None
    assert fleet.now <= found.earliest_start < found.predicted_start < found.latest_start
    assert found.earliest_start < NOON + timedelta(hours=1) < found.latest_start, "by its limit the other one has ended"
    assert "capacity" in {reason["code"] for reason in told[waiting.pk].reasons}
    assert [reason["code"] for reason in told[held.pk].reasons] == ["hold"]
    assert [reason["code"] for reason in told[later.pk].reasons] == ["held"]
    assert forecast_run(holder="one", now=fleet.now + timedelta(seconds=9), memory=memory) is None
    assert forecast_run(holder="one", now=fleet.now + timedelta(seconds=10), memory=memory) == 0  # no new plan, nothing to say
    fleet.after(seconds=20)
    large = submit(quota, gpus=8, at=fleet.now)
    fleet.tick()
    assert forecast_run(holder="one", now=fleet.now, memory=memory) == 1
    assert Outlook.objects.get(job=large).forecast_at == fleet.now


def test_a_waiting_job_that_is_changed_is_told_anew_in_the_next_tick(personas: Personas) -> None:
    """Its page said for minutes that 160 GPUs exceed a limit, of a job that had been changed to 80."""
    builders.node(gpus=8)
    quota, fleet = leaf("team", 8), Fleet()
    submit(quota, gpus=4, limit_seconds=3600, spec={"work_s": 3000})
    fleet.tick()
    waiting = submit(quota, gpus=2, workers=4, at=fleet.now)
    fleet.after(seconds=1).tick()
    memory = ForecastMemory.empty()
    forecast_run(holder="one", now=fleet.now, memory=memory)
    assert Outlook.objects.get(job=waiting).predicted_start is not None

    change = change_read({"workers": {"worker": {"min": 3}}})
    job_edit(access=personas.access("superuser"), job=waiting, change=change, now=fleet.now)
    fleet.after(seconds=1).tick()

    told = Outlook.objects.get(job=waiting)
    assert {reason["needed"] for reason in told.reasons if reason["code"] == "capacity"} == {6}
    assert (told.predicted_start, told.forecast_at) == (None, None), "what was foreseen was of 8 GPUs"
    assert forecast_run(holder="one", now=fleet.now + timedelta(minutes=2), memory=memory) == 1
    assert Outlook.objects.get(job=waiting).predicted_start is not None


def test_a_forecast_that_takes_long_rests_three_times_as_long() -> None:
    """In one process with the pages, futures of a large fleet would otherwise keep a processor busy for most of the time."""
    builders.node(gpus=8)
    for _ in range(3):
        submit(leaf("team", 8), gpus=8, at=NOON)
    fleet = Fleet()
    fleet.tick()

    def forecast(*, after: int, took: float) -> int | None:
        reads = iter([0.0, took])
        return forecast_run(holder="one", now=fleet.now + timedelta(seconds=after), clock=lambda: next(reads))

    assert forecast(after=0, took=5) == 2
    assert forecast(after=19, took=5) is None
    submit(leaf("other", 8), gpus=8, at=fleet.now)
    fleet.after(seconds=20)
    fleet.tick()
    assert forecast(after=0, took=600) is not None
    assert forecast(after=119, took=1) is None
    fleet.after(seconds=120)
    submit(leaf("third", 8), gpus=8, at=fleet.now)
    fleet.tick()
    assert forecast(after=0, took=1) is not None, "after two minutes in any case"


def test_a_forecast_of_many_is_written_in_parts_and_told_to_the_pages_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecasting, "AT_ONCE", 2)
    builders.node(gpus=8)
    waiting = [submit(leaf("team", 8), gpus=8, at=NOON) for _ in range(6)]
    Fleet().tick()
    known = feed_revision()

    assert forecast_run(holder="one", now=NOON) == 5

    parts = Change.objects.filter(rev__gt=known, topic="jobs").order_by("rev")
    assert [len(change.rows) for change in parts] == [2, 2, 1]
    assert set(Outlook.objects.filter(forecast_at=NOON).values_list("job_id", flat=True)) == {
        job.pk for job in waiting if state(job) == JobState.QUEUED
    }
