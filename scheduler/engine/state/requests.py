"""What everyone asks for, by leaf and division, and the shares that follow; also where they follow each placement.

What a waiting job requests, and which count in none: `asked_of` in queues.py.
"""

from collections import Counter
from operator import add

from .queues import asked_of
from .tree import Division
from .waiting import Waiting
from .work import Work

Amounts = Counter[tuple[int, Division]]  # milli-GPU by leaf and division


class Requests:
    def __init__(self, waiting: Waiting) -> None:
        self.waiting = waiting
        self.cluster = waiting.cluster
        self.tree = waiting.cluster.tree
        self._by_job: dict[int, Amounts] = {}  # where shares follow each placement
        self._all = Amounts()  # of all of them together
        self._read = -1  # so much of the cluster's journal is in them
        self._over = False  # whether somebody holds more than he may ask for: once he has lost it, he asks for less than he had
        running = Amounts()
        for work in waiting.queues.open:
            self._of_running(work, running)
        for division in self.tree.divisions:
            division.requested = [*map(add, division.used, division.asked)]
        self._share(running)
        # Whether a placement can change what others ask for, or may have: then shares are computed anew after each.
        tree, forms = self.tree, self.cluster.forms
        several = len(tree.divisions) > 1 and any(limit is not None for limit in tree.limit_total)
        many = forms.choosy and any(len(work.types) > 1 for work in self.cluster.works)
        # A part by memory is asked for as of the smallest GPU that can hold it, and charged less on a larger one.
        # Who is charged to a window of his class asks for nothing in his own queue any more.
        self.by_placement = several or many or forms.by_memory or self._over or bool(self.cluster.windows.of_classes)

    def follow(self) -> None:
        """A job that accepts several types found a place in one and asks for nothing in the others."""
        journal = self.cluster.journal
        for work in self.cluster.works if self._read < 0 else dict.fromkeys(journal[self._read :]):
            self._all.subtract(self._by_job.pop(work.order, ()))
            now = Amounts()
            if work.seats:
                self._of_running(work, now)
            elif work.order not in self.waiting.static and (work.state != "stopping" or work.asks_again):
                for leaf, division, milli in asked_of(self.cluster, work):
                    now[leaf, division] += milli
            if now:
                self._by_job[work.order] = now
                self._all.update(now)
        self._read = len(journal)
        for division in self.tree.divisions:
            division.requested = [*division.used]
        self._share(self._all)

    def _share(self, amounts: Amounts) -> None:
        for (leaf, division), milli in amounts.items():
            self.tree.add(division.requested, leaf, milli)
        self.tree.share()

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
            amounts[work.charged_leaf, self.tree.division(work.quota_type)] += more
