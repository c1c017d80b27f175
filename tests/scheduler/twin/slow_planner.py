"""A planner in plain loops: who starts and grows, in which order and where, for fleets of one type with whole GPUs.

Written from the semantics alone. Nothing is kept between two questions, and every figure is worked out anew for each.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from .legal_rights import gates
from .order import Table, job_key, queue_key
from .places import Occupancy, admits, gang_fits, occupancy, runs_on
from .replay import spelt
from .shares import figures, hopeless, least
from .world import Job, Node, Role, Worker, World

Served = tuple[str, str, tuple[tuple[str, int, str], ...]]  # action, job, (role, index, node) of every worker


@dataclass
class Asks:
    """A job and the workers that it asks for at once."""

    job: Job
    wanted: list[tuple[Role, int]]
    milli: int


def plan_slowly(world: World) -> list[Served]:
    """Everything that allocate and then grow would do."""
    passes = world.settings["passes"]
    served: dict[str, Served] = {}
    if "allocate" in passes:
        world = _allocate(world, served)
    if "grow" in passes:
        world = _grow(world, served)
    return sorted(served.values())


def _allocate(world: World, served: dict[str, Served]) -> World:
    """In the order of queues, each leaf by its head: the first that fitted when it became the head. Who is refused is not asked again."""
    lines: dict[str, list[Job]] = {}
    for job in sorted(world.jobs.values(), key=job_key):
        if job.state == "queued" and (job.not_before or 0) <= 0 and not hopeless(world, job, world.divisions()[0]):
            lines.setdefault(job.quota, []).append(job)
    heads: dict[str, Job] = {}
    while True:
        for leaf, line in lines.items():
            while leaf not in heads and line:
                job = line.pop(0)
                if gang_fits(occupancy(world), job) is not None:
                    heads[leaf] = job
        best = _first(world, [Asks(job, _minimum(job), least(world, job, world.divisions()[0])) for job in heads.values()])
        if best is None:
            return world
        del heads[best.job.quota]
        places = _place(world, best)
        if places is not None and _open(world, best.job, places, "start"):
            world = _stand(world, best.job, places)
            served[best.job.name] = _served("start", world.jobs[best.job.name])


def _grow(world: World, served: dict[str, Served]) -> World:
    """A step at a time, in the order of queues, who is at his minimum before who is above it."""
    out: set[str] = set()
    while True:
        asking = []
        for job in world.jobs.values():
            step = _step(job) if job.holds and not job.missing and job.name not in out else None
            if step is not None:
                asking.append(Asks(job, step, sum(1000 * role.gpus for role, _ in step)))
        best = _first(world, asking)
        if best is None:
            return world
        places = _place(world, best)
        if places is None or not _open(world, best.job, places, "grow"):
            out.add(best.job.name)
            continue
        started = served.get(best.job.name, ("grow",))[0]
        world = _stand(world, best.job, places)
        served[best.job.name] = _served(started, world.jobs[best.job.name])


def _minimum(job: Job) -> list[tuple[Role, int]]:
    return [(role, index) for role in job.roles.values() for index in range(role.min)]


def _step(job: Job) -> list[tuple[Role, int]] | None:
    """The next step of the first role that may have more."""
    for role in job.roles.values():
        have = sorted(worker.index for worker in job.workers if worker.role == role.name)
        if len(have) + role.step <= role.most:
            free = [index for index in range(role.max) if index not in have]
            return [(role, index) for index in free[: role.step]]
    return None


def _first(world: World, asking: list[Asks]) -> Asks | None:
    return _best(world, figures(world), None, asking) if asking else None


def _best(world: World, table: Table, parent: str | None, asking: list[Asks]) -> Asks:
    """Descend from the top; each subtree stands in with its best job."""
    here = [asks for asks in asking if asks.job.quota == parent]
    if here:
        return min(here, key=lambda asks: job_key(asks.job))
    champions = []
    for child in world.children(parent):
        inside = [asks for asks in asking if child in world.ancestry(asks.job.quota)]
        if inside:
            best = _best(world, table, child, inside)
            champions.append((queue_key(table[child, world.divisions()[0]], best.milli), best))
    return min(champions, key=lambda pair: pair[0])[1]


def _open(world: World, job: Job, places: list[Worker], action: str) -> bool:
    return not gates(world, {"action": action, "job": job.name, "workers": [spelt(worker) for worker in (*job.workers, *places)]})


def _stand(world: World, job: Job, places: list[Worker]) -> World:
    workers = tuple(sorted((*job.workers, *places), key=lambda worker: (worker.role, worker.index)))
    return world.with_job(replace(job, state="running", started=job.started if job.holds else 0, workers=workers))


def _served(action: str, job: Job) -> Served:
    return action, job.name, tuple(sorted((worker.role, worker.index, worker.node) for worker in job.workers))


# Where


def _place(world: World, asks: Asks) -> list[Worker] | None:
    """The preferred level first, then each wider one; in each the domain with the least free room that holds them all."""
    for domain in _domains(world, asks):
        roles = list(asks.job.roles.values())
        for order in (roles, sorted(roles, key=lambda role: -role.gpus)):  # small workers fit into what large ones leave
            found = _fill(world, occupancy(world), asks, order, domain)
            if found is not None:
                return found
    return None


def _domains(world: World, asks: Asks) -> Iterator[list[Node]]:
    job = asks.job
    widest = world.levels.index(job.topology["required"]) if job.topology.get("required") else 0
    deepest = world.levels.index(job.topology["preferred"]) if job.topology.get("preferred") else widest
    if len(asks.wanted) == 1 and not (job.holds and job.workers):
        deepest = widest = 0  # one worker is together with itself on any level
    for level in range(max(deepest, widest), widest - 1, -1):
        nodes = sorted(world.nodes.values(), key=_path)
        domains: dict[tuple[str, ...], list[Node]] = {}
        for node in nodes:
            domains.setdefault(node.path[: level + 1], []).append(node)
        if job.holds and job.workers:
            pinned = {world.nodes[worker.node].path[: level + 1] for worker in job.workers}
            if len(pinned) == 1:
                yield domains[pinned.pop()]
            continue
        taken = occupancy(world)

        def room(domain: list[Node], taken: Occupancy = taken) -> tuple[int, int, tuple[str, ...]]:
            suits = [node for node in domain if _suits(asks, node)]
            free = sum(len(taken.idle_gpus(node)) for node in suits)
            return (
                -free if world.settings["placement"] == "spread" else free,
                sum(len(node.good_gpus()) for node in domain if node.alive),
                _path(domain[0]),
            )

        yield from sorted(domains.values(), key=room)


def _path(node: Node) -> tuple[str, ...]:
    return (*node.path[:-1], node.island, node.name)


def _suits(asks: Asks, node: Node) -> bool:
    return any(runs_on(asks.job, role, node) for role, _ in asks.wanted) and admits(asks.job, node)


def _fill(world: World, taken: Occupancy, asks: Asks, roles: list[Role], domain: list[Node]) -> list[Worker] | None:
    """Each worker on the node with the least free room that suffices; neighbours in rank are neighbours in path."""
    found: list[Worker] = []
    for role in roles:
        indexes = [index for wanted, index in asks.wanted if wanted is role]
        chosen: list[Worker] = []
        for _ in indexes:
            fits = [node for node in domain if runs_on(asks.job, role, node) and admits(asks.job, node) and taken.host_room(node, role)]
            fits = [node for node in fits if len(taken.idle_gpus(node)) >= role.gpus]
            if not fits:
                return None
            spread = -1 if world.settings["placement"] == "spread" else 1
            node = min(fits, key=lambda node: (spread * len(taken.idle_gpus(node)), _path(node)))
            worker = Worker(role.name, 0, node.name, tuple(taken.idle_gpus(node)[: role.gpus]))
            taken.take(asks.job, [worker])
            chosen.append(worker)
        chosen.sort(key=lambda worker: (_path(world.nodes[worker.node]), worker.gpus))
        found += [replace(worker, index=index) for worker, index in zip(chosen, indexes, strict=True)]
    return found
