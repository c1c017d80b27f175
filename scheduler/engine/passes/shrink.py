"""Everyone's minimum before anyone's surplus: elastic jobs give workers back for a waiting minimum. Whose: `own_surplus` in legality.py."""

from collections.abc import Sequence
from functools import partial

from ..model.reasons import Reason, reason
from ..rules.legality import Preempt, Reclaim, own_surplus, rank_and_cost
from ..rules.times import may_cause_evictions
from ..search.evicting import NOTHING, Taking, beside_others, given_back, place_in, take_units
from ..search.units import Unit
from ..search.victims import ANY, Rights
from ..state.planning import Cycle
from ..state.work import Work
from .reclaim import claimant
from .walk import walk


def run(cycle: Cycle) -> None:
    """First a service that asks for fewer workers than it has gives back the highest ones."""
    for work in cycle.cluster.works if cycle.cluster.forms.desired else ():
        if not work.seats or work.evicted or work.moved or work.repaired or work.order in cycle.cluster.lessons.made_whole:
            continue
        for place, role in enumerate(work.kind.roles):
            seats = [seat for seat in work.seats if seat.role == place]
            keep = role.least + (role.ceiling - role.least) // role.step * role.step
            if role.desired is not None and len(seats) > keep:
                detail = f"{len(seats)} workers of role {role.name}, {role.desired} desired"
                cycle.cluster.unseat(work, seats[keep:], reason("desired", detail), None)
                cycle.changed()
    if cycle.cluster.forms.elastic and cycle.waiting.anybody() and cycle.units().any_surplus:
        walk(cycle, lambda cycle, work, quota_type: cycle.units().any_surplus, shrink)


def shrink(cycle: Cycle, work: Work, quota_type: int) -> Reason | None:
    """Surplus of the leaf itself, and of others by the rules of reclaim."""
    milli, claim = work.missing_milli(quota_type), claimant(cycle, work, quota_type)
    rights: Rights
    if claim is None:
        rights, ranked = Preempt(cycle, work, quota_type, work.leaf, milli), [*own_surplus(cycle, work, quota_type, work.leaf)]
    else:
        rights = Reclaim(cycle, work, quota_type, claim, milli)
        ranked = [*rights.own_surplus, *rights.units(ANY, surplus_only=True)]
    ranked.sort(key=rank_and_cost)
    return take_units(cycle, Taking(work, quota_type, ranked, rights, lambda _: given_back(work.job.name), claim=claim))


def give_own(cycle: Cycle) -> None:
    """A degraded gang that nothing else can repair gives back its own surplus; the next plan puts the workers it lacks there. One gang in a plan, as
    the last thing that is done: nobody else takes the room that it makes."""
    lacking = [work for work in cycle.waiting.queues.open if work.degraded and work in cycle.waiting and may_cause_evictions(cycle, work)]
    for work in sorted(lacking, key=cycle.waiting.order.rank):
        units = [] if work.gave_back or work.grown() else [unit for unit in cycle.units().units_of(work.order) if unit.surplus]
        units.sort(key=lambda unit: unit.key)
        if not units or not _makes_room(cycle, work, units):
            continue
        # The fewest steps that do: of each role the highest, as a lower index is kept longest.
        taken = next(units[:count] for count in range(1, len(units) + 1) if _makes_room(cycle, work, units[:count]))
        for unit in reversed(taken):
            others = [one for one in taken if one is not unit]
            if all(one.seats[0].role != unit.seats[0].role or one.index > unit.index for one in others) and _makes_room(cycle, work, others):
                taken = others
        seats = [seat for unit in taken for seat in unit.seats]
        cycle.cluster.unseat(work, seats, reason("shrink", f"{work.job.name} releases surplus for workers of its own minimum"), work.job.name)
        cycle.changed()
        cycle.continues = True
        return


def _makes_room(cycle: Cycle, work: Work, units: Sequence[Unit]) -> bool:
    """Whether the workers that a gang lacks fit without some of its surplus."""
    quota_type, milli = work.quota_type, work.missing_milli(work.quota_type)
    with cycle.cluster.attempt():
        cycle.cluster.unseat(work, [seat for unit in units for seat in unit.seats], reason("shrink", "a trial"), None)
        place = partial(place_in, cycle, work, quota_type, 0, cycle.grid.size)
        return not isinstance(beside_others(cycle, work, quota_type, milli, None, place, NOTHING), Reason)
