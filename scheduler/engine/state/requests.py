"""What everyone asks for, by leaf and division, and the shares that follow; also where they follow each placement."""

from collections.abc import Mapping
from operator import add

from .waiting import Waiting
from .work import Work

Amounts = dict[tuple[int, int], int]  # milli-GPU by leaf and division
NOTHING: Mapping[tuple[int, int], int] = {}


class Requests:
    def __init__(self, waiting: Waiting) -> None:
        self.waiting = waiting
        self.cluster = waiting.cluster
        self.tree = waiting.cluster.tree
        self._by_job: dict[int, Amounts] = {}  # where shares follow each placement
        self._all: Amounts = {}  # of all of them together
        self._read = -1  # so much of the cluster's journal is in them
        self._over = False  # whether somebody holds more than he may ask for: once he has lost it, he asks for less than he had
        self._begin()
        # Whether a placement can change what others ask for, or may have: then shares are computed anew after each.
        tree, forms = self.tree, self.cluster.forms
        several = len(tree.divisions) > 1 and any(limit is not None for limit in tree.limit_total)
        many = forms.choosy and any(len(work.types) > 1 for work in self.cluster.works)
        # A part by memory is asked for as of the smallest GPU that can hold it, and charged less on a larger one.
        # Who is charged to a window of his class asks for nothing in his own queue any more.
        self.by_placement = several or many or forms.by_memory or self._over or bool(self.cluster.windows.of_classes)

    def _begin(self) -> None:
        """What is used and what is asked for as the plan begins, and the shares that follow."""
        running: Amounts = {}
        for work in self.waiting.queues.open:
            self._of_running(work, running)
        for division in self.tree.divisions:
            division.requested = [*map(add, division.used, division.asked)]
        self._share(running)

    def follow(self) -> None:
        """A job that accepts several types found a place in one and asks for nothing in the others."""
        journal = self.cluster.journal
        for work in self.cluster.works if self._read < 0 else dict.fromkeys(journal[self._read :]):
            for key, milli in self._by_job.pop(work.order, NOTHING).items():
                self._all[key] -= milli
            now: Amounts = {}
            if work.seats:
                self._of_running(work, now)
            elif work.order not in self.waiting.static and (work.state != "stopping" or work.asks_again):
                self._of_waiting(work, now)
            if now:
                self._by_job[work.order] = now
                for key, milli in now.items():
                    self._all[key] = self._all.get(key, 0) + milli
        self._read = len(journal)
        for division in self.tree.divisions:
            division.requested = [*division.used]
        self._share(self._all)

    def _share(self, amounts: Amounts) -> None:
        """So much more is asked for."""
        for (leaf, index), milli in amounts.items():
            self.tree.request(leaf, index, milli)
        self.tree.share()

    def _of_waiting(self, work: Work, amounts: Amounts) -> None:
        seen = set()
        for quota_type in work.types:
            index = self.tree.division_of[quota_type]
            if index not in seen:
                seen.add(index)
                milli = work.form.request_milli(quota_type, self.tree.by_type)
                for leaf in self.cluster.leaves_of(work, quota_type):  # a window of its class is asked as well
                    amounts[leaf, index] = amounts.get((leaf, index), 0) + milli

    def _of_running(self, work: Work, amounts: Amounts) -> None:
        if not work.form.elastic and not work.degraded:
            return
        more, roles = 0, work.kind.roles
        for place, role in enumerate(roles):
            lacks = role.ceiling - (work.count(place) if len(roles) > 1 else len(work.seats))
            if lacks > 0:
                more += lacks * work.form.worker_milli(place, work.quota_type)
            elif lacks < 0:
                self._over = True
        if more:
            key = (work.charged_leaf, self.tree.division_of[work.quota_type])
            amounts[key] = amounts.get(key, 0) + more
