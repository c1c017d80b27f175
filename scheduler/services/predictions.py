"""What jobs are told first about their start, kept so that it can be held against the start itself (SCH-20)."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction

from scheduler.foresight import Foresight
from scheduler.models import Attempt, Job, JobState, Prediction

AT_ONCE = 500
MILLISECOND = timedelta(milliseconds=1)


def predictions_keep(*, told: Mapping[int, tuple[Any, ...]], foresight: Foresight, now: datetime) -> int:
    """Keep what jobs are told that have not been told a start before, nor have started. Returns how many."""
    starts = {key: start for key, (_, start, _) in told.items() if start is not None}
    fresh = Job.objects.filter(pk__in=starts, state=JobState.QUEUED, prediction__isnull=True, attempts__isnull=True)
    rows = []
    for key in fresh.order_by("pk").values_list("pk", flat=True):
        wait = max(0, (starts[key] - now) // MILLISECOND)
        found = foresight.foreseen(wait)
        earliest, expected, latest = (now + MILLISECOND * part for part in (found.earliest, found.at, found.latest))
        rows.append(Prediction(job_id=key, at=now, foreseen=now + MILLISECOND * wait, earliest=earliest, expected=expected, latest=latest))
    Prediction.objects.bulk_create(rows, batch_size=AT_ONCE, ignore_conflicts=True)
    return len(rows)


def predictions_close(*, limit: int = 4 * AT_ONCE) -> int:
    """Write down the start of those that have started. Returns how many."""
    first = Attempt.objects.filter(number=1, job__prediction__started_at__isnull=True, job__prediction__isnull=False)
    starts = dict(first.order_by("pk").values_list("job_id", "started_at")[:limit])
    rows = list(Prediction.objects.filter(job_id__in=starts).order_by("pk"))
    for row in rows:
        row.started_at = starts[row.job_id]
    with transaction.atomic():
        Prediction.objects.bulk_update(rows, ["started_at"], batch_size=AT_ONCE)
    return len(rows)
