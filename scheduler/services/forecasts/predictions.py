"""When waiting jobs start; and what each is told first of it, kept so that it can be held against the start itself (SCH-20)."""

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db import transaction

from gpufleet.core.times import MILLISECOND, millis
from scheduler.engine.model.values import Scenario
from scheduler.loop.foresight import Foresight, estimated
from scheduler.models import ENDED, Attempt, Job, JobState, Prediction
from scheduler.services.forecasts.beside import waits_foreseen_beside
from scheduler.services.forecasts.outlooks import Start
from scheduler.simulation.futures import Past, Stage, Waits, waits_foreseen
from scheduler.snapshots import Snapshot

AT_ONCE = 500
PLAYED_EVERY = timedelta(seconds=60)
HARDLY = 0.1  # of the range's width


class Foreseen(NamedTuple):
    """A start as it was foreseen at a moment: over the futures, and what is told of it."""

    at: datetime
    waits: Waits
    start: Start


def starts_foresee(
    *,
    waits: Mapping[int, int],
    known: Mapping[int, Foreseen],
    snapshot: Snapshot,
    past: Past,
    foresight: Foresight,
    now: datetime,
    beside: bool = False,
) -> dict[int, Foreseen]:
    """When jobs start that the forecast has waiting so long, by job: over futures, or by the forecast where they were too much to play.

    Who is new is looked at by itself, and all together once a minute. What has hardly moved by then is told as before. `beside`: futures are played
    in a process of their own.
    """
    again = any(now - known[key].at >= PLAYED_EVERY for key in waits.keys() & known.keys())
    asked = {job.id: name for name, job in snapshot.jobs.items() if job.id in waits and (again or job.id not in known)}
    played = _played(snapshot.scenario, past, set(asked.values()), seed=millis(now), beside=beside) if asked else {}
    found = {}
    for key, wait in waits.items():
        before = known.get(key)
        if before is None or key in asked:
            fresh = _foreseen(played.get(asked[key]) or estimated(wait), foresight, now)
            before = fresh if before is None or before.start.at < now or _moved(before.start, fresh.start) else before._replace(at=now)
        found[key] = before
    return found


def _played(scenario: Scenario, past: Past, asked: Collection[str], *, seed: int, beside: bool) -> dict[str, Waits]:
    if beside:
        return waits_foreseen_beside(scenario, past, asked, seed=seed)
    return waits_foreseen(Stage(scenario, past), asked, seed=seed)


def _foreseen(waits: Waits, foresight: Foresight, now: datetime) -> Foreseen:
    return Foreseen(now, waits, Start(*(now + MILLISECOND * part for part in foresight.foreseen(waits)[:3])))


def _moved(before: Start, after: Start) -> bool:
    most = HARDLY * (after.latest - after.earliest)
    return any(abs(one - other) > most for one, other in zip(before, after, strict=True))


def predictions_keep(*, foreseen: Mapping[int, Foreseen]) -> int:
    """Keep what jobs are told first, of those that have never started. Returns how many."""
    fresh = Job.objects.filter(pk__in=foreseen, state=JobState.QUEUED, prediction__isnull=True, attempts__isnull=True)
    rows = []
    for key in fresh.order_by("pk").values_list("pk", flat=True):
        at, waits, start = foreseen[key]
        soonest, middle, longest = (at + MILLISECOND * part for part in waits)
        told = {"earliest": start.earliest, "expected": start.at, "latest": start.latest}
        rows.append(Prediction(job_id=key, at=at, foreseen=middle, soonest=soonest, longest=longest, **told))
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
