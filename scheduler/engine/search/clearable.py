"""Who could be moved off each node, how few of them have to leave so that one more worker fits there, and what they lose: columns by node.

A node is looked at again when who could be moved off it, or what is idle there, is another than the last time. Nodes whose jobs would find no
room elsewhere are passed over, as far as counting tells.
"""

from collections.abc import Iterable, KeysView, Sequence
from functools import cache, lru_cache
from itertools import combinations
from math import comb
from operator import itemgetter

import numpy as np

from ..rules.times import lost_since
from ..state.cluster import Cluster
from ..state.fleet import Seat, View
from ..state.grid import Flags, Ints, ints
from ..state.work import Work
from .victims import Target

Cost = tuple[int, int, list[int], list[str], int]  # how many jobs, what they lose, how old they are, their names, and where
MANY = 1 << 40  # places: nobody knows how many
MOST_SETS = 400  # of nodes that are looked at where those that are cleared most cheaply do not leave room for all who are moved


def weight_of(work: Work, now: int) -> tuple[int, int, str]:
    """How one job compares with another: least lost, then the younger one, then names. Who starts in this plan is weighed as the next plan would see
    him, so that it finds nothing left to move."""
    job = work.job
    return lost_since(job, work.milli, now, now if work.fresh else job.run.started), -job.submitted, job.name


def cost_of(works: Sequence[Work], place: int, now: int) -> Cost:
    """One way to make room, as it compares with others: the fewest jobs, then least lost, then the younger ones, then names."""
    weights = [weight_of(one, now) for one in works]
    return len(works), sum([lost for lost, _, _ in weights]), sorted([age for _, age, _ in weights]), [name for _, _, name in weights], place


class Clearable:
    """For workers of so many GPUs."""

    def __init__(self, gpus: int, size: int, most: int) -> None:
        self.gpus = gpus
        self.stale: set[int] = set()  # nodes off which somebody else could be moved than when they were looked at
        self.jobs: Ints = np.zeros(size, dtype=np.int64)  # 0: no number of them makes room
        self.works: list[list[Work]] = [[] for _ in range(size)]
        self._now = 0
        self._idle: Ints = np.full(size, -1, dtype=np.int64)  # as of which that is so
        self._costs: dict[int, Cost] = {}
        # By the GPUs of a worker that is moved, and by node: the places for such workers that are won by clearing it for a worker of the job, without
        # those that are taken by who leaves it; and whether nobody who leaves it needs such a place.
        self._sizes = np.arange(1, most + 1)
        self._won: Ints = np.zeros((most, size), dtype=np.int64)
        self._content: Flags = np.ones((most, size), dtype=np.bool_)
        self._there: Ints = np.zeros(most, dtype=np.int64)  # as it is, on all nodes

    def catch_up(self, movables: "Movables", soon: View, now: int) -> None:
        stale = self.stale.union(np.flatnonzero(self._idle != soon.count_np).tolist())
        self._now = now
        if not stale:
            return
        self.stale.clear()
        there = movables.nodes()
        for node in stale:
            idle = soon.count[node]
            needed = self.gpus - idle % self.gpus if self.gpus else 1
            clearing = movables.clearing(node, needed) if node in there else None
            works, only = clearing or ([], False)
            self.works[node] = works
            self.jobs[node], self._idle[node] = len(works), idle
            self._costs.pop(node, None)
            self._won[:, node], self._content[:, node] = MANY, True
            leaving = _sizes_leaving(node, works, soon.grid.usable_count) if only else None
            if leaving is not None:  # what is won and taken there can be counted
                here, sizes = leaving
                self._won[:, node] = _won(idle, here, self.gpus, len(self._sizes))
                self._content[[size - 1 for size in sizes], node] = False
        self._there = (self._idle // self._sizes[:, None]).sum(axis=1)

    def _cost_of(self, node: int) -> Cost:
        """A node as one way to make room: the least is taken."""
        if (known := self._costs.get(node)) is None:
            known = self._costs[node] = cost_of(self.works[node], node, self._now)
        return known

    def _beyond(self, stand: int) -> Ints:
        """How many places must be won for so many workers of the job on other nodes, by the GPUs of who is moved."""
        return stand * (self.gpus // self._sizes) - self._there

    def cheapest(self, target: Target, short: int, most: int) -> list[int] | None:
        """So many nodes of a slice that are cleared by moving the fewest jobs each, and of these where least is lost. None where there are not as
        many whose jobs find room elsewhere, or where one is short and takes more jobs than may be moved."""
        low, high, count, allowed = target.low, target.high, target.count, target.allowed
        assert allowed is not None
        # Those who leave find room elsewhere, beside one worker of the job there and the others that find room: a bound.
        roomy = np.logical_and.reduce(self._content | (self._won >= self._beyond(count - short)[:, None]))
        jobs = self.jobs[low:high] * ((allowed[low:high] > 0) & roomy[low:high])
        places = np.flatnonzero(jobs)
        if len(places) < short:
            return None
        jobs = jobs[places]
        places = places + low
        enough = int(jobs.min() if short == 1 else np.partition(jobs, short - 1)[short - 1])
        if short == 1 and enough > most:
            return None
        nodes: list[int] = places[jobs < enough].tolist()
        nodes += sorted(places[jobs == enough].tolist(), key=self._cost_of)[: short - len(nodes)]
        if short == 1 or self._leave_room(nodes, count):
            return nodes
        return min(self._together(places, jobs, count, short), key=self._lost_together, default=None)

    def _lost_together(self, nodes: list[int]) -> tuple[int, list[Cost]]:
        """What their jobs lose together; then node by node."""
        costs = sorted([self._cost_of(node) for node in nodes])
        return sum([cost[1] for cost in costs]), costs

    def _leave_room(self, nodes: Sequence[int], count: int) -> bool:
        """A bound: False where those who leave these nodes together certainly find no room beside so many workers."""
        enough = self._won[:, nodes].sum(axis=1) >= self._beyond(count - len(nodes))
        return bool((enough | self._content[:, nodes].all(axis=1)).all())

    def _together(self, places: Ints, jobs: Ints, count: int, short: int) -> list[list[int]]:
        """Of the nodes that are cleared with the fewest jobs each, sets that leave room for all who are moved: those with the fewest jobs."""
        pool = _pool_of(len(places), short)
        if pool == short:
            return []
        sets = places[np.argsort(jobs, kind="stable")][:pool][_ways(pool, short)]
        enough = self._won[:, sets].sum(axis=2) >= self._beyond(count - short)[:, None]
        sets = sets[(enough | self._content[:, sets].all(axis=2)).all(axis=0)]
        if not len(sets):
            return []
        moved = self.jobs[sets].sum(axis=1)
        fewest: list[list[int]] = sets[moved == moved.min()].tolist()
        return fewest


def _sizes_leaving(node: int, works: Sequence[Work], usable: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """GPUs of the workers who leave a node, and all sizes that need a place elsewhere; None where what comes free can't be counted. A worker who
    fills another node wins there what he takes. What comes free where he shares one is not counted."""
    here: list[int] = []
    sizes: list[int] = []
    for work in works:
        for seat in work.seats:
            size = seat.mask.bit_count()
            if seat.node == node:
                here.append(size)
            elif size and size != usable[seat.node]:
                return None
            if size and size not in sizes:
                sizes.append(size)
    return tuple(here), tuple(sizes)


@lru_cache(4096)
def _won(idle: int, leaving: tuple[int, ...], gpus: int, most: int) -> Ints:
    """By the GPUs of a worker, the places on a node that are won by these leaving it for a worker of so many GPUs, without those that they take."""
    there = idle + sum(leaving) - gpus
    return ints([there // size - idle // size - sum([each // size for each in leaving]) for size in range(1, most + 1)])


def _pool_of(most: int, short: int) -> int:
    """Of how many nodes sets of so many are looked at; no more than there have to be where that is all of them."""
    pool = short
    while pool < most and comb(pool + 1, short) <= MOST_SETS:
        pool += 1
    return pool


@cache
def _ways(pool: int, short: int) -> Ints:
    return np.array(list(combinations(range(pool), short)), dtype=np.int64)


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

    def clearing(self, node: int, needed: int) -> tuple[list[Work], bool] | None:
        """The fewest jobs of a node that hold so many GPUs there, those with the most first; and whether nobody else could leave in their stead, and
        all of them hold whole GPUs. None where all together hold less."""
        held = sorted(self._on_node.get(node, {}).items(), key=lambda one: one[0].order)
        held.sort(key=itemgetter(1), reverse=True)
        chosen: list[Work] = []
        for at, (work, count) in enumerate(held):
            if count >= needed:
                # Among those that suffice by themselves not the largest, but the one that loses least.
                enough = [one for one, many in held[at:] if many >= needed]
                chosen.append(work if len(enough) == 1 else min(enough, key=lambda one: weight_of(one, self.cluster.now)))
                return chosen, len(enough) == 1 and not any(one.milli % 1000 for one in chosen)
            chosen.append(work)
            needed -= count
        return None

    def clearable(self, gpus: int) -> Clearable:
        """What it takes to clear each node for one more worker of so many GPUs."""
        self._follow()
        soon = self.cluster.fleet.soon
        if (known := self._clearable.get(gpus)) is None:
            known = self._clearable[gpus] = Clearable(gpus, len(soon.count), soon.grid.most_gpus)
        known.catch_up(self, soon, self.cluster.now)
        return known
