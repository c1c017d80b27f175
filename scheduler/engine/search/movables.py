"""Who could be moved off each node, and what clearing it would cost: kept from plan to plan, node by node."""

from collections.abc import Iterable, KeysView, Sequence
from operator import itemgetter
from typing import NamedTuple

from ..state.cluster import Cluster
from ..state.fleet import Seat
from ..state.work import Work
from .clearable import Clearable
from .units import begin_of, lost_since

Here = Sequence[tuple[int, Work]]  # (GPUs on the node, job), those with the most first
Leaving = tuple[int, list[Work] | None]  # how many jobs at least clear so many GPUs; and who they are, where that is the same at any time


class Clearing(NamedTuple):
    """The only set of jobs whose leaving clears so many GPUs of a node, and what they lose: so much each millisecond, and so much before."""

    works: list[Work]
    each_ms: int
    before: int
    since: int  # from when on that is so
    ages: list[int]
    names: list[str]

    def lost(self, now: int) -> int:
        return self.each_ms * now + self.before


class Movables:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._read = len(cluster.journal)  # so much of the journal is known
        self._held: dict[Work, tuple[Seat, ...]] = {}
        self._on_node: dict[int, dict[Work, int]] = {}
        self._here: dict[int, Here] = {}  # the same in order, of the nodes about which that was asked
        self._leaving: dict[tuple[int, int], Leaving] = {}
        self._clearings: dict[tuple[int, int], Clearing] = {}
        self._asked: dict[int, set[int]] = {}  # by node, of how many GPUs any of these is known
        self._clearable: dict[int, Clearable] = {}
        self._touched: set[int] = set()  # nodes about which what is known is out of date
        self._gone: dict[Work, None] = {}  # since somebody last asked
        self._come: dict[Work, None] = {}
        self._renewed: dict[Work, None] = {}  # and who has less to lose
        self._again: dict[Work, None] = {}  # who stands otherwise since then, as a plan was taken back
        self._look(cluster.works)

    def go_on(self, cluster: Cluster) -> None:
        """Hear of who came and went between two plans. It is taken up when somebody asks, for most plans move nobody."""
        self.cluster, self._read = cluster, 0
        for work in cluster.gone:
            self._again.pop(work, None)
            if work in self._come:
                del self._come[work]
            else:
                self._gone[work] = None
        self._come.update(dict.fromkeys(cluster.come))
        self._renewed.update(dict.fromkeys(cluster.renewed))

    def rest(self, changed: Iterable[Work]) -> None:
        """These stand again as when the plan began."""
        if self._read:
            self._again.update(dict.fromkeys(changed))

    def _follow(self) -> None:
        if self._renewed:
            self._weigh_anew({seat.node for work in self._renewed for seat in self._held.get(work, ())})
            self._renewed.clear()
        if self._gone or self._come or self._again:
            for work in self._gone:
                self._stand(work, ())
            self._look(self._again)
            self._look(self._come)
            self._gone.clear()
            self._come.clear()
            self._again.clear()
        journal = self.cluster.journal
        if self._read < len(journal):
            self._look(dict.fromkeys(journal[self._read :]))
            self._read = len(journal)
        if self._touched:
            self._forget_touched()

    def _look(self, works: Iterable[Work]) -> None:
        for work in works:
            self._stand(work, work.seats if work.seats and work.movable else ())

    def _stand(self, work: Work, seats: tuple[Seat, ...]) -> None:
        before = self._held.get(work, ())
        if before == seats:
            return
        touched, on_node = self._touched, self._on_node
        for seat in before:
            node = seat.node
            here = on_node.get(node, {})
            if work in here:  # another worker may have stood there
                touched.add(node)
                del here[work]
                if not here:
                    del on_node[node]
        for seat in seats:
            node = seat.node
            touched.add(node)
            here = on_node.get(node) or on_node.setdefault(node, {})
            here[work] = here.get(work, 0) + seat.mask.bit_count()
        if seats:
            self._held[work] = seats
        else:
            del self._held[work]

    def _weigh_anew(self, nodes: set[int]) -> None:
        """The same leave these nodes as before, and lose something else."""
        for node in nodes:
            for needed in self._asked.get(node, ()):
                self._clearings.pop((node, needed), None)
        for clearable in self._clearable.values():
            clearable.stale |= nodes

    def _forget_touched(self) -> None:
        touched, self._touched = self._touched, set()
        for node in touched:
            self._here.pop(node, None)
            for needed in self._asked.pop(node, ()):
                self._leaving.pop((node, needed), None)
                self._clearings.pop((node, needed), None)
        for clearable in self._clearable.values():
            clearable.stale |= touched

    # Waiting

    def nodes(self) -> KeysView[int]:
        self._follow()
        return self._on_node.keys()

    def here(self, node: int) -> Here:
        """Who could be moved off a node, of whom with equally many GPUs the first in order."""
        known = self._here.get(node)
        if known is None:
            held = sorted(self._on_node[node].items(), key=lambda one: one[0].order)
            known = self._here[node] = sorted([(count, work) for work, count in held], key=itemgetter(0), reverse=True)
        return known

    def leaving(self, node: int, needed: int) -> Leaving:
        """Who leaves a node so that so many GPUs come free there."""
        key = node, needed
        known = self._leaving.get(key)
        if known is None:
            self._asked.setdefault(node, set()).add(needed)
            known = self._leaving[key] = _leaving(self.here(node), needed)
        return known

    def fewest(self, node: int, needed: int) -> int:
        """How many jobs of a node at least hold so many GPUs there; 0 where all together hold less."""
        return self.leaving(node, needed)[0]

    def clearing(self, node: int, needed: int) -> Clearing | None:
        """What it takes to clear so many GPUs of a node, where that is the same at any time."""
        key = node, needed
        known = self._clearings.get(key)
        if known is None and (works := self.leaving(node, needed)[1]) is not None:
            known = self._clearings[key] = _clearing(works)
        return known

    def clearable(self, gpus: int) -> Clearable:
        """What it takes to clear each node for one more worker of so many GPUs."""
        self._follow()
        soon = self.cluster.fleet.soon
        known = self._clearable.get(gpus)
        if known is None:
            known = self._clearable[gpus] = Clearable(gpus, len(soon.count), soon.grid.most_gpus)
        known.catch_up(self, soon)
        return known


def _leaving(here: Here, needed: int) -> Leaving:
    """As long as nobody suffices by himself, who has the most."""
    chosen: list[Work] = []
    for at, (count, work) in enumerate(here, 1):
        if count >= needed:
            several = at < len(here) and here[at][0] >= needed  # who loses least of them depends on the moment
            chosen.append(work)
            return at, None if several or any(one.milli % 1000 for one in chosen) else chosen
        chosen.append(work)
        needed -= count
    return 0, None


def _clearing(works: list[Work]) -> Clearing:
    each_ms = before = since = 0
    for work in works:
        if not work.fresh and work.job.run.started is None:
            continue
        begun = begin_of(work.job, 0)
        last = work.job.checkpoint.last if work.job.checkpoint is not None else None
        begun = begun if last is None or last < begun else last
        extra = lost_since(work.job, work.milli, begun, begun=begun)  # what saving and restoring costs
        before += extra
        if not work.fresh:
            gpus = work.milli // 1000
            each_ms += gpus
            before -= gpus * begun
            since = max(since, begun)
    return Clearing(works, each_ms, before, since, sorted([-work.job.submitted for work in works]), [work.job.name for work in works])
