"""Who is evicted to a job in one future of a queue: the search for a set that makes room, of those who may be taken in their order. See `playing`."""

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import Protocol

from scheduler.engine.state.grid import Grid
from scheduler.engine.state.tree import Tree

from .one import One

Legal = Callable[[dict[int, int]], bool]  # whether one may be taken after so much has been, by node of the tree
Rank = tuple[int, ...]
Candidate = tuple[Rank, One, Legal]


class Fleet(Protocol):
    """What the search looks at."""

    grid: Grid
    tree: Tree
    now: int
    most: int
    free: list[int]
    nodes_by_free: list[list[set[int]]]
    on: list[dict[One, int]]


class Search:
    def __init__(self, fleet: Fleet, one: One) -> None:
        self.fleet, self.one = fleet, one

    def is_possible(self, victims: Sequence[One]) -> bool:
        """Whether all together would make room."""
        room = Room(self.fleet, self.one)
        for other in victims:
            room.change(other, 1)
            if room.enough:
                return True
        return False

    def least(self, ranked: Sequence[Candidate]) -> list[One] | None:
        """As few as suffice, if any set does."""
        taken = self._single(ranked) or self._collected(ranked) or self._collected_by_node(ranked)
        return self._needed(taken) if taken else None

    def _single(self, ranked: Sequence[Candidate]) -> list[One] | None:
        """If one of the best rank suffices by itself: the smallest such."""
        best: One | None = None
        first: Rank | None = None
        room = Room(self.fleet, self.one)
        for rank, other, legal in ranked:
            if not legal({}):
                continue
            if first is None:
                first = rank
            elif rank != first:
                break
            if best is None or other.milli < best.milli:
                room.change(other, 1)
                if room.enough:
                    best = other
                room.change(other, -1)
        return None if best is None else [best]

    def _collected(self, ranked: Sequence[Candidate]) -> list[One] | None:
        """One after the other until it fits."""
        taken: list[One] = []
        milli: dict[int, int] = {}
        room = Room(self.fleet, self.one)
        for _, other, legal in ranked:
            if legal(milli):
                taken.append(other)
                room.change(other, 1)
                self._add(milli, other)
                if room.enough:
                    return taken
        return None

    def _add(self, milli: dict[int, int], other: One) -> None:
        for place in self.fleet.tree.path[other.leaf]:
            milli[place] = milli.get(place, 0) + other.milli

    def _collected_by_node(self, ranked: Sequence[Candidate]) -> list[One] | None:
        """Where only so much may be taken: room for one worker after the other, on the nodes where that costs least."""
        gpus, _ = self.one.demand[0]
        here: dict[int, list[Candidate]] = {}
        for victim in ranked:
            for node, _ in victim[1].seats:
                if self.fleet.grid.type_of[node] == self.one.types[0]:
                    here.setdefault(node, []).append(victim)
        heap = [slot for node, mine in here.items() if (slot := self._slot(gpus, node, mine, 0)) is not None]
        heapify(heap)
        taken: dict[One, None] = {}
        milli: dict[int, int] = {}
        room = Room(self.fleet, self.one)
        while heap and not room.enough:
            _, node, count = heappop(heap)
            trial, sound = dict(milli), True
            fresh = [victim for victim in here[node][:count] if victim[1] not in taken]
            for _, other, legal in fresh:
                sound = sound and legal(trial)
                self._add(trial, other)
            if not sound:
                continue
            milli = trial
            for _, other, _ in fresh:
                taken[other] = None
                room.change(other, 1)
            following = self._slot(gpus, node, here[node], count)
            if following is not None:
                heappush(heap, following)
        return [*taken] if room.enough else None

    def _slot(self, gpus: int, node: int, here: Sequence[Candidate], done: int) -> tuple[tuple[Rank, int, int], int, int] | None:
        """The first so many on a node that make room for one worker more than the first `done` do, and what they cost."""
        free, goal = self.fleet.free[node], -1
        worst: Rank = ()
        milli = lost = 0
        for count, (rank, other, _) in enumerate(here, 1):
            if count > done and goal < 0:
                goal = free // gpus + 1
            free += self.fleet.on[node][other]
            worst = max(worst, rank)
            milli += other.milli
            lost += other.lost(self.fleet.now)
            if count > done and free // gpus >= goal:
                return (worst, milli, lost), node, count
        return None

    def _needed(self, taken: Sequence[One]) -> list[One]:
        """Without those that it could be spared, the last taken first."""
        room = Room(self.fleet, self.one)
        for other in taken:
            room.change(other, 1)
        needed = []
        for other in reversed(taken):
            room.change(other, -1)
            if not room.enough:
                room.change(other, 1)
                needed.append(other)
        return needed[::-1]


class Room:
    """How many workers of a job fit while others are preempted and let stand again."""

    def __init__(self, fleet: Fleet, one: One) -> None:
        self.fleet, self.kind = fleet, one.types[0]
        self.gpus, self.count = one.demand[0]
        self.more: dict[int, int] = {}
        by_free = fleet.nodes_by_free[self.kind]
        self.slots = sum(have // self.gpus * len(by_free[have]) for have in range(self.gpus, fleet.most + 1))

    def change(self, other: One, sign: int) -> None:
        free, type_of, more = self.fleet.free, self.fleet.grid.type_of, self.more
        for node, held in other.seats:
            if type_of[node] == self.kind:
                before = free[node] + more.get(node, 0)
                more[node] = more.get(node, 0) + sign * held
                self.slots += (before + sign * held) // self.gpus - before // self.gpus

    @property
    def enough(self) -> bool:
        return self.slots >= self.count
