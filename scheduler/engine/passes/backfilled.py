"""Who stands in the gap before a reservation gives way to its holder at its time, whatever the shares say.

But not to whom he would take the place back from again at once: a plan has to come to rest.
"""

from collections.abc import Collection, Sequence
from operator import attrgetter

from ..ahead.reservations import places_of_overdue
from ..model.reasons import Reason, reason
from ..rules.legality import Reclaim
from ..rules.times import may_cause_evictions, overdue
from ..search.evicting import Taking, take_units
from ..search.victims import Found, Rights
from ..state.planning import Cycle
from ..state.tree import Division
from ..state.work import Work


def due(cycle: Cycle, work: Work, quota_type: int) -> None:
    """Let those in a gap leave for a job whose time has come."""
    may_be, stay = in_gaps(cycle, work, quota_type)
    if not may_be:
        return
    units, leaving = cycle.units(), [one for one in lenders(cycle, work, quota_type) if one not in stay]
    lent = sorted((unit for other in leaving for unit in units.units_of(other.order)), key=attrgetter("key"))
    rights = Due(Reclaim(cycle, work, quota_type, work.leaf, work.missing_milli(quota_type)))
    detail = f"the time of {work.job.name} has come; this job ran in the gap before it"
    take_units(cycle, Taking(work, quota_type, [((0,), unit) for unit in lent], rights, lambda _: reason("reservation_due", detail)))


class Due(Rights):
    """The rules for who stands in a gap."""

    def __init__(self, rules: Reclaim) -> None:
        self.rules = rules

    def guard(self, found: Found) -> Reason | None:
        """What the order of queues has against it, where the queue of one of them could take back from the holder's what the holder gets."""
        rules, tree, division = self.rules, self.rules.tree, self.rules.division
        spared = overdue(rules.cycle, rules.work)
        for leaf, _ in found.minima():
            if leaf != rules.leaf:
                mine, theirs = tree.fork(rules.leaf, leaf)
                holds = division.used[mine] - tree.sum_below(mine, found.charged) + rules.milli
                if _may_be_taken(division, mine, holds, theirs, division.used[theirs] - tree.sum_below(theirs, found.charged), spared=spared):
                    return rules.order(found)
        return None


def leaves_in_time(cycle: Cycle, work: Work, quota_type: int, crowded: Collection[int]) -> bool:
    """Whether a job in a gap will surely give way to a holder that has waited `max_wait_s`: not if anything is guaranteed to its queue. Once other
    work of that queue has ended, the job may stand inside the guarantee, and the holder could not have its place."""
    if not places_of_overdue(cycle.book, work) & sum(1 << node for node in crowded):
        return True
    division = cycle.tree.division(quota_type)
    return all(division.guaranteed[place] == 0 for place in cycle.tree.path[work.home])


def lenders(cycle: Cycle, work: Work, quota_type: int) -> list[Work]:
    """Who stands in a gap and would leave it on short notice for the holder of a reservation."""
    return [other for other in cycle.book.lenders() if other.quota_type == quota_type and other is not work]


def _may_be_taken(division: Division, mine: int, holds: int, theirs: int, they_hold: int, *, spared: bool) -> bool:
    """Whether a sibling that holds so much could reclaim something from a node that holds so much. `spared`: the holder has waited `max_wait_s`, so
    that only work within its guarantees could."""
    if not spared and holds > division.counts_on[mine]:
        return True
    promised, theirs_promised = division.guaranteed[mine], division.guaranteed[theirs]
    return promised is not None and holds > promised and (theirs_promised is None or they_hold < theirs_promised)


def in_gaps(cycle: Cycle, work: Work, quota_type: int) -> tuple[bool, tuple[Work, ...]]:
    """Whether somebody may give way to it at once (a bound), and who of those in gaps surely does not."""
    if not cycle.book.has_backfilled or not may_cause_evictions(cycle, work) or cycle.takers.holds_back(work):
        return False, ()
    if not work.seats and not work.form.parted and work.form.lowest > 1000 * cycle.fleet.soon.idle + cycle.book.lent_milli():
        return False, ()  # mostly it asks for more, wherever that is
    lent = lenders(cycle, work, quota_type)
    stay = _staying(cycle, work, quota_type, lent)
    return len(stay) < len(lent), tuple(not_bound(cycle, work, quota_type, stay))


def not_bound(cycle: Cycle, work: Work, quota_type: int, lent: Sequence[Work]) -> list[Work]:
    """Those whom its reservation never bound: who ranks higher in its own queue, or stays within his guarantees where it does not. Beside them the
    reservation is computed anew. To others who do not leave for it now it stays due, so that nobody is a reason for a later date."""
    tree, least = cycle.tree, work.missing_milli(quota_type)
    above = not tree.within_guarantee(work.leaf, quota_type, least)
    return [
        one
        for one in lent
        if (one.charged_leaf == work.home and one.form.level > work.form.level) or (above and tree.within_guarantee(one.charged_leaf, quota_type, 0))
    ]


def _staying(cycle: Cycle, work: Work, quota_type: int, lent: Sequence[Work]) -> list[Work]:
    """Who stands before it in its own queue ran in no gap behind it; others would be served before it again, and could take the place back."""
    tree, division, leaf, milli = cycle.tree, cycle.tree.division(quota_type), work.leaf, work.missing_milli(quota_type)
    by_class, spared = bool(cycle.cluster.windows.lasting), overdue(cycle, work)
    gone: dict[int, int] = {}  # a node that uses less is served sooner
    found = []
    for one in lent:
        if one.charged_leaf == work.home:
            if one.form.level > work.form.level:
                found.append(one)
            continue
        if one.charged_leaf == leaf or by_class or len(one.seats) > one.form.all_least:
            continue
        mine, theirs = tree.fork(leaf, one.charged_leaf)
        if mine not in gone:
            gone[mine] = sum([each.milli for each in lent if tree.below(mine, each.charged_leaf)])
        holds, they_hold = division.used[mine] - gone[mine] + milli, division.used[theirs] - one.milli
        if not _may_be_taken(division, mine, holds, theirs, they_hold, spared=spared):
            continue
        if tree.key(mine, division, milli, gone[mine]) > tree.key(theirs, division, one.form.least_milli(quota_type), one.milli):
            found.append(one)
    return found
