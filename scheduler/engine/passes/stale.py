"""End gangs that stayed below their minimum for longer than their grace. That none starts again in this plan: `Waiting` in waiting.py."""

from collections import Counter

from ..model.reasons import reason
from ..state.planning import Cycle


def run(cycle: Cycle) -> None:
    """A gang below its minimum that was not repaired in time is ended whole and queued again."""
    grace = cycle.settings.stale_grace_ms
    for work in sorted(cycle.waiting.queues.open, key=lambda work: work.order):
        since = cycle.now if work.job.run.degraded_since is None else work.job.run.degraded_since
        if work.stale or not work.degraded or work.fresh or work.state not in ("running", "starting", "reserved") or cycle.is_to_come(since + grace):
            continue
        roles, have = work.kind.roles, Counter(seat.role for seat in work.seats)
        short = [(role, have[place]) for place, role in enumerate(roles) if have[place] < role.least]  # surplus of one makes up for none of another
        lacks = " and ".join(f"{there} of {role.least} workers{f' of role {role.name}' if len(roles) > 1 else ''}" for role, there in short)
        detail = f"{lacks} for {(cycle.now - since) // 1000} s, longer than the grace of {grace // 1000} s"
        cycle.cluster.unseat(work, work.seats, reason("stale", detail), None)
        work.stale = True
        cycle.changed()
