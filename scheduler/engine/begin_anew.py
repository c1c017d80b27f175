"""Whether a plan has to be made anew, with what is known now that its passes have come to rest."""

from .rules.times import held_off_until
from .state.cluster import Cluster
from .state.planning import Cycle
from .state.work import Work


def has_to_begin_anew(cycle: Cycle) -> bool:
    """Whether somebody's place can't stay as the passes have left it: what is known of him is noted for the next try."""
    started = [work for work in dict.fromkeys(cycle.cluster.journal) if work.seats and not work.first_seats] if cycle.settings.hysteresis_ms else []
    # Who was started so soon after an eviction that it must stand inside its guarantee, and does not: whom it displaced stands before it.
    outside = [work.order for work in started if cycle.is_to_come(held_off_until(cycle, work)) and _is_borrowed(cycle, work)]
    cycle.cluster.lessons.held_off.update(outside)
    return _at_odds(cycle.cluster) or bool(outside)


def _is_borrowed(cycle: Cycle, work: Work) -> bool:
    """Whether any of it stands outside the guarantee of a node above it."""
    division = cycle.tree.division(work.quota_type)
    return any(unit.work is work for place in cycle.tree.path[work.charged_leaf] for unit in cycle.units().borrowed(place, division))


def _at_odds(cluster: Cluster) -> bool:
    """Whether somebody would get workers and give others back, and neither could be carried out before the other.

    A gang below its minimum is made whole and keeps the rest. Where it is not made whole like that, and with everybody else, giving comes first.
    """
    if not cluster.forms.elastic:
        return False
    made_whole, giving = cluster.lessons.made_whole, cluster.lessons.giving
    before = len(made_whole) + 2 * len(giving)
    for work in dict.fromkeys(cluster.journal):
        if not work.seats or not work.first_seats or work.evicted or work.order in giving:
            continue
        if work.order in made_whole and work.degraded:
            made_whole.remove(work.order)
            giving.add(work.order)
        elif work.order not in made_whole and work.grown() and work.gave_back:
            (giving if work.stood_before else made_whole).add(work.order)
    return len(made_whole) + 2 * len(giving) > before
