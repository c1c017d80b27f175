"""What a rate card would change once it is active, told before: the used hours of each month at the prices then, against those of today."""

from collections import defaultdict
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, NamedTuple

from django.db.models import Sum

from gpufleet.core.times import millis
from quotas.chargeback.cards import card_check, prices_of
from quotas.chargeback.months import Span, month_at
from quotas.chargeback.pricing import FOREVER, PER_NANO, Card, Kind, PriceBook, amount_nanos, half_even
from quotas.chargeback.rating import DAY_MS
from quotas.models import ChargeLine, ChargeMonth, RateCard
from quotas.selectors.rates import price_book

USUAL_DAYS = 30
_KIND = ("gpu_type", "share_class", "preemptible", "tier", "pool")


class Effect(NamedTuple):
    """On the cost of a month in nano-units. `first` is None for 30 days with the use of the last 30, told of a card that begins later."""

    first: date | None
    is_closed: bool
    before: int
    after: int

    @property
    def change(self) -> int:
        return self.after - self.before


def effects_of(card: RateCard, now: datetime) -> list[Effect]:
    """Of a draft that may be activated, the newest month first; months that it does not touch are left out. A day within which a price changes counts
    by the hours before and after that."""
    if not card_check(card).passes:
        return []
    books = price_book(), _book_with(card)
    if card.valid_from > now:
        return _foreseen(books, card, now)
    sums: dict[date, list[int]] = defaultdict(lambda: [0, 0])
    for day, kind, used in _used(month_at(card.valid_from), card.valid_to):
        start = millis(datetime.combine(day, time(), UTC))
        for place, book in enumerate(books):
            sums[day.replace(day=1)][place] += half_even(used * book.charged(kind, start, start + DAY_MS)[1], DAY_MS * PER_NANO)
    closed = set(ChargeMonth.objects.filter(closed_at__isnull=False).values_list("first", flat=True))
    return [Effect(first, first in closed, before, after) for first, (before, after) in sorted(sums.items(), reverse=True) if before != after]


def _foreseen(books: tuple[PriceBook, PriceBook], card: RateCard, now: datetime) -> list[Effect]:
    """30 whole days of use at the price from then on, against the one that holds last before."""
    at, today = millis(card.valid_from), now.astimezone(UTC).date()
    since = today - timedelta(days=USUAL_DAYS)
    used = [(kind, milli) for day, kind, milli in _used(since, now) if since <= day < today]
    last = at if any(one.since <= at < one.until for one in books[0].cards) else at - 1  # the card before may end by itself
    before, after = (
        sum(amount_nanos(milli, book.charged(kind, moment, moment + 1)[1]) for kind, milli in used)
        for book, moment in zip(books, (last, at), strict=True)
    )
    return [Effect(None, False, before, after)] if used else []


def _used(since: date, until: datetime | None) -> list[tuple[date, Kind, int]]:
    """By day and kind, up to the end of a month. What corrections of the ledger took off a closed month, or added to it, is of its own days."""
    lines = ChargeLine.objects.filter(day__gte=since)
    if until is not None:
        lines = lines.filter(day__lt=Span(month_at(until)).next)
    rows: Any = lines.order_by().values_list("day", *_KIND).annotate(used=Sum("milli_millis"))
    return [(day, Kind(*kind), int(used)) for day, *kind, used in rows if used]


def _book_with(card: RateCard) -> PriceBook:
    """The active cards once this one is among them: it takes the place of the version before, and ends an open card before it."""
    begins, ends = millis(card.valid_from), card_check(card).ends
    left = [one for one in price_book().cards if card.replaces is None or one.name != card.replaces.public_id]
    cut = [Card(one.since, begins, one.name, one.prices) if ends is not None and one.name == ends.public_id else one for one in left]
    return PriceBook([*cut, Card(begins, FOREVER if card.valid_to is None else millis(card.valid_to), card.public_id, prices_of(card))])
