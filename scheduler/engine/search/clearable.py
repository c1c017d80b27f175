"""How few jobs have to leave each node so that one more worker fits there, and what they lose: columns by node, kept from plan to plan.

A node is looked at again when who could be moved off it, or what is idle there, is another than the last time. Nodes whose jobs would find no
room elsewhere are passed over, as far as counting tells.
"""

from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from itertools import combinations
from math import comb
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from ..state.fleet import View
from ..state.grid import Ints
from ..state.work import Work
from .columns import ints

if TYPE_CHECKING:
    from .movables import Clearing, Movables

Weight = tuple[int, int, list[int], list[str], int]  # how many jobs, what they lose, how old they are, their names, and the node
Weighed = Callable[[int], Weight]  # a node as one way to make room: the least is taken
NEVER = 1 << 62
MANY = 1 << 40  # places: nobody knows how many
MOST_CHANGES = 1024  # that are looked through
MOST_PAIRS = 4096  # of nodes that are compared for when one becomes cheaper than the other
MOST_SETS = 400  # of nodes that are looked at where those that are cleared most cheaply do not leave room for all who are moved
Flags = npt.NDArray[np.bool_]


class Need(NamedTuple):
    """Workers of a job that are to stand in a slice of the fleet, and how many of them find no room there."""

    low: int
    high: int
    workers: int
    short: int


class Choice(NamedTuple):
    """Which nodes of a slice are cleared: the same until somebody loses less elsewhere, or a node changes that would be taken or was."""

    allowed: Ints  # for whom it was looked for
    as_of: bytes  # what it knew of the room elsewhere
    nodes: list[int] | None
    enough: int  # jobs that leave one of them at most
    until: int
    read: int  # so many changes it takes into account


class Clearable:
    """For workers of so many GPUs."""

    def __init__(self, gpus: int, size: int, most: int) -> None:
        self.gpus = gpus
        self.stale: set[int] = set()  # nodes off which somebody else could be moved than when they were looked at
        self.jobs: Ints = np.zeros(size, dtype=np.int64)  # 0: no number of them makes room
        self.needed = [0] * size  # GPUs that must come free
        self._idle: Ints = np.full(size, -1, dtype=np.int64)  # as of which that is so
        self._each_ms: Ints = np.zeros(size, dtype=np.int64)
        self._before: Ints = np.zeros(size, dtype=np.int64)
        self._since: Ints = np.full(size, NEVER, dtype=np.int64)  # from when on these tell what is lost
        self._as_of: tuple[View, int] | None = None  # which room it has looked at
        self._changes: list[int] = []  # nodes that were looked at again, in order
        self._choices: dict[Need, Choice] = {}
        # Sets that leave room for all, for whom they were looked for, as of how many times that nodes were looked at again.
        self._sets: dict[Need, tuple[Ints, int, list[int] | None]] = {}
        self._looks = 0
        # By the GPUs of a worker that is moved, and by node: the places for such workers that are won by clearing it for a worker of the job, without
        # those that are taken by who leaves it; and whether nobody who leaves it needs such a place.
        self._sizes = np.arange(1, most + 1)
        self._won: Ints = np.zeros((most, size), dtype=np.int64)
        self._content: Flags = np.ones((most, size), dtype=np.bool_)
        self._there: Ints = np.zeros(most, dtype=np.int64)  # as it is, on all nodes
        self._roomy: dict[int, Flags] = {}  # by how many workers of the job stand then

    def catch_up(self, movables: "Movables", soon: View) -> None:
        as_of = soon, soon.version
        if self._as_of == as_of and not self.stale:
            return
        self._as_of = as_of
        stale = self.stale.union(np.flatnonzero(self._idle != soon.count_np).tolist())
        if not stale:
            return
        self.stale.clear()
        self._looks += 1
        there = movables.nodes()
        for node in stale:
            idle = soon.count[node]
            needed = self.needed[node] = self.gpus - idle % self.gpus if self.gpus else 1
            jobs = movables.fewest(node, needed) if node in there else 0
            self.jobs[node], self._since[node], self._idle[node] = jobs, NEVER, idle
            self._won[:, node], self._content[:, node] = MANY, True
            clearing = movables.clearing(node, needed) if jobs else None
            if clearing is not None:
                self._each_ms[node], self._before[node], self._since[node] = clearing.each_ms, clearing.before, clearing.since
                self._count_places(node, idle, clearing, soon.grid.usable_count)
        self._there = (self._idle // self._sizes[:, None]).sum(axis=1)
        self._roomy.clear()
        self._changes += sorted(stale)
        if len(self._changes) > MOST_CHANGES:
            self._changes.clear()
            self._choices.clear()

    def _count_places(self, node: int, idle: int, clearing: "Clearing", usable: Sequence[int]) -> None:
        """What is won and taken where jobs leave this node, where that can be counted."""
        leaving = _sizes_leaving(node, clearing.works, usable)
        if leaving is None:
            return
        here, sizes = leaving
        self._won[:, node] = _won(idle, here, self.gpus, len(self._sizes))
        for size in sizes:
            self._content[size - 1, node] = False

    def _beyond(self, stand: int) -> Ints:
        """How many places must be won for so many workers of the job on other nodes, by the GPUs of who is moved."""
        return stand * (self.gpus // self._sizes) - self._there

    def _roomy_beside(self, stand: int) -> Flags:
        """Of which nodes those who leave find room elsewhere, beside one worker of the job there and so many on others: a bound."""
        known = self._roomy.get(stand)
        if known is None:
            ample: Flags = self._content | (self._won >= self._beyond(stand)[:, None])
            known = self._roomy[stand] = np.logical_and.reduce(ample)
        return known

    def cheapest(self, need: Need, allowed: Ints, most: int, now: int, weighed: Weighed) -> list[int] | None:
        """So many nodes of a slice that are cleared by moving the fewest jobs each, and of these where least is lost.

        None where there are not as many whose jobs find room elsewhere, or where one is short and takes more jobs than may be moved.
        """
        low, high, count, short = need
        roomy = self._roomy_beside(count - short)[low:high]
        as_of = roomy.tobytes()
        choice = self._choices.get(need)
        if choice is None or choice.allowed is not allowed or now >= choice.until or choice.as_of != as_of or self._differs(choice, need):
            choice = self._choose(need, allowed, roomy, now, weighed)
        elif choice.read < len(self._changes):
            choice = choice._replace(read=len(self._changes))
        self._choices[need] = choice
        if short == 1:
            return None if choice.enough > most else choice.nodes
        if choice.nodes is None or self._leave_room(choice.nodes, count):
            return choice.nodes
        known = self._sets.get(need)
        if known is not None and known[0] is allowed and known[1] == self._looks:
            return known[2]
        fewest = self._together(need, allowed, roomy)
        if len(fewest) > 1:
            return _least_lost(fewest, weighed)  # what is lost depends on the moment
        nodes = fewest[0] if fewest else None
        self._sets[need] = allowed, self._looks, nodes
        return nodes

    def _leave_room(self, nodes: Sequence[int], count: int) -> bool:
        """A bound: False where those who leave these nodes together certainly find no room beside so many workers."""
        enough = self._won[:, nodes].sum(axis=1) >= self._beyond(count - len(nodes))
        return bool((enough | self._content[:, nodes].all(axis=1)).all())

    def _together(self, need: Need, allowed: Ints, roomy: Flags) -> list[list[int]]:
        """Of the nodes that are cleared with the fewest jobs each, sets that leave room for all who are moved: those with the fewest jobs."""
        low, high, count, short = need
        jobs = self.jobs[low:high] * ((allowed[low:high] > 0) & roomy)
        places = np.flatnonzero(jobs)
        pool = _pool_of(len(places), short)
        if pool == short:
            return []
        places = places[np.argsort(jobs[places], kind="stable")][:pool] + low
        sets = places[_ways(pool, short)]
        enough = self._won[:, sets].sum(axis=2) >= self._beyond(count - short)[:, None]
        sets = sets[(enough | self._content[:, sets].all(axis=2)).all(axis=0)]
        if not len(sets):
            return []
        moved = self.jobs[sets].sum(axis=1)
        fewest: list[list[int]] = sets[moved == moved.min()].tolist()
        return fewest

    def _differs(self, choice: Choice, need: Need) -> bool:
        """Whether a node has changed that may be taken now, or was taken."""
        nodes, jobs = choice.nodes or (), self.jobs
        return any(need.low <= node < need.high and (node in nodes or 0 < jobs[node] <= choice.enough) for node in self._changes[choice.read :])

    def _choose(self, need: Need, allowed: Ints, roomy: Flags, now: int, weighed: Weighed) -> Choice:
        low, high, _, short = need
        read, as_of = len(self._changes), roomy.tobytes()
        jobs = self.jobs[low:high] * ((allowed[low:high] > 0) & roomy)
        places = np.flatnonzero(jobs)
        if len(places) < short:
            return Choice(allowed, as_of, None, NEVER, NEVER, read)
        jobs = jobs[places]
        enough = int(jobs.min() if short == 1 else np.partition(jobs, short - 1)[short - 1])
        chosen: list[int] = (places[jobs < enough] + low).tolist()
        equal = places[jobs == enough] + low
        left = short - len(chosen)
        if left == len(equal):
            return Choice(allowed, as_of, chosen + equal.tolist(), enough, NEVER, read)
        if int(self._since[equal].max()) > now:
            return Choice(allowed, as_of, chosen + sorted(equal.tolist(), key=weighed)[:left], enough, now, read)
        lost = self._each_ms[equal] * now + self._before[equal]
        last = int(lost.min() if left == 1 else np.partition(lost, left - 1)[left - 1])
        taken, even = lost < last, np.flatnonzero(lost == last)
        more = left - int(taken.sum())
        if len(even) > more:  # then the younger one tells, and so on
            even = np.array(sorted(even.tolist(), key=lambda place: weighed(int(equal[place])))[:more], dtype=np.int64)
        taken[even] = True
        return Choice(allowed, as_of, chosen + equal[taken].tolist(), enough, self._cheaper_from(equal[taken], equal[~taken], now), read)

    def _cheaper_from(self, taken: Ints, others: Ints, now: int) -> int:
        """From when on clearing one of the others may lose no more than clearing one of those that are taken; not before then.

        Those that lose the same by now and for ever, as places of one gang do, are told apart by what does not change.
        """
        if len(taken) * len(others) > MOST_PAIRS:
            return now
        faster = self._each_ms[taken][:, None] - self._each_ms[others][None, :]
        ahead = self._before[others][None, :] - self._before[taken][:, None]
        catches_up = faster > 0
        return int((ahead[catches_up] // faster[catches_up]).min()) if catches_up.any() else NEVER


def _sizes_leaving(node: int, works: Sequence[Work], usable: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """GPUs of the workers who leave a node, and all sizes that need a place elsewhere; None where what comes free can't be counted.

    A worker who fills another node wins there what he takes. What comes free where he shares one is not counted.
    """
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
    """So many of a pool, in every way."""
    return np.array(list(combinations(range(pool), short)), dtype=np.int64)


def _least_lost(sets: Sequence[list[int]], weighed: Weighed) -> list[int]:
    """Of sets of nodes that are cleared by moving as many jobs the one whose jobs lose least together; then node by node."""
    weights: dict[int, Weight] = {}
    for nodes in sets:
        for node in nodes:
            if node not in weights:
                weights[node] = weighed(node)
    lost = [sum([weights[node][1] for node in nodes]) for nodes in sets]
    least = min(lost)
    even = [nodes for nodes, each in zip(sets, lost, strict=True) if each == least]
    return even[0] if len(even) == 1 else min(even, key=lambda nodes: sorted([weights[node] for node in nodes]))
