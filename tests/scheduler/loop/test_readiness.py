"""Workers that are asked whether they can serve: written down as their back-end tells it, counted, and kept with the scale-up that added them."""

from datetime import timedelta
from typing import Any

import pytest

from gpufleet.core.live.news import News
from quotas.permissions import Access
from scheduler.backends.base import Backend
from scheduler.backends.memory import DatabaseStore
from scheduler.backends.simulated import SimulatedBackend
from scheduler.models import Attempt, Cluster, Job, JobState, Scaling, WorkerState
from scheduler.selectors.readiness import Readiness, readiness_of, replicas_not_ready
from scheduler.selectors.scaling import replicas_told
from scheduler.services.jobs.readiness import WorkerTold, workers_told
from scheduler.services.jobs.scaling import job_scale
from scheduler.services.loop.tick import tick_run
from tests import builders
from tests.builders import NOON
from tests.personas import Personas
from tests.scheduler.loop.worlds import Loop, attempt_of, state, submit

pytestmark = pytest.mark.django_db
PROBE = {"http": {"path": "/health"}}


class Played(Loop):
    """With the simulated back-end, looked at as the loop does."""

    def backends(self) -> dict[int, Backend]:
        return {builders.cluster().pk: SimulatedBackend(DatabaseStore(builders.cluster().pk))}

    def tick(self, **options: Any) -> Any:
        return tick_run(holder=self.holder, now=self.now, backends=self.backends(), memory=self.memory, **options)

    def seconds(self, count: int) -> None:
        for _ in range(count):
            self.after(seconds=1).tick()


def service(*, desired: int = 2, ready_s: int = 8, probe: dict[str, Any] | None = None) -> Job:
    role = {"name": "server", "min": 1, "max": 4, "gpus": 1, "desired": desired}
    launch = {"simulated": {"load_s": 3, "ready_s": ready_s, "endless": True}, "ready": PROBE if probe is None else probe}
    return submit(gpus=1, job_class="inference", preemptible="when_borrowed", spec={"roles": [role], "work_s": 9000}, launch=launch)


def readiness(job: Job) -> Readiness:
    found = readiness_of(Job.objects.get(pk=job.pk), attempt_of(job))
    assert found is not None
    return found


def told(job: Job, worker: int, *, ready: bool, since: Any, why: str = "", began: int = 0) -> WorkerTold:
    run = attempt_of(job)
    return WorkerTold(run.pk, job.pk, "server", worker, up=True, began=began, ready=ready, since=since, why=why)


@pytest.fixture
def access(personas: Personas) -> Access:
    return personas.access("superuser")


def test_replicas_become_ready_and_a_scale_up_keeps_how_long_that_took(access: Access) -> None:
    builders.node(gpus=8)
    served, loop = service(), Played()
    loop.tick()
    loop.seconds(7)
    assert state(served) == JobState.RUNNING
    assert [(one.name, one.ready, one.why) for one in readiness(served).workers] == [
        ("server 0", False, "It still loads."),
        ("server 1", False, "It still loads."),
    ]
    loop.seconds(8)
    assert (readiness(served).ready, readiness(served).others) == (2, [])

    asked = loop.now
    job_scale(access=access, job=Job.objects.get(pk=served.pk), replicas=4, now=asked)
    loop.seconds(4)
    scaling = replicas_told(Job.objects.get(pk=served.pk), now=loop.now).scalings[0]
    assert scaling.seconds is not None and scaling.ready_seconds is None, "placed, and not ready yet"
    assert readiness(served).ready == 2
    loop.seconds(12)
    found = replicas_told(Job.objects.get(pk=served.pk), now=loop.now)
    assert (found.roles[0].placed, found.roles[0].ready) == (4, 4)
    row = Scaling.objects.get()
    assert row.ready_at is not None and row.over_at is not None
    assert (row.ready_at - row.over_at).total_seconds() >= 8
    assert found.scalings[0].ready_seconds == (row.ready_at - asked).total_seconds()


def test_without_a_probe_nobody_is_asked_and_nothing_is_written(access: Access) -> None:
    builders.node(gpus=8)
    served, loop = service(), Played()
    Job.objects.update(launch={"simulated": {"load_s": 3}})
    loop.tick()
    loop.seconds(10)
    job = Job.objects.get(pk=served.pk)
    assert readiness_of(job, attempt_of(served)) is None and not WorkerState.objects.exists()
    assert replicas_told(job, now=loop.now).roles[0].ready is None


def test_a_worker_that_is_not_ready_any_more_is_told_since_when_and_counted_past_the_bound(access: Access, settings: Any) -> None:
    settings.SCHEDULER = settings.SCHEDULER | {"READY_BOUND_S": 60}
    builders.node(gpus=2)
    served, loop = service(), Loop()
    loop.tick()
    loop.up(served)
    ready = [told(served, worker, ready=True, since=NOON + timedelta(seconds=worker)) for worker in range(2)]
    assert workers_told(told=ready, now=loop.after(seconds=5).now, news=News()) == 2
    assert workers_told(told=ready, now=loop.after(seconds=5).now, news=News()) == 0, "what is told again changes nothing"
    gone = loop.after(seconds=5).now
    assert workers_told(told=[ready[0], told(served, 1, ready=False, since=gone, why="Port 8000 answered 500.")], now=gone, news=News()) == 1
    (bad,) = readiness(served).others
    assert (bad.name, bad.ready, bad.since, bad.why) == ("server 1", False, gone, "Port 8000 answered 500.")
    row = WorkerState.objects.get(worker=1)
    assert row.first_at == NOON + timedelta(seconds=1), "when it was ready first stays"
    assert not replicas_not_ready(gone + timedelta(seconds=59))
    assert [one.worker for one in replicas_not_ready(gone + timedelta(seconds=61))] == [1]
    # A cluster of which nobody hears tells nothing.
    Cluster.objects.update(silent_since=loop.now)
    assert {(one.ready, one.why) for one in readiness(served).workers} == {(None, "Its cluster does not respond.")}
    Cluster.objects.update(silent_since=None)
    WorkerState.objects.all().delete()
    assert (readiness(served).unknown, readiness(served).others[0].why) == (2, "It has not been asked yet.")
    # Nor does a run that is over, or is leaving.
    workers_told(told=[told(served, 1, ready=False, since=gone)], now=gone, news=News())
    Attempt.objects.update(stop_to=JobState.QUEUED, stop_asked_at=gone)
    assert not replicas_not_ready(gone + timedelta(hours=1))


def test_a_back_end_whose_clock_is_ahead_makes_nothing_ready_in_the_future(access: Access) -> None:
    builders.node(gpus=2)
    served, loop = service(), Loop()
    loop.tick()
    loop.up(served)
    workers_told(told=[told(served, 0, ready=True, since=loop.now + timedelta(hours=1))], now=loop.now, news=News())
    assert WorkerState.objects.get().since == loop.now
    # One that was replaced is asked anew.
    later = loop.after(seconds=9).now
    workers_told(told=[told(served, 0, ready=False, since=later, began=7)], now=later, news=News())
    assert (WorkerState.objects.get().first_at, WorkerState.objects.get().began) == (None, 7)
