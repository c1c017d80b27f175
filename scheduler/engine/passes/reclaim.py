"""Take back between queues: a leaf within its fair share takes from those above theirs, or above what they were promised."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from ..model.reasons import Reason, reason
from ..rules.legality import ANY_SIZE, Reclaim, rules_of
from ..rules.order import QueueOrder
from ..search.evicting import NOTHING, given_back, is_backed_off, take_cheaply, take_units, tell, told_before
from ..search.victims import Found, Ranked, has_fresh, no_larger
from ..state.planning import FAIR, Cycle
from ..state.tree import Division
from ..state.work import Work

TAKEN_AGAIN = reason("order", "a job ahead of it would reclaim the same GPUs at once")


class Sieve(NamedTuple):
    """Finds in a queue what is worth trying. Beside the leaf itself it goes by nothing but what it is given, where no window is owed to a class."""

    name: str
    through: Callable[[Cycle, Any, int, list[Work]], list[Work]]


Try = Callable[[Cycle, Work, int], Reason | None]
Hopeful = Callable[[Cycle, Work, int], bool]


def run(cycle: Cycle) -> None:
    walk(cycle, may_reclaim, reclaim, SMALL_ENOUGH, None if cycle.displaced.holds_any else beyond_lines(cycle))


def beyond_lines(cycle: Cycle) -> dict[int, list[int]]:
    """The nodes that may have to give something to one beside them, by what is above both: they use more than they count on, or were promised."""
    found: dict[int, list[int]] = {}
    parents = cycle.tree.parent
    for division in cycle.tree.divisions:
        for place, (used, sure, promised) in enumerate(zip(division.used, division.counts_on, division.guaranteed, strict=True)):
            if used > (sure if promised is None else min(sure, promised)):
                found.setdefault(parents[place], []).append(place)
    return found


def small_enough(cycle: Cycle, beyond: dict[int, list[int]] | None, leaf: int, queue: list[Work]) -> list[Work]:
    """Those that could still be within the leaf's share while somebody beside it is beyond his line, or that a window may serve."""
    tree = cycle.tree
    if cycle.cluster.windows.lasting:
        return queue
    if beyond is not None and not any(beyond.get(tree.parent[place], [place]) != [place] for place in tree.path[leaf]):
        return []
    room = max([division.fair[leaf] - division.used[leaf] for division in tree.divisions])
    return [work for work in queue if work.form.lowest <= room or work.seats] if room > 0 else []


SMALL_ENOUGH = Sieve("reclaim", small_enough)


def walk(cycle: Cycle, hopeful: Hopeful, attempt: Try, sieve: Sieve | None = None, given: object = None) -> None:
    """Let waiting jobs try to take something, in the order of queues. `hopeful` is a cheap bound that spares most searches.

    So does the sieve, which goes by what is `given` and lets everyone through for whom there is hope.
    """
    if not cycle.waiting.by_leaf():
        return
    if cycle.tree.by_type:
        for choice, division in cycle.waiting.rounds():
            _walk_division(cycle, choice, division, hopeful, attempt, sieve, given)
    else:
        _walk_division(cycle, 0, cycle.tree.divisions[0], hopeful, attempt, sieve, given)


def _walk_division(cycle: Cycle, choice: int, division: Division, hopeful: Hopeful, attempt: Try, sieve: Sieve | None, given: object) -> None:
    among = None if sieve is None else cycle.waiting.sifted(sieve.name, partial(sieve.through, cycle, given), given)
    if among is not None and not among:
        return
    test = Test(cycle, choice, hopeful, inside=sieve is not None and sieve.name == "preempt")
    queues = cycle.waiting.of_round(division, choice, test.of, among)
    if not queues:
        return
    order = QueueOrder(cycle.tree, division, queues, test.milli) if len(queues) > 1 else None
    queue, at = next(iter(queues.values())), 0  # of whom there is no other is served in its own order
    while True:
        work = order.best() if order is not None else queue[at] if at < len(queue) else None
        if work is None:
            return
        placed, known = cycle.placed, len(cycle.cluster.journal)
        for quota_type in cycle.waiting.tried_types(work, choice):
            if not test.of_type(work, quota_type):
                continue
            refused = attempt(cycle, work, quota_type)
            if refused is None:
                break
            cycle.waiting.note(work, refused)
        if order is None:
            at = test.onward(queue, at + 1)
            continue
        order.drop(work.home, test.onward, calm=cycle.placed == placed)
        if cycle.placed != placed:
            cycle.follow(order, known, work.home)


class Test:
    """Who may try in a walk: one answer for all jobs of a leaf that ask for the same, until somebody is served."""

    __slots__ = ("_as_of", "_by_job", "_verdicts", "choice", "cycle", "displaced", "everyone", "hopeful", "inside")

    def __init__(self, cycle: Cycle, choice: int, hopeful: Hopeful, *, inside: bool = False) -> None:
        self.inside = inside
        self.cycle, self.choice, self.hopeful, self.displaced = cycle, choice, hopeful, cycle.displaced
        self.everyone = cycle.turn != FAIR
        self._by_job: bool | None = None
        self._verdicts: dict[tuple[int, int], bool] = {}  # of jobs without places, by leaf and form
        self._as_of = -1

    def of(self, work: Work) -> bool:
        cycle = self.cycle
        if self.displaced.holds_back(work, inside=self.inside):
            cycle.waiting.note(work, TAKEN_AGAIN)
            return False
        if work.kind.preemption_delay_ms and not may_evict(cycle, work):
            return False
        if work.seats or work.evicted or self.by_job:
            return self._tried(work)
        if self._as_of != cycle.placed:
            self._verdicts.clear()
            self._as_of = cycle.placed
        key = (work.home, id(work.form))
        known = self._verdicts.get(key)
        if known is None:
            known = self._verdicts[key] = self._tried(work)
        return known

    @property
    def by_job(self) -> bool:
        """Whether two jobs of one form may differ."""
        if self._by_job is None:
            windows = self.cycle.cluster.windows
            self._by_job = bool(windows.lasting or windows.upcoming) or self.cycle.waiting.any_overdue()
        return self._by_job

    def _tried(self, work: Work) -> bool:
        types = self.cycle.waiting.tried_types(work, self.choice)
        return self.of_type(work, types[0]) if len(types) == 1 else any(self.of_type(work, quota_type) for quota_type in types)

    def of_type(self, work: Work, quota_type: int) -> bool:
        cycle = self.cycle
        return (self.everyone or cycle.has_turn(work, quota_type, work.missing_milli(quota_type))) and self.hopeful(cycle, work, quota_type)

    def onward(self, queue: Sequence[Work], at: int) -> int:
        """The next one of a queue who may try."""
        while at < len(queue) and not self.of(queue[at]):
            at += 1
        return at

    def milli(self, work: Work) -> int:
        types = self.cycle.waiting.tried_types(work, self.choice)
        return work.missing_milli(types[0]) if types else 0  # as in a walk along the queue


def may_evict(cycle: Cycle, work: Work) -> bool:
    """Before its delay is over a job causes no eviction, move or shrink."""
    return work.job.submitted + work.kind.preemption_delay_ms <= cycle.now


def claimant(cycle: Cycle, work: Work, quota_type: int) -> int | None:
    """The leaf in whose name the job may reclaim: one that stays within its fair share."""
    division = cycle.tree.divisions[cycle.tree.division_of[quota_type]]
    milli = work.missing_milli(quota_type)
    if not cycle.cluster.windows.lasting:
        leaf = work.charged_leaf if work.seats else work.home
        return leaf if milli and division.used[leaf] + milli <= division.fair[leaf] else None
    for leaf in cycle.cluster.leaves_of(work, quota_type):
        if division.used[leaf] + milli <= division.fair[leaf] and milli:
            return leaf
    return None


def may_reclaim(cycle: Cycle, work: Work, quota_type: int) -> bool:
    """The cheap half: within its share, and somebody is above his line by enough."""
    leaf = claimant(cycle, work, quota_type)
    if leaf is None:
        return False
    milli = work.missing_milli(quota_type)
    if work.form.fixed and beyond_guarantee(cycle, work, leaf, quota_type, milli):
        return False
    rules = rules_of(cycle, work, quota_type, leaf, milli)
    if not rules.sources:
        return False
    key = ("reclaim", rules.signature, work.form.shape, *cycle.stay(work))
    return bool(work.seats) or key not in cycle.refused


def beyond_guarantee(cycle: Cycle, work: Work, leaf: int, quota_type: int, milli: int) -> bool:
    """Whether there is no room left in the guarantees for work that nobody may put out. Where no window counts, that is asked once for an amount."""
    windows = cycle.cluster.windows
    key = ("fixed", leaf, quota_type, milli)
    known = None if windows.lasting else cycle.memo(key)
    if known is None:
        known = cycle.remember(key, cycle.tree.fixed_gate(leaf, quota_type, milli, windows.ends(work)) is not None)
    return bool(known)


def reclaim(cycle: Cycle, work: Work, quota_type: int) -> Reason | None:
    leaf = claimant(cycle, work, quota_type)
    if leaf is None:
        return NOTHING
    told = ("told", leaf, quota_type, work.form.shape, work.form.fixed, work.kind.class_rank, work.charged_leaf)
    known = told_before(cycle, told, work)
    if known is not None:
        return known
    for rules in rules_of(cycle, work, quota_type, leaf, work.missing_milli(quota_type)).variants():
        refused = _reclaim(cycle, work, quota_type, rules)
        if refused is None:
            return None
        tell(cycle, told, work, refused)
    return refused


def _reclaim(cycle: Cycle, work: Work, quota_type: int, rules: Reclaim) -> Reason | None:
    milli, leaf = rules.milli, rules.leaf
    key = ("reclaim", rules.signature, work.form.shape, *cycle.stay(work))
    if not work.seats and key in cycle.refused:
        return NOTHING
    large = max(8000, 2 * milli)
    name = work.job.name

    def why(found: Found) -> Reason:
        if all(unit.leaf == rules.own for unit in found.units):
            return given_back(name)
        return reason("reclaim", f"{cycle.tree.names[leaf]} reclaims {milli / 1000:g} GPU{'s' * (milli != 1000)} for {name}")

    listed = ("ranked", rules.signature)
    ranked = cycle.memo(listed)
    if ranked is None:
        ranked = cycle.remember(listed, rules.units(ANY_SIZE))
    small = cycle.memo((*listed, large))
    if small is None:
        small = cycle.remember((*listed, large), no_larger(ranked, large))
    alike = (rules.signature, work.form.shape, cycle.limits_of(leaf))

    def take(units: Ranked, which: str) -> Reason | None:
        return take_units(cycle, work, quota_type, units, rules, why, (*alike, which), leaf)

    if take_cheaply(cycle, work, quota_type, small, rules, why, alike, leaf):
        return None
    refused = take(small, "small")
    if refused is not None and (refused is NOTHING or refused.code == "reservation") and len(small) < len(ranked):
        refused = take(rules.units(large), "all")
    if refused is not None and has_fresh(ranked):
        later = rules.units(large, fresh_first=False)
        for which, units in (("later small", no_larger(later, large)), ("later", later)):
            again = take(units, which)
            if again is None:
                return None
            if again is not NOTHING:
                break
    if refused is NOTHING and not work.seats and not is_backed_off(cycle, work):
        cycle.refused.add(key)
    return refused
