"""Who stands in the gap before a reservation gives way to its holder at its time, whatever shares, minimum run times and hysteresis say."""

from operator import attrgetter

from ..ahead.reservations import suffice_without
from ..model.reasons import Reason, reason
from ..rules.times import may_cause_evictions
from ..search.evicting import take_units
from ..search.units import Unit
from ..search.victims import Found, Rights
from ..state.planning import Cycle
from ..state.work import Work


class Due(Rights):
    """The rules for who stands in a gap: anybody may be taken."""

    def legal(self, unit: Unit, taken: dict[int, int]) -> int:
        return unit.leaf

    def guard(self, found: Found) -> Reason | None:
        return None


def due(cycle: Cycle, work: Work, quota_type: int) -> None:
    """Let those in a gap leave for a job whose time has come."""
    if not in_gaps(cycle, work, quota_type):
        return
    units = cycle.units()
    lent = sorted((unit for other in _lenders(cycle, work, quota_type) for unit in units.units_of(other.order)), key=attrgetter("key"))
    detail = f"the time of {work.job.name} has come; this job ran in the gap before it"
    take_units(cycle, work, quota_type, [((0,), unit) for unit in lent], Due(), lambda _: reason("reservation_due", detail))


def in_gaps(cycle: Cycle, work: Work, quota_type: int) -> bool:
    """Whether somebody may give way to it at once: a bound."""
    if not cycle.book.has_backfilled or not may_cause_evictions(cycle, work) or cycle.takers.holds_back(work):
        return False
    if not work.seats and not work.form.parted and work.form.lowest > 1000 * cycle.fleet.soon.idle + cycle.book.lent_milli():
        return False  # mostly it asks for more, wherever that is
    lent = _lenders(cycle, work, quota_type)
    return bool(lent) and suffice_without(cycle, lent, work, quota_type)


def not_bound(cycle: Cycle, work: Work, quota_type: int) -> list[Work]:
    """Those in gaps whom its reservation never bound: who ranks higher in its own queue, or stays within his guarantees where it does not.

    Beside them the reservation is computed anew. To others who do not leave for it now it stays due, so that nobody is a reason for a later date.
    """
    tree, lent = cycle.tree, _lenders(cycle, work, quota_type)
    above = not tree.within_guarantee(work.leaf, quota_type, work.missing_milli(quota_type))
    return [
        one
        for one in lent
        if (one.charged_leaf == work.home and one.form.level > work.form.level) or (above and tree.within_guarantee(one.charged_leaf, quota_type, 0))
    ]


def _lenders(cycle: Cycle, work: Work, quota_type: int) -> list[Work]:
    """Who stands in a gap and would leave it on short notice for the holder of a reservation."""
    return [other for other in cycle.book.lenders() if other.quota_type == quota_type and other is not work]
