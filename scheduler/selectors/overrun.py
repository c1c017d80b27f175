"""By how much plans multiply estimates now, and what was learned of it from jobs that have ended."""

from dataclasses import dataclass
from datetime import datetime

from quotas.models import Estimates
from scheduler.loop.overrun import LEAST, LEAST_JOBS, MILLION, MOST
from scheduler.loop.policy import rules_now
from scheduler.models import LearnedOverrun
from scheduler.snapshots.overrun import settings_by


@dataclass(frozen=True, slots=True)
class Overrun:
    """The factor in use, and the one that was learned: None where nothing was yet. `as_stated`: a fleet-wide rule leaves it out."""

    factor: float
    as_stated: bool
    learned: float | None
    median: float | None  # as measured
    jobs: int
    since: datetime | None  # when the first of these jobs ended
    learned_at: datetime | None

    @property
    def is_bounded(self) -> bool:
        return self.jobs >= LEAST_JOBS and self.median is not None and not LEAST <= self.median * MILLION <= MOST

    @property
    def missing(self) -> int:
        """How many more jobs are needed until a factor is learned."""
        return max(0, LEAST_JOBS - self.jobs)


def overrun_told() -> Overrun:
    rules, row = rules_now(), LearnedOverrun.objects.first()
    rows = [] if row is None else [(row.factor_millionths,)]
    factor, as_stated = settings_by(rules, rows).overrun_millionths / MILLION, rules.get("estimates") == Estimates.STATED
    if row is None:
        return Overrun(factor, as_stated, None, None, 0, None, None)
    learned = row.factor_millionths / MILLION
    median = None if row.median_millionths is None else row.median_millionths / MILLION
    return Overrun(factor, as_stated, learned, median, row.jobs, row.since, row.learnt_at)
