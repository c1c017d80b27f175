"""Who stands below each leaf of the tree, and what follows from that whatever the time: it goes on from plan to plan, job by job."""

from collections.abc import Iterable
from typing import Any, NamedTuple, TypeVar

from .cluster import Cluster, Work
from .values import Preemptible

T = TypeVar("T")


class Lowest(NamedTuple):
    """What preemptible work of a leaf holds: its lowest class and number, the sum, and GPUs by node."""

    level: tuple[int, int]
    milli: int
    on_node: dict[int, int]


class Standing:
    """Jobs that stand and may be asked to leave, by the leaf that is charged."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._read = len(cluster.journal)  # so much of it is known
        self._stands: dict[Work, tuple[int, tuple[object, ...]]] = {}  # charged leaf and seats
        self._below: dict[int, dict[Work, None]] = {}
        self._version: dict[int, int] = {}  # how often what stands below a leaf has changed
        self._kept: dict[tuple[object, ...], tuple[int, Any]] = {}
        for work in cluster.works:
            if work.seats:
                self._look(work)

    def go_on(self, cluster: Cluster) -> None:
        """Take up who came and went between two plans."""
        self.cluster, self._read = cluster, 0
        for work in cluster.gone:
            self._forget(work)
        self._look_at(cluster.come)

    def rest(self, changed: Iterable[Work]) -> None:
        """These stand again as when the plan began."""
        self._look_at(changed)

    def _look_at(self, works: Iterable[Work]) -> None:
        for work in works:
            self._look(work)

    def _follow(self) -> None:
        journal = self.cluster.journal
        if self._read < len(journal):
            self._look_at(dict.fromkeys(journal[self._read :]))
            self._read = len(journal)

    def _look(self, work: Work) -> None:
        if not work.seats or work.stale:
            self._forget(work)
            return
        now = (work.charged_leaf, work.seats)
        if self._stands.get(work) != now:
            self._forget(work)
            self._stands[work] = now
            self._below.setdefault(work.charged_leaf, {})[work] = None
            self._touch(work.charged_leaf)

    def _forget(self, work: Work) -> None:
        known = self._stands.pop(work, None)
        if known is not None:
            del self._below[known[0]][work]
            self._touch(known[0])

    def _touch(self, leaf: int) -> None:
        self._version[leaf] = self._version.get(leaf, 0) + 1

    # What was computed

    def kept(self, key: tuple[object, ...], leaf: int) -> Any:
        """What was computed about a leaf, unless something below it has changed since."""
        self._follow()
        known = self._kept.get(key)
        return known[1] if known is not None and known[0] == self._version.get(leaf, 0) else None

    def keep(self, key: tuple[object, ...], leaf: int, value: T) -> T:
        self._kept[key] = (self._version.get(leaf, 0), value)
        return value

    def lowest(self, leaf: int) -> Lowest | None:
        """What could be taken inside a leaf at the very most; None where nothing of it is ever preemptible."""
        known: tuple[Lowest | None] | None = self.kept(("lowest", leaf), leaf)
        return known[0] if known is not None else self.keep(("lowest", leaf), leaf, (self._new_lowest(leaf),))[0]

    def _new_lowest(self, leaf: int) -> Lowest | None:
        works = self._preemptible(leaf)
        if not works:
            return None
        on_node: dict[int, int] = {}
        for work in works:
            for seat in work.seats:
                on_node[seat.node] = on_node.get(seat.node, 0) + seat.mask.bit_count() + len(seat.parts)
        return Lowest(min(work.form.level for work in works), sum(map(most_freed, works)), on_node)

    def freeable_below(self, leaf: int, quota_type: int, level: tuple[int, int]) -> int:
        """Milli-GPU that may become idle without the preemptible work of a leaf below a class and number."""
        key = ("lower", leaf, quota_type, level)
        known: int | None = self.kept(key, leaf)
        if known is None:
            lower = (work for work in self._preemptible(leaf) if work.quota_type == quota_type and work.form.level < level)
            known = self.keep(key, leaf, sum(map(most_freed, lower)))
        return known

    def _preemptible(self, leaf: int) -> list[Work]:
        return [work for work in self._below.get(leaf, ()) if work.kind.preemptible is not Preemptible.NEVER]


def most_freed(work: Work) -> int:
    """Milli-GPU that may become idle with a job: whoever leaves a part of a GPU may leave the whole."""
    return sum(1000 * len(seat.parts) for seat in work.seats) + work.milli if work.form.parted else work.milli
