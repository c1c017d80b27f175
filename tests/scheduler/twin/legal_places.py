"""Places: every worker on something that exists, is healthy, suits it, and is promised to nobody else at any moment."""

from fractions import Fraction
from itertools import combinations
from typing import Any

from .boards import layout_faults
from .places import admits, instance_on, runs_on, topology_faults, trusts
from .world import Job, Role, Worker, World, charge_on, worker_of

Json = dict[str, Any]
_MOST_RELEASERS = 10  # on one node; beyond it only the first and the last moment are looked at


def place_violations(world: World, plan: Json, final: World) -> list[str]:
    found = []
    for decision in plan["decisions"]:
        if "workers" in decision:
            found += _gang(world, final, decision)
        if decision["action"] == "repartition":
            found += _layout(world, plan, decision)
    return found + _moments(world, plan, final)


def _gang(world: World, final: World, decision: Json) -> list[str]:
    job = world.jobs[decision["job"]]
    action = decision["action"]
    workers = [worker_of(raw) for raw in decision["workers"]]
    found = []
    if len({w.key for w in workers}) != len(workers):
        found.append(f"{action} {job.name}: a worker is listed twice")
    if action in ("start", "reserve") and job.state != "queued" and not (action == "reserve" and job.missing):
        found.append(f"{action} {job.name}: it is {job.state}")
    if action in ("repair", "grow", "shrink", "move") and not job.holds:
        found.append(f"{action} {job.name}: it is {job.state}")
    if action == "reserve":
        short = [role.name for role in job.roles.values() if sum(w.role == role.name for w in workers) < role.min]
        found += [f"reserve {job.name}: no places for its {name}" for name in short]
    else:
        found += _counts(job, action, workers)
    if action != "reserve" or all(w.gpus for w in workers):
        found += [f"{action} {fault}" for fault in topology_faults(world, job, workers)]
    kept = set(job.workers) if job.holds else set()
    if action in ("repair", "grow") and not {w for w in kept if _lives(world, w)} <= set(workers):
        found.append(f"{action} {job.name}: workers that run were moved or dropped")
    if action == "shrink" and not set(workers) <= kept:
        found.append(f"shrink {job.name}: it holds workers that it did not have")
    for worker in workers:
        if worker not in kept:
            found += _worker(world, final, job, worker, action)
    types = {world.nodes[w.node].quota_type for w in workers if w.gpus}
    if len(types) > 1 and len({role.gpu_types for role in job.roles.values()}) == 1:
        found.append(f"{action} {job.name}: one attempt over the types {', '.join(sorted(types))}")
    return found


def _lives(world: World, worker: Worker) -> bool:
    node = world.nodes[worker.node]
    return node.health != "down" and not node.unhealthy & set(worker.gpus)


def _counts(job: Job, action: str, workers: list[Worker]) -> list[str]:
    """Whole gangs: the minimum of every role, and above it whole steps up to what it may hold."""
    found = []
    for role in job.roles.values():
        indexes = sorted(w.index for w in workers if w.role == role.name)
        count, had = len(indexes), job.count(role.name) if job.holds else 0
        if count < role.min and not (action == "shrink" and count == had):
            found.append(f"{action} {job.name}: {count} of at least {role.min} {role.name}")
        elif (count - role.min) % role.step and count != had:
            found.append(f"{action} {job.name}: {count} {role.name} is not {role.min} + k * {role.step}")
        if count > role.most and count > had:
            found.append(f"{action} {job.name}: {count} {role.name}, at most {role.most} wanted")
        if action == "start" and indexes != list(range(count)):
            found.append(f"start {job.name}: {role.name} has the indexes {indexes}")
        gone = sorted({w.index for w in job.workers if w.role == role.name} - set(indexes))
        if action == "shrink" and gone and indexes and gone[0] < indexes[-1]:
            found.append(f"shrink {job.name}: {role.name} {gone[0]} goes before {indexes[-1]}; a lower index is kept longest")
    if action == "grow" and len(workers) <= len(job.workers):
        found.append(f"grow {job.name}: it does not grow")
    if action == "shrink" and len(workers) >= len(job.workers):
        found.append(f"shrink {job.name}: it does not shrink")
    return found


def _worker(world: World, final: World, job: Job, worker: Worker, action: str) -> list[str]:
    node, role = world.nodes[worker.node], job.roles[worker.role]
    who = f"{action} {job.name} {worker.role} {worker.index} on {node.name}"
    found = []
    if not runs_on(job, role, node):
        found.append(f"{who}: type, labels or needs do not suit it")
    # A reservation speaks of later: health is asked when the time has come.
    if not admits(job, node, repair=action == "repair"):
        found.append(f"{who}: the node is {'a spare' if node.spare else node.health}")
    if len(set(worker.gpus)) != len(worker.gpus) or any(not 0 <= gpu < node.gpus for gpu in worker.gpus):
        found.append(f"{who}: no such GPUs {worker.gpus}")
    if node.unhealthy & set(worker.gpus):
        found.append(f"{who}: unhealthy GPUs")
    return found + [f"{who}: {fault}" for fault in _shape(job, role, worker, world, action)]


def _shape(job: Job, role: Role, worker: Worker, world: World, action: str) -> list[str]:
    """Whether the worker got what its role asks: whole GPUs, or that part of each of so many."""
    node = world.nodes[worker.node]
    if action == "reserve" and not worker.gpus:
        return []  # a place in the future: how many on which node is promised, not yet which
    if role.whole:
        wrong = len(worker.gpus) != role.gpus or worker.share is not None or worker.mig is not None
        return [f"{len(worker.gpus)} GPUs where {role.gpus} whole ones were asked"] if wrong else []
    if len(worker.gpus) != role.devices:
        return [f"{len(worker.gpus)} parts where {role.devices} were asked"]
    if role.mig is not None:
        right = worker.mig is not None and all(profile == role.mig for profile, _ in worker.mig)
        return [] if right else [f"{worker.mig} where {role.mig} was asked"]
    if job.sharing == "mig":
        return [] if worker.mig else ["no MIG instance"]
    want = charge_on(role, node) // role.devices
    if role.memory_mib is not None and role.memory_mib > node.memory_mib:
        return [f"{role.memory_mib} MiB of a GPU of {node.memory_mib}"]
    return [] if worker.share == want else [f"a share of {worker.share} where {want} was asked"]


def _layout(world: World, plan: Json, decision: Json) -> list[str]:
    node = world.nodes[decision["node"]]
    instances = [(i["profile"], i["start"]) for i in decision["instances"]]
    found = [f"repartition {node.name}:{decision['gpu']}: {fault}" for fault in layout_faults(node.gpu_type, instances)]
    if not 0 <= decision["gpu"] < node.gpus or decision["gpu"] in node.unhealthy:
        found.append(f"repartition {node.name}:{decision['gpu']}: no healthy GPU")
    if node.health in ("down", "draining"):
        found.append(f"repartition {node.name}: the node is {node.health}")
    pool = node.labels.get("pool")
    same = [d for d in plan["decisions"] if d["action"] == "repartition" and world.nodes[d["node"]].labels.get("pool") == pool]
    lately = sum(at > -3_600_000 for other in world.nodes.values() if other.labels.get("pool") == pool for at in other.repartitioned)
    if lately + len(same) > world.settings["repartition_per_hour"]:
        found.append(f"{lately} + {len(same)} repartitions in pool {pool}, {world.settings['repartition_per_hour']} an hour allowed")
    return found


Entry = tuple[str, Worker, frozenset[str]]  # job, worker, the jobs that are gone before it is there


def _moments(world: World, plan: Json, final: World) -> list[str]:
    """No place is promised twice at any moment, whatever the order in which those who leave are gone."""
    after = _gone_before(world, plan)
    found = []
    for name in sorted(world.nodes):
        staying: list[Entry] = []
        going: list[tuple[str, Worker, frozenset[str]]] = []
        for job in world.jobs.values():
            then = final.jobs.get(job.name)
            kept = set(then.workers) if then is not None and job.state != "stopping" and then.state != "queued" else set()
            for worker in job.workers:
                if worker.node == name:
                    # What was promised earlier on a place that is being freed becomes real when its holder is gone.
                    earlier = frozenset() if job.state in ("running", "stopping") else _holders(world, job, worker)
                    (staying if worker in kept else going).append((job.name, worker, earlier))
            going += [(job.name, worker, frozenset()) for worker in job.leaving if worker.node == name]
            if kept:
                new = [worker for worker in kept - set(job.workers) if worker.node == name]
                staying += [(job.name, w, after.get(job.name, frozenset()) | {job.name}) for w in new]
        releasers = sorted({entry[0] for entry in going})
        if len(releasers) <= _MOST_RELEASERS:
            moments = [frozenset(gone) for size in range(len(releasers) + 1) for gone in combinations(releasers, size)]
        else:
            moments = [frozenset(), frozenset(releasers)]
        for gone in moments:
            there = [e for e in going if e[0] not in gone and e[2] & set(releasers) <= gone]
            there += [e for e in staying if e[2] & set(releasers) <= gone]
            faults = _crowded(world, plan, after, name, there, gone, frozenset(releasers))
            if faults:
                suffix = f" while {', '.join(r for r in releasers if r not in gone)} still hold theirs" if gone != frozenset(releasers) else ""
                found += [f"{name}: {fault}{suffix}" for fault in faults]
                break
    return found


def _gone_before(world: World, plan: Json) -> dict[str, frozenset[str]]:
    """Who is gone before a job gets its new places: its `after`, and what those moved after."""
    direct = {d["job"]: frozenset(d.get("after") or []) for d in plan["decisions"] if "job" in d and d["action"] != "reserve"}
    closed: dict[str, frozenset[str]] = {}
    for name in direct:
        seen, line = set(), [name]
        while line:
            for other in sorted(direct.get(line.pop(), frozenset())):
                if other not in seen:
                    seen.add(other)
                    line.append(other)
        closed[name] = frozenset(seen)
    return closed


def _holders(world: World, job: Job, worker: Worker) -> frozenset[str]:
    """Jobs on their way out that still sit on the GPUs promised to a reserved or starting worker."""
    held = set()
    for other in world.jobs.values():
        for there in (*(other.workers if other.state == "stopping" else ()), *other.leaving):
            if there.node == worker.node and set(there.gpus) & set(worker.gpus):
                held.add(other.name)
    return frozenset(held)


def _crowded(
    world: World, plan: Json, after: dict[str, frozenset[str]], name: str, there: list[Entry], gone: frozenset[str], releasers: frozenset[str]
) -> list[str]:
    node = world.nodes[name]
    found = []
    if node.cpus is not None and (cpus := sum((_role(world, e).cpus for e in there), Fraction(0))) > node.cpus:
        found.append(f"{cpus} of {node.cpus} cpus promised")
    if node.host_mib is not None and (host := sum(_role(world, e).host_mib for e in there)) > node.host_mib:
        found.append(f"{host} of {node.host_mib} MiB host memory promised")
    for gpu in range(node.gpus):
        entries = [entry for entry in there if gpu in entry[1].gpus]
        layout = _layout_then(world, plan, name, gpu, gone, releasers)
        found += [f"GPU {gpu} {fault}" for fault in _gpu(world, gpu, entries, layout)]
    return found


def _role(world: World, entry: Entry) -> Role:
    return world.jobs[entry[0]].roles[entry[1].role]


def _layout_then(world: World, plan: Json, node: str, gpu: int, gone: frozenset[str], releasers: frozenset[str]) -> list[tuple[str, int]]:
    """The instances on a GPU at that moment: a new layout comes when those that it waits for are gone."""
    layout = list(world.nodes[node].mig.get(gpu, ()))
    for decision in plan["decisions"]:
        here = decision["action"] == "repartition" and (decision["node"], decision["gpu"]) == (node, gpu)
        if here and set(decision.get("after") or []) & releasers <= gone:
            layout = [(i["profile"], i["start"]) for i in decision["instances"]]
    return layout


def _gpu(world: World, gpu: int, entries: list[Entry], layout: list[tuple[str, int]]) -> list[str]:
    """What is wrong with those who sit on one GPU at one moment."""
    if not entries:
        return []
    names = ", ".join(sorted({entry[0] for entry in entries}))
    modes = sorted({_mode(world, entry) for entry in entries})
    if len(modes) > 1:
        return [f"is in the modes {' and '.join(modes)} at once ({names})"]
    if modes == ["exclusive"]:
        if len(entries) > 1:
            return [f"is promised to {names}"]
        return [f"is split, but promised whole to {names}"] if layout else []
    if modes == ["mig"]:
        wanted = [instance_on(entry[1], gpu) for entry in entries]
        found = [f"has no instance {mig} for {names}" for mig in wanted if mig not in layout]
        return found + ([f"has an instance that is promised twice ({names})"] if len(set(wanted)) < len(wanted) else [])
    found = [f"is split, and shared by {modes[0]} ({names})"] if layout else []
    total = sum(entry[1].share or 0 for entry in entries)
    if total > 1000:
        found.append(f"promises {total} of 1000 milli to {names}")
    memory = sum(_role(world, entry).memory_mib or 0 for entry in entries)
    if memory > world.nodes[entries[0][1].node].memory_mib > 0:
        found.append(f"promises {memory} MiB to {names}")
    jobs = [world.jobs[entry[0]] for entry in entries]
    if modes == ["mps"] and not all(trusts(world, one, other.name) for one in jobs for other in jobs):
        found.append(f"is shared across trust domains by {names}")
    if modes == ["timeslice"] and any(job.cls != "interactive" for job in jobs):
        found.append(f"is time-sliced by a job that is not interactive ({names})")
    return found


def _mode(world: World, entry: Entry) -> str:
    if entry[1].mig is not None:
        return "mig"
    if entry[1].share is None:
        return "exclusive"
    return world.jobs[entry[0]].sharing
