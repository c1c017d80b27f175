"""The turn of costs: what was used is rated, and what no job used is added up by cause out of the capacity timeline."""

from collections import defaultdict
from collections.abc import Iterable
from datetime import date, datetime

from django.db.models import Q

from gpufleet.core.times import millis
from quotas.chargeback.months import Span, costs_turn, idle_write
from quotas.chargeback.rating import day_of
from scheduler.models import USES, CapacityEntry

DAY = 86_400_000
UNUSED = tuple(use for use in USES if use != "used")


def costs_step(*, now: datetime) -> int:
    """Rate open months up to now. Returns how many."""
    months = costs_turn(now=now)
    for month in months:
        if month.closed_at is None:
            idle_write(first=month.first, found=idle_between(month.first, now), now=now)
    return len(months)


def idle_between(first: date, now: datetime) -> dict[tuple[str, str, date], int]:
    """By type, cause and day of a month, in thousandths of a GPU times milliseconds."""
    span = Span(first)
    end = min(now, span.end)
    start, last = millis(span.start), millis(end)
    columns = [f"{use}_milli" for use in UNUSED]
    rows: Iterable[tuple[object, ...]] = (
        CapacityEntry.objects.filter(since__lt=end, used_milli__lt=1000)
        .filter(Q(until__isnull=True) | Q(until__gt=span.start))
        .order_by()
        .values_list("gpu__gpu_type_id", "since", "until", *columns)
        .iterator()
    )
    found: dict[tuple[str, str, int], int] = defaultdict(int)
    for gpu_type, since, until, *amounts in rows:
        begin, end_of = max(start, millis(since)), last if until is None else min(last, millis(until))  # type: ignore[arg-type]
        unused = [(use, milli) for use, milli in zip(UNUSED, amounts, strict=True) if milli]
        for day in range(begin // DAY, -(-end_of // DAY)):
            length = min(end_of, (day + 1) * DAY) - max(begin, day * DAY)
            for use, milli in unused:
                found[str(gpu_type), use, day] += milli * length  # type: ignore[operator]
    return {(gpu_type, use, day_of(day)): used for (gpu_type, use, day), used in found.items()}
