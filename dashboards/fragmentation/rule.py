"""The rule on lasting fragmentation: more jobs may move when too much of what is free has been of no use to the queue for long enough."""

from datetime import datetime, timedelta

from django.conf import settings

from dashboards.fragmentation.defragmenting import would_move
from dashboards.fragmentation.store import fragmentation_shares
from scheduler.models import Defragmentation
from scheduler.services.defragmenting import defragmentation_rule, moves_by_rule

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
# Of the minutes looked back on so many must have been measured: a console that was stopped knows nothing of that time.
MEASURED_PERCENT = 80


def rule_turn(*, now: datetime) -> Defragmentation | None:
    """Start a defragmentation if it is due; None where it is not."""
    chosen = settings.SCHEDULER
    above, length = chosen["DEFRAGMENT_ABOVE_PERCENT"], timedelta(seconds=chosen["DEFRAGMENT_AFTER_S"])
    if not above or Defragmentation.objects.filter(state=Defragmentation.State.OPEN, starts_at__lte=now, ends_at__gt=now).exists():
        return None
    shares = fragmentation_shares(now - length, now)
    minutes = length // MINUTE
    has_lasted = bool(shares) and shares[0][0] <= now - length + MINUTE and 100 * len(shares) >= MEASURED_PERCENT * minutes
    if not has_lasted or not all(100 * useless > above * free for _, free, useless in shares):
        return None
    left = chosen["DEFRAGMENT_MOVES_PER_HOUR"] - moves_by_rule(since=now - HOUR)
    if left <= 0 or not would_move(moves=left, now=now):
        return None
    _, free, useless = shares[-1]
    reason = f"{round(100 * useless / free)}% of what is free is of no use to the queue, and for {minutes} min more than {above}%."
    return defragmentation_rule(moves=left, reason=reason, now=now)
