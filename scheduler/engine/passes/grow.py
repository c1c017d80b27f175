"""Elastic jobs take up what no waiting minimum can use: a step at a time, in the order of queues.

What is idle comes first. Where nothing is, a queue within its fair share may have other queues' surplus, by the rules of
reclaim; never anybody's minimum, and never from its own queue.
"""

from bisect import insort
from functools import partial

from ..model.reasons import Reason, counted, reason
from ..place.placement import Placer, fit
from ..rules.gates import closed_gate, kept_clear, limit_gate, open_leaf
from ..rules.held_gates import held_gate
from ..rules.legality import Reclaim
from ..rules.order import QueueOrder
from ..rules.times import may_cause_evictions
from ..search.evicting import fits_without, release, some_of
from ..search.victims import Found, Target, in_sizes, least_sets, usual_size
from ..state.fleet import Seat, View
from ..state.form import Wants
from ..state.planning import Cycle
from ..state.tree import Division
from ..state.work import Work

Step = tuple[int, tuple[int, ...]]


def run(cycle: Cycle) -> None:
    cycle.continues = False
    for division in cycle.tree.divisions if cycle.cluster.forms.elastic else ():
        _grow(cycle, division)


def _grow(cycle: Cycle, division: Division) -> None:
    queues: dict[int, list[Work]] = {}
    for work in cycle.cluster.works:
        alive = work.form.elastic and work.seats and not (work.stale or work.evicted or work.moved or work.degraded)
        if alive and work.quota_type in division.types and next_step(work) is not None:
            queues.setdefault(work.charged_leaf, []).append(work)

    def rank(work: Work) -> tuple[object, ...]:
        """At its minimum before above it, then like everyone in a queue."""
        return len(work.seats) > work.form.all_least, *cycle.waiting.order.rank(work)

    for queue in queues.values():
        queue.sort(key=rank)

    def milli(work: Work) -> int:
        step = next_step(work)
        return 0 if step is None else work.form.wants_milli((step,), work.quota_type)

    order = QueueOrder(cycle.tree, division, queues, milli)
    in_turn = True  # nobody who comes first has to wait for the next plan
    while (best := order.best()) is not None:
        leaf = best.charged_leaf
        # Who was shrunk for somebody, or will be, does not grow in the same plan. He takes others' surplus in the next one, and would take it from
        # those who got it now.
        shrunk = best.order in cycle.gave_way or best.order in cycle.cluster.lessons.giving or best.gave_back
        if shrunk:
            in_turn, cycle.continues = False, True
        if shrunk or not Growth(cycle, best).take(in_turn=in_turn) or next_step(best) is None or best.charged_leaf != leaf:
            order.drop(leaf)
            continue
        queue, at = queues[leaf], order.at[leaf]
        del queue[at]
        insort(queue, best, lo=at, key=rank)
        order.refresh((leaf,))


def next_step(work: Work) -> Step | None:
    """The role and ranks of the next step of growth; roles in their order."""
    for place, role in enumerate(work.kind.roles):
        have = work.count(place)
        # Who has lost some of a step is given those first.
        step = role.step - (have - role.least) % role.step
        if have >= role.least and have + step <= role.ceiling:
            ranks, away = work.free_ranks(place)[:step], work.ranks_away(place)
            if away.isdisjoint(ranks):
                return place, tuple(ranks)
    return None


class Growth:
    """The next step of one job."""

    def __init__(self, cycle: Cycle, work: Work) -> None:
        step = next_step(work)
        assert step is not None
        self.cycle, self.work, self.leaf, self.quota_type = cycle, work, work.charged_leaf, work.quota_type
        self.wants: Wants = (step,)
        self.division = cycle.tree.division(work.quota_type)
        self.milli = self.asked = work.form.wants_milli(self.wants, work.quota_type)
        if work.charged_leaf != work.home and limit_gate(cycle.tree, self.leaf, self.quota_type, self.milli) is not None:
            # Beyond the window of its class all of it is charged to its own leaf.
            self.leaf, self.asked = work.home, work.milli + self.milli

    def take(self, *, in_turn: bool) -> bool:
        """Who is not in turn gets what nobody could take back from him, at nobody's cost."""
        cycle, tree, division = self.cycle, self.cycle.tree, self.division
        stays = (in_turn and not cycle.gave_way) or all(tree.within_share(place, self.quota_type, self.asked) for place in tree.path[self.leaf])
        if not in_turn:
            return stays and self.into_idle()
        if not stays:
            # The queue of somebody who gave way in the plan, and is within its share by now, comes first in the next one.
            leaves = {cycle.cluster.works[order].charged_leaf for order in cycle.gave_way}
            if any(division.used[leaf] < division.fair[leaf] for leaf in leaves):
                cycle.continues = True
                return False
        return self.into_idle() or self.by_reclaim()

    def into_idle(self) -> bool:
        """Take what is idle, or what is being freed and nobody's minimum has taken."""
        for view in self.cycle.fleet.views():
            with self.cycle.cluster.attempt() as attempt:
                if (seats := self._place(view)) is not None:
                    # Who was started, moved or made whole in this plan is told of that first.
                    self._seat(seats, self.work.why or reason("grow", "idle, and no waiting minimum can use it"))
                    attempt.keep()
                    self.cycle.changed()
                    return True
        return False

    def _place(self, view: View) -> tuple[Seat, ...] | None:
        """Take places for the step where gates and windows allow it, off the places that are kept for a minimum."""
        cycle, work, cluster = self.cycle, self.work, self.cycle.cluster
        if any(gate(cycle, work, self.leaf, self.quota_type, self.asked) is not None for gate in (closed_gate, held_gate)):
            return None
        refused, banned = kept_clear(cycle, work, self.quota_type, self.milli)
        if refused is not None:
            return None
        banned |= cluster.apart(work) | sum(1 << node for node in cycle.book.nodes)  # a place kept for a minimum is not for anyone's surplus
        return Placer(cluster, work, self.quota_type, view, banned=banned).place(self.wants)

    def _seat(self, seats: tuple[Seat, ...], why: Reason) -> None:
        if self.leaf != self.work.charged_leaf:
            self.cycle.cluster.charge_elsewhere(self.work, self.leaf)
        self.cycle.cluster.seat(self.work, seats, self.quota_type, self.leaf, why)

    def by_reclaim(self) -> bool:
        """Take the surplus of other queues by the rules of reclaim; the leaf stays within its fair share."""
        cycle, work, large = self.cycle, self.work, usual_size(self.milli)
        within = self.milli and self.leaf == work.charged_leaf and cycle.tree.within_share(self.leaf, self.quota_type, self.milli)
        if not within or "reclaim" not in cycle.settings.passes or not may_cause_evictions(cycle, work):
            return False
        if not cycle.units().any_surplus or cycle.waiting.order.above(cycle.waiting.in_leaf(self.leaf), work.form.level):
            return False  # who waits above it in its queue would put it out with what it got, and has no right to that himself
        rules = Reclaim(cycle, work, self.quota_type, self.leaf, self.milli)
        if not rules.sources or not work.stood_before:
            cycle.continues |= bool(rules.sources)  # in the next plan: so it can be told what was for what
            return False
        fits = partial(fits_without, cycle, lambda: self._place(cycle.fleet.soon) is not None)
        target = Target(0, cycle.grid.size, fits=fits, growth=True)
        among = in_sizes(rules.units(large, surplus_only=True), large)
        return any(self._carry_out(found, rules) for some in among for found in least_sets(cycle.cluster, some, rules, target, cycle.units()))

    def _carry_out(self, found: Found, rules: Reclaim) -> bool:
        cycle, gave_way = self.cycle, self.cycle.gave_way
        # The whole of it may be unfair, or be turned round by the order of queues, or cost too much.
        if rules.guard(found) is not None or not self._served_first(found):
            return False
        names = {unit.work.job.name for unit in found.units}
        with cycle.cluster.attempt() as attempt:
            detail = f"{cycle.tree.names[self.leaf]} reclaims {counted(self.milli)} of surplus for the growth of {self.work.job.name}"
            release(cycle, found.units, reason("reclaim", detail), self.work.job.name)
            if self._wanted_by_a_minimum():
                return False
            seats = self._place(cycle.fleet.soon)
            assert seats is not None, "the search said that the step fits"
            self._seat(seats, reason("reclaim", f"within its fair share; {some_of(names)} shrink"))
            attempt.keep()
        for unit in found.units:
            gave_way[unit.work.order] = min(unit.milli, gave_way.get(unit.work.order, unit.milli))
        cycle.changed()
        return True

    def _served_first(self, found: Found) -> bool:
        """With the surplus gone, the order of queues serves this step before every one that was taken, for this step or another of this plan."""
        tree, division, cycle = self.cycle.tree, self.division, self.cycle

        def comes_first(leaf: int, milli: int) -> bool:
            mine, theirs = tree.fork(self.leaf, leaf)
            my_gone, their_gone = (sum(unit.milli for unit in found.units if tree.below(place, unit.leaf)) for place in (mine, theirs))
            return tree.key(mine, division, self.milli, my_gone) <= tree.key(theirs, division, milli, their_gone)

        if not all(comes_first(unit.leaf, unit.milli) for unit in found.units):
            return False
        gave_way = [(cycle.cluster.works[order].charged_leaf, milli) for order, milli in cycle.gave_way.items()]
        others = all(leaf == self.leaf or comes_first(leaf, milli) for leaf, milli in gave_way)
        cycle.continues |= not others
        return others

    def _wanted_by_a_minimum(self) -> bool:
        """Whether somebody's minimum could start on what was freed: that comes before anyone's surplus."""
        cycle, quota_type, soon, asked = self.cycle, self.quota_type, self.cycle.fleet.soon, set[tuple[int, int]]()
        for work in cycle.waiting:
            key = (work.home, work.form.shape)
            if quota_type not in work.open_types or (key in asked and not work.seats):
                continue
            asked.add(key)
            if not work.seats and not cycle.slots(soon).could_fit(work.form, quota_type):
                continue
            if not open_leaf(cycle, work, quota_type, work.missing_milli(quota_type))[1]:
                with cycle.cluster.attempt():
                    if fit(cycle, work, quota_type, soon) is not None:
                        return True
        return False
