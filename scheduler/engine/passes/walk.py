"""Along the queues: who is served next in a pass, and who is passed over because nothing can come of it."""

from collections.abc import Callable, Iterator, Sequence

from ..model.reasons import Reason, reason
from ..rules.order import QueueOrder
from ..rules.times import may_cause_evictions
from ..state.form import Form
from ..state.planning import FAIR, Cycle
from ..state.work import Work

TAKEN_AGAIN = reason("order", "a job ahead of it would reclaim the same GPUs at once")

Try = Callable[[Cycle, Work, int], Reason | None]
Hopeful = Callable[[Cycle, Work, int], bool]
Sieve = Callable[[int, list[Work]], list[Work]]  # those of a leaf's queue for whom there may be hope


def in_turn(cycle: Cycle, order: QueueOrder) -> Iterator[Work]:
    """Whose turn it is, one after the other, while whoever is served changes the order of those behind him."""
    while (work := order.best()) is not None:
        placed, known = cycle.placed, len(cycle.cluster.journal)
        yield work
        order.drop(work.home)
        if cycle.placed != placed:
            anywhere = cycle.requests.by_placement or cycle.cluster.windows.lasting
            # The leaf whose head was dropped is up to date already.
            if leaves := order.queues if anywhere else {one.home for one in cycle.cluster.journal[known:]} - {work.home}:
                order.refresh(leaves)


def walk(cycle: Cycle, hopeful: Hopeful, attempt: Try, sieve: Sieve | None = None, *, inside: bool = False) -> None:
    """Let waiting jobs try to take something, in the order of queues; `inside` their own leaf. `hopeful` is a cheap bound that spares most searches,
    as is the sieve, which looks at whole queues."""
    for choice, division in cycle.waiting.rounds():
        among = cycle.waiting.by_leaf()
        if sieve is not None:
            among = {leaf: chosen for leaf, queue in among.items() if (chosen := sieve(leaf, queue))}
        test = Test(cycle, choice, hopeful, inside=inside)
        queues = cycle.waiting.of_round(division, choice, test.of, among)
        for work in in_turn(cycle, cycle.waiting.order_of(division, choice, queues, test.onward)):
            for quota_type in cycle.waiting.tried_types(work, choice):
                if test.of_type(work, quota_type):
                    if (refused := attempt(cycle, work, quota_type)) is None:
                        break
                    cycle.waiting.note(work, refused)


class Test:
    """Who may try in a walk: one answer for all jobs of a leaf that ask for the same, until somebody is served."""

    def __init__(self, cycle: Cycle, choice: int, hopeful: Hopeful, *, inside: bool) -> None:
        self.cycle, self.choice, self.hopeful, self.inside = cycle, choice, hopeful, inside
        windows, power = cycle.cluster.windows, cycle.cluster.power
        self.by_job = bool(windows.lasting or windows.upcoming or power) or cycle.waiting.any_overdue()  # whether two jobs of one form may differ
        self._verdicts: dict[tuple[int, Form], bool] = {}  # of jobs without places, by leaf and form
        self._as_of = -1

    def of(self, work: Work) -> bool:
        cycle = self.cycle
        if cycle.takers.holds_back(work, inside=self.inside):
            cycle.waiting.note(work, TAKEN_AGAIN)
            return False
        if work.kind.preemption_delay_ms and not may_cause_evictions(cycle, work):
            return False
        types = cycle.waiting.tried_types(work, self.choice)
        if work.seats or work.evicted or self.by_job:
            return any(self.of_type(work, quota_type) for quota_type in types)
        if self._as_of != cycle.placed:
            self._verdicts.clear()
            self._as_of = cycle.placed
        key = (work.home, work.form)
        if (known := self._verdicts.get(key)) is None:
            known = self._verdicts[key] = any(self.of_type(work, quota_type) for quota_type in types)
        return known

    def of_type(self, work: Work, quota_type: int) -> bool:
        cycle = self.cycle
        due = cycle.turn != FAIR or cycle.tree.within_share(work.leaf, quota_type, work.missing_milli(quota_type))
        return due and self.hopeful(cycle, work, quota_type)

    def onward(self, queue: Sequence[Work], at: int) -> int:
        while at < len(queue) and not self.of(queue[at]):
            at += 1
        return at
