"""How few jobs have to leave each node so that one more worker fits there, and what they lose: columns by node, kept from plan to plan.

A node is looked at again when who could be moved off it, or what is idle there, is another than the last time.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .fleet import View
from .grid import Ints

if TYPE_CHECKING:
    from .movables import Movables

Weighed = Callable[[int], tuple[object, ...]]  # a node as one way to make room: the least is taken
NEVER = 1 << 62
MOST_CHANGES = 1024  # that are looked through
MOST_PAIRS = 4096  # of nodes that are compared for when one becomes cheaper than the other


class Choice(NamedTuple):
    """Which nodes of a slice are cleared: the same until somebody loses less elsewhere, or a node changes that would be taken or was."""

    allowed: Ints  # for whom it was looked for
    nodes: list[int] | None
    enough: int  # jobs that leave one of them at most
    until: int
    read: int  # so many changes it takes into account


class Clearable:
    """For workers of so many GPUs."""

    def __init__(self, gpus: int, size: int) -> None:
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
        self._choices: dict[tuple[int, int, int], Choice] = {}  # by slice, and how many workers have no room there

    def catch_up(self, movables: "Movables", soon: View) -> None:
        as_of = soon, soon.version
        if self._as_of == as_of and not self.stale:
            return
        self._as_of = as_of
        stale = self.stale.union(np.flatnonzero(self._idle != soon.count_np).tolist())
        self.stale.clear()
        there = movables.nodes()
        for node in stale:
            idle = soon.count[node]
            needed = self.needed[node] = self.gpus - idle % self.gpus if self.gpus else 1
            jobs = movables.fewest(node, needed) if node in there else 0
            self.jobs[node], self._since[node], self._idle[node] = jobs, NEVER, idle
            clearing = movables.clearing(node, needed) if jobs else None
            if clearing is not None:
                self._each_ms[node], self._before[node], self._since[node] = clearing.each_ms, clearing.before, clearing.since
        self._changes += sorted(stale)
        if len(self._changes) > MOST_CHANGES:
            self._changes.clear()
            self._choices.clear()

    def cheapest(self, low: int, high: int, allowed: Ints, short: int, most: int, now: int, weighed: Weighed) -> list[int] | None:
        """So many nodes of a slice that are cleared by moving the fewest jobs each, and of these where least is lost.

        None where there are not as many, or where one is short and takes more jobs than may be moved.
        """
        key = low, high, short
        choice = self._choices.get(key)
        if choice is None or choice.allowed is not allowed or now >= choice.until or self._differs(choice, low, high):
            choice = self._choose(low, high, allowed, short, now, weighed)
        elif choice.read < len(self._changes):
            choice = choice._replace(read=len(self._changes))
        self._choices[key] = choice
        return None if short == 1 and choice.enough > most else choice.nodes

    def _differs(self, choice: Choice, low: int, high: int) -> bool:
        """Whether a node has changed that may be taken now, or was taken."""
        nodes, jobs = choice.nodes or (), self.jobs
        return any(low <= node < high and (node in nodes or 0 < jobs[node] <= choice.enough) for node in self._changes[choice.read :])

    def _choose(self, low: int, high: int, allowed: Ints, short: int, now: int, weighed: Weighed) -> Choice:
        read = len(self._changes)
        jobs = self.jobs[low:high] * (allowed[low:high] > 0)
        places = np.flatnonzero(jobs)
        if len(places) < short:
            return Choice(allowed, None, NEVER, NEVER, read)
        jobs = jobs[places]
        enough = int(jobs.min() if short == 1 else np.partition(jobs, short - 1)[short - 1])
        chosen: list[int] = (places[jobs < enough] + low).tolist()
        equal = places[jobs == enough] + low
        left = short - len(chosen)
        if left == len(equal):
            return Choice(allowed, chosen + equal.tolist(), enough, NEVER, read)
        if int(self._since[equal].max()) > now:
            return Choice(allowed, chosen + sorted(equal.tolist(), key=weighed)[:left], enough, now, read)
        lost = self._each_ms[equal] * now + self._before[equal]
        last = int(lost.min() if left == 1 else np.partition(lost, left - 1)[left - 1])
        taken, even = lost < last, np.flatnonzero(lost == last)
        more = left - int(taken.sum())
        if len(even) > more:  # then the younger one tells, and so on
            even = np.array(sorted(even.tolist(), key=lambda place: weighed(int(equal[place])))[:more], dtype=np.int64)
        taken[even] = True
        return Choice(allowed, chosen + equal[taken].tolist(), enough, self._cheaper_from(equal[taken], equal[~taken], now), read)

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
