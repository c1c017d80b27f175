"""Rights: the gates of the tree, and who may be a victim of whom. Re-computed in the order of the decisions."""

import copy
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

from . import class_windows
from .order import fork, queue_key, ratio, serves_first
from .places import Occupancy, Undecided, gang_fits
from .replay import apply_decision, spelt, steps
from .shares import Figures, Unit, borrowed_units, figures, guarantee_of, least, limit_of, units_of, window_milli
from .world import ALL, CLASSES, Job, Role, Worker, World, read, worker_of

Json = dict[str, Any]
Table = dict[tuple[str, str], Figures]
TAKES = ("evict", "shrink", "move")


def right_violations(scenario: Json, plan: Json) -> list[str]:
    found = []
    moves: list[str] = []
    judged: set[str] = set()
    first = read(scenario)
    for decision, world in steps(scenario, plan):
        action, why = decision["action"], decision.get("why") or {}
        if action in ("start", "repair", "grow", "move"):
            found += gates(world, decision)
        if action == "start":
            found += _may_start(world, decision)
        away = {d["job"] for d in plan["decisions"] if d["action"] == "move"}
        if action == "move" and why.get("code") == "consolidate":
            moves.append(decision["job"])
            found += _consolidated(world, decision, away)
        if action in TAKES:
            faults = _taken(world, decision, plan)
            if faults and action == "evict":
                faults = _taken(_without_what_others_got(world, plan, str(why.get("for"))), decision, plan)
            if faults and why.get("code") == "preempt":
                # What stands inside a guarantee depends on who was served before, as for a reclaim below.
                others = _moments(scenario, plan, str(why.get("for")), first)
                faults = next((then for w in others if not (then := _taken(w, decision, plan))), faults)
            found += faults
        key = str(why.get("for"))
        if action in TAKES and why.get("code") == "reclaim" and key in world.jobs and key not in judged:
            judged.add(key)
            home = first.jobs[key].quota
            group = [d for d in plan["decisions"] if d["action"] in TAKES and d["why"].get("for") == key and d["why"]["code"] == "reclaim"]
            moments = (w for moment in _moments(scenario, plan, key, first) for w in (moment, _without_what_others_got(moment, plan, key)))
            for_it = [d for d in plan["decisions"] if d["action"] in TAKES and d["why"].get("for") == key and first.jobs[d["job"]].quota == home]
            own_victims = [d for d in for_it if (d["action"], d["why"]["code"]) in (("evict", "preempt"), ("shrink", "shrink"))]
            moments = (w for moment in moments for w in (moment, *_after_its_own(moment, own_victims)))
            begun = ((w, given) for moment in moments for w, given in ((moment, group), *_with_who_was_started(moment, plan, key, group)))
            asked = ((view, given) for w, given in begun for view in (w, *class_windows.views(w, key)))
            found += next(
                (faults for w, given in asked if not (faults := reclaim_violations(w, w.jobs[key], given, plan, home))),
                reclaim_violations(world, world.jobs[key], group, plan),
            )
            own = [d["job"] for d in group if first.jobs[d["job"]].quota == home]
            found += [f"{name} is reclaimed for {key} of its own queue" for name in own]
    bound = world_bound(scenario, plan)
    if bound is not None and len(moves) > bound:
        found.append(f"{len(moves)} jobs moved to consolidate, at most {bound}: {', '.join(moves)}")
    return found


def _moments(scenario: Json, plan: Json, asker: str, first: World) -> Iterator[World]:
    """Worlds in which the search for an asker may have begun.

    A plan stands in the order in which it is carried out, which need not be that in which it was decided. So whoever was served
    may have been served before, one after the other, and a reclaim is legal if it was in one of these worlds: also while others
    who were put out and moved had not found their new places yet. Stale gangs are ended, and services give back what they do not want any more,
    before anybody takes something from others.
    """
    current = copy.deepcopy(scenario)
    stale = [decision for decision in plan["decisions"] if (decision.get("why") or {}).get("code") in ("stale", "desired")]
    for decision in stale:
        apply_decision(current, decision)
    yield read(current) if stale else first
    line = [str(d["job"]) for d in plan["decisions"] if d["action"] in ("start", "repair", "grow") and d["job"] != asker]
    for served in line:
        for decision in plan["decisions"]:
            if decision.get("job") == served or (decision.get("why") or {}).get("for") == served:
                apply_decision(current, decision)
        now = read(current)
        yield now
        moved = [str(d["job"]) for d in plan["decisions"] if d["action"] == "move" and d["why"].get("code") in ("preempt", "reclaim")]
        moved = [name for name in moved if name != asker and now.jobs[name].last_moved == 0]
        if not moved:
            continue
        given = copy.deepcopy(current)  # with what others gave so that the moved ones stand again
        for decision in plan["decisions"]:
            if (decision.get("why") or {}).get("for") in moved:
                apply_decision(given, decision)
        for then in (now, read(given)):
            for name in moved:
                then = _put_out(then, then.jobs[name])
            yield then


def _after_its_own(world: World, victims: list[Json]) -> Iterator[World]:
    """With those gone whom the asker evicts in its own queue, and the surplus that is given back there: it may have taken from others afterwards."""
    for decision in victims:
        victim = world.jobs[decision["job"]]
        shrinks = decision["action"] == "shrink"
        world = world.with_job(replace(victim, workers=_left(decision))) if shrinks else _put_out(world, victim)
    if victims:
        yield world


def _with_who_was_started(world: World, plan: Json, asker: str, group: list[Json]) -> Iterator[tuple[World, list[Json]]]:
    """The moment with somebody standing who waits in the end and could have been started on what was idle, and with his eviction among the group.

    A plan is the difference between first and last state: whom it started it may take back, under the same legality as running work beside him
    (surplus first, then minima, smaller first). So his queue is judged as it stood with him.
    """
    taken = {decision["job"] for decision in group if decision["action"] == "evict"}
    queues = {world.jobs[decision["job"]].quota for decision in group}
    for name in (entry["job"] for entry in plan["waiting"]):
        job = world.jobs.get(name)
        if job is None or job.state != "queued" or name == asker or name in taken or job.quota not in queues:
            continue
        workers = _on_idle(world, job)
        if workers:
            then = world.with_job(replace(job, state="running", started=0, workers=workers))
            yield then, [*group, {"action": "evict", "job": name, "why": group[0]["why"]}]


def _on_idle(world: World, job: Job) -> tuple[Worker, ...]:
    """Places for a waiting job on idle GPUs, where its gates are open."""
    held = Occupancy(world)
    for other in world.jobs.values():
        held.take(other, {*other.workers, *other.leaving})
    for division in sorted({node.quota_type for node in world.nodes.values()}):
        try:
            found = gang_fits(held, job, division=division, empty=True)  # boards may be split anew for it
        except Undecided:
            continue
        if found and not gates(world, {"action": "start", "job": job.name, "workers": [spelt(worker) for worker in found]}):
            return tuple(found)
    return ()


def _without_what_others_got(world: World, plan: Json, asker: str) -> World:
    """With who gives way to the asker at his minimum, or less what others go onto: his surplus may have been given to them before."""
    for decision in plan["decisions"]:
        victim = world.jobs.get(str(decision.get("job")))
        if decision.get("why", {}).get("for") != asker or victim is None or not _serves_others(plan, victim.name, asker):
            continue
        if decision["action"] == "evict":
            world = world.with_job(replace(victim, workers=_minimum(victim)))
        elif decision["action"] == "shrink":
            theirs = {
                (raw["node"], gpu)
                for d in plan["decisions"]
                if d.get("job") != asker and d["action"] in ("start", "repair", "move", "grow") and victim.name in (d.get("after") or [])
                for raw in d["workers"]
                for gpu in raw["gpus"]
            }
            left = tuple(worker for worker in victim.workers if theirs.isdisjoint((worker.node, gpu) for gpu in worker.gpus))
            world = world.with_job(replace(victim, workers=left))
    return world


def _left(decision: Json) -> tuple[Worker, ...]:
    """The workers that stay."""
    return tuple(worker_of(raw) for raw in decision["workers"])


def _serves_others(plan: Json, victim: str, asker: str) -> bool:
    return any(victim in (decision.get("after") or []) and decision.get("job") != asker for decision in plan["decisions"])


def _minimum(job: Job) -> tuple[Worker, ...]:
    found: list[Worker] = []
    for role in job.roles.values():
        found += sorted((worker for worker in job.workers if worker.role == role.name), key=lambda worker: worker.index)[: role.min]
    return tuple(found)


def world_bound(scenario: Json, plan: Json) -> int | None:
    """`max_moves`, unless a job that waited beyond its class's bound is served by moves."""
    for _, world in steps(scenario, {"decisions": [{"action": "reserve"}]}):
        served = {(d.get("why") or {}).get("for") for d in plan["decisions"] if d["action"] == "move"}
        for name in sorted(str(name) for name in served):
            job = world.jobs.get(name)
            longest = world.settings["max_wait_s"].get(job.cls) if job else None
            if job and longest is not None and -job.submitted >= longest * 1000:
                return None
        return world.settings["max_moves"]
    return None


def gates(world: World, decision: Json) -> list[str]:
    """A + r <= L on every level, and N + r <= D for non-preemptible work, with everything decided before already done."""
    job = world.jobs[decision["job"]]
    new = [worker_of(raw) for raw in decision["workers"]]
    found = []
    types = sorted({node.quota_type for node in world.nodes.values()})

    def held(workers: Any, kind: str) -> int:
        return sum(world.charge(w, job.roles[w.role]) for w in workers if kind in (ALL, world.nodes[w.node].quota_type))

    before = job.workers if job.holds else ()
    for name in world.ancestry(job.quota):
        for kind in [*types, ALL]:
            more = held(new, kind) - held(before, kind)
            if more <= 0:
                continue
            members = [other for other in world.jobs.values() if name in world.ancestry(other.quota)]
            allocated = sum(held_of(world, other, kind) for other in members)
            firm = [other for other in members if other.preemptible is False]
            # The promise to a class counts its windows; to others what stands in those is charged there.
            fixed = sum(held_of(world, other, kind) for other in firm)
            fixed -= _carried(world, [other for other in firm if other.cls != job.cls], kind, job, 0)
            limit = _limit(world, name, kind)
            if limit is not None:
                limit = max(limit, _widest(world, name, kind))
                # What a window of a class carries is charged to the window, not to the leaf that it came from.
                charged = allocated - _carried(world, members, kind, job, 0)
                then = allocated + more - _carried(world, members, kind, job, more)
                if then > limit and then > charged and not _in_a_window(world, kind, job, more):
                    found.append(f"{decision['action']} {job.name}: {name} would hold {then} of {limit} milli of {kind}")
            promise = _promise(world, name, kind, job) if job.preemptible is False and world.by_type == (kind != ALL) else None
            if promise is not None and fixed + more > promise and not _in_a_window(world, kind, job, more):
                found.append(f"{decision['action']} {job.name}: non-preemptible {fixed + more} milli of {kind} in {name}, guaranteed {promise}")
    return found


def _in_a_window(world: World, kind: str, job: Job, more: int) -> bool:
    """Whether an open window of its class has room for it: then it is charged there, whatever others have of its queue's guarantee."""
    charged = next(class_windows.views(world, job.name), world)
    for window in world.windows:
        # Only what may not be preempted has to end inside it.
        ends_inside = job.preemptible is not False or window.end is None or (job.limit is not None and job.limit <= window.end)
        if window.cls == job.cls and window.open_at(0) and ends_inside and kind in (ALL, window.gpu_type):
            leaf = class_windows.MARK + window.name
            there = [other for other in charged.jobs.values() if other.quota == leaf]
            if job.holds and charged.jobs[job.name].quota != leaf:
                continue
            if sum(held_of(world, other, kind) for other in there) + more <= window.milli:
                return True
    return False


def _carried(world: World, members: list[Job], kind: str, job: Job, more: int) -> int:
    """The most that open windows of classes can carry of these jobs, one of which gets more."""
    total = 0
    for cls in CLASSES:
        room = sum(w.milli for w in world.windows if w.cls == cls and w.open_at(0) and kind in (ALL, w.gpu_type))
        held = sum(held_of(world, other, kind) for other in members if other.cls == cls) + (more if job.cls == cls else 0)
        total += min(room, held)
    return total


def held_of(world: World, job: Job, kind: str) -> int:
    if not job.holds:
        return 0
    return sum(world.charge(w, job.roles[w.role]) for w in job.workers if kind in (ALL, world.nodes[w.node].quota_type))


def _limit(world: World, quota: str, kind: str) -> int | None:
    """The cap on one type (maps), or on the sum (numbers)."""
    by_map = isinstance(world.quotas[quota].limit, dict)
    if by_map == (kind == ALL):
        return None
    return limit_of(world, quota, kind)


def _widest(world: World, quota: str, kind: str) -> int:
    """The limit with all that open windows may add to it."""
    stated = world.quotas[quota].limit
    if stated is None or isinstance(stated, dict) != (kind != ALL):
        return 0
    base = stated.get(kind) if isinstance(stated, dict) else stated
    return 0 if base is None else base + window_milli(world, quota, kind)


def _promise(world: World, quota: str, kind: str, job: Job) -> int | None:
    """D for non-preemptible work: a window counts only if the job's limit ends inside it; a class window adds to its class."""
    stated = guarantee_of(world, quota, kind, at=-(10**15))
    if stated is None:
        return None
    for window in world.windows:
        suits = quota in world.ancestry(window.quota) if window.quota is not None else window.cls == job.cls
        ends_inside = window.end is None or (job.limit is not None and (job.started or 0) + job.limit <= window.end)
        if suits and ends_inside and window.open_at(0) and (kind == ALL or window.gpu_type in (None, kind)):
            stated += window.milli
    return stated


def _may_start(world: World, decision: Json) -> list[str]:
    """Due; and soon after an eviction only inside its guarantee: in line before the work that crosses it, on every level."""
    job = world.jobs[decision["job"]]
    found = []
    if job.not_before is not None and job.not_before > 0:
        found.append(f"start {job.name}: it is not due yet")
    hysteresis = int(world.settings["hysteresis_s"] * 1000)
    if hysteresis and job.evictions and job.last_evicted is not None and not _stands_inside(world, decision):
        pause = max(hysteresis, min(3600, 30 * 2 ** (job.evictions - 1)) * 1000)
        if -job.last_evicted < pause:
            found.append(f"start {job.name}: evicted {-job.last_evicted} ms ago, it pauses for {pause} ms")
    return found


def _stands_inside(world: World, decision: Json) -> bool:
    workers = tuple(worker_of(raw) for raw in decision["workers"])
    started = replace(world.jobs[decision["job"]], state="running", started=0, workers=workers)
    then = world.with_job(started)
    return all(none_borrowed(then, started, name) for name in then.ancestry(started.quota))


def _taken(world: World, decision: Json, plan: Json) -> list[str]:
    """What every victim is owed, whoever asks; and what the one who asks must be."""
    action, why = decision["action"], decision.get("why") or {}
    victim, code = world.jobs[decision["job"]], why.get("code")
    asker = world.jobs.get(why.get("for", ""))
    found = []
    if victim.state == "stopping":
        return [f"{action} {victim.name}: it is on its way out and never chosen again"]
    if code == "stale":
        return _stale(world, victim)
    if code in ("preempt", "reclaim", "shrink", "consolidate", "moved", "repartition", "reservation_due") and asker is None:
        return [f"{action} {victim.name}: for nobody"]
    if asker is None:
        return []
    if action == "evict" and victim.preemptible is False:
        found.append(f"evict {victim.name}: non-preemptible work is never a victim")
    if action != "shrink" and asker.name == victim.name:
        found.append(f"{action} {victim.name}: for itself")
    if -asker.submitted < asker.preemption_delay:
        found.append(f"{action} {victim.name}: {asker.name} may not cause that before its delay is over")
    if code == "preempt":
        # Who was put out himself asks like one who waits, until he finds another place and is moved.
        moved = {d["job"] for d in plan["decisions"] if d["action"] == "move"}
        found += _preempted(world, decision, victim, asker, grows=asker.holds and not asker.missing and asker.name not in moved)
    if code == "reclaim" and action in ("evict", "move"):
        found += _young(world, victim, reclaim_protection(world, asker, victim), f"reclaimed for {asker.name}")
    if code == "shrink" and asker.quota == victim.quota and asker.rank < victim.rank:
        found.append(f"shrink {victim.name}: it ranks above {asker.name}")
    if code == "reservation_due" and not victim.backfilled:
        found.append(f"evict {victim.name}: it was not backfilled")
    if action == "evict" and code in ("preempt", "reclaim"):
        found += _worth(world, plan, victim, asker)
    return found


def _stale(world: World, victim: Job) -> list[str]:
    if not victim.missing:
        return [f"evict {victim.name} as stale: it is whole"]
    if -(victim.degraded_since or 0) < world.settings["stale_grace_s"] * 1000:
        return [f"evict {victim.name} as stale: its grace is not over"]
    return []


def _preempted(world: World, decision: Json, victim: Job, asker: Job, *, grows: bool) -> list[str]:
    action = decision["action"]
    found = []
    if asker.quota != victim.quota:
        found.append(f"{action} {victim.name}: preempted by {asker.name} of another leaf")
    if not (victim.rank < asker.rank or (action == "shrink" and victim.rank == asker.rank)):
        found.append(f"{action} {victim.name}: preempted by {asker.name} of no higher class and number")
    if grows:
        found.append(f"{action} {victim.name}: preempted so that {asker.name} grows")
    if action == "evict":
        found += _young(world, victim, preempt_protection(world, victim), f"preempted for {asker.name}")
        if victim.preemptible == "when_borrowed" and not _all_borrowed(world, victim, victim.quota):
            found.append(f"evict {victim.name}: it stands inside the guarantee of {victim.quota}")
    return found


def none_borrowed(world: World, job: Job, node: str) -> bool:
    """Whether all of a job stands inside the guarantee of a quota."""
    return not any(name == job.name for division in world.divisions() for name, _ in borrowed_units(world, node, division))


def _all_borrowed(world: World, victim: Job, node: str) -> bool:
    for division in world.divisions():
        borrowed = borrowed_units(world, node, division)
        if any(unit.milli and (unit.job, unit.workers) not in borrowed for unit in units_of(world, victim, division)):
            return False
    return True


def _young(world: World, victim: Job, shield: int, how: str) -> list[str]:
    """Protected by minimum run time; only the minimum of a gang is."""
    if victim.backfilled or shield <= 0:
        return []
    ran = -victim.started if victim.started is not None and victim.state == "running" else 0
    return [f"{victim.name} is {how} after {ran} ms, protected for {shield} ms"] if ran < shield else []


def preempt_protection(world: World, victim: Job) -> int:
    for name in world.ancestry(victim.quota):
        value = world.quotas[name].preempt_min_runtime
        if value is not None:
            return value
    return int(world.settings["preempt_min_runtime_s"] * 1000)


def reclaim_protection(world: World, asker: Job, victim: Job) -> int:
    """The nearest value at or above the victim's node just below the lowest common ancestor. Nothing protects work against a window's start."""
    for window in world.windows:
        own = asker.cls == window.cls if window.quota is None else window.quota in world.ancestry(asker.quota)
        if own and window.open_at(0) and (victim.started or 0) < window.start:
            return 0
    pair = fork(world, asker.quota, victim.quota)
    if pair is None:
        return 0
    for name in world.ancestry(pair[1]):
        value = world.quotas[name].reclaim_min_runtime
        if value is not None:
            return value
    return int(world.settings["reclaim_min_runtime_s"] * 1000)


def lost_work(world: World, job: Job) -> Fraction:
    """GPU-milliseconds: GPUs x (time since the last complete checkpoint, or since start, + save + restore). Who has not started loses nothing."""
    if job.started is None:
        return Fraction(0)
    gpus, since = Fraction(held_of(world, job, ALL), 1000), job.started
    point = job.checkpoint or {}
    if point.get("last") is not None:
        last = point["last"]
        since = max(since, int(Fraction(str(last)) * 1000)) if not isinstance(last, str) else since
    return gpus * (-since + int((point.get("save_s", 0) + point.get("restore_s", 0)) * 1000))


def _worth(world: World, plan: Json, victim: Job, asker: Job) -> list[str]:
    """Work above its guarantee with all gone who leave for it destroys no more than it is worth."""
    bound, then = world.settings["worth"].get(asker.cls), world
    for decision in plan["decisions"]:
        if decision["action"] in TAKES and decision["why"].get("for") == asker.name:
            left = _left(decision) if decision["action"] == "shrink" else ()
            then = then.with_job(replace(then.jobs[decision["job"]], workers=left))
    if bound is None or within_guarantee(then, asker):
        return []
    lost = lost_work(world, victim)
    return [f"evict {victim.name}: {lost / 1000} GPU-seconds lost for {asker.name}, worth {bound}"] if lost > bound * 1000 else []


def within_guarantee(world: World, job: Job) -> bool:
    """Whether the job's minimum stays within D on every level, in some division it could be served in."""
    table = figures(world)
    for division in world.divisions():
        request = least(world, job, division)
        line = [table[name, division] for name in world.ancestry(job.quota)]
        if request and all(e.guaranteed is None or e.allocated + request <= e.guaranteed for e in line):
            return True
    return False


def _put_out(world: World, job: Job) -> World:
    """Who was put out and finds another place asks meanwhile like one who waits."""
    return world.with_job(Job(**{**vars(job), "state": "queued", "workers": (), "leaving": ()}))


def _consolidated(world: World, decision: Json, away: set[str]) -> list[str]:
    """Moved to make a block: a preemptible job that can be restarted, for a preemptible one that waits for its minimum."""
    job = world.jobs[decision["job"]]
    asker = world.jobs.get((decision.get("why") or {}).get("for", ""))
    found = []
    if job.preemptible is False:
        found.append(f"move {job.name}: it is not preemptible")
    if job.checkpoint_stated and job.checkpoint is None:
        found.append(f"move {job.name}: it can't be checkpointed")
    if asker is None:
        return [*found, f"move {job.name}: for nobody"]
    if asker.name in away:
        world = _put_out(world, asker)
        asker = world.jobs[asker.name]
    if asker.preemptible is False and not within_guarantee(world, asker):
        # Inside its guarantee it may have others moved by the rules of reclaim.
        found.append(f"move {job.name}: for {asker.name}, which is not preemptible")
    if asker.holds and not asker.missing:
        found.append(f"move {job.name}: for the growth of {asker.name}")
    gain = Fraction(sum(least(world, asker, d) for d in world.divisions()[:1]), 1000)
    if asker.estimate is not None and len(world.divisions()) == 1 and lost_work(world, job) >= gain * asker.estimate:
        found.append(f"move {job.name}: it loses more than {asker.name} can gain")
    return found


def _removed(world: World, decision: Json, division: str) -> list[Unit]:
    """The units that a decision takes: the whole job, or the surplus that a shrink gives back."""
    job = world.jobs[decision["job"]]
    units = units_of(world, job, division)
    if decision["action"] != "shrink":
        return units
    stay = {worker_of(raw) for raw in decision["workers"]}
    return [unit for unit in units if not set(unit.workers) <= stay]


def reclaim_violations(world: World, asker: Job, group: list[Json], plan: Json, home: str = "") -> list[str]:
    """Whether one reclaim was legal, from the world just before it: may it try, each unit, the whole plan, the order afterwards.

    `home` is the asker's own queue, where it asks in the name of a window.
    """
    served = next((d for d in plan["decisions"] if d.get("job") == asker.name and "workers" in d), None)
    back = served is None and asker.holds and not asker.missing  # was put out, and is back in the very place
    if served is None and back:
        served = {"action": "move", "workers": [spelt(worker) for worker in asker.workers]}
    if served is None:
        return [f"{', '.join(d['job'] for d in group)} taken for {asker.name}, which is not served"]
    places = [raw["node"] for raw in served["workers"] if raw["gpus"]]
    division = world.division_of(places[0]) if places else world.divisions()[0]
    kind = world.nodes[places[0]].quota_type if places else division
    if served["action"] == "move":
        world = _put_out(world, asker)
        asker = world.jobs[asker.name]
    need = least(world, asker, kind)
    if asker.holds and not asker.missing:
        need = _one_step(world, asker, served)
        found = [f"{d['action']} {d['job']}: growth of {asker.name} takes surplus only" for d in group if d["action"] != "shrink"]
        if found:
            return found
    table = figures(world)
    leaf = table[asker.quota, division]
    found = []
    if asker.holds and not asker.missing:
        found += _growth_first(world, division, asker, need, group)
    if leaf.allocated + need > leaf.fair:
        found.append(f"reclaim for {asker.name}: {leaf.allocated + need} milli above the fair share {leaf.fair} of {asker.quota}")
    taken = dict.fromkeys(world.quotas, 0)
    gone = [d for d in group if d["action"] != "move"]
    pairs = [(unit, d) for d in group for unit in _removed(world, d, division)]
    for unit, decision in sorted(pairs, key=lambda pair: (not pair[0].surplus, pair[0].milli, pair[0].job)):
        victim = world.jobs[unit.job]
        pair = fork(world, asker.quota, victim.quota)
        if pair is None:
            found.append(f"{victim.name} is reclaimed inside its own leaf {victim.quota}")
            continue
        if unit.milli and decision["action"] != "move":
            found += _unit_legal(world, table, division, (asker, need), unit, pair, taken)
            found += _in_this_step(world, division, (asker, need), unit, pair, taken)
            for name in world.ancestry(victim.quota):
                taken[name] += unit.milli
    return found + _whole_plan(world, table, division, asker, need, taken) + _served_again(world, (division, kind), asker, home, gone)


def _one_step(world: World, asker: Job, served: Json) -> int:
    """The charge of the smallest step by which the job grows: of who has lost some of a step, of those."""
    new = [worker for raw in served["workers"] if (worker := worker_of(raw)) not in asker.workers]

    def step(role: Role) -> int:
        return role.step - (asker.count(role.name) - role.min) % role.step

    return min((world.charge(w, asker.roles[w.role]) * step(asker.roles[w.role]) for w in new), default=0)


def _growth_first(world: World, division: str, asker: Job, need: int, group: list[Json]) -> list[str]:
    """With the surplus gone, the order of queues must serve the step before every one that was taken."""
    then = world
    for decision in group:
        victim = world.jobs[decision["job"]]
        then = then.with_job(Job(**{**vars(victim), "workers": tuple(worker_of(raw) for raw in decision["workers"])}))
    table = figures(then)
    found = []
    for decision in group:
        victim = world.jobs[decision["job"]]
        pair = fork(world, asker.quota, victim.quota)
        for unit in [] if pair is None else _removed(world, decision, division):
            ours, theirs = (table[name, division] for name in pair)
            if queue_key(theirs, unit.milli) < queue_key(ours, need):
                found.append(f"{victim.name} would have its surplus back before {asker.name} grows")
    return found


def _unit_legal(
    world: World, table: Table, division: str, asks: tuple[Job, int], unit: Unit, pair: tuple[str, str], taken: dict[str, int]
) -> list[str]:
    (asker, need), (ours, theirs) = asks, (table[pair[0], division], table[pair[1], division])
    left = theirs.allocated - taken[theirs.quota]
    victim = world.jobs[unit.job]
    found = []
    above_guarantee = theirs.guaranteed is not None and left > theirs.guaranteed
    owed = ours.guaranteed is None or ours.allocated - taken[ours.quota] + need <= ours.guaranteed
    if not (left > theirs.counted_on or (owed and above_guarantee)):
        found.append(
            f"{victim.name} is reclaimed for {asker.name}: {theirs.quota} holds {left} milli, guaranteed {theirs.guaranteed}, "
            f"counts on {theirs.counted_on}; {ours.quota} would hold {ours.allocated + need} of {ours.guaranteed}"
        )
    if victim.preemptible == "when_borrowed" and (unit.job, unit.workers) not in borrowed_units(world, theirs.quota, division):
        found.append(f"{victim.name} is reclaimed for {asker.name} from inside the guarantee of {theirs.quota}")
    return found


def _in_this_step(world: World, division: str, asks: tuple[Job, int], unit: Unit, pair: tuple[str, str], taken: dict[str, int]) -> list[str]:
    """Who came by reclaim in this step of fairness is taken only where the same would be legal had nobody used anything in the past."""
    step, came = world.settings["fairness"].get("step_s"), world.jobs[unit.job].reclaimed
    now = round(world.now.timestamp() * 1000)
    if not step or came is None or (now + came) // int(step * 1000) != now // int(step * 1000):
        return []
    forgetful = replace(world, settings={**world.settings, "fairness": {}})
    table = figures(forgetful)
    leaf = table[asks[0].quota, division]
    if leaf.allocated + asks[1] <= leaf.fair and not _unit_legal(forgetful, table, division, asks, unit, pair, taken):
        return []
    return [f"{unit.job} came by reclaim in this step, and is reclaimed for {asks[0].name} because of past usage"]


def _whole_plan(world: World, table: Table, division: str, asker: Job, need: int, taken: dict[str, int]) -> list[str]:
    found = []
    for name in world.ancestry(asker.quota):
        ours = table[name, division]
        after = ratio(ours.allocated - taken[name] + need, ours.fair)
        for sibling in world.children(world.quotas[name].parent):
            theirs = table[sibling, division]
            if sibling == name or not taken[sibling] or theirs.fair <= 0:
                continue
            left = ratio(theirs.allocated - taken[sibling], theirs.fair)
            if after > (0, Fraction(1)) and after >= left:
                found.append(
                    f"reclaim for {asker.name} leaves {name} at {ours.allocated - taken[name] + need} of its fair {ours.fair}, "
                    f"{sibling} at {theirs.allocated - taken[sibling]} of {theirs.fair}"
                )
    return found


def _served_again(world: World, where: tuple[str, str], asker: Job, home: str, gone: list[Json]) -> list[str]:
    """With the victims gone, the order of queues must serve the job before each of them that asks again."""
    evicted = [d["job"] for d in gone if d["action"] == "evict"]
    then = world
    for name in evicted:
        job = world.jobs[name]
        changed = Job(**{**vars(job), "state": "queued", "workers": (), "leaving": ()})
        then = then.with_job(changed)
    table = figures(then)
    found = []
    for name in evicted:
        other, asks = then.jobs[name], asker
        if asker.quota.startswith(class_windows.MARK) and class_windows.both_may(world, asker.quota, asker, other, *where):
            asks = replace(asker, quota=home)
        if not serves_first(then, table, where[0], asks, other, where[1]):
            found.append(f"{name} would be served before {asker.name}, for which it was reclaimed")
    return found
