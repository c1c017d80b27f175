"""One source of foresight: when a waiting job starts, as it is stored. Every list, page and answer prints this, with its age."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from scheduler.models import Job, JobState, Outlook

WAITING = (JobState.QUEUED, JobState.PREEMPTED)
# So long a start that is due may come at any moment; then it is late, and says so.
ANY_MOMENT = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class ForeseenStart:
    """`told_at` is when it was worked out. `late_since`: the job was due then, and no later start has been foreseen since."""

    at: datetime
    earliest: datetime | None
    latest: datetime | None
    told_at: datetime
    late_since: datetime | None

    @property
    def moment(self) -> datetime:
        """What faces print: the start, or since when it is due."""
        return self.late_since or self.at

    @property
    def window(self) -> tuple[datetime, datetime] | None:
        """The earliest and the latest start, where they differ and the job is not late."""
        if self.earliest is None or self.latest is None or self.earliest >= self.latest or self.late_since is not None:
            return None
        return self.earliest, self.latest

    def is_late(self, now: datetime) -> bool:
        return now - self.moment > ANY_MOMENT


def foreseen_start(job: Job, outlook: Outlook | None) -> ForeseenStart | None:
    """None: it does not wait, nobody can say, or what is stored is of an earlier wait."""
    if outlook is None or outlook.predicted_start is None or job.state not in WAITING or job.held_at is not None:
        return None
    told_at = outlook.forecast_at or outlook.at
    if outlook.forecast_at is not None and outlook.forecast_at < job.state_since:
        return None
    return ForeseenStart(outlook.predicted_start, outlook.earliest_start, outlook.latest_start, told_at, outlook.late_since)


def late_since(*, due: datetime | None, before: datetime | None, start: datetime | None, now: datetime) -> datetime | None:
    """Since when a job is late that was told `due` (late since `before` already) and is told `start` now."""
    due = before or due
    if start is None or due is None or due > now:
        return None
    return due if start <= now + ANY_MOMENT else None
