"""Which of the jobs beside a service over its objective gives way for it, and when: by the rules of preemption and reclaim, the least lost first.

It is asked beside a plan, on the scenario that the plan is made from, and changes nothing. Only whole jobs give way, one for a service at a time.
The place elsewhere that a job inside its guarantee is owed is looked for on the fleet as it was before that plan. So such a job goes only beside a
plan that gives nobody a place, and one at a time: nobody else counts on the same GPUs.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .model.plan import Decision
from .model.reasons import reason
from .model.values import Preemptible, Scenario
from .rules.gates import kept_clear
from .rules.times import begin_of, lost_since, protected_for, waited_long
from .search.evicting import place_in
from .state.form import SERVING
from .state.planning import Cycle
from .state.work import Work

# Why a job does not give way.
REFUSALS = ("leaving", "serving", "starting", "not_preemptible", "no_checkpoint", "long_wait", "guarantee", "worth", "silent")
LEAVING, SERVES, STARTING, NOT_PREEMPTIBLE, NO_CHECKPOINT, LONG_WAIT, GUARANTEE, WORTH, SILENT = REFUSALS
TRIED = reason("relief", "a trial")
PLACES = ("start", "move", "repair", "grow")


@dataclass(frozen=True, slots=True)
class Relief:
    """A service and those that slow it down, by name. From `at` on one of them may give way; the `silent` ones are out of reach.

    Unless it `counts`, nobody goes now; who would be next is told all the same.
    """

    service: str
    beside: tuple[str, ...]
    at: int
    silent: frozenset[str] = frozenset()
    counts: bool = True


class Yields(NamedTuple):
    """What comes of it. `job` gives way at `at`, which may be now or before; None: nobody does, each for a reason of `REFUSALS`.

    It `goes` beside this plan; one that is due and does not is asked for again beside the next.
    """

    service: str
    job: str | None = None
    at: int = 0
    lost: int = 0  # GPU-milliseconds, if it goes then
    refused: tuple[tuple[str, str], ...] = ()  # (job, code), by name
    guaranteed: bool = False  # what stands inside its guarantee goes, as it finds another place
    goes: bool = False


def yielding(scenario: Scenario, reliefs: Sequence[Relief], decisions: Sequence[Decision] = ()) -> tuple[Yields, ...]:
    """For each service, in their order. Who goes now for one of them leaves already as far as the others are concerned.

    `decisions`: those of the plan. Whom that moves, evicts or shrinks is somewhere else by the next one, and so is a service: nobody goes for it.
    """
    cycle = Cycle(scenario)
    works = {work.job.name: work for work in cycle.cluster.works}
    changed = {decision.job for decision in decisions if decision.job is not None}
    beside = {name for relief in reliefs for name in relief.beside}
    leaving = any(works[name].state == "stopping" for name in beside if name in works)  # it may have been promised a place
    promised = leaving or any(decision.action in PLACES for decision in decisions)
    gone: set[str] = set()
    found = []
    for relief in reliefs:
        answer = _yields(cycle, relief, works, gone)
        if answer.job is not None and answer.at <= scenario.now and relief.counts and not {answer.job, relief.service} & changed:
            answer = answer._replace(goes=not (answer.guaranteed and promised))
        if answer.job is not None and answer.goes:
            gone.add(answer.job)
            promised = promised or answer.guaranteed
        found.append(answer)
    return tuple(found)


def _yields(cycle: Cycle, relief: Relief, works: dict[str, Work], gone: Collection[str]) -> Yields:
    service = works.get(relief.service)
    refused: dict[str, str] = {}
    ready: list[tuple[int, tuple[int, int, int, str], bool, int]] = []
    for name in sorted(relief.beside):
        work = works.get(name)
        if service is None or work is None or not service.seats or not (work.seats or work.state == "stopping"):
            continue  # they are beside each other no more
        if name in gone or work.state == "stopping":
            return Yields(relief.service, refused=((name, LEAVING),))  # whoever else there is: first it shows whether that helps
        code, at, guaranteed = (SILENT, 0, False) if name in relief.silent else _may_go(cycle, service, work, relief.at)
        if code:
            refused[name] = code
        else:
            goes = max(at, cycle.now)
            lost = lost_since(work.job, work.milli, goes, work.job.run.started)
            ready.append((goes, (lost, -begin_of(work.job, cycle.now), -work.job.submitted, name), guaranteed, at))
    if not ready:
        return Yields(relief.service, refused=tuple(sorted(refused.items())))
    _, cost, guaranteed, at = min(ready)
    return Yields(relief.service, cost[-1], at, cost[0], tuple(sorted(refused.items())), guaranteed)


def _may_go(cycle: Cycle, service: Work, work: Work, at: int) -> tuple[str, int, bool]:
    """Why it may not give way, or empty and from when on it may: its minimum run time protects it until then. Also whether its guarantee covers it,
    so that it goes to another place."""
    kind, tree = work.kind, cycle.tree
    if kind.class_rank >= SERVING:
        return SERVES, at, False
    if not work.seats or work.state != "running":
        return STARTING, at, False
    if kind.preemptible is Preemptible.NEVER:
        return NOT_PREEMPTIBLE, at, False
    if not work.job.movable:
        return NO_CHECKPOINT, at, False
    own = work.leaf == service.leaf
    place = work.leaf if own else tree.fork(service.leaf, work.leaf)[1]
    is_borrowed = any(unit.work is work and not unit.surplus for unit in cycle.units().borrowed(place, tree.division(work.quota_type)))
    if not own and is_borrowed and waited_long(cycle, work):
        return LONG_WAIT, at, False
    if not is_borrowed and kind.preemptible is Preemptible.WHEN_BORROWED:
        return GUARANTEE, at, False
    guaranteed = not own and not is_borrowed
    if guaranteed and not _fits_elsewhere(cycle, service, work):
        return GUARANTEE, at, False
    at = max(at, begin_of(work.job, cycle.now) + protected_for(cycle, place, "preempt" if own else "reclaim"))
    most = cycle.settings.worth_gpu_ms[service.kind.class_rank]
    costs = most is not None and lost_since(work.job, work.milli, max(at, cycle.now), work.job.run.started) > most
    return WORTH if costs and not tree.within_guarantee(service.leaf, service.quota_type, 0) else "", at, guaranteed


def _fits_elsewhere(cycle: Cycle, service: Work, work: Work) -> bool:
    """Whether what stands inside its guarantee finds a place off the nodes of the service: then it moves, and loses nothing that it was promised."""
    cluster, quota_type, milli = cycle.cluster, work.quota_type, work.milli
    off = 0
    for seat in service.seats:
        off |= 1 << seat.node
    with cluster.attempt():
        cluster.unseat(work, work.seats, TRIED, None)
        refused, banned = kept_clear(cycle, work, quota_type, milli)
        return refused is None and place_in(cycle, work, quota_type, 0, cycle.grid.size, banned | off) is not None
