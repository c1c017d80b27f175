"""Months: rated from the ledger while they are open, then closed for good. What is found later becomes correction lines of the next open month.

A refresh rates the days that are not settled yet, so it may be called as often as one likes. Closing freezes a month: its lines are hashed together
with the hash of the month before, the database refuses any change from then on, and `gpufleet doctor` recomputes the chain.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Q, Sum

from gpufleet.core.audit import audit_record
from gpufleet.core.bulk import rows_insert
from gpufleet.core.faults import Conflict
from gpufleet.core.live.feed import feed_publish
from gpufleet.core.times import millis
from quotas.chargeback.pricing import Kind, Price, PriceBook
from quotas.chargeback.rating import Interval, Key, Rated, day_of, rated, shared
from quotas.chargeback.sums import sums_faults, sums_write
from quotas.models import CHARGED, CardState, ChargeIdle, ChargeIdleDay, ChargeLine, ChargeMode, ChargeMonth, LedgerEntry, RateCard
from quotas.permissions import Access, Can
from quotas.selectors.rates import price_book

# No transaction that writes usage lasts so long: what lies behind is in the ledger.
SETTLED = timedelta(minutes=5)
BATCH = 2000
_LEDGER = (
    *("job", "quota_id", "quota_path", "owner", "cost_centre", "labels", "cluster"),
    *("gpu_type", "share_class", "preemptible", "tier", "pool", "gpu_milli", "since", "until"),
)
_KEY = ("day", "job", "quota_id", "quota_path", "owner", "cost_centre", "labels", "cluster")
_KIND = ("gpu_type", "share_class", "preemptible", "tier", "pool")
_PRICE = ("card", "list_micros", "contracted_micros", "discount_ppm")
_AMOUNTS = ("milli_millis", "list_nanos", "contracted_nanos", "effective_nanos")
_IDLE_DAY = ("month_id", "day", "gpu_type", "cause", "milli_millis", "effective_nanos")
_LINE = ("month_id", "corrects_id", *_KEY, *_KIND, *_PRICE, *_AMOUNTS)
IdleTime = Mapping[tuple[str, str, date], int]  # by type, cause and day, in thousandths of a GPU times milliseconds


@dataclass(frozen=True, slots=True)
class Span:
    """A month in UTC."""

    first: date

    @property
    def start(self) -> datetime:
        return datetime(self.first.year, self.first.month, 1, tzinfo=UTC)

    @property
    def next(self) -> date:
        return (self.first + timedelta(days=32)).replace(day=1)

    @property
    def before(self) -> date:
        return (self.first - timedelta(days=1)).replace(day=1)

    @property
    def end(self) -> datetime:
        return datetime(self.next.year, self.next.month, 1, tzinfo=UTC)


def month_at(now: datetime) -> date:
    return now.astimezone(UTC).date().replace(day=1)


# Rating


def intervals_between(start: datetime, end: datetime) -> Iterator[Interval]:
    """What the ledger says of [start, end), in a fixed order; what goes on ends with it."""
    rows = LedgerEntry.objects.filter(CHARGED, since__lt=end).filter(Q(until__isnull=True) | Q(until__gt=start))
    last = millis(end)
    for job, quota_id, path, owner, centre, labels, cluster, *kind, milli, since, until in rows.order_by("id").values_list(*_LEDGER).iterator(BATCH):
        gpu_type, share_class, preemptible, tier, pool = kind
        said = json.dumps(labels, sort_keys=True, ensure_ascii=False)
        wanted = Kind(gpu_type, share_class, preemptible == "yes", tier, pool)
        yield Interval(job, quota_id, path, owner, centre, said, cluster, wanted, milli, millis(since), last if until is None else millis(until))


def lines_between(start: datetime, end: datetime, book: PriceBook) -> list[Rated]:
    return rated(intervals_between(start, end), book, millis(start), millis(end)) if start < end else []


def _row(line: Rated) -> tuple[Any, ...]:
    price = line.key.price
    said = (price.card, price.list_micros, price.contracted_micros, price.discount_ppm) if price else ("", None, None, None)
    return (*_identity(line.key), *said, line.milli_millis, line.list_nanos, line.contracted_nanos, line.effective_nanos)


def _identity(key: Key) -> tuple[Any, ...]:
    kind = key.kind
    own = (day_of(key.day), key.job, key.quota_id, key.quota_path, key.owner, key.cost_centre, json.loads(key.labels), key.cluster)
    return (*own, kind.gpu_type, kind.share_class, kind.preemptible, kind.tier, kind.pool)


def _write(month: ChargeMonth, rows: Iterable[tuple[Any, ...]], corrects: ChargeMonth | None = None) -> None:
    head = (month.pk, corrects.pk if corrects else None)
    rows_insert(ChargeLine, _LINE, [(*head, *row) for row in rows])


def month_refresh(*, first: date, now: datetime) -> ChargeMonth:
    """Rate what is not settled yet. A closed month stays as it is."""
    with transaction.atomic():
        ChargeMonth.objects.bulk_create([ChargeMonth(first=first, currency=settings.CURRENCY)], ignore_conflicts=True)
        month = ChargeMonth.objects.select_for_update().get(first=first)
        if month.closed_at is not None:
            return month
        span = Span(first)
        until = min(now, span.end)
        from_day = max(month.settled_to or first, first)
        month.lines.filter(day__gte=from_day, corrects__isnull=True).delete()
        start = datetime(from_day.year, from_day.month, from_day.day, tzinfo=UTC)
        _write(month, (_row(line) for line in lines_between(start, until, price_book())))
        settled = min((now - SETTLED).astimezone(UTC).date(), span.next)
        month.settled_to, month.rated_to = max(from_day, settled), until
        month.save(update_fields=["settled_to", "rated_to"])
        _correct_older(month, now)
        sums_write(month)
    return month


def months_unsettle(*, since: datetime) -> None:
    """Prices from this moment on are others: open months are rated again from there."""
    day = since.astimezone(UTC).date()
    for month in ChargeMonth.objects.select_for_update().filter(closed_at__isnull=True).order_by("first"):
        if month.settled_to is not None and day < month.settled_to:
            month.settled_to = max(day, month.first)
            month.save(update_fields=["settled_to"])


def ledger_changed(*, since: datetime, now: datetime) -> None:
    """The ledger says something else from this moment on: open months are rated again, and what differs of closed ones becomes lines of the month
    that runs."""
    months_unsettle(since=since)
    closed = list(ChargeMonth.objects.filter(closed_at__isnull=False, first__gte=month_at(since)).order_by("first"))
    if closed:
        month = month_refresh(first=month_at(now), now=now)
        for one in closed:
            corrections_write(month=month, closed=one)
        sums_write(month)


def idle_write(*, first: date, found: IdleTime, now: datetime) -> None:
    """What no job used of a month, by type, cause and day, in thousandths of a GPU times milliseconds. Of a closed month nothing is written.

    A month has one price for it, so the cost of its days is its cost divided among them.
    """
    span, book = Span(first), price_book()
    with transaction.atomic():
        month = ChargeMonth.objects.select_for_update().filter(first=first, closed_at__isnull=True).first()
        if month is None:
            return
        month.idle.all().delete()
        month.idle_days.all().delete()
        at = min(millis(now), millis(span.end) - 1)
        days: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
        for (gpu_type, cause, day), used in sorted(found.items()):
            if used:
                days[gpu_type, cause][day.isoformat()] = used
        rows, parts = [], []
        for (gpu_type, cause), of_days in days.items():
            used = sum(of_days.values())
            cost = Rated(_idle_key(gpu_type, book.at(Kind(gpu_type), at)), used).effective_nanos
            rows.append(ChargeIdle(month=month, gpu_type=gpu_type, cause=cause, milli_millis=used, effective_nanos=cost))
            costs = shared(cost, of_days)
            parts += [(month.pk, day, gpu_type, cause, used, costs[day]) for day, used in of_days.items()]
        ChargeIdle.objects.bulk_create(rows)
        rows_insert(ChargeIdleDay, _IDLE_DAY, parts)


def _idle_key(gpu_type: str, price: Price | None) -> Key:
    return Key(0, "", 0, "", "", "", "{}", "", Kind(gpu_type), price)


# Closing


def why_not_closed(first: date, now: datetime) -> str | None:
    """Why a month can't be closed at a moment, if it can't."""
    span = Span(first)
    if now < span.end + SETTLED:
        return f"{first:%Y-%m} is not over: it can be closed from {span.end + SETTLED:%Y-%m-%d %H:%M} UTC on."
    if ChargeMonth.objects.filter(first=first, closed_at__isnull=False).exists():
        return f"{first:%Y-%m} is closed already."
    earlier = ChargeMonth.objects.filter(first__lt=first, closed_at__isnull=True, lines__isnull=False).order_by("first").first()
    if earlier is not None:
        return f"{earlier} is open: close it first."
    later = ChargeMonth.objects.filter(first__gt=first, closed_at__isnull=False).order_by("first").first()
    return None if later is None else f"{later} is closed already: months are closed in their order."


def month_close(
    *, access: Access, first: date, mode: str, reason: str = "", now: datetime, idle: Callable[[date, datetime], IdleTime] | None = None
) -> ChargeMonth:
    """Freeze a month that is over. Months are closed in their order, so that each one's hash covers the one before.

    `idle` adds up what no job used of it until now. Without, its idle time is closed as it was written last.
    """
    access.must_everywhere(Can.MANAGE_COSTS)
    if (refused := why_not_closed(first, now)) is not None:
        raise Conflict(refused)
    if mode not in ChargeMode.values:
        raise Conflict(f"Mode is {' or '.join(ChargeMode.values)}.")
    with transaction.atomic():
        month_refresh(first=first, now=now)
        month = ChargeMonth.objects.select_for_update().get(first=first)
        if (refused := why_not_closed(first, now)) is not None:  # by now
            raise Conflict(refused)
        if idle is not None:
            idle_write(first=first, found=idle(first, now), now=now)
        before = ChargeMonth.objects.filter(first__lt=first, closed_at__isnull=False).order_by("-first").first()
        month.previous_digest = before.digest if before else ""
        month.mode, month.closed_name = mode, access.actor.name
        sums = month.lines.aggregate(used=Sum("milli_millis"), cost=Sum("effective_nanos"))
        month.line_count, month.milli_millis, month.effective_nanos = month.lines.count(), int(sums["used"] or 0), int(sums["cost"] or 0)
        month.digest = month_digest(month)
        month.closed_at = now
        month.save()
        facts = {"mode": mode, "lines": month.line_count, "effective_nanos": month.effective_nanos, "digest": month.digest}
        audit_record(actor=access.actor, action="month.close", kind="charge_month", object_id=str(month), after=facts, reason=reason[:280])
        feed_publish(changes={"costs": [{"id": month.pk}]})
    return month


def month_digest(month: ChargeMonth) -> str:
    """SHA-256 over what the month says, each of its lines and its idle time, and the digest of the month before."""
    found = hashlib.sha256()

    def add(*said: Any) -> None:
        found.update(json.dumps(said, sort_keys=True, default=str, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")

    add("month", month.first, month.currency, month.mode, month.line_count, month.milli_millis, month.effective_nanos, month.previous_digest)
    columns = ("id", "corrects__first", *_KEY, *_KIND, *_PRICE, *_AMOUNTS)
    for row in ChargeLine.objects.filter(month=month).order_by("id").values_list(*columns).iterator(BATCH):
        add("line", *row)
    for row in month.idle.order_by("gpu_type", "cause").values_list("gpu_type", "cause", "milli_millis", "effective_nanos"):
        add("idle", *row)
    for row in month.idle_days.order_by("day", "gpu_type", "cause").values_list(*_IDLE_DAY[1:]):
        add("idle day", *row)
    return found.hexdigest()


def chain_faults() -> list[str]:
    """What does not fit in the chain of closed months; nothing in sound books."""
    faults, before = [], ""
    for month in ChargeMonth.objects.filter(closed_at__isnull=False).order_by("first"):
        if month.previous_digest != before:
            faults.append(f"{month} does not follow the month before it.")
        if month_digest(month) != month.digest:
            faults.append(f"{month} is not what was closed: its lines give another hash.")
        faults += sums_faults(month)
        before = month.digest
    return faults


# Corrections


def _correct_older(month: ChargeMonth, now: datetime) -> None:
    """Where cards were activated since a month was closed that hold in it, its differences become lines of this open month."""
    older = list(ChargeMonth.objects.filter(first__lt=month.first, closed_at__isnull=False).order_by("first"))
    if not older or ChargeMonth.objects.filter(closed_at__isnull=True, lines__isnull=False, first__lt=month.first).exists():
        return
    cards = RateCard.objects.filter(state=CardState.ACTIVE, approved_at__gt=month.corrected_to or older[0].closed_at)
    fresh = list(cards.values_list("valid_from", "valid_to", "approved_at"))
    for closed in older:
        span = Span(closed.first)
        assert closed.closed_at is not None
        if any(since < span.end and (until is None or until > span.start) and at is not None and at > closed.closed_at for since, until, at in fresh):
            corrections_write(month=month, closed=closed)
    if fresh:
        month.corrected_to = max(at for _, _, at in fresh if at is not None)
        month.save(update_fields=["corrected_to"])


def corrections_write(*, month: ChargeMonth, closed: ChargeMonth) -> int:
    """Rate a closed month again, and write what differs from what was charged for it so far into an open one. Twice writes nothing more."""
    span = Span(closed.first)
    due: dict[tuple[Any, ...], list[int]] = {}
    for line in lines_between(span.start, span.end, price_book()):
        row = _row(line)
        amounts = due.setdefault(_frozen(row[:-4]), [0, 0, 0, 0])
        for number, amount in enumerate(row[-4:]):
            amounts[number] += amount
    columns = (*_KEY, *_KIND, *_PRICE, *_AMOUNTS)
    charged = ChargeLine.objects.filter(Q(month=closed, corrects__isnull=True) | Q(corrects=closed))
    for row in charged.order_by("id").values_list(*columns).iterator(BATCH):
        amounts = due.setdefault(_frozen(row[:-4]), [0, 0, 0, 0])
        for number, amount in enumerate(row[-4:]):
            amounts[number] -= int(amount)
    sums: dict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for key, amounts in due.items():
        sums[_without_card(key)] = [total + amount for total, amount in zip(sums[_without_card(key)], amounts, strict=True)]
    # A new version that has a price as it was corrects nothing there.
    rows = [(*_thawed(key), *amounts) for key, amounts in due.items() if any(amounts) and any(sums[_without_card(key)])]
    _write(month, sorted(rows, key=repr), closed)
    return len(rows)


_LABELS = _KEY.index("labels")
_CARD = (*_KEY, *_KIND, *_PRICE).index("card")


def _without_card(key: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*key[:_CARD], *key[_CARD + 1 :])


def _frozen(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*row[:_LABELS], json.dumps(row[_LABELS], sort_keys=True), *row[_LABELS + 1 :])


def _thawed(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*row[:_LABELS], json.loads(row[_LABELS]), *row[_LABELS + 1 :])


def costs_turn(*, now: datetime) -> list[ChargeMonth]:
    """Rate the month that runs, and the one before while it is open."""
    first = month_at(now)
    turned = [month_refresh(first=Span(first).before, now=now)] if _has_usage(Span(Span(first).before)) else []
    return [*turned, month_refresh(first=first, now=now)]


def _has_usage(span: Span) -> bool:
    return LedgerEntry.objects.filter(since__lt=span.end).filter(Q(until__isnull=True) | Q(until__gt=span.start)).exists()
