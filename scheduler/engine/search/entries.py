"""The dates of blocked jobs and the places that are kept for them, and how everyone stands in a look-ahead, from one plan to the next."""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from ..model.values import Settings
from ..state.fleet import Seat
from ..state.work import Work
from .lookahead import END, Lookahead

MANY = 64  # jobs that changed from which a look-ahead is made anew


class Date(NamedTuple):
    """When a job could start, and where."""

    at: int  # milliseconds from now
    places: list[tuple[int, int]]  # (node, whole GPUs)
    seats: tuple[Seat, ...]  # its workers one by one, where it was tried and not only counted


def seats_of(work: Work, date: Date) -> Sequence[Seat]:
    """Where workers stand at a date: as they were placed, or one by one on the nodes that were counted."""
    if date.seats:
        return date.seats
    role = next(work.kind.roles[place] for place, _ in work.missing())
    each = role.gpus or 1
    counted = (node for node, count in date.places for _ in range(count // each))
    return [Seat(0, 0, node, 0, role.cpu_milli, role.host_memory_mib, 0) for node in counted]


@dataclass(slots=True)
class Entry:
    work: Work
    quota_type: int
    at: int  # milliseconds from now
    length: int
    places: list[tuple[int, int]]  # (node, GPUs)
    guaranteed: bool  # whether its holder would stay within its guarantees
    place: int  # in the order of the book
    date: Date
    served: bool = False  # by a later pass: its holder stands, and nothing is kept any more

    def keeps(self, node: int) -> int:
        return sum(count for place, count in self.places if place == node)


class Held(NamedTuple):
    """How a job stands in a book: until which instant (0: it gives way at once), and where."""

    until: int
    seats: tuple[Seat, ...]

    def left(self, now: int) -> int:
        """So many milliseconds from now it stands there."""
        return END if self.until >= END else max(0, self.until - now)


NOWHERE = Held(0, ())


class Prospect:
    """A look-ahead to go on from in the next plan."""

    def __init__(self, settings: Settings, ahead: Lookahead, held: "Stays", ends_now: bool) -> None:
        self.settings = settings
        self.ends_now = ends_now  # whether somebody's time was up when it was made, or would have been
        self.ahead = ahead
        self.held = held
        self.changed: dict[Work, bool] = {}  # jobs that may stand otherwise by now, and whether they are still there


class Stays(dict[Work, Held]):
    """Who stands where until when, as the look-ahead has it. Of those of whom nobody knows when they end, it is made when it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.endless: dict[Work, tuple[Seat, ...]] = {}
        self._leaving: list[tuple[int, int, Work]] | None = None  # a heap of when each leaves of whom that is known, and of when he did not after all
        self._unbegun: dict[Work, None] = {}  # whose time is counted from now on

    def of(self, work: Work) -> Held:
        known = self.get(work)
        if known is None:
            seats = self.endless.pop(work, None)
            if seats is None:
                return NOWHERE
            known = self[work] = Held(END, seats)
        return known

    def change(self, work: Work, held: Held) -> None:
        """It stands so from now on, or nowhere."""
        if not held.seats:
            del self[work]
            self._unbegun.pop(work, None)
            return
        self[work] = held
        if self._leaving is not None and len(self._leaving) > 4 * len(self) + MANY:
            self._leaving = None  # most of them left or moved before
        if self._leaving is not None and 0 < held.until < END:
            heappush(self._leaving, (held.until, id(work), work))
            if work.job.run.started is None:
                self._unbegun[work] = None

    def out_of_date(self, now: int) -> list[Work]:
        """Whose time was up by now, or is counted from now on. Who gives way at once goes on to do so."""
        if self._leaving is None:
            some = [(held.until, work) for work, held in self.items() if 0 < held.until < END]
            self._leaving = [(until, id(work), work) for until, work in some]
            heapify(self._leaving)
            self._unbegun = {work: None for _, work in some if work.job.run.started is None}
        line, over = self._leaving, []
        while line and line[0][0] <= now:
            until, _, work = heappop(line)
            held = self.get(work)
            if held is not None and held.until == until:
                over.append(work)
        return [*over, *self._unbegun]
