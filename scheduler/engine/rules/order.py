"""Who is served next: in one queue, and among queues by a heap per inner node of the tree, in which only the path of what changed gets a new key."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from operator import attrgetter

from ..state.tree import Division, Tree
from ..state.work import Work
from .windows import Windows

Key = tuple[int, ...]
Rank = tuple[bool, int, int, int]


class JobOrder:
    """The order of jobs in a queue: a window of the class is owed, class and number, age, name."""

    def __init__(self, windows: Windows) -> None:
        self.owed = {window.class_rank for window in windows.of_classes}  # classes

    def rank(self, work: Work) -> Rank:
        kind = work.kind
        return (kind.class_rank not in self.owed, -kind.class_rank, -kind.priority, work.order)

    def sort(self, queue: list[Work]) -> None:
        """The same for a whole queue, without a tuple for each job where no window is owed."""
        if self.owed:
            queue.sort(key=self.rank)
        else:
            queue.sort(key=attrgetter("order"))
            queue.sort(key=attrgetter("form.level"), reverse=True)

    def behind(self, work: Work, others: Iterable[Work]) -> list[Work]:
        """Those of them that come behind a job."""
        if self.owed:
            rank = self.rank(work)
            return [one for one in others if self.rank(one) > rank]
        level, place = work.form.level, work.order
        return [one for one in others if one.form.level < level or (one.form.level == level and one.order > place)]

    def above(self, queue: list[Work], level: tuple[int, int]) -> list[Work]:
        """Those of a queue above a class and number."""
        if self.owed:
            return [work for work in queue if work.form.level > level]
        if queue and queue[-1].form.level > level:
            return queue
        return queue[: bisect_left(queue, True, key=lambda work: work.form.level <= level)]


class QueueOrder:
    """Waiting jobs by leaf, each leaf in its own order; `best` is the job that the tree serves first.

    The order is over jobs that this pass has not refused yet: a refused head makes room for the next one, and the leaf is
    compared by that.
    """

    def __init__(self, tree: Tree, division: Division, queues: Mapping[int, Sequence[Work]], milli: Callable[[Work], int]) -> None:
        self.tree = tree
        self.division = division
        self.milli = milli
        self.queues = queues
        self.dropped: set[int] = set()  # leaves that were gone along since the order was last made or renewed
        self.at = dict.fromkeys(queues, 0)
        size = len(tree.names)
        self.heaps: defaultdict[int, list[tuple[Key, int, int, int]]] = defaultdict(list)
        self.version = [0] * size
        self.asks: dict[int, int] = {}  # milli-GPU that the head of a leaf asks for
        self._fill()

    def _fill(self) -> None:
        """The first keys, from the leaves up: children stand behind their parents in the tree."""
        parents, key_of, heaps, asks = self.tree.parent, self.tree.key, self.heaps, self.asks
        for leaf in self.queues:
            head = self.head(leaf)
            if head is not None:
                asks[leaf] = self.milli(head)
        path = self.tree.path
        for place in sorted({place for leaf in asks for place in path[leaf]}, reverse=True):
            heap, best = heaps[place], place
            if heap:
                heapify(heap)
                best = heap[0][3]
            if best in asks:
                heaps[parents[place]].append((key_of(place, self.division, asks[best]), 0, place, best))
        heapify(heaps[0])

    def renew(self, stirred: Iterable[int]) -> None:
        """Begin again at the head of every queue; keys are other ones at most on the paths of the nodes that were stirred."""
        tree, division, parents, key_of = self.tree, self.division, self.tree.parent, self.tree.key
        changed = set(stirred)
        for leaf in self.dropped:
            queue, at = self.queues.get(leaf, ()), self.at[leaf]
            self.at[leaf] = 0
            if at >= len(queue) or self.milli(queue[0]) != self.asks[leaf]:
                changed.add(leaf)
        places = {place for at in changed for place in tree.path[at]}
        self.dropped.clear()
        version, asks, heaps, children, queues, begun = self.version, self.asks, self.heaps, tree.children, self.queues, self.at
        for place in sorted(places, reverse=True):  # children stand behind their parents
            now = version[place] = version[place] + 1
            best = self._top(place) if children[place] else None
            if best is None:
                waiting, at = queues.get(place, ()), begun.get(place, 0)
                if at >= len(waiting):
                    continue
                best = place
                asks[place] = self.milli(waiting[at])
            heap = heaps[parents[place]]
            heappush(heap, (key_of(place, division, asks[best]), now, place, best))
            if len(heap) > 64 + 4 * len(children[parents[place]]):
                heap[:] = [entry for entry in heap if version[entry[2]] == entry[1]]
                heapify(heap)

    def rest(self) -> None:
        """Hold nothing of the plan that has gone along it."""
        self.milli = _nobody_asks

    def head(self, leaf: int) -> Work | None:
        queue = self.queues.get(leaf)
        if queue is None:
            return None
        at = self.at.get(leaf, 0)
        return queue[at] if at < len(queue) else None

    def best(self) -> Work | None:
        leaf = self._top(0)
        return None if leaf is None else self.head(leaf)

    def _top(self, place: int) -> int | None:
        """The leaf with the best job below an inner node."""
        heap, current = self.heaps[place], self.version
        while heap:
            _, version, child, leaf = heap[0]
            if current[child] == version:
                return leaf
            heappop(heap)
        return None

    def drop(self, leaf: int, onward: Callable[[Sequence[Work], int], int] | None = None, *, calm: bool = False) -> None:
        """The head of a leaf was served or refused; go on to the next one, from where `onward` finds it.

        Where all is `calm`, no number of the tree has changed since the keys were made.
        """
        at, queue = self.at.get(leaf, 0) + 1, self.queues[leaf]
        self.dropped.add(leaf)
        if onward is not None:
            at = onward(queue, at)
        self.at[leaf] = at
        head = queue[at] if at < len(queue) else None
        if not calm or head is None or self.milli(head) != self.asks[leaf]:
            self._renew_keys(leaf, head)

    def refresh(self, leaf: int) -> None:
        """New keys on the path of a leaf whose head or use has changed."""
        self._renew_keys(leaf, self.head(leaf))

    def _renew_keys(self, leaf: int, head: Work | None) -> None:
        tree, division, version, asks = self.tree, self.division, self.version, self.asks
        parents, key_of = tree.parent, tree.key
        best: int | None = None
        if head is not None:
            best = leaf
            asks[leaf] = self.milli(head)
        place = leaf
        while place > 0:
            parent = parents[place]
            heap = self.heaps[parent]
            now = version[place] = version[place] + 1
            if best is not None:
                entry = (key_of(place, division, asks[best]), now, place, best)
                if heap and heap[0][2] == place:  # mostly the best of all has been served
                    heapreplace(heap, entry)
                else:
                    heappush(heap, entry)
            place = parent
            best = self._top(place)

    def refresh_all(self) -> None:
        for leaf in sorted(self.queues):
            self.refresh(leaf)

    def follow(self, charged: Iterable[int]) -> None:
        """New keys on the paths of leaves that use more or less than before, whether or not anyone of them waits here."""
        for leaf in sorted(set(charged)):
            self.refresh(leaf)


def _nobody_asks(work: Work) -> int:
    raise AssertionError("an order of queues is renewed before it is gone along")
