"""What jobs are told first about their start, kept so that it can be held against the start itself (SCH-20)."""

from collections.abc import Collection, Mapping
from datetime import datetime

from django.db import transaction

from gpufleet.core.times import MILLISECOND, millis
from scheduler.engine.values import Scenario
from scheduler.foresight import Foresight, estimated
from scheduler.models import ENDED, Attempt, Job, JobState, Prediction
from scheduler.simulation.futures import Past, Stage, Waits, waits_foreseen

AT_ONCE = 500


def predictions_open(keys: Collection[int]) -> dict[int, str]:
    """Those that have been told no start before, nor have started, with their public ids."""
    fresh = Job.objects.filter(pk__in=keys, state=JobState.QUEUED, prediction__isnull=True, attempts__isnull=True)
    return dict(fresh.order_by("pk").values_list("pk", "public_id"))


def predictions_foresee(*, starts: Mapping[int, datetime], scenario: Scenario, past: Past, now: datetime) -> dict[int, Waits]:
    """What is foreseen of those that are to be told a start for the first time: by futures, or by the forecast where they were too much to play."""
    fresh = predictions_open(starts)
    played = waits_foreseen(Stage(scenario, past), set(fresh.values()), seed=millis(now)) if fresh else {}
    return {key: played.get(name) or estimated(max(0, (starts[key] - now) // MILLISECOND)) for key, name in fresh.items()}


def predictions_keep(*, foreseen: Mapping[int, Waits], foresight: Foresight, now: datetime) -> int:
    """Keep what jobs are told first. Returns how many."""
    rows = []
    for key in predictions_open(foreseen):
        waits = foreseen[key]
        found = foresight.foreseen(waits)
        soonest, middle, longest = (now + MILLISECOND * part for part in waits)
        earliest, expected, latest = (now + MILLISECOND * part for part in found[:3])
        told = {"earliest": earliest, "expected": expected, "latest": latest}
        rows.append(Prediction(job_id=key, at=now, foreseen=middle, soonest=soonest, longest=longest, **told))
    Prediction.objects.bulk_create(rows, batch_size=AT_ONCE, ignore_conflicts=True)
    return len(rows)


def predictions_close(*, limit: int = 4 * AT_ONCE) -> int:
    """Write down the start of those that have started, and forget those that never will. Returns how many have started."""
    Prediction.objects.filter(started_at__isnull=True, job__state__in=ENDED, job__attempts__isnull=True).delete()
    first = Attempt.objects.filter(number=1, job__prediction__started_at__isnull=True, job__prediction__isnull=False)
    starts = dict(first.order_by("pk").values_list("job_id", "started_at")[:limit])
    rows = list(Prediction.objects.filter(job_id__in=starts).order_by("pk"))
    for row in rows:
        row.started_at = starts[row.job_id]
    with transaction.atomic():
        Prediction.objects.bulk_update(rows, ["started_at"], batch_size=AT_ONCE)
    return len(rows)
