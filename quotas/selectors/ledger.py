"""Reading the usage ledger: its entries, the part of each that lies within a span, and exact sums by GPU type and class."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.db.models import BigIntegerField, F, Func, Q, QuerySet, Sum, Value
from django.db.models.functions import Coalesce, Greatest, Least

from gpufleet.core.rounding import rounded
from gpufleet.core.times import MomentField, millis
from quotas.chargeback.pricing import HOUR
from quotas.models import CHARGED, LedgerEntry, Phase, QuotaNode, ShareClass
from quotas.permissions import Access, Can, at_or_below

BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
MILLI_HOUR = HOUR // 1000


@dataclass(frozen=True, slots=True)
class Span:
    """The time that a reader asks about. What goes on is counted up to its end."""

    start: datetime
    end: datetime

    def used(self, entry: LedgerEntry) -> int:
        """Thousandths of a GPU times milliseconds that are charged of the entry within the span, exact."""
        if entry.phase == Phase.STARTING:
            return 0
        since, until = max(entry.since, self.start), min(entry.until or self.end, self.end)
        return entry.gpu_milli * max(0, millis(until) - millis(since))


def span_of(start: datetime | None, end: datetime | None, now: datetime) -> Span:
    return Span(start or BEGINNING, min(end or now, now))


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """An entry, and its use within the span of the reader."""

    entry: LedgerEntry
    milli_millis: int


@dataclass(frozen=True, slots=True)
class LedgerSum:
    """Use of one GPU type: exact by class, and in thousandths of GPU-hours whose sum is the rounded sum."""

    gpu_type: str
    guaranteed: int
    reserved: int
    borrowed: int

    @property
    def total(self) -> int:
        return self.guaranteed + self.reserved + self.borrowed

    @property
    def by_class(self) -> tuple[int, int, int]:
        return self.guaranteed, self.reserved, self.borrowed


def ledger_list(access: Access) -> QuerySet[LedgerEntry]:
    """Entries of the subtrees that the reader may see, by their path then or their place now, so that moving and renaming hide nothing."""
    access.must_somewhere(Can.SEE)
    entries = LedgerEntry.objects.filter(gpu_milli__gt=0)
    if access.can_everywhere(Can.SEE):
        return entries
    now_visible = QuotaNode.objects.filter(access.visible(Can.SEE)).values("pk")
    return entries.filter(access.visible(Can.SEE, "quota_path") | Q(quota_id__in=now_visible))


def ledger_below(path: str) -> Q:
    """Entries that were charged to a node or to one below it at the time."""
    return at_or_below(path.strip("/"), "quota_path")


def ledger_lines(entries: Sequence[LedgerEntry], span: Span) -> list[LedgerLine]:
    return [LedgerLine(entry, span.used(entry)) for entry in entries]


class _MillisBetween(Func):
    """Whole milliseconds from one moment to another, as both databases keep moments to the millisecond."""

    arity = 2
    output_field = BigIntegerField()

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        # A day's number has room for hundredths of a millisecond, so the nearest whole one is exact.
        template = "CAST(ROUND((julianday(%(expressions)s)) * 86400000) AS INTEGER)"
        return self.as_sql(compiler, connection, template=template, arg_joiner=") - julianday(", **context)

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        template = "CAST(ROUND(EXTRACT(EPOCH FROM (%(expressions)s)) * 1000) AS bigint)"
        return self.as_sql(compiler, connection, template=template, arg_joiner=" - ", **context)


def ledger_sums(entries: QuerySet[LedgerEntry], span: Span) -> list[LedgerSum]:
    """By GPU type, what is charged. The database adds up: the sum of the lines' use, to the millisecond."""
    start, end = (Value(moment, output_field=MomentField()) for moment in (span.start, span.end))
    length = _MillisBetween(Least(Coalesce(F("until"), end), end), Greatest(F("since"), start))
    # Whoever asks about a span gets only entries that touch it; one that was written after the reader's clock is cut to nothing.
    use = F("gpu_milli") * Greatest(Value(0, output_field=BigIntegerField()), length)
    found: dict[str, dict[str, int]] = {}
    rows = entries.filter(CHARGED).order_by().values_list("gpu_type", "share_class").annotate(used=Sum(use, output_field=BigIntegerField()))
    for gpu_type, share_class, used in rows:
        found.setdefault(gpu_type, {})[share_class] = int(used or 0)
    return [
        LedgerSum(gpu_type, *(classes.get(one, 0) for one in (ShareClass.GUARANTEED, ShareClass.RESERVED, ShareClass.BORROWED)))
        for gpu_type, classes in sorted(found.items())
    ]


def milli_hours(sums: Sequence[LedgerSum]) -> list[tuple[int, ...]]:
    """A grid of thousandths of GPU-hours as it is shown: classes and total of each type. Each row adds up."""
    found = []
    for one in sums:
        parts = rounded(one.by_class, MILLI_HOUR)
        found.append((*parts, sum(parts)))
    return found
