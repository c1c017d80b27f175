"""Who could be moved off each node, and what clearing it would cost."""

from collections.abc import Iterable, KeysView
from operator import itemgetter
from typing import NamedTuple

from ..state.cluster import Cluster
from ..state.fleet import Seat
from ..state.work import Work
from .clearable import Clearable, weight_of


class Clearing(NamedTuple):
    """Who leaves a node so that so many GPUs come free there."""

    works: list[Work]
    only: bool  # whether nobody else could in the stead of any of them, and all of them hold whole GPUs


class Movables:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._read = len(cluster.journal)  # so much of the journal is known
        self._held: dict[Work, tuple[Seat, ...]] = {}
        self._on_node: dict[int, dict[Work, int]] = {}  # GPUs
        self._clearable: dict[int, Clearable] = {}
        self._look(cluster.works)

    def _follow(self) -> None:
        journal = self.cluster.journal
        if self._read < len(journal):
            self._look(dict.fromkeys(journal[self._read :]))
            self._read = len(journal)

    def _look(self, works: Iterable[Work]) -> None:
        touched: set[int] = set()
        for work in works:
            seats = work.seats if work.movable else ()
            before = self._held.get(work, ())
            if before == seats:
                continue
            self._held[work] = seats
            for seat in before:
                self._on_node[seat.node].pop(work, None)  # another worker may have stood there
            for seat in seats:
                here = self._on_node.setdefault(seat.node, {})
                here[work] = here.get(work, 0) + seat.mask.bit_count()
            touched.update(seat.node for seat in (*before, *seats))
        for clearable in self._clearable.values():
            clearable.stale |= touched

    def nodes(self) -> KeysView[int]:
        self._follow()
        return self._on_node.keys()

    def clearing(self, node: int, needed: int) -> Clearing | None:
        """The fewest jobs of a node that hold so many GPUs there, those with the most first; None where all together hold less."""
        held = sorted(self._on_node.get(node, {}).items(), key=lambda one: one[0].order)
        held.sort(key=itemgetter(1), reverse=True)
        chosen: list[Work] = []
        for at, (work, count) in enumerate(held):
            if count >= needed:
                # Among those that suffice by themselves not the largest, but the one that loses least.
                enough = [one for one, many in held[at:] if many >= needed]
                chosen.append(work if len(enough) == 1 else min(enough, key=lambda one: weight_of(one, self.cluster.now)))
                return Clearing(chosen, len(enough) == 1 and not any(one.milli % 1000 for one in chosen))
            chosen.append(work)
            needed -= count
        return None

    def clearable(self, gpus: int) -> Clearable:
        """What it takes to clear each node for one more worker of so many GPUs."""
        self._follow()
        soon = self.cluster.fleet.soon
        known = self._clearable.get(gpus)
        if known is None:
            known = self._clearable[gpus] = Clearable(gpus, len(soon.count), soon.grid.most_gpus)
        known.catch_up(self, soon, self.cluster.now)
        return known
