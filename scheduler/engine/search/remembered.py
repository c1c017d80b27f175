"""What blocked jobs were told of their places, and how everyone stands in a look-ahead: kept from one plan to the next."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from ..model.values import Settings
from ..state.fleet import Seat
from ..state.work import Work
from .lookahead import END, Lookahead

MANY = 64  # jobs that changed from which a look-ahead is made anew
MOST_CHANGES = 4096  # that are looked through
NO_NODES: frozenset[int] = frozenset()


class Date(NamedTuple):
    """When a job could start, and where."""

    at: int  # milliseconds from now
    places: list[tuple[int, int]]  # (node, whole GPUs)
    seats: tuple[Seat, ...]  # its workers one by one, where it was tried and not only counted


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
    known: "Known"  # what it was told
    served: bool = False  # by a later pass: its holder stands, and nothing is kept any more

    def keeps(self, node: int) -> int:
        return sum(count for place, count in self.places if place == node)


class Held(NamedTuple):
    """How a job stands in a book: until which instant (0: it gives way at once), and where."""

    until: int
    seats: tuple[Seat, ...]


NOWHERE = Held(0, ())


@dataclass(slots=True, eq=False)
class Known:
    """What came of a blocked job that asked for a place in a type: from when on it is kept, where; or no date at all."""

    work: Work
    quota_type: int
    instant: int
    places: list[tuple[int, int]] | None
    counted: bool  # whether that is a matter of counting GPUs over time, and so the same as long as these are
    read: int = 0  # so many changes of the fleet it takes into account
    before: tuple["Known", ...] = ()  # whose places were kept then

    @property
    def nodes(self) -> Iterator[int]:
        return (node for node, _ in self.places or ())


class Prospect:
    """A look-ahead to go on from in the next plan, and what was told on it."""

    def __init__(self, settings: Settings, ahead: Lookahead, held: "Stays", ends_now: bool, told: "Remembered") -> None:
        self.settings = settings
        self.ends_now = ends_now  # whether somebody's time was up when it was made, or would have been
        self.ahead = ahead
        self.held = held
        self.told = told
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


class Line(NamedTuple):
    """Who asked for places one after the other, and what came of it."""

    asked: list[tuple[Work, int]]  # and in which type
    known: list[Known]
    before: list[tuple[Known, ...]]  # whose places were kept then, by who asked
    entries: list[Entry]
    nodes: frozenset[int]  # of the places of all of them
    read: int  # so many changes of the fleet it takes into account


class Remembered:
    """What blocked jobs were told, and what has changed on the fleet since.

    A date is the same again as long as its places can still be had, and no node that has changed offers one that comes before it: whether
    another job stands there since, or another one has a place kept.
    """

    def __init__(self) -> None:
        self.dates: dict[Work, Known] = {}
        self.lately: dict[Work, Known] = {}  # of this plan alone
        self.changes: list[int] = []  # nodes on which somebody stands otherwise than before, in order; below zero (~node): there is only less room
        self.line: Line | None = None  # what came of the last ones who asked
        self._since = (0, 0, NO_NODES, NO_NODES)  # of which of the changes, and the nodes with more and with less room by them

    def go_on(self) -> None:
        if len(self.dates) > MANY:
            self.dates = self.lately
        self.lately = {}
        if len(self.changes) > MOST_CHANGES:
            self.dates.clear()
            self.changes.clear()
            self.line = None
            self._since = (0, 0, NO_NODES, NO_NODES)

    def note(self, known: Known, before: Sequence[Known]) -> None:
        known.read, known.before = len(self.changes), tuple(before)
        self.dates[known.work] = self.lately[known.work] = known

    def changed_since(self, known: Known, before: Sequence[Known]) -> tuple[frozenset[int], frozenset[int]]:
        """The nodes on which there may be more room than when it was told, with these places kept now; and those on which there may be less."""
        more, less = self.since(known.read)
        told = known.before
        if gone := [one for one in told if one not in before]:
            more = more.union(*[one.nodes for one in gone])
        if come := [one for one in before if one not in told]:
            less = less.union(*[one.nodes for one in come])
        return more, less

    def since(self, read: int) -> tuple[frozenset[int], frozenset[int]]:
        """The same by who stands there alone."""
        known, until, more, less = self._since
        if known != read or until != len(self.changes):  # mostly all of them were told at one time
            changes = self.changes[read:]
            more, less = frozenset([node for node in changes if node >= 0]), frozenset([~node for node in changes if node < 0])
            self._since = (read, len(self.changes), more, less)
        return more, less
