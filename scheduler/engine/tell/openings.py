"""When a quota's limit, or a gate held by a job ahead, lets a waiting job start, by the estimates of who counts against it."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from ..ahead.lookahead import FOREVER
from ..rules.held_gates import Gate, Hold, Rule, gates_ahead, uses_of
from ..rules.times import ends_at
from ..rules.windows import NEVER
from ..state.planning import Cycle
from ..state.tree import Tree
from ..state.work import Work


class Taken(NamedTuple):
    """What a waiting job will count, from when on and for how long, in milliseconds."""

    work: Work
    quota_type: int
    milli: int
    at: int
    length: int


@dataclass(slots=True)
class Allowance:
    """What counts against one limit from each moment on, in milli-GPU; behind the last moment it stays so."""

    moments: list[int] = field(default_factory=lambda: [0])  # milliseconds from now
    levels: list[int] = field(default_factory=lambda: [0])
    _since: dict[tuple[int, int], int] = field(default_factory=dict)  # from when on so much may count already, for so long: never earlier again

    def count(self, milli: int, start: int, end: int) -> None:
        if end > start:
            first = self._cut(start)
            last = len(self.levels) if end >= FOREVER else self._cut(end)
            for place in range(first, last):
                self.levels[place] += milli
            if last < len(self.levels):
                self._join(last)
            self._join(first)

    def may_open(self, room: int, length: int) -> bool:
        """A bound: False where too much counts for ever."""
        return room >= 0 and (self.levels[-1] <= room or (length < FOREVER and len(self.levels) > 1))

    def opens(self, room: int, since: int, length: int) -> int | None:
        """The first moment from which on no more than so much counts for so long: not before there is room for a stay of half that."""
        half = 1 << max(0, length.bit_length() - 1)
        if (first := self._search(room, self._since.get((room, half), 0), half)) is None:
            return None
        self._since[room, half] = first
        return self._search(room, max(first, since), length)

    def _search(self, room: int, since: int, length: int) -> int | None:
        moments, levels = self.moments, self.levels
        at, until = since, since + length
        for place in range(bisect_right(moments, since) - 1, len(levels)):
            if at >= 0 and moments[place] >= until:
                return at
            if levels[place] > room:
                at = -1
            elif at < 0:
                at = moments[place]
                until = at + length
        return at if at >= 0 else None

    def _cut(self, moment: int) -> int:
        """The place of a moment, from which on something changes."""
        place = bisect_left(self.moments, moment)
        if place == len(self.moments) or self.moments[place] != moment:
            self.moments.insert(place, moment)
            self.levels.insert(place, self.levels[place - 1])
        return place

    def _join(self, place: int) -> None:
        """Where nothing changes any more there need be no place."""
        if place and self.levels[place] == self.levels[place - 1]:
            del self.moments[place], self.levels[place]


class Allowances:
    """What limits leave, in the order in which who waits is foreseen: later ones find what earlier ones leave."""

    def __init__(self, cycle: Cycle) -> None:
        self.cycle = cycle
        self.holds = bool(cycle.book.holds)
        self.binds = cycle.tree.limited or self.holds  # whether a limit or a held gate could keep anybody out
        self._by_gate: dict[tuple[int, Gate], Allowance] = {}
        self._taken: list[Taken] = []

    def may_open(self, work: Work, quota_type: int, milli: int, length: int, tree: Tree) -> bool:
        """A bound: False where nobody knows when its limits, as a tree has them, could let it in."""
        return all(allowance.may_open(room, length) for allowance, room in self._rooms(work, quota_type, milli, tree))

    def opens(self, work: Work, quota_type: int, milli: int, length: int, since: int, tree: Tree) -> int | None:
        """From when on, in milliseconds from now, no limit stands in the way of a stay of so long; None: nobody knows."""
        rooms, at, before = self._rooms(work, quota_type, milli, tree), since, -1
        while at != before:
            before = at
            for allowance, room in rooms:
                if (opens := allowance.opens(room, at, length)) is None:
                    return None
                at = opens
        return at

    def _rooms(self, work: Work, quota_type: int, milli: int, tree: Tree) -> list[tuple[Allowance, int]]:
        """Its limits, each with what may count already as it starts."""
        limits = tree.limits(work.home, quota_type)
        rooms = [(self._by_limit[place, of_type], most - milli) for place, of_type, most in limits]
        if self.holds:
            rooms += [(self._gate(hold, gate), gate.most - milli) for hold, gate in gates_ahead(self.cycle, work, quota_type, milli)]
        return rooms

    def _gate(self, hold: Hold, gate: Gate) -> Allowance:
        """What counts against a gate that a job ahead holds."""
        if (known := self._by_gate.get((hold.work.order, gate))) is None:
            known = self._by_gate[hold.work.order, gate] = Allowance()
            for milli, start, end in uses_of(self.cycle, hold, gate):
                known.count(milli, start, end)
            for taken in self._taken:
                self._count(gate, known, taken)
        return known

    def _count(self, gate: Gate, allowance: Allowance, taken: Taken) -> None:
        if gate.rule is not Rule.SHARE and gate.counts(self.cycle.tree, taken.work, taken.work.home, taken.quota_type):
            allowance.count(taken.milli, taken.at, taken.at + taken.length)

    def take(self, taken: Taken) -> None:
        """It counts from then on, as long as it stays."""
        work, quota_type, milli, at, length = taken
        if self.holds and not any(hold.work is work for hold in self.cycle.book.holds):
            self._taken.append(taken)
            for (_, gate), allowance in self._by_gate.items():
                self._count(gate, allowance, taken)
        for place, of_type, _ in self.cycle.tree.limits(work.home, quota_type):
            self._by_limit[place, of_type].count(milli, at, at + length)

    @cached_property
    def _by_limit(self) -> dict[tuple[int, int], Allowance]:  # of a node of the tree, and the quota type that the limit is about
        """What runs, by the limits that it counts against."""
        cycle, found = self.cycle, defaultdict[tuple[int, int], Allowance](Allowance)
        for work in [one for one in cycle.cluster.works if one.seats] if cycle.tree.limited else ():
            end = ends_at(cycle, work)
            for place, of_type, _ in cycle.tree.limits(work.charged_leaf, work.quota_type):
                found[place, of_type].count(work.milli, 0, FOREVER if end >= NEVER else end - cycle.now)
        return found
