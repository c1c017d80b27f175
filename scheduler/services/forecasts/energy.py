"""What an energy rate comes to before it is written: to which hours deferred jobs would be deferred then. Nothing is written."""

from dataclasses import dataclass
from datetime import datetime

from quotas.permissions import Access, Can
from scheduler.models import EnergyRate, Job, JobState
from scheduler.selectors.energy import Tariffs
from scheduler.services.jobs.deferring import Wanted, deferral_judge

MOST = 1000


@dataclass(frozen=True, slots=True)
class RatePreview:
    """Jobs that are deferred now, and how many of them would be deferred to another hour, or no longer. `looked_at` are judged at most."""

    deferred: int
    moved: int
    freed: int
    looked_at: int


def rate_preview(*, access: Access, rate: EnergyRate | None, instead_of: EnergyRate | None, now: datetime) -> RatePreview:
    """With `rate` in place of another one, or beside the others; None: without that other one."""
    access.must_everywhere(Can.OPERATE)
    changed = Tariffs(now).changed(rate, instead_of)
    rows = Job.objects.filter(ended_at__isnull=True, deferred_to__gt=now, state=JobState.QUEUED).order_by("id")
    moved = freed = looked_at = 0
    for job in rows.defer("labels", "launch", "parameters")[:MOST]:
        looked_at += 1
        wanted = Wanted.of(job)
        to = None if wanted is None else deferral_judge(wanted, changed, now=now).to
        freed += to is None
        moved += to is not None and to != job.deferred_to
    return RatePreview(rows.count(), moved, freed, looked_at)
