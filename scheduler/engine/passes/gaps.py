"""Who stands in the gap before a reservation gives way to its holder at its time, whatever the shares say."""

from collections.abc import Collection
from operator import attrgetter

from ..legality import Reclaim
from ..reasons import reason
from ..state import Cycle
from ..taking import request, take_units
from ..units import Unit
from ..work import Work
from .reclaim import may_evict


def due(cycle: Cycle, work: Work, quota_type: int) -> None:
    """Let those in a gap leave for a job whose time has come."""
    if not cycle.has_backfilled or not may_evict(cycle, work) or cycle.takings.holds_back(work):
        return
    lenders = [other for other in cycle.book.lenders() if other.quota_type == quota_type and other is not work]
    if not lenders:
        return
    units = cycle.units()
    lent = sorted((unit for other in lenders for unit in units.units_of(other.order)), key=attrgetter("key"))
    # Who stands before the holder in its own queue ran in no gap behind it.
    lent = [unit for unit in lent if unit.leaf != work.home or unit.level <= work.kind.level]
    if not lent:
        return
    leaf = work.charged_leaf if work.seats else work.home
    rules = Reclaim(cycle, work, quota_type, leaf, request(cycle, work, quota_type))

    def legal(unit: Unit, taken: dict[int, int]) -> int | None:
        return unit.leaf

    ranked = [((0,), unit) for unit in lent]
    detail = f"the time of {work.job.name} has come; this job ran in the gap before it"
    take_units(cycle, work, quota_type, ranked, legal, lambda _: reason("reservation_due", detail), rules.order)


def may_be_due(cycle: Cycle, work: Work, quota_type: int) -> bool:
    """A bound: False where nobody would give way to it even if its time had come."""
    if not cycle.has_backfilled or not may_evict(cycle, work) or cycle.takings.holds_back(work):
        return False
    if work.seats:
        return _may_give_way(cycle, work, quota_type)
    if not work.form.parted and work.form.lowest > 1000 * cycle.fleet.soon.idle + cycle.book.lent_milli():
        return False  # mostly it asks for more, wherever that is
    key = ("due", work.home, id(work.form), quota_type)
    known: bool | None = cycle.memo(key)
    return cycle.remember(key, _may_give_way(cycle, work, quota_type)) if known is None else known


def _may_give_way(cycle: Cycle, work: Work, quota_type: int) -> bool:
    """Whether those who stand in gaps could make enough room; that is the same for all of a queue who ask for the same."""
    level, home = work.form.level, work.home
    lent = [
        one
        for one in cycle.book.lenders()
        if one.quota_type == quota_type and one is not work and (one.charged_leaf != home or one.form.level <= level)
    ]
    if not lent or not _suffice_without(cycle, lent, work, quota_type):
        return False
    some = _served_after(cycle, work, quota_type, lent)
    return len(some) == len(lent) or (bool(some) and _suffice_without(cycle, some, work, quota_type))


def _suffice_without(cycle: Cycle, leaving: Collection[Work], work: Work, quota_type: int) -> bool:
    """A bound: False where a job could not start at once even if these left. That is the same for all that need the same room."""
    if work.seats:
        return cycle.book.suffice_without(leaving, work, quota_type)
    key = ("without", work.form.shape, quota_type, *[one.order for one in leaving])
    known: bool | None = cycle.memo(key)
    return cycle.remember(key, cycle.book.suffice_without(leaving, work, quota_type)) if known is None else known


def _served_after(cycle: Cycle, work: Work, quota_type: int, lent: Collection[Work]) -> list[Work]:
    """Those of them that may leave for it: the others would be served before it again, whoever else leaves."""
    tree = cycle.tree
    if cycle.cluster.windows.lasting:
        return [*lent]
    division = tree.divisions[tree.division_of[quota_type]]
    leaf, milli = work.charged_leaf if work.seats else work.home, request(cycle, work, quota_type)
    mine: dict[int, tuple[int, ...]] = {}
    found = []
    for one in lent:
        its_leaf = one.charged_leaf
        if its_leaf == leaf or one.form.elastic:
            found.append(one)
            continue
        here, there = tree.fork(leaf, its_leaf)
        my_key = mine.get(here)
        if my_key is None:  # a node that uses less is served sooner
            my_key = mine[here] = tree.key(here, division, milli, sum([each.milli for each in lent if tree.below(here, each.charged_leaf)]))
        if my_key <= tree.key(there, division, cycle.least_milli(one.kind, quota_type), one.milli):
            found.append(one)
    return found
