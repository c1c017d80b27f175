"""Who is served next: in one queue, and among queues by the least `Tree.key` below each node; only the path of what changed gets new keys."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter

from ..state.tree import Division, Tree
from ..state.work import Work
from .windows import Windows

Key = tuple[int, ...]
Onward = Callable[[Sequence[Work], int], int]  # the place of the next one of a queue who may try
Rank = tuple[bool, int, int, int]
_order, _level = attrgetter("order"), attrgetter("form.level")


def anyone(_: Sequence[Work], at: int) -> int:
    """The next one of a queue of which everyone may try."""
    return at


class JobOrder:
    """The order of jobs in a queue: a window of the class is owed, class and number, age, name. It is owed while the window lasts, also where it is
    full or of another type (docs/engine.md, known faults). Minima before surplus is no part of it: jobs grow when no pass adds anything more
    (cycle.py, grow.py)."""

    def __init__(self, windows: Windows) -> None:
        self.owed = {window.class_rank for window in windows.of_classes}  # classes

    def rank(self, work: Work) -> Rank:
        kind = work.kind
        return (kind.class_rank not in self.owed, -kind.class_rank, -kind.priority, work.order)

    def sort(self, queue: list[Work]) -> None:
        queue.sort(key=_order)
        queue.sort(key=_level, reverse=True)
        if self.owed:
            queue.sort(key=lambda work: work.kind.class_rank not in self.owed)

    def above(self, queue: list[Work], level: tuple[int, int]) -> list[Work]:
        """Those of a queue above a class and number."""
        if self.owed:
            return [work for work in queue if work.form.level > level]
        if not queue or queue[0].form.level <= level:
            return []
        if queue[-1].form.level > level:
            return queue
        return queue[: bisect_left(queue, True, key=lambda work: work.form.level <= level)]


class QueueOrder:
    """Waiting jobs by leaf, each leaf in its own order; `best` is the job that the tree serves first. A head that the pass has refused makes room for
    the next one, from where `onward` finds it, and the leaf is compared by that."""

    def __init__(
        self, tree: Tree, division: Division, queues: Mapping[int, Sequence[Work]], milli: Callable[[Work], int], onward: Onward = anyone
    ) -> None:
        self.tree, self.division, self.milli, self.queues, self.onward = tree, division, milli, queues, onward
        self.at = {leaf: onward(queue, 0) for leaf, queue in queues.items()}
        self.asks: dict[int, int] = {}  # milli-GPU that the head of a leaf asks for
        self._below: defaultdict[int, dict[int, tuple[Key, int]]] = defaultdict(dict)  # by node and child, with the leaf that is best below it
        self.refresh(queues)

    def best(self) -> Work | None:
        leaf = self._best_below(0)
        return None if leaf is None else self.queues[leaf][self.at[leaf]]

    def _best_below(self, place: int) -> int | None:
        below = self._below[place]
        return min(below.values())[1] if below else None

    def drop(self, leaf: int) -> None:
        """The head of a leaf was served or refused; go on to the next one."""
        self.at[leaf] = self.onward(self.queues[leaf], self.at[leaf] + 1)
        self._renew(self.tree.path[leaf])

    def refresh(self, leaves: Iterable[int]) -> None:
        """New keys on the paths of leaves whose heads have changed, or that use more or less than before, whether or not anyone waits there."""
        self._renew(sorted({place for leaf in leaves for place in self.tree.path[leaf]}, reverse=True))  # children stand behind their parents

    def _renew(self, places: Iterable[int]) -> None:
        parents, key_of, division, below, asks = self.tree.parent, self.tree.key, self.division, self._below, self.asks
        for place in places:
            best: int | None = place
            if (at := self.at.get(place)) is None:
                best = self._best_below(place)
            elif at < len(queue := self.queues[place]):
                asks[place] = self.milli(queue[at])
            else:
                best = None
            if best is None:
                below[parents[place]].pop(place, None)
            else:
                below[parents[place]][place] = key_of(place, division, asks[best]), best
