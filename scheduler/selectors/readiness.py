"""Which workers of a job can serve, as pages and programs read it (`launch.ready`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property

from django.conf import settings
from django.db.models import QuerySet

from scheduler.models import Attempt, Job, Placement, WorkerState

SILENT = "Its cluster does not respond."
NOT_YET = "It has not been asked yet."
SHOWN = 10


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """A worker that has its place. `ready` None: unknown; `since` belongs to what is known, and `why` says why it is not ready, or not known."""

    role: str
    worker: int
    node: str
    ready: bool | None
    since: datetime | None
    why: str

    @property
    def name(self) -> str:
        return f"{self.role} {self.worker}"


@dataclass(frozen=True)
class Readiness:
    """Of the run that goes on. In the order of roles and workers."""

    workers: tuple[WorkerReady, ...]

    @property
    def ready(self) -> int:
        return sum(one.ready is True for one in self.workers)

    @property
    def unknown(self) -> int:
        return sum(one.ready is None for one in self.workers)

    @property
    def others(self) -> Sequence[WorkerReady]:
        """The first of those that are not ready, or not known to be."""
        return [one for one in self.workers if one.ready is not True][:SHOWN]

    @property
    def more(self) -> int:
        return len(self.workers) - self.ready - len(self.others)

    def ready_of(self, role: str) -> int:
        return sum(one.ready is True for one in self.workers if one.role == role)

    def of(self, role: str, worker: int) -> WorkerReady | None:
        return self.by_name.get((role, worker))

    @cached_property
    def by_name(self) -> dict[tuple[str, int], WorkerReady]:
        return {(one.role, one.worker): one for one in self.workers}


def ready_bound_seconds() -> int:
    found: int = settings.SCHEDULER["READY_BOUND_S"]
    return found


def readiness_of(job: Job, attempt: Attempt | None) -> Readiness | None:
    """None: its workers are not asked, or it does not run. In two queries."""
    if attempt is None or attempt.ended_at is not None or not job.launch.get("ready"):
        return None
    places = Placement.objects.filter(attempt=attempt, until__isnull=True, leaving_since__isnull=True)
    columns = ("role", "worker", "node__name", "node__cluster__silent_since")
    rows = places.order_by("role", "worker").distinct().values_list(*columns)
    known = {(row.role, row.worker): row for row in WorkerState.objects.filter(attempt=attempt, ready__isnull=False)}
    found = []
    for role, worker, node, silent in rows:
        row = known.get((role, worker))
        if row is None or silent is not None:
            why = SILENT if silent is not None else NOT_YET
            found.append(WorkerReady(role, worker, node, None, silent, why))
        else:
            found.append(WorkerReady(role, worker, node, row.ready, row.since, "" if row.ready else row.why))
    return Readiness(tuple(found))


def replicas_not_ready(now: datetime) -> QuerySet[WorkerState]:
    """Workers that have not been ready for longer than the bound, the longest first."""
    late = WorkerState.objects.filter(ready=False, since__lt=now - timedelta(seconds=ready_bound_seconds()))
    return late.filter(attempt__ended_at__isnull=True, attempt__stop_to="").order_by("since", "pk")
