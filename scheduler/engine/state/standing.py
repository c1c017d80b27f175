"""Who stands below each leaf of the tree, and what follows from that whatever the time: it goes on from plan to plan, job by job."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from .difference import Difference
from .fleet import Seat
from .work import Work

Level = tuple[int, int]
Stand = tuple[int, tuple[Seat, ...], int, int]  # charged leaf, places, milli-GPU and quota type


class Lowest(NamedTuple):
    """What preemptible work of a leaf holds: its lowest class and number, and the sum."""

    level: Level
    milli: int


class Standing:
    """Jobs that stand and may be asked to leave, by the leaf that is charged, and what those of them come to that are ever preemptible."""

    def __init__(self, works: Sequence[Work], journal: Sequence[Work]) -> None:
        self._works, self._journal = works, journal
        self._read = -1  # so much of the journal is known; below zero: nobody was looked at, not before somebody asks
        self._stands: dict[Work, Stand] = {}
        self._below: defaultdict[int, dict[Work, None]] = defaultdict(dict)
        # Of the leaves about which that was asked: jobs and milli-GPU by quota type, class and number; GPUs and workers by node.
        self._by_level: dict[int, dict[tuple[int, Level], list[int]]] = {}
        self._on_node: dict[int, dict[int, list[int]]] = {}
        self._lowest: dict[int, Lowest | None] = {}

    def go_on(self, since: Difference) -> None:
        """Take up who came and went between two plans."""
        if self._read >= 0:
            self._read = 0
            for work in since.gone:
                self._forget(work)
            self._look_at(since.come)

    def rest(self, changed: Iterable[Work]) -> None:
        """These stand again as when the plan began."""
        if self._read >= 0:
            self._look_at(changed)

    def _look_at(self, works: Iterable[Work]) -> None:
        for work in works:
            leaf, seats = work.charged_leaf, () if work.stale else work.seats
            known = self._stands.get(work)
            if known is not None and (known[0] != leaf or known[1] != seats):
                self._forget(work)
                known = None
            if known is None and seats:
                stand = self._stands[work] = leaf, seats, work.milli, work.quota_type
                self._below[leaf][work] = None
                self._count(work, stand, 1)

    def _forget(self, work: Work) -> None:
        known = self._stands.pop(work, None)
        if known is not None:
            del self._below[known[0]][work]
            self._count(work, known, -1)

    def _count(self, work: Work, stand: Stand, sign: int) -> None:
        if work.form.fixed:
            return
        if stand[0] in self._by_level:
            self._count_level(work, stand, sign)
        if stand[0] in self._on_node:
            count_on_nodes(self._on_node[stand[0]], stand[1], sign)

    def _count_level(self, work: Work, stand: Stand, sign: int) -> None:
        leaf, seats, milli, quota_type = stand
        self._lowest.pop(leaf, None)
        sums = self._by_level[leaf].setdefault((quota_type, work.form.level), [0, 0])
        sums[0] += sign
        sums[1] += sign * _freed(work, seats, milli)

    def below(self, leaf: int) -> Collection[Work]:
        """Who stands below a leaf."""
        journal = self._journal
        if self._read < len(journal):
            self._look_at(dict.fromkeys(journal[self._read :]) if self._read >= 0 else self._works)
            self._read = len(journal)
        return self._below[leaf].keys()

    def _levels(self, leaf: int) -> dict[tuple[int, Level], list[int]]:
        works = self.below(leaf)
        if leaf not in self._by_level:
            self._by_level[leaf] = {}
            for work in works:
                if not work.form.fixed:
                    self._count_level(work, self._stands[work], 1)
        return self._by_level[leaf]

    def lowest(self, leaf: int) -> Lowest | None:
        """What could be taken inside a leaf at the very most; None where nothing of it is ever preemptible."""
        levels = self._levels(leaf)
        if leaf not in self._lowest:
            found = [(level, milli) for (_, level), (count, milli) in levels.items() if count]
            self._lowest[leaf] = Lowest(min(found)[0], sum([milli for _, milli in found])) if found else None
        return self._lowest[leaf]

    def freeable_below(self, leaf: int, quota_type: int, level: Level) -> int:
        """Milli-GPU that may become idle without the preemptible work of a leaf below a class and number."""
        return sum([milli for (kind, each), (_, milli) in self._levels(leaf).items() if each < level and kind == quota_type])

    def on_node(self, leaf: int) -> Mapping[int, Sequence[int]]:
        """GPUs and workers of preemptible work of a leaf, by node."""
        works = self.below(leaf)
        if leaf not in self._on_node:
            found = self._on_node[leaf] = {}
            for work in works:
                if not work.form.fixed:
                    count_on_nodes(found, work.seats, 1)
        return self._on_node[leaf]


def count_on_nodes(on_node: dict[int, list[int]], seats: Iterable[Seat], sign: int) -> None:
    """A worker without GPUs counts for nothing there, but what it takes of the host may help."""
    for seat in seats:
        known = on_node.setdefault(seat.node, [0, 0])
        known[0] += sign * (seat.mask.bit_count() + len(seat.parts))
        known[1] += sign
        if not known[1]:
            del on_node[seat.node]


def most_freed(work: Work) -> int:
    """Milli-GPU that may become idle with a job."""
    return _freed(work, work.seats, work.milli)


def _freed(work: Work, seats: Iterable[Seat], milli: int) -> int:
    """Whoever leaves a part of a GPU may leave the whole."""
    return sum([1000 * len(seat.parts) for seat in seats]) + milli if work.form.parted else milli
