"""What back-ends tell of workers that are asked whether they can serve, or that were replaced: written down where it has changed."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import transaction

from gpufleet.core.bulk import objects_update
from gpufleet.core.live.news import News
from scheduler.models import WorkerState
from scheduler.services.jobs.scaling import scalings_ready

COLUMNS = ("up", "began", "ready", "since", "first_at", "why")


@dataclass(frozen=True, slots=True)
class WorkerTold:
    """`since`: since when it is ready, or is not; None where it is not asked."""

    attempt: int
    job: int
    role: str
    worker: int
    up: bool
    began: int
    ready: bool | None
    since: datetime | None
    why: str


def workers_told(*, told: Sequence[WorkerTold], now: datetime, news: News) -> int:
    """Whom nothing is told of any more, of the same runs, is no longer kept. Returns how many rows it changed."""
    if not told:
        return 0
    with transaction.atomic():
        before: dict[tuple[int, str, int], WorkerState] = {
            (row.attempt_id, row.role, row.worker): row
            for row in WorkerState.objects.filter(attempt__in={one.attempt for one in told}).order_by("pk")
        }
        fresh, changed, ready = [], [], set()
        jobs = {one.attempt: one.job for one in told}
        touched = set()
        for one in told:
            row = before.pop((one.attempt, one.role, one.worker), None)
            after = _as_told(one, row, now)
            if row is not None and all(getattr(row, name) == getattr(after, name) for name in COLUMNS):
                continue
            if after.first_at is not None and (row is None or row.first_at != after.first_at):
                ready.add(one.job)
            touched.add(one.job)
            if row is None:
                fresh.append(after)
            else:
                after.pk = row.pk
                changed.append(after)
        WorkerState.objects.bulk_create(fresh)
        objects_update(changed, COLUMNS)
        if before:
            WorkerState.objects.filter(pk__in=[row.pk for row in before.values()]).delete()
            touched |= {jobs[row.attempt_id] for row in before.values()}
        if ready:
            scalings_ready(jobs=ready)
        if touched:
            news.add("jobs", *sorted(touched))
    return len(fresh) + len(changed) + len(before)


def _as_told(one: WorkerTold, row: WorkerState | None, now: datetime) -> WorkerState:
    since = min(now, one.since) if one.since is not None else row.since if row is not None else now
    first = row.first_at if row is not None and row.began == one.began else None
    return WorkerState(
        attempt_id=one.attempt,
        role=one.role,
        worker=one.worker,
        up=one.up,
        began=one.began,
        ready=one.ready,
        since=since,
        first_at=first or (since if one.ready else None),
        why=one.why[:200],
    )
