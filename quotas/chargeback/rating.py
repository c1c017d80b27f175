"""Rating: from intervals of the ledger to lines of a bill. Values in, values out: no database, no clock.

An interval is cut at midnight UTC (and so at the ends of months) and wherever its price changes. What is alike on a day is added up exactly, in
thousandths of a GPU times milliseconds; the amount of a line is rounded once, half to even, to a whole nano-unit (a billionth of the currency).
So lines add up to the same whole in whatever order and by whatever partition, and cutting intervals anywhere else changes nothing.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, NamedTuple

from quotas.chargeback.pricing import Kind, Price, PriceBook, amount_nanos

DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Interval:
    """What one worker held, all of it alike. Times are milliseconds since 1970; `labels` is written as sorted JSON."""

    job: str
    quota_id: int
    quota_path: str
    owner: str
    cost_centre: str
    labels: str
    cluster: str
    kind: Kind
    gpu_milli: int
    since: int
    until: int


class Key(NamedTuple):
    """What a line of a bill is one of."""

    day: int  # since 1970
    job: str
    quota_id: int
    quota_path: str
    owner: str
    cost_centre: str
    labels: str
    cluster: str
    kind: Kind
    price: Price | None


@dataclass(frozen=True, slots=True)
class Rated:
    """A line: how much of a thing was used on a day, and what it costs in nano-units. Without a price it costs nothing, and the report says so."""

    key: Key
    milli_millis: int

    @property
    def list_nanos(self) -> int:
        return amount_nanos(self.milli_millis, self.key.price.list_micros) if self.key.price else 0

    @property
    def contracted_nanos(self) -> int:
        return amount_nanos(self.milli_millis, self.key.price.contracted_micros) if self.key.price else 0

    @property
    def effective_nanos(self) -> int:
        return amount_nanos(self.milli_millis, self.key.price.effective_micros) if self.key.price else 0


def days_of(since: int, until: int) -> Iterator[tuple[int, int, int]]:
    """[since, until) cut at midnight UTC: the day, and the piece."""
    at = since
    while at < until:
        day = at // DAY_MS
        following = min(until, (day + 1) * DAY_MS)
        yield day, at, following
        at = following


def rated(intervals: Iterable[Interval], book: PriceBook, start: int, end: int) -> list[Rated]:
    """The lines of [start, end), in a fixed order."""
    found: dict[Key, int] = defaultdict(int)
    for one in intervals:
        for day, begins, ends in days_of(max(start, one.since), min(end, one.until)):
            for since, until, price in book.pieces(one.kind, begins, ends):
                key = Key(day, one.job, one.quota_id, one.quota_path, one.owner, one.cost_centre, one.labels, one.cluster, one.kind, price)
                found[key] += one.gpu_milli * (until - since)
    lines = [Rated(key, used) for key, used in found.items() if used]
    return sorted(lines, key=_order)


def _order(line: Rated) -> tuple[Any, ...]:
    key, price = line.key, line.key.price
    kind = (key.kind.gpu_type, key.kind.share_class, key.kind.preemptible, key.kind.tier, key.kind.pool)
    said = (price.card, *price.key, price.list_micros, price.contracted_micros, price.discount_ppm) if price else ()
    return (key.day, key.job, key.quota_path, key.owner, key.cost_centre, key.labels, key.cluster, kind, said)


def day_of(number: int) -> date:
    return date.fromordinal(date(1970, 1, 1).toordinal() + number)


def midnight(number: int) -> datetime:
    return datetime.fromtimestamp(number * 86_400, UTC)


def shared(amount: int, weights: Mapping[str, int]) -> dict[str, int]:
    """`amount` divided by whole weights, by largest remainder: the parts add up to it exactly. Without a weight above zero nobody takes a part."""
    total = sum(weights.values())
    if total <= 0:
        return {}
    sign = -1 if amount < 0 else 1
    parts = {name: divmod(abs(amount) * weight, total) for name, weight in weights.items()}
    left = abs(amount) - sum(whole for whole, _ in parts.values())
    first = sorted(parts, key=lambda name: (-parts[name][1], name))[:left]
    return {name: sign * (whole + (name in first)) for name, (whole, _) in parts.items()}
