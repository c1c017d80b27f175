"""Who is charged to each leaf of the tree, and what follows from that whatever the time: it goes on from plan to plan, job by job.

What stands inside a guarantee, and what is borrowed: `Units.borrowed` in search/units.py.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable

from ..model.values import Preemptible
from .cluster import Cluster
from .fleet import Seat
from .work import Work

Level = tuple[int, int]


class Standing:
    """Jobs that stand and may be asked to leave, by the leaf that is charged."""

    def __init__(self, cluster: Cluster) -> None:
        self._works, self._journal = cluster.works, cluster.journal
        self._read = 0  # so much of the journal is known
        self.begun = False  # whether anybody was looked at: not before somebody asks
        self._stands: dict[Work, tuple[int, tuple[Seat, ...]]] = {}  # charged leaf and seats
        self._below: defaultdict[int, dict[Work, None]] = defaultdict(dict)
        # What may become idle with preemptible work of leaves as they are now, by quota type and level, once that was asked.
        self._sums: dict[int, Counter[tuple[int, Level]]] = {}

    def go_on(self, cluster: Cluster) -> None:
        """Take up who came and went between two plans."""
        self._journal, self._read = cluster.journal, 0
        if self.begun:
            for work in cluster.state.since.gone:
                self._stand(work, None)
            self._look_at(cluster.state.since.come)

    def rest(self, changed: Iterable[Work]) -> None:
        """These stand again as when the plan began."""
        if self.begun:
            self._look_at(changed)

    def _look_at(self, works: Iterable[Work]) -> None:
        for work in works:
            self._stand(work, (work.charged_leaf, work.seats) if work.seats and not work.stale else None)

    def _stand(self, work: Work, now: tuple[int, tuple[Seat, ...]] | None) -> None:
        before = self._stands.get(work)
        if before == now:
            return
        if before is not None:
            del self._stands[work], self._below[before[0]][work]
            self._sums.pop(before[0], None)
        if now is not None:
            self._stands[work] = now
            self._below[now[0]][work] = None
            self._sums.pop(now[0], None)

    def _follow(self) -> None:
        if not self.begun:
            self.begun = True
            for work in self._works:
                if work.seats and not work.stale:
                    self._stands[work] = (work.charged_leaf, work.seats)
                    self._below[work.charged_leaf][work] = None
        elif self._read < len(self._journal):
            self._look_at(dict.fromkeys(self._journal[self._read :]))
        self._read = len(self._journal)

    def below(self, leaf: int) -> Collection[Work]:
        self._follow()
        return self._below[leaf].keys()

    def lowest(self, leaf: int) -> tuple[Level, int] | None:
        """From which class and number on anything could be taken inside a leaf, and how much at the very most; None where nothing of it is ever
        preemptible."""
        sums = self._sums_of(leaf)
        return (min([level for _, level in sums]), sums.total()) if sums else None

    def freeable_below(self, leaf: int, quota_type: int, level: Level) -> int:
        """Milli-GPU that may become idle without the preemptible work of a leaf below a class and number."""
        return sum([milli for (kind, each), milli in self._sums_of(leaf).items() if each < level and kind == quota_type])

    def _sums_of(self, leaf: int) -> Counter[tuple[int, Level]]:
        self._follow()
        if (known := self._sums.get(leaf)) is None:
            known = self._sums[leaf] = Counter()
            for work in self._below[leaf]:
                if work.kind.preemptible is not Preemptible.NEVER:
                    known[work.quota_type, work.form.level] += most_freed(work)
        return known


def most_freed(work: Work) -> int:
    """Milli-GPU that may become idle with a job: whoever leaves a part of a GPU may leave the whole."""
    return sum(1000 * len(seat.parts) for seat in work.seats) + work.milli if work.form.parted else work.milli
