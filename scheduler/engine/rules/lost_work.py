"""What an eviction loses: GPUs times the time since the last complete checkpoint or the start, plus saving and restoring it."""

from ..model.values import Job
from ..state.work import Work


def lost_work(work: Work, milli: int, now: int) -> int:
    """GPU-milliseconds lost by an eviction now of what holds so much. Where a plan has put it, nobody has begun to work."""
    return 0 if work.fresh or work.evicted else lost_since(work.job, milli, now, work.job.run.started)


def lost_later(work: Work, milli: int, now: int) -> int:
    """The same as the next plan would see it, to which who was placed by this one is running work."""
    return lost_since(work.job, milli, now, now)


def lost_since(job: Job, milli: int, now: int, since: int | None) -> int:
    """GPU-milliseconds that a job loses which began its work at an instant, or never did (None)."""
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
