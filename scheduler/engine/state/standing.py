"""Who stands below each leaf of the tree, and what follows from that whatever the time: it goes on from plan to plan, job by job."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ..model.values import Preemptible
from .cluster import Cluster
from .fleet import Seat
from .work import Work

Level = tuple[int, int]
Counted = tuple[tuple[Seat, ...], int, tuple[int, Level]]  # where a job stood, milli-GPU, and quota type with class and number


class Lowest(NamedTuple):
    """What preemptible work of a leaf holds: its lowest class and number, and the sum."""

    level: Level
    milli: int


class Sums:
    """What preemptible work of a leaf comes to, kept up to date while jobs come and go."""

    def __init__(self, works: Iterable[Work]) -> None:
        self._known: dict[Work, Counted] = {}
        self._by_level: dict[tuple[int, Level], list[int]] = {}  # by quota type, class and number: jobs, milli-GPU
        self._answers: dict[object, Any] = {}  # since the last change
        self._on_node: dict[int, list[int]] | None = None  # by node, once that was asked: GPUs and workers
        for work in works:
            self.come(work)

    def come(self, work: Work) -> None:
        form = work.form
        if form.kind.preemptible is not Preemptible.NEVER:
            counted = self._known[work] = (work.seats, most_freed(work), (work.quota_type, form.level))
            self._change(counted, 1)

    def go(self, work: Work) -> None:
        counted = self._known.pop(work, None)
        if counted is not None:
            self._change(counted, -1)

    def _change(self, counted: Counted, sign: int) -> None:
        self._answers.clear()
        seats, milli, key = counted
        sums = self._by_level.get(key) or self._by_level.setdefault(key, [0, 0])
        sums[0] += sign
        sums[1] += sign * milli
        if self._on_node is not None:
            count_on_nodes(self._on_node, seats, sign)

    def lowest(self) -> Lowest | None:
        if None not in self._answers:
            levels = [level for (_, level), (count, _) in self._by_level.items() if count]
            self._answers[None] = Lowest(min(levels), sum(milli for _, milli in self._by_level.values())) if levels else None
        lowest: Lowest | None = self._answers[None]
        return lowest

    def below(self, quota_type: int, level: Level) -> int:
        known: int | None = self._answers.get((quota_type, level))
        if known is None:
            known = sum([milli for (kind, each), (_, milli) in self._by_level.items() if each < level and kind == quota_type])
            self._answers[quota_type, level] = known
        return known

    def on_node(self) -> Mapping[int, Sequence[int]]:
        """GPUs and workers by node. A worker without GPUs counts for nothing there, but what it takes of the host may help."""
        if self._on_node is None:
            self._on_node = {}
            for seats, _, _ in self._known.values():
                count_on_nodes(self._on_node, seats, 1)
        return self._on_node


def count_on_nodes(on_node: dict[int, list[int]], seats: Iterable[Seat], sign: int) -> None:
    for seat in seats:
        known = on_node.setdefault(seat.node, [0, 0])
        known[0] += sign * (seat.mask.bit_count() + len(seat.parts))
        known[1] += sign
        if not known[1]:
            del on_node[seat.node]


class Standing:
    """Jobs that stand and may be asked to leave, by the leaf that is charged."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._read = 0  # so much of the journal is known
        self.begun = False  # whether anybody was looked at: not before somebody asks
        self._stands: dict[Work, tuple[int, tuple[object, ...]]] = {}  # charged leaf and seats
        self._below: dict[int, dict[Work, None]] = {}
        self._sums: dict[int, Sums] = {}  # of the leaves about which that was asked

    def _begin(self) -> None:
        """Look at everyone, in one go."""
        self.begun, self._read = True, len(self.cluster.journal)
        here = [work for work in self.cluster.works if work.seats and not work.stale]
        leaves = [work.charged_leaf for work in here]
        self._stands = dict(zip(here, zip(leaves, [work.seats for work in here], strict=True), strict=True))
        below = self._below
        for leaf, work in zip(leaves, here, strict=True):
            if leaf in below:
                below[leaf][work] = None
            else:
                below[leaf] = {work: None}

    def go_on(self, cluster: Cluster) -> None:
        """Take up who came and went between two plans."""
        self.cluster, self._read = cluster, 0
        if self.begun:
            for work in cluster.state.since.gone:
                self._forget(work)
            self._look_at(cluster.state.since.come)

    def rest(self, changed: Iterable[Work]) -> None:
        """These stand again as when the plan began."""
        if self.begun:
            self._look_at(changed)

    def _look_at(self, works: Iterable[Work]) -> None:
        for work in works:
            leaf, seats = work.charged_leaf, work.seats
            if not seats or work.stale:
                self._forget(work)
            elif self._stands.get(work) != (leaf, seats):
                self._forget(work)
                self._stands[work] = (leaf, seats)
                self._below.setdefault(leaf, {})[work] = None
                if leaf in self._sums:
                    self._sums[leaf].come(work)

    def _follow(self) -> None:
        if not self.begun:
            self._begin()
        journal = self.cluster.journal
        if self._read < len(journal):
            self._look_at(dict.fromkeys(journal[self._read :]))
            self._read = len(journal)

    def _forget(self, work: Work) -> None:
        known = self._stands.pop(work, None)
        if known is not None:
            leaf = known[0]
            del self._below[leaf][work]
            if leaf in self._sums:
                self._sums[leaf].go(work)

    def below(self, leaf: int) -> Collection[Work]:
        """Who stands below a leaf."""
        self._follow()
        return self._below.get(leaf, {}).keys()

    # What was computed

    def lowest(self, leaf: int) -> Lowest | None:
        """What could be taken inside a leaf at the very most; None where nothing of it is ever preemptible."""
        return self._sums_of(leaf).lowest()

    def on_node(self, leaf: int) -> Mapping[int, Sequence[int]]:
        """GPUs and workers of preemptible work of a leaf, by node."""
        return self._sums_of(leaf).on_node()

    def _sums_of(self, leaf: int) -> Sums:
        self._follow()
        known = self._sums.get(leaf)
        if known is None:
            known = self._sums[leaf] = Sums(self._below.get(leaf, ()))
        return known

    def freeable_below(self, leaf: int, quota_type: int, level: Level) -> int:
        """Milli-GPU that may become idle without the preemptible work of a leaf below a class and number."""
        return self._sums_of(leaf).below(quota_type, level)


def most_freed(work: Work) -> int:
    """Milli-GPU that may become idle with a job: whoever leaves a part of a GPU may leave the whole."""
    return sum(1000 * len(seat.parts) for seat in work.seats) + work.milli if work.form.parted else work.milli
