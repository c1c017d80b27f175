"""Who waits, for what, and what that comes to: made once, and then changed by the jobs that came and went between two plans."""

from bisect import insort
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..model.reasons import Reason, reason, spell_instant
from ..place.unbroken import Block, largest
from ..rules.order import JobOrder
from .form import Form
from .grid import Eligible
from .work import Work

if TYPE_CHECKING:
    from .cluster import Cluster
    from .tree import Division
    from .waiting import Waiting

Types = tuple[int, ...]


class Queues:
    def __init__(self) -> None:
        self.by_leaf: dict[int, list[Work]] = {}  # by leaf, in its order
        self._largest: tuple[Block, ...] | None = None  # of the blocks that are waited for, once that was asked
        self.alike: dict[tuple[int, int], list[Any]] = {}  # (form, how many) by shape and first type, of those that have no place
        self.open: dict[Work, None] = {}  # who has places and may ask for more
        self.held: dict[Work, None] = {}  # who must not start yet
        # Who waits for nothing that a pass could give, and why, where that stays so.
        self.blocked: dict[Work, tuple[Reason, ...] | None] = {}
        self.in_gaps: dict[Work, None] = {}  # who came into a gap before this plan
        self._types: dict[tuple[int, Form], Types | None] = {}  # which types jobs of a leaf that ask for the same can have; None: blocked

    def change(self, waiting: "Waiting", gone: Iterable[Work], come: Iterable[Work]) -> dict[int, tuple[Reason, ...]]:
        """Take up who came and who went. Returns, by a job's place, why it waits for nothing that a pass could give."""
        for work in gone:
            self._leave(waiting, work)
        joined: dict[tuple[int, Form], list[Work]] = {}
        degraded: list[Work] = []
        here: dict[int, list[Work]] = {}  # who joins a queue
        for work in come:
            if work.backfilled:
                self.in_gaps[work] = None
            if work.seats:
                if work.degraded:
                    self.open[work] = None
                    degraded.append(work)
                elif work.form.elastic:
                    self.open[work] = None
            elif work.state == "stopping":
                if work.asks_again:
                    work.types = waiting.verdicts.of(work)[1]
                    self._ask(waiting, work, 1)
            elif work.job.not_before is not None:
                self.held[work] = None
            else:
                joined.setdefault((work.home, work.form), []).append(work)
        static: dict[int, tuple[Reason, ...]] = {}
        for work in [*self.held]:
            not_before = work.job.not_before
            assert not_before is not None
            if waiting.cluster.is_to_come(not_before):
                at = spell_instant(not_before)
                detail = f"submitted only at {at}" if work.job.submitted == not_before else f"not before {at}"
                static[work.order] = (reason("held", detail, until=at),)
            else:
                del self.held[work]
                joined.setdefault((work.home, work.form), []).append(work)
        if not joined and not degraded and not self.blocked:
            return static  # nobody came who waits
        for leaf, works in self._asking(waiting, joined):
            here.setdefault(leaf, []).extend(works)
        for work in degraded:
            here.setdefault(work.home, []).append(work)
        for leaf, works in here.items():
            put_in_order(waiting.order, self.by_leaf.setdefault(leaf, []), works)
        for work, told in self.blocked.items():
            static[work.order] = told or waiting.verdicts.of(work)[0]
        return static

    def rest(self, changed: Iterable[Work], asked_again: Iterable[Work]) -> None:
        """As before the first pass of the plan that has taken up `changed`."""
        for work in asked_again:
            if work.stood_before:
                self.by_leaf[work.home].remove(work)
        for work in changed:
            if not work.first_seats:
                work.types = self._types.get((work.home, work.form)) or work.form.types

    def blocks(self) -> tuple[Block, ...]:
        """The largest that are waited for."""
        if self._largest is None:
            found: dict[tuple[int, int, int, Eligible], Block] = {}
            for (_, quota_type), (form, count) in self.alike.items():
                if form.block and count:
                    role, nodes = form.kind.roles[0], form.eligible(0, quota_type, suspect=False, spare=False)
                    key = (role.gpus, role.least, form.width, nodes)
                    others = found[key].weight if key in found else 0
                    found[key] = Block(role.gpus, role.least, form.width, nodes.array, count + others)
            self._largest = largest(found.values())
        return self._largest

    def _asking(self, waiting: "Waiting", joined: dict[tuple[int, Form], list[Work]]) -> Iterator[tuple[int, list[Work]]]:
        """By leaf those that wait for something that they could have. They are counted by what they ask for."""
        for key, works in joined.items():
            first, many = works[0], len(works)
            blocked, types = waiting.verdicts.of(first)
            known = self._types.setdefault(key, None if blocked else types)
            if known is None:
                self.blocked.update(dict.fromkeys(works, None if blocked[0].code == "limit" else blocked))
                continue
            if known != first.form.types:
                for work in works:
                    work.types = known
            self._ask(waiting, first, many)
            self._count(first, many)
            yield first.home, works

    def _leave(self, waiting: "Waiting", work: Work) -> None:
        self.in_gaps.pop(work, None)
        self.open.pop(work, None)
        if work.first_seats:
            if work.degraded:
                self.by_leaf[work.home].remove(work)
        elif work.state == "stopping":
            if work.asks_again:
                self._ask(waiting, work, -1)
        elif work in self.held:
            del self.held[work]
        elif work in self.blocked:
            del self.blocked[work]
        else:
            self._ask(waiting, work, -1)
            self._count(work, -1)
            self.by_leaf[work.home].remove(work)

    def _ask(self, waiting: "Waiting", work: Work, times: int) -> None:
        for leaf, division, milli in asked_of(waiting.cluster, work):
            waiting.cluster.tree.add(division.asked, leaf, times * milli)

    def _count(self, work: Work, times: int) -> None:
        self.alike.setdefault((work.form.shape, work.types[0]), [work.form, 0])[1] += times
        if work.form.block:
            self._largest = None


def asked_of(cluster: "Cluster", work: Work) -> Iterator[tuple[int, "Division", int]]:
    """What a job asks for that has no place: of which leaf, also in the name of a window of its class, in which division, and how much."""
    tree = cluster.tree
    firsts = {tree.division_of[quota_type]: quota_type for quota_type in reversed(work.types)}
    for index, quota_type in firsts.items():
        for leaf in cluster.leaves_of(work, quota_type):
            yield leaf, tree.divisions[index], work.form.request_milli(quota_type, tree.by_type)


def put_in_order(order: JobOrder, queue: list[Work], come: Sequence[Work]) -> None:
    """Let jobs join a queue that is in its order."""
    if len(come) > len(queue) // 16 + 1:
        queue += come
        order.sort(queue)
        return
    for work in come:
        insort(queue, work, key=order.rank)
