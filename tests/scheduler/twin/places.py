"""Who holds what, and whether a gang fits: tried the long way, place by place, with steps back where a choice was wrong."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction

from .boards import layout_faults, profiles_of
from .neighbours import clash, serves
from .world import Job, Node, Role, Worker, World

_PATIENCE = 4000  # steps of one search; a search that gives up says so


class Undecided(Exception):
    """The search was cut off: the twin does not know, and the caller must not judge."""


@dataclass
class Occupancy:
    """What is taken on each node and GPU: a list of (job, worker, role, sharing) per node, nothing summed up in advance."""

    world: World
    on: dict[str, list[tuple[str, Worker, Role, str]]] = field(default_factory=dict)

    def take(self, job: Job, workers: Iterable[Worker]) -> None:
        for worker in workers:
            self.on.setdefault(worker.node, []).append((job.name, worker, job.roles[worker.role], job.sharing))

    def free(self, job: Job, workers: Iterable[Worker]) -> None:
        for worker in workers:
            self.on[worker.node].remove((job.name, worker, job.roles[worker.role], job.sharing))

    def on_gpu(self, node: str, gpu: int) -> list[tuple[str, Worker, Role, str]]:
        return [entry for entry in self.on.get(node, []) if gpu in entry[1].gpus]

    def idle_gpus(self, node: Node) -> list[int]:
        """Healthy whole GPUs that nobody holds and that are not split."""
        return [gpu for gpu in node.good_gpus() if not node.mig.get(gpu) and not self.on_gpu(node.name, gpu)]

    def host_room(self, node: Node, role: Role) -> bool:
        entries = self.on.get(node.name, [])
        cpus = sum((entry[2].cpus for entry in entries), Fraction(0)) + role.cpus
        host = sum(entry[2].host_mib for entry in entries) + role.host_mib
        return (node.cpus is None or cpus <= node.cpus) and (node.host_mib is None or host <= node.host_mib)


def occupancy(world: World, *, without: frozenset[str] = frozenset()) -> Occupancy:
    """Everything that holds a place in the scenario, also what is on its way out."""
    taken = Occupancy(world)
    for job in world.jobs.values():
        if job.name not in without:
            taken.take(job, job.workers)
            taken.take(job, job.leaving)
    return taken


def accepts(job: Job, role: Role, node: Node) -> bool:
    """Whether the job names the node's type among its own, or names none, and can run on it."""
    if role.gpu_types and node.gpu_type not in role.gpu_types:
        return False
    return not job.throughput or job.throughput.get(node.gpu_type, 1) != 0


def runs_on(job: Job, role: Role, node: Node) -> bool:
    """Whether type, labels, needs and speed let a worker of the role live on this kind of node at all."""
    if (role.gpus or not role.whole) and not accepts(job, role, node):
        return False
    if any(node.labels.get(key) != value for key, value in job.node_labels.items()):
        return False
    return all(node.attributes.get(key, 0) >= value for key, value in job.needs.items())


def admits(job: Job, node: Node, *, repair: bool = False) -> bool:
    """Whether health lets a new worker of the job onto the node."""
    if node.spare and not repair:
        return False
    return node.health == "healthy" or (node.health == "suspect" and job.tolerates_suspect)


def _parts(taken: Occupancy, job: Job, role: Role, node: Node, *, empty: bool) -> Iterator[Worker]:
    """Ways to put one worker that takes a part of a GPU (or of several) onto a node."""
    fitting: list[tuple[int, int | None, tuple[str, int] | None]] = []  # GPU, share, instance
    for gpu in node.good_gpus():
        there = taken.on_gpu(node.name, gpu)
        if role.mig is not None:
            free = _free_instances(node, gpu, role.mig, [instance_on(entry[1], gpu) for entry in there], empty=empty)
            fitting += [(gpu, None, instance) for instance in free[:1]]
        elif (share := _share_on(taken, job, role, node, gpu, empty=empty)) is not None:
            fitting.append((gpu, share, None))
    fitting.sort(key=lambda part: (-len(taken.on_gpu(node.name, part[0])), part[0]))  # an already split GPU first
    choices = [[part] for part in fitting] if role.devices == 1 else [fitting[: role.devices]] * (len(fitting) >= role.devices)
    for parts in choices:
        instances = tuple(instance for _, _, instance in parts if instance is not None)
        yield Worker(role.name, 0, node.name, tuple(gpu for gpu, _, _ in parts), parts[0][1], instances or None)


def instance_on(worker: Worker, gpu: int) -> tuple[str, int] | None:
    return worker.mig[worker.gpus.index(gpu)] if worker.mig is not None else None


def _free_instances(node: Node, gpu: int, profile: str, held: list[tuple[str, int] | None], *, empty: bool) -> list[tuple[str, int]]:
    if not empty:
        return [instance for instance in node.mig.get(gpu, ()) if instance not in held and instance[0] == profile]
    if None in held or profile not in profiles_of(node.gpu_type):
        return []
    there = [instance for instance in held if instance is not None]
    return [(profile, s) for s in profiles_of(node.gpu_type)[profile][2] if not layout_faults(node.gpu_type, [*there, (profile, s)])]


def _share_on(taken: Occupancy, job: Job, role: Role, node: Node, gpu: int, *, empty: bool) -> int | None:
    """The milli-GPU that a worker gets of this GPU by MPS or time slice; None where it can't be there."""
    there = taken.on_gpu(node.name, gpu)
    if (node.mig.get(gpu) and not empty) or any(entry[3] != job.sharing for entry in there):
        return None
    if job.sharing == "mps" and not all(trusts(taken.world, job, entry[0]) for entry in there):
        return None
    if job.sharing == "mps" and taken.world.settings["colocation"] != "any":
        jobs = {**taken.world.jobs, job.name: job}
        held = {gpu: [jobs[entry[0]] for entry in taken.on_gpu(node.name, gpu) if entry[0] in jobs] for gpu in node.good_gpus()}
        if any(len({serves(one) for one in here}) > 1 for here in held.values()) or any(serves(one) is not serves(job) for one in held[gpu]):
            return None
    memory = role.memory_mib or 0
    if memory > node.memory_mib or memory + sum(entry[2].memory_mib or 0 for entry in there) > max(memory, node.memory_mib):
        return None
    want = role.share if role.share is not None else max(1, 1000 * memory // node.memory_mib)
    return want if want + sum(entry[1].share or 0 for entry in there) <= 1000 else None


def trusts(world: World, job: Job, other: str) -> bool:
    """Whether two jobs may share a GPU by MPS."""
    if job.name == other or world.settings["sharing_trust"] == "any":
        return True
    return world.settings["sharing_trust"] == "quota" and world.jobs[other].quota == job.quota


def _options(taken: Occupancy, job: Job, role: Role, node: Node, group: int, *, empty: bool) -> Iterator[Worker]:
    if not taken.host_room(node, role):
        return
    if not role.whole:
        yield from _parts(taken, job, role, node, empty=empty)
        return
    idle = taken.idle_gpus(node) if not empty else [gpu for gpu in node.good_gpus() if not taken.on_gpu(node.name, gpu)]
    if len(idle) < role.gpus:
        return
    if group <= 1 or role.gpus == 0:
        yield Worker(role.name, 0, node.name, tuple(idle[: role.gpus]))
        return
    islands: dict[tuple[str, int], list[int]] = {}
    for gpu in idle:
        islands.setdefault(node.island_of(gpu), []).append(gpu)
    if group > role.gpus:  # the group is made of several workers; each must sit in one island with the others
        for members in islands.values():
            if len(members) >= role.gpus:
                yield Worker(role.name, 0, node.name, tuple(members[: role.gpus]))
        return
    chunks = [members[at : at + group] for members in islands.values() for at in range(0, len(members) - group + 1, group)]
    if len(chunks) * group >= role.gpus:
        yield Worker(role.name, 0, node.name, tuple(gpu for chunk in chunks[: role.gpus // group] for gpu in chunk))


def group_of(job: Job, role: Role) -> int:
    return role.topology.get("tp_group") or job.topology.get("tp_group") or 1


def gang_fits(
    taken: Occupancy, job: Job, *, counts: dict[str, int] | None = None, repair: bool = False, empty: bool = False, division: str | None = None
) -> list[Worker] | None:
    """Places for the gang (its minimum unless `counts` says otherwise), or None. Workers that run pin what they pin.

    With `empty` the layouts of MIG boards are no obstacle. Raises Undecided where the search grows too wide.
    """
    world = taken.world
    running = [] if job.state == "queued" else list(job.workers)
    have = {worker.key for worker in running}
    wanted: list[tuple[Role, int]] = []
    for role in job.roles.values():
        missing = (counts or {}).get(role.name, role.min) - sum(worker.role == role.name for worker in running)
        indexes = (index for index in range(10**6) if (role.name, index) not in have)
        wanted += [(role, next(indexes)) for _ in range(max(0, missing))]
    search = _Search(taken, job, [node for node in world.nodes.values() if admits(job, node, repair=repair)], division, empty=empty)
    found = search.place(wanted, 0, running, 0)
    return None if found is None else [worker for worker in found if worker.key not in have]


class _Search:
    def __init__(self, taken: Occupancy, job: Job, nodes: list[Node], division: str | None, *, empty: bool) -> None:
        self.taken, self.job, self.nodes, self.division, self.empty, self.steps = taken, job, nodes, division, empty, 0

    def place(self, wanted: list[tuple[Role, int]], at: int, chosen: list[Worker], first_node: int) -> list[Worker] | None:
        if at == len(wanted):
            return list(chosen) if not topology_faults(self.taken.world, self.job, chosen) else None
        role, index = wanted[at]
        start = first_node if at and wanted[at - 1][0] is role else 0  # workers of a role are alike: no need to try them in both orders
        for number in range(start, len(self.nodes)):
            node = self.nodes[number]
            in_type = self.division in (None, node.quota_type) or not (role.gpus or not role.whole)
            if not in_type or not runs_on(self.job, role, node) or not self._beside(role, node, chosen):
                continue
            jobs, there = self.taken.world.jobs, {name for name, *_ in self.taken.on.get(node.name, ())} - {self.job.name}
            if any(clash(self.taken.world, self.job, jobs[name], node) for name in there if name in jobs):  # another one has left
                continue
            for option in _options(self.taken, self.job, role, node, group_of(self.job, role), empty=self.empty):
                self.steps += 1
                if self.steps > _PATIENCE:
                    raise Undecided(self.job.name)
                worker = Worker(option.role, index, option.node, option.gpus, option.share, option.mig)
                self.taken.take(self.job, [worker])
                chosen.append(worker)
                found = self.place(wanted, at + 1, chosen, number)
                chosen.pop()
                self.taken.free(self.job, [worker])
                if found is not None:
                    return found
        return None

    def _beside(self, role: Role, node: Node, chosen: list[Worker]) -> bool:
        """Whether the node lies in the domains that the gang's first members chose."""
        world = self.taken.world
        for (level, bound), members in required_levels(world, self.job, chosen):
            if members and bound in (None, role.name) and world.domain(members[0].node, level) != world.domain(node.name, level):
                return False
        return True


def required_levels(world: World, job: Job, workers: list[Worker]) -> Iterator[tuple[tuple[str, str | None], list[Worker]]]:
    """((level, role or None for the job), the workers it binds together)."""
    if job.topology.get("required"):
        yield (job.topology["required"], None), workers
    elif not job.topology.get("span_clusters"):
        yield ("cluster", None), workers
    for role in job.roles.values():
        if role.topology.get("required"):
            yield (role.topology["required"], role.name), [worker for worker in workers if worker.role == role.name]


def topology_faults(world: World, job: Job, workers: list[Worker]) -> list[str]:
    """Required domains left, and TP groups outside one island."""
    faults = []
    for (level, bound), together in required_levels(world, job, workers):
        domains = sorted({world.domain(worker.node, level) for worker in together})
        if len(domains) > 1:
            whose = f"role {bound}" if bound else "the job"
            faults.append(f"{job.name}: {whose} requires one {level}, its workers sit in {', '.join('/'.join(d) for d in domains)}")
    for role in job.roles.values():
        size = group_of(job, role)
        members = sorted((w for w in workers if w.role == role.name), key=lambda w: w.index)
        if size <= 1 or not role.gpus or not role.whole:
            continue
        ranks = [(world.nodes[w.node], gpu) for w in members for gpu in w.gpus]
        for at in range(0, len(ranks), size):
            islands = sorted({node.island_of(gpu) for node, gpu in ranks[at : at + size]})
            if len(islands) > 1:
                faults.append(f"{job.name}: ranks {at}-{at + size - 1} of {role.name} lie in {len(islands)} islands, a TP group needs one")
    return faults
