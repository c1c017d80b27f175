"""Who waits while a plan is made, by leaf and in the order of each queue."""

from collections import defaultdict
from collections.abc import Callable, Iterator

from ..model.reasons import Reason
from ..rules.impossible import Verdict, Verdicts
from ..rules.order import JobOrder
from ..rules.times import overdue
from .cluster import Cluster
from .form import Form
from .tree import Division
from .work import Work

ByLeaf = dict[int, list[Work]]


class Waiting:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.tree = cluster.tree
        self.order = JobOrder(cluster.windows)
        self.verdicts = Verdicts(cluster)
        self.notes: dict[int, dict[str, Reason]] = {}  # what the passes found in the way of a job
        self.again: dict[int, Work] = {}  # who was put out at some time in this plan, and waited like everyone else then
        self._all: ByLeaf | None = None  # who waits now in each leaf in which anybody does, once that was asked
        self._stirred: defaultdict[int, dict[Work, None]] = defaultdict(dict)  # by leaf: of which jobs any may have been changed
        self._read = 0  # how much of the cluster's journal it knows
        first = cluster.first_state
        self.queues = first.queues
        # By a job's place, why it waits for nothing that a pass could give.
        self.static = self.queues.change(self, first.since.gone, first.since.come if first.turn else cluster.works)

    def __contains__(self, work: Work) -> bool:
        """Whether its minimum has no place."""
        if work.stale:
            return False
        if not work.seats:
            return work.state != "stopping" and work.order not in self.static
        return work.degraded and work.order not in self.cluster.lessons.giving

    def __iter__(self) -> Iterator[Work]:
        for leaf in sorted(self.queues.by_leaf):
            for work in self.queues.by_leaf[leaf]:
                if work in self:
                    yield work

    def anybody(self) -> bool:
        return any(not work.seats or work.degraded for queue in self.queues.by_leaf.values() for work in queue)  # mostly the first one

    def any_overdue(self) -> bool:
        return self.cluster.settings.waits_end and any(overdue(self.cluster, work) for work in self)

    def note(self, work: Work, found: Reason) -> None:
        self.notes.setdefault(work.order, {})[found.code] = found

    # Who was put out

    def take_up(self) -> bool:
        """Jobs that this plan has put out wait like everyone else, and may find another place in it, but only where they could start: there may be
        types without room for them, or limits below what they had.

        Returns whether that changed what anybody asks for.
        """
        static, by_leaf = self.static, self.queues.by_leaf
        out = [work for work in dict.fromkeys(self.cluster.put_out) if work.evicted and not work.seats]
        self.cluster.put_out.clear()
        verdicts: dict[tuple[int, Form], Verdict] = {}
        here: defaultdict[int, list[Work]] = defaultdict(list)
        others = False
        for work in out:
            if work.order in self.again or work.order in static:
                continue
            known = verdicts.get((work.home, work.form))
            if known is None:
                known = verdicts[work.home, work.form] = self.verdicts.of(work)
            blocked, types = known
            if types != work.types:
                work.types, others = types, True
            if blocked:
                static[work.order] = blocked
            elif not work.stale:
                self.again[work.order] = work
                if work.stood_before:  # below its minimum it has waited all along
                    here[work.home].append(work)
        for leaf, works in here.items():
            before = by_leaf.get(leaf, [])  # a walk may still go along it
            queue = by_leaf[leaf] = [*before, *works]
            self.order.put_in_order(queue, len(before))
        self._all = None
        return others

    # By leaf

    def in_leaf(self, leaf: int) -> list[Work]:
        """Who waits in a leaf, in its order: with no place, or with fewer workers than its minimum."""
        self._follow()
        queue = self.queues.by_leaf.get(leaf, [])
        if leaf in self._stirred:  # of the others nobody has got or lost anything
            out = {work for work in self._stirred[leaf] if work not in self}
            queue = [work for work in queue if work not in out]
        return queue

    def by_leaf(self) -> ByLeaf:
        """The same of every leaf in which anybody waits."""
        self._follow()
        if self._all is None:
            self._all = {leaf: waiting for leaf in self.queues.by_leaf if (waiting := self.in_leaf(leaf))}
        return self._all

    def _follow(self) -> None:
        journal = self.cluster.journal
        if len(journal) > self._read:
            self._all = None
            for work in journal[self._read :]:
                self._stirred[work.home][work] = None
            self._read = len(journal)

    def shapes(self) -> dict[int, Form | None]:
        """The shapes of all that wait, each with a form; with none for those who wait for a part of their workers."""
        shapes: dict[int, Form | None] = {shape: form for (shape, _), (form, count) in self.queues.alike.items() if count}
        shapes.update((work.form.shape, work.form) for work in self.again.values())
        if any(work.degraded for work in self.queues.open):
            shapes[-1] = None
        return shapes

    # By quota type

    def rounds(self) -> Iterator[tuple[int, Division]]:
        """Everyone's first choice of type before anyone's second."""
        if not self.tree.by_type:
            yield 0, self.tree.divisions[0]
            return
        most = max((len(work.types) for queue in self.queues.by_leaf.values() for work in queue), default=1)
        for choice in range(max(1, most)):
            for division in self.tree.divisions:
                yield choice, division

    def tried_types(self, work: Work, choice: int) -> tuple[int, ...]:
        return work.open_types[choice : choice + 1] if self.tree.by_type else work.open_types

    def of_round(self, division: Division, choice: int, test: Callable[[Work], bool] | None = None, among: ByLeaf | None = None) -> ByLeaf:
        """Waiting jobs by leaf that try a type of the division as n-th choice and pass the test: all of them, or among these."""
        found: ByLeaf = {}
        by_type = self.tree.by_type
        for leaf, chosen in (self.by_leaf() if among is None else among).items():
            if by_type:
                chosen = [work for work in chosen if self.tried_types(work, choice) == division.types]
            if test is not None:
                chosen = [work for work in chosen if test(work)]
            if chosen:
                found[leaf] = chosen
        return found
