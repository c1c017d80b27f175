"""What follows from how long a job has run and waited, and from when it was last evicted: protection, delays, `max_wait_s`, backoff;
and what an eviction loses: GPUs times the time since the last complete checkpoint or the start, plus saving and restoring it."""

from typing import TYPE_CHECKING, Literal, TypeAlias

from ..model.reasons import Reason, reason, spell_instant
from ..model.values import Job
from ..state.work import Work
from .windows import NEVER

if TYPE_CHECKING:
    from ..state.cluster import Cluster
    from ..state.planning import Cycle

    Clocked: TypeAlias = Cycle | Cluster

FIRST_BACKOFF_MS, LONGEST_BACKOFF_MS = 30_000, 3_600_000


def duration(cycle: "Clocked", work: Work) -> int:
    """How long it would hold its places: its limit, else its estimate times the learned overrun, else for ever: then nothing behind it has a date."""
    job = work.job
    if job.limit_ms is not None:
        return job.limit_ms
    if job.estimate_ms is not None:
        return job.estimate_ms * cycle.settings.overrun_millionths // 1_000_000
    return NEVER


def ends_at(cycle: "Clocked", work: Work) -> int:
    """When what runs is expected to leave; one that overran its estimate is given the double, as often as needed."""
    now, started, length = cycle.now, work.here_since(cycle.now), duration(cycle, work)
    if length >= NEVER:
        return NEVER
    while started + length <= now and work.job.limit_ms is None and length > 0:
        length *= 2
    end = started + length
    return end if end > now else now


def protected_for(cycle: "Cycle", place: int, by: Literal["preempt", "reclaim"]) -> int:
    """The minimum run time stated nearest, going up from a node: for preempt the leaf, for reclaim that of the victim just below the fork."""
    field = f"{by}_min_runtime_ms"
    return cycle.tree.nearest(place, field, getattr(cycle.settings, field))


def may_cause_evictions(cycle: "Clocked", work: Work) -> bool:
    """Before its delay is over a job causes no eviction, move or shrink."""
    return not cycle.is_to_come(work.job.submitted + work.kind.preemption_delay_ms)


def overdue(cycle: "Clocked", work: Work) -> bool:
    """Whether it has waited as long as its class may."""
    most = cycle.settings.max_wait_ms[work.kind.class_rank]
    return most is not None and not work.seats and not cycle.is_to_come(work.job.waiting_since + most)


def waited_long(cycle: "Clocked", work: Work) -> bool:
    """Whether a job started after it had waited as long as its class may: for as long again only work within its guarantees reclaims it."""
    if (most := cycle.settings.max_wait_ms[work.kind.class_rank]) is None or not work.seats:
        return False
    started = work.here_since(cycle.now)
    return started - work.job.waiting_since >= most and cycle.is_to_come(started + most)


def held_off_until(cycle: "Clocked", work: Work) -> int:
    """Until when a job that was evicted starts only inside its guarantee, whether or not it has started."""
    run = work.job.run
    if not cycle.settings.hysteresis_ms or run.last_evicted is None:
        return 0
    doubled = min(LONGEST_BACKOFF_MS, FIRST_BACKOFF_MS << min(20, max(0, run.evictions - 1)))
    return run.last_evicted + max(cycle.settings.hysteresis_ms, doubled)


def backoff_until(cycle: "Clocked", work: Work) -> int:
    """Until when a waiting job backs off; 0: it does not."""
    return 0 if work.seats else held_off_until(cycle, work)


def backoff(cycle: "Cycle", work: Work, leaf: int, quota_type: int, milli: int) -> Reason | None:
    until = backoff_until(cycle, work)
    if not until or (work.order not in cycle.cluster.lessons.held_off and cycle.tree.within_guarantee(leaf, quota_type, milli)):
        return None
    if not cycle.is_to_come(until):
        return None
    at, times = spell_instant(until), work.job.run.evictions
    often = f"{times} times, last a short while ago" if times > 1 else "a short while ago"
    return reason("backoff", f"was evicted {often}; until {at} it starts only inside its guarantee", until=at)


def lost_since(job: Job, milli: int, now: int, since: int | None) -> int:
    """GPU-milliseconds that a job loses by an eviction now, of what holds so much, if it began its work at an instant, or never did (None)."""
    if since is None:
        return 0
    if (checkpoint := job.checkpoint) is None:
        return milli * (now - since) // 1000 if now > since else 0
    if (last := checkpoint.last) is not None and last > since:
        since = last
    return milli * ((now - since if now > since else 0) + checkpoint.save_ms + checkpoint.restore_ms) // 1000


def begin_of(job: Job, now: int) -> int:
    """Since when it runs. Who was only promised places, or is starting in them, begins now."""
    run = job.run
    if run.started is None:
        return run.since if run.since is not None and run.state == "running" else now
    return run.started
