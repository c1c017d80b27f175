"""When a job that can be deferred had best run: a choice by rates of energy over time. No clock, no rows: values in, a value out.

A rate is a whole number for each kWh, of money (micro-units) or of CO2 (grams). Times are milliseconds.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

HOUR_MS = 3_600_000
# A run may take this much longer than its estimate, in percent, and still ends by its deadline; its mean counts all of that.
MARGIN_PERCENT = 25
# Starts are looked for this far ahead: as far as a forecast reaches.
FURTHEST_MS = 14 * 24 * HOUR_MS


@dataclass(frozen=True, slots=True)
class Span:
    """A rate from `start` until before `end` (None: without an end), of one pool or of the whole fleet (empty)."""

    pool: str
    value: int
    start: int
    end: int | None
    forecast: bool = False


@dataclass(frozen=True, slots=True)
class Course:
    """A rate over time: `values[n]` counts from `at[n]` until `at[n + 1]`. None: nobody has said."""

    at: Sequence[int]
    values: Sequence[int | None]

    def value(self, moment: int) -> int | None:
        place = bisect_right(self.at, moment) - 1
        return self.values[place] if 0 <= place < len(self.values) else None


@dataclass(frozen=True, slots=True)
class Wish:
    """What is known of a run. It starts from `earliest` on, lasts `length` at most, and must have ended by `deadline`."""

    earliest: int
    length: int
    deadline: int

    @property
    def latest(self) -> int:
        """The last start that ends in time."""
        return self.deadline - self.length


@dataclass(frozen=True, slots=True)
class Choice:
    """The best start with its mean rate over the run as a fraction (`total` by `length`), and that of the first possible start."""

    start: int
    pool: str
    total: int
    total_now: int
    length: int

    @property
    def mean(self) -> int:
        return round(self.total / self.length)

    @property
    def mean_now(self) -> int:
        return round(self.total_now / self.length)

    def saved(self, watt_hours: int) -> int:
        """By so much energy, in the unit of the rate."""
        return round((self.total_now - self.total) * watt_hours / (1000 * self.length))


def course_of(spans: Iterable[Span], pool: str, start: int, end: int) -> Course:
    """What counts for a pool. What was said of the pool goes before what was said of the fleet; of either, a forecast goes before rates, and of
    several rates the one that began last counts."""
    mine = [span for span in spans if span.pool in ("", pool) and span.start < end and (span.end is None or span.end > start)]
    edges = sorted({start, *(edge for span in mine for edge in (span.start, span.end) if edge is not None and start < edge < end)})
    # Each moment asks the first in this order that lasts there. Equal ones are told apart by their value, lest the order of rows decide.
    mine.sort(key=lambda span: (span.pool == pool, span.forecast, span.start, span.value), reverse=True)
    values = [next((span.value for span in mine if span.start <= edge and (span.end is None or span.end > edge)), None) for edge in edges]
    return Course([*edges, end], values)


def best_start(courses: Mapping[str, Course], wish: Wish, least_percent: int) -> Choice | None:
    """The start with the lowest mean rate over the whole run, and the earliest of equals; None: it had best start as soon as it can.

    Of several pools each is judged by itself, as a run stays in one, and the lowest counts, also for a start at once. A start counts only where the
    rate is known for all of its run. It is deferred if that saves at least `least_percent` of what a start at once takes.
    """
    latest = min(wish.latest, wish.earliest + FURTHEST_MS)
    if wish.length <= 0 or latest <= wish.earliest:
        return None
    at_once: list[int] = []
    found: list[tuple[int, int, str]] = []
    for pool, course in courses.items():
        sums = _Sums(course)
        if (now := sums.total(wish.earliest, wish.length)) is not None:
            at_once.append(now)
        # The mean is linear between starts at which a run begins or ends with a change of the rate: the lowest is at one of these, or at an end.
        starts = {wish.earliest, latest, *course.at, *(edge - wish.length for edge in course.at)}
        tried = ((sums.total(start, wish.length), start) for start in starts if wish.earliest <= start <= latest)
        found += [(total, start, pool) for total, start in tried if total is not None]
    if not at_once:
        return None  # nothing to compare with
    total, start, pool = min(found)
    now = min(at_once)
    if start == wish.earliest or 100 * (now - total) < least_percent * abs(now) or total >= now:
        return None
    return Choice(start, pool, total, now, wish.length)


class _Sums:
    """The rate of a course summed up over time, so that the mean of any run is two look-ups."""

    def __init__(self, course: Course) -> None:
        self.at, self.values = course.at, course.values
        lengths = [after - before for before, after in zip(self.at, self.at[1:], strict=False)]
        self.sums = [0, *accumulate((value or 0) * length for value, length in zip(self.values, lengths, strict=True))]
        self.gaps = [0, *accumulate(length if value is None else 0 for value, length in zip(self.values, lengths, strict=True))]

    def total(self, start: int, length: int) -> int | None:
        """Rate by time over a run; None where it is not known for all of it."""
        end = start + length
        if start < self.at[0] or end > self.at[-1]:
            return None
        (first, gap_first), (last, gap_last) = self._until(start), self._until(end)
        return None if gap_last > gap_first else last - first

    def _until(self, moment: int) -> tuple[int, int]:
        place = min(bisect_right(self.at, moment) - 1, len(self.values) - 1)
        value, inside = self.values[place], moment - self.at[place]
        return self.sums[place] + (value or 0) * inside, self.gaps[place] + (inside if value is None else 0)
