"""One plan: let the passes try what they can, gentlest first, until none adds anything; then say what came of it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TypeVar

from .model.plan import Course, Plan
from .model.values import Scenario
from .passes import allocate, backfill, consolidate, grow, preempt, reclaim, repartition, shrink, stale
from .rules.claims import charge_claims
from .rules.invariants import First
from .rules.taken_back import TakenBack, TakenInVain
from .rules.times import held_off_until
from .state.cluster import Cluster
from .state.planning import ANYONE, FAIR, IN_ORDER, Cycle
from .state.state import Kept
from .state.work import Work
from .tell.forecast import Forecast
from .tell.outcome import carry_on, conclude

T = TypeVar("T")
MOST_SWEEPS = 120
RUNS: dict[str, Callable[[Cycle], None]] = {
    "stale": stale.run,
    "allocate": allocate.run,
    "backfill": backfill.run,
    "shrink": shrink.run,
    "consolidate": consolidate.run,
    "reclaim": reclaim.run,
    "preempt": preempt.run,
    "repartition": repartition.run,
}


def make_plan(scenario: Scenario, kept: Kept | None = None) -> Plan:
    """Decide what should change now. A function of its argument: no clock, no chance, no reading or writing. `kept` only saves time: with it or
    without it the plan is the same."""
    now, jobs = scenario.now, scenario.jobs
    if jobs and jobs[-1].submitted > now:  # not due until then; who plays plans forward hands over nobody before he has come
        later = [replace(job, not_before=max(job.submitted, job.not_before or now)) if job.submitted > now else job for job in jobs]
        scenario = replace(scenario, jobs=tuple(later))
    return _planned(scenario, kept, conclude)


def make_course(scenario: Scenario, kept: Kept, before: int | None = None) -> Course:
    """What `make_plan` decides, without all that a plan only tells: reasons, shares, what is kept for whom and when. Who plans again at an instant
    anyway has no need to know what comes to pass later."""
    return _planned(scenario, kept, partial(carry_on, before=before))


def starts_foretold(scenario: Scenario) -> dict[str, int]:
    """When waiting jobs will probably start, by name: what a plan tells of it, without all else that it tells."""
    return _planned(scenario, None, lambda cycle: {cycle.cluster.works[order].job.name: at for order, at in Forecast(cycle).predicted.items()})


def _planned(scenario: Scenario, kept: Kept | None, end: Callable[[Cycle], T]) -> T:
    cycle = settled(scenario, kept)
    made = end(cycle)
    if kept is not None:
        kept.keep(cycle)
        cycle.cluster.state.first = cycle.cluster.state.first or First(cycle.cluster)  # what the next plan is checked against
    # Its parts know it, and it knows the fleet: without this, the fleet of each plan would stay until the garbage collector comes by.
    vars(cycle).clear()
    return made


def settled(scenario: Scenario, kept: Kept | None = None) -> Cycle:
    """The last state of a plan, when no pass adds anything any more. Who was evicted a short while ago, started inside his guarantee, and stands
    outside it in the end does not start after all; and to nobody is given, and taken from him, at once."""
    cycle = Cycle(scenario, kept)
    _serve(cycle)
    while _has_to_begin_anew(cycle):
        cycle.begin_anew()
        cycle.turn = IN_ORDER
        _serve(cycle)
    if "shrink" in scenario.settings.passes and cycle.cluster.forms.elastic:
        shrink.give_own(cycle)
    return cycle


def _serve(cycle: Cycle) -> None:
    """Let everyone be served in the order of queues. Where one queue takes back what the plan has just started in another, it begins anew with those
    who stay within their fair shares, through all passes: where they stand nobody else starts in vain."""
    sweeps = count()
    try:
        _sweep(cycle, sweeps)
    except TakenInVain:
        cycle.begin_anew()
        for cycle.turn in (FAIR, ANYONE):
            _sweep(cycle, sweeps)


def _sweep(cycle: Cycle, sweeps: Iterator[int]) -> None:
    """Run the passes until none of them adds anything."""
    runs = [run for name, run in RUNS.items() if name in cycle.settings.passes]
    while next(sweeps) < MOST_SWEEPS:
        before = cycle.placed
        try:
            for run in runs:
                charge_claims(cycle)  # who may be taken from goes by who is charged where
                run(cycle)
        except TakenBack:
            continue
        # Who was put out may find another place, and that comes before anyone's growth.
        if cycle.placed != before or cycle.takers.second_chance() or cycle.held_shares.in_vain(cycle.waiting):
            continue
        if cycle.turn != FAIR and "grow" in cycle.settings.passes:
            grow.run(cycle)
        if cycle.placed == before:
            return


def _has_to_begin_anew(cycle: Cycle) -> bool:
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
    """Whether somebody would get workers and give others back, and neither could be carried out before the other. A gang below its minimum is made
    whole and keeps the rest. Where it is not made whole like that, and with everybody else, giving comes first."""
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
