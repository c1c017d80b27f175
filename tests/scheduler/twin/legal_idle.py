"""Idle hands: nobody waits who could simply start, or to whom one legal victim would make room.

Judged only where nothing keeps GPUs free on purpose, in the world after the plan: what it left undone, the next one would have to do.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .legal_gates import a_gate_is_kept
from .legal_rights import gates, held_of, none_borrowed, preempt_protection, reclaim_protection, reclaim_violations, within_guarantee
from .order import fork
from .places import Occupancy, Undecided, gang_fits
from .replay import spelt
from .shares import below, borrowed_units, figures, least, units_of
from .world import ALL, Job, Worker, World

Json = dict[str, Any]
Serving = list[Json]  # the decisions that would evict one job and start another
Undone = Callable[[Serving], bool]


def idle_violations(world: World, plan: Json, final: World, undone: Undone) -> list[str]:
    """Waiting jobs with open gates that fit on GPUs idle before and after the plan, or that may evict one job in their way.

    Not those whose place the next plan would take from them, which `undone` says: a plan is a fixed point.
    """
    passes = world.settings["passes"]
    if world.windows or any(decision["action"] in ("reserve", "repartition") for decision in plan["decisions"]):
        return []
    taken, soon = Occupancy(final), Occupancy(final)
    for job in final.jobs.values():
        taken.take(job, {*job.workers, *job.leaving, *_held_before(world, job.name)})
        if job.state != "stopping":
            soon.take(job, job.workers)
    for name in sorted(set(world.jobs) - set(final.jobs)):
        taken.take(world.jobs[name], _held_before(world, name))
    found = []
    for job in _asking(plan, final):
        places = _places(taken, final, job)
        if places and _would_leave_its_guarantee(final, job, places):
            continue
        if places is None:
            if _places(soon, final, job) is None:  # else it fits without victims on what the plan frees, and has no right to one
                found += _one_victim(world, final, taken, soon, job, undone)
        elif (passes is None or "allocate" in passes) and not a_gate_is_kept(final, job, _type_of(final, places)):  # else: nobody simply starts
            found.append(f"{job.name} waits, but fits on {_spell(places)} and every gate is open")
    return found


def _would_leave_its_guarantee(world: World, job: Job, places: list[Worker]) -> bool:
    """Whether a degraded gang stands inside its guarantee, would not with its missing workers, and another queue waits that could take all of it."""
    if not job.workers or all(other.quota == job.quota or other.state != "queued" for other in world.jobs.values()):
        return False
    repaired = Job(**{**vars(job), "workers": (*job.workers, *places)})
    then = world.with_job(repaired)
    return any(none_borrowed(world, job, name) and not none_borrowed(then, repaired, name) for name in world.ancestry(job.quota))


def _type_of(world: World, places: list[Worker]) -> str:
    return next(world.nodes[worker.node].quota_type for worker in places if worker.gpus)


def _asking(plan: Json, final: World) -> Iterator[Job]:
    """Who waits for a minimum, and is not held back by a date or an eviction."""
    for entry in plan["waiting"]:
        job = final.jobs.get(entry["job"])
        if job is None or not job.missing or job.state not in ("queued", "running"):
            continue
        if job.last_evicted is None and (job.not_before or 0) <= 0:
            yield job


def _spell(places: Iterable[Worker]) -> str:
    return ", ".join(f"{w.node}:{','.join(map(str, w.gpus))}" for w in places)


def _held_before(world: World, name: str) -> Iterable[Worker]:
    return (*world.jobs[name].workers, *world.jobs[name].leaving) if name in world.jobs else ()


def _places(taken: Occupancy, world: World, job: Job, *, empty: bool = False) -> list[Worker] | None:
    """Places inside one quota type where the gates let the gang in: what runs of it is not joined in another one."""
    types = {world.nodes[worker.node].quota_type for worker in job.workers if worker.gpus} if job.holds else set()
    for division in sorted(types or {node.quota_type for node in world.nodes.values()}):
        try:
            found = gang_fits(taken, job, division=division, repair=job.state == "running", empty=empty)
        except Undecided:
            continue
        # Who lacks nothing but workers without GPUs is refused where his queue has more than it may: A + 0 <= L. That is not judged here.
        if (
            found
            and any(w.gpus for w in found)
            and not gates(world, {"action": "start", "job": job.name, "workers": [spelt(w) for w in (*job.workers, *found)]})
        ):
            return found
    return None


def _one_victim(world: World, final: World, taken: Occupancy, soon: Occupancy, job: Job, undone: Undone) -> list[str]:
    """Whether a single eviction that every rule allows would have served the job."""
    if job.state != "queued" or -job.submitted < job.preemption_delay or len(final.divisions()) > 1:
        return []
    for victim in sorted(final.jobs.values(), key=lambda other: other.name):
        # What the plan itself touched, and what was evicted before, is left out: the next plan may see it in another light.
        if victim.state != "running" or victim != world.jobs[victim.name] or victim.leaving or victim.preemptible is False:
            continue
        same_leaf = victim.quota == job.quota
        name = "preempt" if same_leaf else "reclaim"
        if final.settings["worth"].get(job.cls) is not None and not within_guarantee(_gone(final, victim), job):
            continue
        passes = final.settings["passes"]
        if (passes is not None and name not in passes) or (same_leaf and not final.settings["preemption"]):
            continue
        places = _with_room(final, taken, job, victim) if _may_take(final, job, victim, same_leaf=same_leaf) else None
        if places and (same_leaf or (_first_choice(final, job, victim) and not _unreclaimable(final, job, victim, places))):
            if _higher_would_follow(final, soon, job, victim) or a_gate_is_kept(_gone(final, victim), job, _type_of(final, places)):
                continue
            if not undone(_serving(job, victim, name, places)):
                return [f"{job.name} waits, but may {name} {victim.name} and start on {_spell(places)}"]
    return []


def _serving(job: Job, victim: Job, code: str, places: list[Worker]) -> Serving:
    why = {"code": code, "for": job.name}
    start = {"action": "start", "job": job.name, "workers": [spelt(worker) for worker in places], "after": [victim.name], "why": why}
    return [{"action": "evict", "job": victim.name, "why": why}, start]


def _may_take(world: World, job: Job, victim: Job, *, same_leaf: bool) -> bool:
    shield = preempt_protection(world, victim) if same_leaf else reclaim_protection(world, job, victim)
    if shield and (victim.started is None or -victim.started < shield):
        return False
    if not same_leaf:
        return True
    if victim.preemptible == "when_borrowed":
        borrowed = borrowed_units(world, victim.quota, world.divisions()[0])
        if any((unit.job, unit.workers) not in borrowed for unit in units_of(world, victim, world.divisions()[0])):
            return False
    return victim.rank < job.rank and not _further_beyond_share(world, job, victim)


def _further_beyond_share(world: World, job: Job, victim: Job) -> bool:
    """Evicting inside a leaf never takes the leaf further beyond its fair share (docs/engine.md)."""
    division = world.divisions()[0]
    more = least(world, job, division) - held_of(world, victim, division)
    table = figures(world)
    entries = (table[name, division] for name in world.ancestry(job.quota))
    return more > 0 and any(entry.allocated + more > entry.fair for entry in entries)


def _first_choice(world: World, job: Job, victim: Job) -> bool:
    """Whether nothing smaller beside it is taken first, after which its queue might stand at its line."""
    pair = fork(world, job.quota, victim.quota)
    others = [] if pair is None else [other for other in below(world, pair[1]) if other.name != victim.name and other.preemptible is not False]
    return all(held_of(world, other, ALL) > held_of(world, victim, ALL) for other in others)


def _gone(world: World, victim: Job) -> World:
    return world.with_job(Job(**{**vars(victim), "state": "queued", "workers": (), "leaving": ()}))


def _higher_would_follow(world: World, soon: Occupancy, job: Job, victim: Job) -> bool:
    """Whether somebody of the same leaf who ranks higher waits, and could stand where this job and others that he may preempt do.

    Then it would be evicted by the next plan, and a plan is a fixed point; nor has it a right to start while a higher one waits. What stops is gone
    by then: a plan may put a gang onto GPUs being freed.
    """
    higher = [one for one in world.jobs.values() if one.quota == job.quota and one.rank > job.rank and one.state == "queued" and one.missing]
    for one in higher:
        lower = [other for other in below(world, job.quota) if other.rank < one.rank and other.preemptible is not False and other.name != victim.name]
        then = world
        for gone in (victim, *lower):
            soon.free(gone, gone.workers)
            then = _gone(then, gone)
        places = _places(soon, then, one, empty=True)  # boards may be split anew for it
        for gone in (victim, *lower):
            soon.take(gone, gone.workers)
        if places:
            return True
    return False


def _with_room(world: World, taken: Occupancy, job: Job, victim: Job) -> list[Worker] | None:
    taken.free(victim, victim.workers)
    places = _places(taken, _gone(world, victim), job)
    taken.take(victim, victim.workers)
    return places


def _unreclaimable(world: World, job: Job, victim: Job, places: list[Worker]) -> list[str]:
    serving = _serving(job, victim, "reclaim", places)
    return reclaim_violations(world, job, serving[:1], {"decisions": serving})
