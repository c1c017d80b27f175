"""End gangs that stayed below their minimum for longer than their grace."""

from ..reasons import reason
from ..state import Cycle


def run(cycle: Cycle) -> None:
    """A gang below its minimum that was not repaired in time is ended whole and queued again."""
    grace = cycle.settings.stale_grace_ms
    for work in sorted(cycle.asking.open, key=lambda work: work.order):
        if work.stale or not work.degraded or work.fresh or work.state not in ("running", "starting", "reserved"):
            continue
        told = work.job.run.degraded_since
        since = cycle.now if told is None else told
        if cycle.now - since < grace:
            continue
        have, need = len(work.seats), sum(role.least for role in work.kind.roles)
        detail = f"{have} of {need} workers for {(cycle.now - since) // 1000} s, longer than the grace of {grace // 1000} s"
        cycle.cluster.unseat(work, work.seats, reason("stale", detail), None)
        work.stale = True
        cycle.changed()
