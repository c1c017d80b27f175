"""How run times compare with estimates, learned once an hour and kept for the engine."""

from collections.abc import Iterator
from datetime import datetime

from django.db.models import F

from gpufleet.core.times import MILLISECOND
from scheduler.loop.overrun import LEARNT_EVERY, LOOKED_BACK, Ran, learned
from scheduler.models import Attempt, LearnedOverrun

MOST_JOBS = 20_000


def overrun_turn(*, now: datetime) -> bool:
    """Learn the factor anew, once an hour. The next snapshot is taken with it; it is no reason for a plan."""
    learnt = LearnedOverrun.objects.values_list("learnt_at", flat=True).first()
    if learnt is not None and learnt <= now < learnt + LEARNT_EVERY:
        return False
    found = learned(_ran(now))
    facts = {"factor_millionths": found.factor, "median_millionths": found.median, "jobs": found.jobs, "since": found.since}
    LearnedOverrun.objects.update_or_create(id=1, defaults={"learnt_at": now, **facts})
    return True


def _ran(now: datetime) -> Iterator[Ran]:
    """Jobs of the last weeks that ended in their first run, by themselves and well, the newest first.

    Those with a time limit are not among them: estimates count for those without one only, and a limit leaves out the runs that were longer.
    """
    completed = Attempt.objects.filter(
        outcome="completed",
        number=1,
        resumed_from__isnull=True,
        started_at__gt=now - 2 * LOOKED_BACK,  # by the index of first starts
        ended_at__gt=now - LOOKED_BACK,
        ended_at__lte=now,
        running_at__lte=F("ended_at"),
        job__estimate_seconds__gt=0,
        job__limit_seconds__isnull=True,
    )
    columns = ("job__quota_id", "job__owner_id", "job__estimate_seconds", "running_at", "ended_at")
    for quota, owner, estimate, since, until in completed.order_by("-ended_at", "-id").values_list(*columns)[:MOST_JOBS]:
        yield Ran((quota, owner), 1000 * estimate, (until - since) // MILLISECOND, until)
