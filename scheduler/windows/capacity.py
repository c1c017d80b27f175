"""Whether windows fit: how much of a type, or of each block of a level, is promised when. Values in, values out."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

STEPS_TRIED = 400  # starts that are tried to find the nearest one that fits
SERIES_TRIED = 40  # the same where all windows of a rule are to fit
FURTHEST_MOVE = timedelta(days=7)  # of a series: windows of others are written down for some weeks only

Span = tuple[datetime, datetime | None]


@dataclass(frozen=True, slots=True)
class Booking:
    """A window that is promised so much from a start until an end; None: it never ends."""

    name: str
    start: datetime
    end: datetime | None
    milli: int

    def lasts_at(self, moment: datetime) -> bool:
        return self.start <= moment and (self.end is None or moment < self.end)

    def meets(self, start: datetime, end: datetime | None) -> bool:
        return (end is None or self.start < end) and (self.end is None or self.end > start)


@dataclass(frozen=True, slots=True)
class Peak:
    """When most is promised, how much, and to whom."""

    at: datetime
    milli: int
    bookings: tuple[Booking, ...]


def peak(bookings: Iterable[Booking], start: datetime, end: datetime | None) -> Peak:
    """The first moment of a span at which most is promised: at its start, or when a booking starts inside it."""
    inside = [one for one in bookings if one.meets(start, end)]
    best = Peak(start, 0, ())
    for at in sorted({start, *(one.start for one in inside if one.start > start)}):
        there = tuple(one for one in inside if one.lasts_at(at))
        milli = sum(one.milli for one in there)
        if milli > best.milli:
            best = Peak(at, milli, there)
    return best


def nearest_start(
    bookings: Sequence[Booking], start: datetime, length: timedelta | None, *, milli: int, capacity: int, since: datetime
) -> datetime | None:
    """The start nearest to the one asked for at which so much fits, not before `since`; None: at none of those that can be the first to fit."""
    if milli > capacity:
        return None
    starts = {start, *(one.end for one in bookings if one.end is not None)}
    if length is not None:
        starts.update(one.start - length for one in bookings)
    ahead = sorted((at for at in starts if at >= since), key=lambda at: (abs(at - start), at))
    for at in ahead[:STEPS_TRIED]:
        end = None if length is None else at + length
        if peak(bookings, at, end).milli + milli <= capacity:
            return at
    return None


def nearest_series(
    bookings: Sequence[Booking],
    short: datetime,
    drawn: Callable[[timedelta], Iterable[Span]],
    *,
    milli: int,
    capacity: int,
    since: datetime,
    begun: bool = False,
) -> datetime | None:
    """The first start of a recurring reservation that is moved as little as possible, so that all of its windows fit.

    `drawn` are its windows, moved by so much; `short` is when the first starts that does not fit. None: no move that frees that one is enough.
    Of one that has `begun` only windows count that start from `since` on: it is changed, and one may last.
    """
    if milli > capacity:
        return None
    start, end = next((start, end) for start, end in drawn(timedelta(0)) if start == short)
    moves = {one.end - start for one in bookings if one.end is not None}
    if end is not None:
        moves.update(one.start - end for one in bookings)
    for move in sorted((move for move in moves if abs(move) <= FURTHEST_MOVE), key=lambda move: (abs(move), move))[:SERIES_TRIED]:
        windows = [window for window in drawn(move) if not begun or window[0] >= since]
        if windows and windows[0][0] >= since and all(peak(bookings, *one).milli + milli <= capacity for one in windows):
            return windows[0][0]
    return None


@dataclass(frozen=True, slots=True)
class Shortage:
    """A window that does not fit, and the numbers."""

    start: datetime
    asked: int
    capacity: int
    peak: Peak

    @property
    def left(self) -> int:
        return max(0, self.capacity - self.peak.milli)


def shortages(bookings: Sequence[Booking], windows: Iterable[tuple[datetime, datetime | None]], *, milli: int, capacity: int) -> list[Shortage]:
    """The windows of a reservation that do not fit beside what is promised already."""
    found = []
    for start, end in windows:
        highest = peak(bookings, start, end)
        if highest.milli + milli > capacity:
            found.append(Shortage(start, milli, capacity, highest))
    return found
