"""What a month's lines add up to by each column that reports are by: stored beside the lines, so that a report of the whole organisation reads some
hundred rows instead of all lines. Whatever writes lines or their telemetry calls `sums_write` in the same transaction.
"""

from collections.abc import Sequence
from datetime import date

from django.db.models import Count, F, FloatField, Q, QuerySet, Sum
from django.db.models.functions import Cast

from gpufleet.core.bulk import rows_insert
from quotas.models import ChargeLine, ChargeMonth, ChargeSum

SUMMED = ("quota_path", "owner", "cost_centre", "gpu_type", "share_class", "tier", "day")
BOOKS = ("lines", "milli_millis", "borrowed", "list_nanos", "contracted_nanos", "effective_nanos", "unpriced")
AMOUNTS = (*BOOKS, "measured", "computing")
# A correction is of another month's telemetry.
_MEASURED = Q(use__measured__gt=0, corrects__isnull=True)
_SUMS = {
    "lines": Count("*"),
    "milli_millis": Sum("milli_millis"),
    "borrowed": Sum("milli_millis", filter=Q(share_class="borrowed")),
    "list_nanos": Sum("list_nanos"),
    "contracted_nanos": Sum("contracted_nanos"),
    "effective_nanos": Sum("effective_nanos"),
    "unpriced": Sum("milli_millis", filter=Q(card="")),
    "measured": Sum("milli_millis", filter=_MEASURED),
    # A line's use computed in the proportion in which its job computed on that day.
    "computing": Sum(
        Cast("milli_millis", FloatField()) * Cast(F("use__computing"), FloatField()) / Cast(F("use__measured"), FloatField()), filter=_MEASURED
    ),
}
BATCH = 2000
Sums = dict[tuple[str, str], dict[str, int]]


def line_sums(lines: QuerySet[ChargeLine], by: str, *, only: tuple[str, ...] = AMOUNTS) -> Sums:
    """By what lines have in a column, and by their class."""
    rows = lines.order_by().annotate(said=F(by)).values_list("said", "share_class").annotate(**{f"sum_{name}": _SUMS[name] for name in only})
    return {
        ("" if said is None else str(said), share_class): {name: round(amount or 0) for name, amount in zip(only, amounts, strict=True)}
        for said, share_class, *amounts in rows.iterator(BATCH)
    }


def sums_write(month: ChargeMonth) -> None:
    month.sums.all().delete()
    for by in SUMMED:
        rows = [(month.pk, by, *key, *amounts.values()) for key, amounts in sorted(line_sums(month.lines.all(), by).items())]
        rows_insert(ChargeSum, ("month_id", "by", "key", "share_class", *AMOUNTS), rows)


def sums_of(months: Sequence[date], by: str) -> Sums:
    """Of some months together, by key and class."""
    found = ChargeSum.objects.filter(month__first__in=months, by=by).order_by("key", "share_class").values_list("key", "share_class")
    rows = found.annotate(**{f"sum_{name}": Sum(name) for name in AMOUNTS})
    return {(key, share_class): dict(zip(AMOUNTS, map(int, amounts), strict=True)) for key, share_class, *amounts in rows}


def day_costs(months: Sequence[date]) -> list[tuple[date, str, int]]:
    """Day, class and cost of the months' own days: corrections are of another month's."""
    rows = ChargeSum.objects.filter(month__first__in=months, by="day").values_list("month__first", "key", "share_class", "effective_nanos")
    return [(day, share_class, cost) for first, key, share_class, cost in rows if (day := date.fromisoformat(key)).replace(day=1) == first]


def sums_faults(month: ChargeMonth) -> list[str]:
    """What does not fit between a month's sums and its lines; nothing in sound books."""
    faults = []
    for by in SUMMED:
        stored = {key: {name: amounts[name] for name in BOOKS} for key, amounts in sums_of([month.first], by).items()}
        if stored != line_sums(month.lines.all(), by, only=BOOKS):
            faults.append(f"{month} has sums by {by} that are not those of its lines.")
    return faults
