"""How long jobs have waited for what.

A row is written when what a job waits for becomes another thing, and closed when it stops waiting. For a job that only ever waits for GPUs there is
none, and a plan that finds thousands waiting as before writes nothing.
"""

from collections.abc import Mapping
from datetime import datetime

from gpufleet.core.prepared import Prepared
from gpufleet.core.times import MILLISECOND
from scheduler.models import Job, JobState, Wait, WaitKind

BATCH = 500
LOOKED_AT = (JobState.QUEUED, JobState.PREEMPTED)  # who is reserved waits for GPUs that somebody leaves
COUNTED = {WaitKind.QUOTA.value: "quota_ms", WaitKind.ASIDE.value: "aside_ms"}
WAITING: Prepared[tuple[int, datetime]] = Prepared(
    lambda jobs: Job.objects.filter(pk__among=jobs, state__in=LOOKED_AT).values_list("pk", "state_since")
)
KNOWN = Prepared[Wait](lambda jobs: Wait.objects.filter(job__among=jobs))
OPEN = Prepared[Wait](lambda jobs: Wait.objects.filter(job__among=jobs).exclude(kind=WaitKind.GPUS))


def waits_follow(*, kinds: Mapping[int, str], now: datetime) -> int:
    """Write down what jobs wait for from now on, by key, where it is another thing than before. Returns for how many it was."""
    rows = {row.job_id: row for row in KNOWN(kinds)}
    changed = [key for key, kind in kinds.items() if kind != (rows[key].kind if key in rows else WaitKind.GPUS)]
    if not changed:
        return 0
    written = []
    for key, since in WAITING(changed):
        row = rows.get(key) or Wait(job_id=key, kind=WaitKind.GPUS, since=now)
        _close(row, since, now)
        row.kind, row.since = kinds[key], now
        written.append(row)
    fields = ["kind", "since", *COUNTED.values()]
    Wait.objects.bulk_create(written, batch_size=BATCH, update_conflicts=True, unique_fields=["job"], update_fields=fields)
    return len(written)


def waits_close(*, since: Mapping[int, datetime], at: datetime) -> None:
    """Jobs no longer wait, of which each had waited since such a moment."""
    rows = list(OPEN(since))
    for row in rows:
        _close(row, since[row.job_id], at)
        row.kind, row.since = WaitKind.GPUS, at
    if rows:
        Wait.objects.bulk_update(rows, ["kind", "since", *COUNTED.values()], batch_size=BATCH)


def _close(row: Wait, waiting_since: datetime, at: datetime) -> None:
    """Add what it has waited so. Only since it waits: it may have run since this was written."""
    if (column := COUNTED.get(row.kind)) is not None:
        length = max(0, (at - max(row.since, waiting_since)) // MILLISECOND)
        setattr(row, column, getattr(row, column) + length)


def left_waiting(before: str, to: str) -> bool:
    """Whether a step of the state machine ends a wait."""
    return before in LOOKED_AT and to not in LOOKED_AT
