"""What becomes of a job on a node that is drained: it ends before, is moved or stopped at a moment, or stays until it ends."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from scheduler.models import DrainWay


class Fate(StrEnum):
    ENDS = "ends"  # before the moment, by its estimate or limit
    MOVED = "moved"
    STOPPED = "stopped"  # though it may not be preempted
    STAYS = "stays"


@dataclass(frozen=True, slots=True)
class Running:
    """What is known of a run. `saved_at`: since when its work is safe; `interval_seconds`: how often it saves, where it says so."""

    began: datetime
    saved_at: datetime | None
    interval_seconds: int | None
    ends_at: datetime | None
    movable: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """`at` is when it leaves, None where it is left alone; `lost_seconds` is the work since its last checkpoint by then."""

    fate: Fate
    at: datetime | None = None
    lost_seconds: int = 0


def outcome_of(run: Running, way: str, at: datetime | None, now: datetime) -> Outcome:
    """What a drain at a moment (None: now) does to a run."""
    if way not in (DrainWay.MOVE, DrainWay.STOP):
        return Outcome(Fate.STAYS)
    moment = max(at, now) if at is not None else now
    if run.ends_at is not None and now < run.ends_at <= moment:
        return Outcome(Fate.ENDS)
    if run.movable:
        return Outcome(Fate.MOVED, moment, lost_seconds(run, moment))
    return Outcome(Fate.STOPPED, moment, lost_seconds(run, moment)) if way == DrainWay.STOP else Outcome(Fate.STAYS)


def lost_seconds(run: Running, at: datetime) -> int:
    """Work since the last checkpoint before a moment, also one that is still to come at the stated interval; else since the run began."""
    since = max(run.began, run.saved_at) if run.saved_at is not None else run.began
    lost = max(0, int((at - since) / timedelta(seconds=1)))
    return lost % run.interval_seconds if run.interval_seconds else lost
