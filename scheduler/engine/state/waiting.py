"""Who waits while a plan is made, by leaf and in the order of each queue."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from ..model.reasons import Reason
from ..rules.impossible import Verdicts
from ..rules.order import JobOrder, Onward, QueueOrder, anyone
from ..rules.times import overdue
from .cluster import Cluster
from .form import Form
from .queues import put_in_order
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
        self._judged: set[int] = set()  # jobs that lost their places, and of which is known where they ask again
        self.again: dict[int, Work] = {}  # who was put out at some time in this plan, and waited like everyone else then
        self._here: ByLeaf = {}  # of which wait now, as far as that was asked since it last changed
        self._changed: defaultdict[int, dict[Work, None]] = defaultdict(dict)  # by leaf: of which jobs any may have been changed
        self._read = 0  # how much of the cluster's journal it knows
        self.queues = cluster.state.queues
        # By a job's place, why it waits for nothing that a pass could give.
        self.static = self.queues.change(self, cluster.state.since.gone, cluster.state.since.come)

    def __contains__(self, work: Work) -> bool:
        """Whether its minimum has no place."""
        if work.stale:
            return False
        if not work.seats:
            return work.state != "stopping" and work.order not in self.static
        return work.degraded and work.order not in self.cluster.lessons.giving

    def __iter__(self) -> Iterator[Work]:
        self._ask_again()
        for leaf in sorted(self.queues.by_leaf):
            yield from (work for work in self.queues.by_leaf[leaf] if work in self)

    def anybody(self) -> bool:
        self._ask_again()
        return any(not work.seats or work.degraded for queue in self.queues.by_leaf.values() for work in queue)  # mostly the first one

    def any_overdue(self) -> bool:
        return self.cluster.settings.waits_end and any(overdue(self.cluster, work) for work in self)

    def note(self, work: Work, found: Reason) -> None:
        self.notes.setdefault(work.order, {})[found.code] = found

    # Who was put out

    def _ask_again(self) -> None:
        """Jobs that this plan has put out wait like everyone else, and may find another place in it."""
        if not self.cluster.put_out:
            return
        known, static, by_leaf = self.again, self.static, self.queues.by_leaf
        put_out = {
            work.order: work
            for work in self.cluster.put_out
            if work.evicted and not work.seats and not work.stale and work.order not in known and work.order not in static
        }
        self.cluster.put_out.clear()
        known.update(put_out)
        here: ByLeaf = {}
        for work in put_out.values():
            if work.stood_before:  # below its minimum it has waited all along
                here.setdefault(work.home, []).append(work)
        for leaf, works in here.items():
            queue = by_leaf[leaf] = [*by_leaf.get(leaf, ())]  # a walk may still go along the old one
            self._here.pop(leaf, None)
            put_in_order(self.order, queue, works)

    def judge(self) -> bool:
        """Whoever lost his place asks again only where he could start: there may be types without room for him, or limits below what he had. Returns
        whether that changed what anybody asks for."""
        judged = self._judged
        out = [work for work in self.cluster.put_out if work.order not in judged and work.evicted and not work.seats]
        judged.update([work.order for work in out])
        others, before = False, None
        for work in out:
            if before is None or work.form is not before.form or work.home != before.home:  # neighbours are often alike
                blocked, types = self.verdicts.of(work)
            before = work
            if blocked:
                self.static[work.order] = blocked
            if types != work.types:
                work.types, others = types, True
        return others

    # By leaf

    def in_leaf(self, leaf: int) -> list[Work]:
        """Who waits in a leaf, in its order: with no place, or with fewer workers than its minimum."""
        self._follow()
        if (known := self._here.get(leaf)) is None:
            known = self.queues.by_leaf.get(leaf, [])
            if leaf in self._changed:  # of the others nobody has got or lost anything
                out = {work for work in self._changed[leaf] if work not in self}
                known = [work for work in known if work not in out]
            self._here[leaf] = known
        return known

    def by_leaf(self) -> ByLeaf:
        """The queue of every leaf in which anybody waits."""
        self._ask_again()
        self._follow()
        queues, changed = self.queues.by_leaf.items(), self._changed
        return {leaf: waiting for leaf, queue in queues if queue and (waiting := self.in_leaf(leaf) if leaf in changed else queue)}

    def _follow(self) -> None:
        journal = self.cluster.journal
        for work in journal[self._read :]:
            self._here.pop(work.home, None)
            self._changed[work.home][work] = None
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
        many = (len(work.types) for queue in self.queues.by_leaf.values() for work in queue) if self.tree.by_type else ()
        most = max(many, default=1)
        for choice in range(max(1, most)):
            for division in self.tree.divisions:
                yield choice, division

    def tried_types(self, work: Work, choice: int) -> tuple[int, ...]:
        return work.open_types[choice : choice + 1] if self.tree.by_type else work.open_types

    def order_of(self, division: Division, choice: int, queues: Mapping[int, Sequence[Work]], onward: Onward = anyone) -> QueueOrder:
        """In which those who try a type as n-th choice are served."""
        return QueueOrder(self.tree, division, queues, partial(self.asked_milli, choice=choice), onward)

    def asked_milli(self, work: Work, choice: int) -> int:
        """What its minimum lacks, in the first of these types."""
        types, place = work.open_types, choice if self.tree.by_type else 0
        return work.missing_milli(types[place]) if place < len(types) else 0  # who was put out meanwhile may have no type left that he could ask for

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
