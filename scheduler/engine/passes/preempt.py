"""Inside one leaf: strictly lower work gives way to higher. `Preempt` in legality.py says which may."""

from functools import partial

from ..model.reasons import Reason, reason
from ..rules.gates import fixed_gate
from ..rules.legality import Preempt
from ..search.evicting import NOTHING, Taking, take_in_turn, take_units, told_once
from ..search.victims import Found, no_larger, usual_size
from ..state.planning import Cycle
from ..state.work import Work
from .walk import walk


def run(cycle: Cycle) -> None:
    walk(cycle, may_preempt, preempt, partial(high_enough, cycle, 1000 * cycle.fleet.soon.idle), inside=True)


def high_enough(cycle: Cycle, idle: int, leaf: int, queue: list[Work]) -> list[Work]:
    """Those above the lowest that runs in a leaf, as far as all of it together with what is idle could be enough."""
    queue = cycle.waiting.order.above(queue, cycle.cluster.forms.least_level)
    lowest = cycle.standing.lowest(leaf) if queue else None
    if lowest is None:
        return []
    level, milli = lowest
    return [work for work in cycle.waiting.order.above(queue, level) if work.form.lowest <= milli + idle or work.seats]


def may_preempt(cycle: Cycle, work: Work, quota_type: int) -> bool:
    """The cheap half: what is lower in the leaf, and surplus that is no higher, would be enough, in sum and beside the share that is left."""
    leaf, milli = work.leaf, work.missing_milli(quota_type)
    lower = cycle.standing.freeable_below(leaf, quota_type, work.form.level)
    if lower and cycle.cluster.forms.elastic:
        lower += sum(unit.milli for unit in cycle.units().of_leaf(leaf) if unit.surplus and unit.form.level == work.form.level)
    if not lower or lower + cycle.idle_milli(quota_type) < milli:
        return False
    if work.form.fixed and fixed_gate(cycle.tree, leaf, quota_type, milli, cycle.cluster.windows.ends(work)) is not None:
        return False  # whoever gives way is preemptible, and makes no room among what is not
    return lower >= milli or cycle.tree.within_share(leaf, quota_type, milli - lower)


def preempt(cycle: Cycle, work: Work, quota_type: int) -> Reason | None:
    leaf, milli = work.leaf, work.missing_milli(quota_type)
    alike = ("preempt", leaf, work.form.level, work.form.shape, quota_type)
    rules = Preempt(cycle, work, quota_type, leaf, milli)

    def why(found: Found) -> Reason:
        equal = any(unit.form.level == work.form.level for unit in found.units)
        also = ", and surplus of its equals goes to its minimum" if equal else ""
        return reason("preempt", f"{work.job.name} has a higher class or number in the same queue{also}")

    def take(cycle: Cycle, taking: Taking) -> Reason | None:
        refused = take_units(cycle, taking)
        if refused is not None and refused.code == "share":
            # The least that makes room needs idle GPUs beside it; more, or others, may need none.
            again = take_units(cycle, taking._replace(alike=None, more=((leaf, leaf + 1, rules.least()),)))
            return refused if again is NOTHING else again
        return refused

    def search() -> Reason | None:
        ranked = rules.units(large := usual_size(milli))
        return take_in_turn(cycle, Taking(work, quota_type, ranked, rules, why, alike), no_larger(ranked, large), take)

    return told_once(cycle, (*alike, work.form.fixed), work, search)
