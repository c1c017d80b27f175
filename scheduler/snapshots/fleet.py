"""Clusters, topology, nodes and GPUs as the engine's nodes."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Exists

from gpufleet.core.prepared import Prepared, Question
from gpufleet.core.times import millis
from scheduler.backends.registry import SLURM, exists, runs_images, shares
from scheduler.engine.model.values import UNSTATED_CPU_MILLI, UNSTATED_MEMORY_MIB, Instance, Node, SplitGpu, Topology
from scheduler.hardware.boundaries import boundaries_of
from scheduler.hardware.pcie import carried
from scheduler.models import Cluster, Domain, Gpu, GpuMode, Health, MigInstance, OutsideSeat, PowerCap, Repartition, TopologyLevel
from scheduler.models import Node as NodeRow

MILLION = 1_000_000
HEALTH = {Health.HEALTHY: "healthy", Health.SUSPECT: "suspect", Health.DRAINING: "draining"}
# A level that a cluster does not have, above one that it has: it separates nothing.
ONE_FOR_ALL = "-"
ONLY = "only "
# An attribute of nodes whose cluster's back-end runs images, so that the engine places jobs with an image nowhere else.
RUNS_IMAGES = "runs_images"
# The same for shares of GPUs. On Slurm it depends on the node: the import notes what it offers as labels.
SHARES = {"mps": "mps", "timeslice": "time_slices"}
SLURM_SHARES = {"mps": "slurm/mps", "timeslice": "slurm/shard"}
# How far back `repartition_per_hour` looks.
RATE_COUNTS = timedelta(hours=1)
LEVEL = ("cluster_id", "id", "name", "bandwidth_gbps", "oversubscription_centi", "is_rail_level")

Rows = tuple[Any, ...]

# With whether there is any power cap: who plans without one asks for none.
CLUSTERS = Prepared(
    lambda: (
        Cluster.objects.filter(removed_at__isnull=True)
        .annotate(capped=Exists(PowerCap.objects.all()))
        .order_by("id")
        .values_list("id", "name", "backend", "silent_since", "capped")
    )
)
LEVELS = Prepared(lambda: TopologyLevel.objects.order_by("cluster_id", "depth").values_list(*LEVEL))
DOMAINS = Prepared(lambda: Domain.objects.order_by("id").values_list("id", "parent_id", "level_id", "name"))
NODES = Prepared(
    lambda: (
        NodeRow.objects.filter(removed_at__isnull=True)
        .order_by("id")
        .values_list(
            "id",
            "cluster_id",
            "name",
            "gpu_type_id",
            "domain_id",
            "island",
            "cpus",
            "host_memory_mib",
            "pcie_gbps",
            "nvme_gbps",
            "labels",
            "spare",
            "health",
            "pool__name",
            "gpu_type__hbm_gbps",
            "pcie_lost",
        )
    )
)
GPUS = Prepared(
    lambda: (
        Gpu.objects.filter(removed_at__isnull=True)
        .order_by("id")
        .values_list("id", "node_id", "index", "gpu_type_id", "memory_mib", "mode", "island", "health")
    )
)
SLICES = Prepared(lambda: MigInstance.objects.filter(removed_at__isnull=True).order_by("id").values_list("id", "gpu_id", "profile", "start"))
OUTSIDE = Prepared(lambda: OutsideSeat.objects.filter(job__until__isnull=True).order_by("id").values_list("node_id", "gpu_id", "cpus", "memory_mib"))
SPLITS = Prepared(lambda after, until: Repartition.objects.filter(at__gt=after, at__lte=until).order_by("at", "id").values_list("gpu__node_id", "at"))


@dataclass(frozen=True, slots=True)
class FleetView:
    """Nodes for the engine, and the way back from what it says of them to rows."""

    rows: Rows
    topology: Topology
    nodes: tuple[Node, ...]
    node_ids: Mapping[str, int]
    names: Mapping[int, str]
    gpu_ids: Mapping[tuple[int, int], int]
    gpu_places: Mapping[int, tuple[int, int]]  # GPU to node and index
    slice_ids: Mapping[tuple[int, str, int], int]  # GPU, profile and start to instance
    slices: Mapping[int, tuple[str, int]]
    clusters: Mapping[int, int]  # node to cluster
    capacity_milli: Mapping[str, int]
    outside: frozenset[int] = frozenset()  # GPUs that jobs hold which are not ours
    capped: bool = False  # whether there is any power cap
    blocked: Mapping[int, int] = field(default_factory=dict)  # GPUs by node (masks) whose holders the engine is not shown

    def without(self, blocked: Mapping[int, int]) -> "FleetView":
        """The same fleet with some GPUs out of the engine's reach."""
        if not blocked:
            return self
        names = {self.names[node]: mask for node, mask in blocked.items()}
        nodes = tuple(replace(node, unhealthy=node.unhealthy | names[node.name]) if node.name in names else node for node in self.nodes)
        return replace(self, nodes=nodes, blocked=dict(blocked))


def fleet_asked(now: datetime) -> list[Question]:
    """All that a fleet view is made from; the answers are compared with the last time's."""
    return [*(question.asking() for question in (CLUSTERS, LEVELS, DOMAINS, NODES, GPUS, SLICES, OUTSIDE)), SPLITS.asking(now - RATE_COUNTS, now)]


def topology_now(levels: Sequence[tuple[Any, ...]] | None = None) -> Topology:
    """The levels that jobs may name; `levels` where they have just been read."""
    return _topology(LEVELS() if levels is None else levels)


def domains_of_nodes() -> dict[int, dict[str, str]]:
    """Of each node the domain that it stands in, by level, as jobs may name these: two nodes are together where the names are the same."""
    levels, names = LEVELS(), {key: name for key, name, *_ in CLUSTERS()}
    topology = _topology(levels)
    trails = _Trails(DOMAINS(), levels, topology.levels)
    found = {}
    for key, cluster, name, domain in (
        NodeRow.objects.filter(removed_at__isnull=True).order_by("id").values_list("id", "cluster_id", "name", "domain_id")
    ):
        path = (*trails.path(domain, names[cluster], name), name)
        found[key] = {level: "/".join(path[: depth + 1]) for depth, level in enumerate(topology.all_levels)}
    return found


def fleet_view(rows: Rows) -> FleetView:
    clusters, levels, domains, node_rows, gpu_rows, slice_rows, outside_rows, splits = rows
    cluster_names = {key: name for key, name, *_ in clusters}
    with_images = {key for key, _, backend, *_ in clusters if runs_images(backend)}
    backends = {key: backend for key, _, backend, *_ in clusters}
    # Nobody would carry out what is placed there. What runs goes on, as on a node that is drained.
    without_backend = {key for key, _, backend, silent_since, _ in clusters if silent_since is not None or not exists(backend)}
    topology = _topology(levels)
    trails = _Trails(domains, levels, topology.levels)
    gpus: dict[int, list[Any]] = defaultdict(list)
    for row in gpu_rows:
        gpus[row[1]].append(row)
    slices: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for _, gpu, profile, start in slice_rows:
        slices[gpu].append((profile, start))
    split_at: dict[int, list[int]] = defaultdict(list)
    for node_id, at in splits:
        split_at[node_id].append(millis(at))
    used: dict[int, tuple[int, int]] = {}
    for node_id, _, cpus, memory_mib in outside_rows:
        before = used.get(node_id, (0, 0))
        used[node_id] = (before[0] + cpus, before[1] + memory_mib)
    nodes = []
    for row in node_rows:
        kind = row[3] or _usual(gpu[3] for gpu in gpus[row[0]])
        if kind:
            path = trails.path(row[4], cluster_names[row[1]], row[2])
            node = _node(row, kind, gpus[row[0]], slices, cluster_names[row[1]], path, images=row[1] in with_images, backend=backends[row[1]])
            if row[1] in without_backend and node.health != "down":
                node = replace(node, health="draining")
            if row[0] in used:
                cpus, memory_mib = used[row[0]]
                node = replace(node, cpu_milli=max(0, node.cpu_milli - 1000 * cpus), host_memory_mib=max(0, node.host_memory_mib - memory_mib))
            nodes.append(replace(node, repartitioned=tuple(split_at[row[0]])) if row[0] in split_at else node)
    nodes = _islands_apart(nodes)
    nodes.sort(key=lambda node: (node.path, node.island, node.name))
    names = {row[0]: f"{cluster_names[row[1]]}/{row[2]}" for row in node_rows}
    capacity: Counter[str] = Counter()
    for node in nodes:
        capacity[node.gpu_type] += 1000 * node.gpus
    return FleetView(
        rows=rows,
        topology=topology,
        nodes=tuple(nodes),
        node_ids={name: key for key, name in names.items()},
        names=names,
        gpu_ids={(row[1], row[2]): row[0] for row in gpu_rows},
        gpu_places={row[0]: (row[1], row[2]) for row in gpu_rows},
        slice_ids={(gpu, profile, start): key for key, gpu, profile, start in slice_rows},
        slices={key: (profile, start) for key, _, profile, start in slice_rows},
        clusters={row[0]: row[1] for row in node_rows},
        capacity_milli=dict(capacity),
        capped=any(capped for *_, capped in clusters),
        outside=frozenset(row[1] for row in outside_rows if row[1] is not None),
    )


def _usual(kinds: Iterable[str]) -> str | None:
    """The commonest type, of equally common ones the first by name."""
    counted = Counter(kinds)
    return min(counted, key=lambda kind: (-counted[kind], kind), default=None)


def _level(name: str) -> str:
    """A level's name for the engine, where two are taken."""
    return {"cluster": "cluster-level", "node": "node-level"}.get(name, name)


def _topology(rows: Sequence[tuple[Any, ...]]) -> Topology:
    """One list of levels over all clusters, wide to narrow: those of the first, and those of the later ones where they fit in."""
    own: dict[int, list[str]] = defaultdict(list)
    merged: list[str] = []
    bandwidth: dict[str, int] = {}
    oversubscription: dict[str, int] = {}
    rails = None
    for cluster, _, name, gbps, centi, is_rail in rows:
        level = _level(name)
        own[cluster].append(level)
        if gbps is not None:
            bandwidth.setdefault(level, gbps * MILLION)
        oversubscription.setdefault(level, centi * MILLION // 100)
        rails = rails or (level if is_rail else None)
    for cluster in sorted(own):
        at = 0
        for level in own[cluster]:
            if level in merged:
                at = max(at, merged.index(level) + 1)
            else:
                merged.insert(at, level)
                at += 1
    return Topology(tuple(merged), rails, tuple(sorted(bandwidth.items())), tuple(sorted(oversubscription.items())))


class _Trails:
    """The path of a domain through the merged levels."""

    def __init__(self, domains: Sequence[tuple[Any, ...]], levels: Sequence[tuple[Any, ...]], merged: tuple[str, ...]) -> None:
        level_names = {key: _level(name) for _, key, name, *_ in levels}
        self.parents = {key: parent for key, parent, _, _ in domains}
        self.names = {key: (level_names[level], name) for key, _, level, name in domains}
        self.merged = merged

    def path(self, domain: int | None, cluster_name: str, node_name: str) -> tuple[str, ...]:
        """What is not known below the narrowest level that is known keeps nodes apart: nobody is promised a neighbour that may be none."""
        given: dict[str, str] = {}
        while domain is not None:
            level, name = self.names[domain]
            given[level] = name
            domain = self.parents[domain]
        deepest = max((place for place, level in enumerate(self.merged) if level in given), default=-1)
        steps = (given.get(level, ONE_FOR_ALL if place < deepest else f"{ONLY}{node_name}") for place, level in enumerate(self.merged))
        return (cluster_name, *steps)


def node_named(name: str) -> tuple[str, str]:
    """The cluster and the own name of a node, of the name that the engine has for it."""
    cluster, _, own = name.partition("/")
    return cluster, own


def domain_named(name: str) -> tuple[str, str, str]:
    """The cluster, the path inside it, and a node where nothing narrower is known of that one, of a domain as the engine names it."""
    cluster, *steps = name.split("/")
    node = next((step.removeprefix(ONLY) for step in steps if step.startswith(ONLY)), "")
    return cluster, "/".join(step for step in steps if step != ONE_FOR_ALL and not step.startswith(ONLY)), node


def _node(
    row: tuple[Any, ...],
    kind: str,
    gpus: Sequence[tuple[Any, ...]],
    slices: Mapping[int, Any],
    cluster: str,
    path: tuple[str, ...],
    *,
    images: bool,
    backend: str,
) -> Node:
    _, _, name, _, _, island, cpus, memory, pcie, nvme, labels, spare, health, pool, hbm, lost = row
    size = max((gpu[2] for gpu in gpus), default=-1) + 1
    present = sum(1 << gpu[2] for gpu in gpus)
    sick = sum(1 << gpu[2] for gpu in gpus if gpu[7] != Health.HEALTHY or gpu[3] != kind)
    layouts = {gpu[2]: sorted(Instance(start, profile) for profile, start in slices.get(gpu[0], ())) for gpu in gpus if gpu[5] == GpuMode.MIG}
    full = f"{cluster}/{name}"
    stated = {str(key): str(value) for key, value in (labels or {}).items()}
    if pool:
        stated.setdefault("pool", pool)
    known = {"hbm_gbps": hbm or None, "pcie_gbps": pcie and carried(pcie, lost), "nvme_gbps": nvme, RUNS_IMAGES: int(images)}
    for way, label in SLURM_SHARES.items():
        known[SHARES[way]] = int(label in stated if backend == SLURM else shares(backend, way))
    return Node(
        name=full,
        gpu_type=kind,
        quota_type=kind,
        gpus=size,
        gpu_memory_mib=min((gpu[4] for gpu in gpus if gpu[3] == kind), default=0),
        path=path,
        island=f"{cluster}/{island}" if island else full,
        islands=() if island else _parts(gpus),
        health=HEALTH.get(health, "down"),
        unhealthy=sick | ((1 << size) - 1) & ~present,
        spare=spare,
        # What is not known does not bind.
        cpu_milli=1000 * cpus or UNSTATED_CPU_MILLI,
        host_memory_mib=memory or UNSTATED_MEMORY_MIB,
        labels=tuple(sorted(stated.items())),
        attributes=tuple(sorted((key, value * MILLION) for key, value in known.items() if value)),
        mig=tuple(SplitGpu(gpu, tuple(layouts[gpu])) for gpu in sorted(layouts)),
        boundaries=tuple(sorted(boundaries_of(stated, backend))),
    )


def _parts(gpus: Sequence[tuple[Any, ...]]) -> tuple[int, ...]:
    """Masks of the parts of a node with an NVLink of their own; none where the node is one island."""
    masks: dict[str, int] = defaultdict(int)
    for gpu in gpus:
        masks[gpu[6]] |= 1 << gpu[2]
    stated = [mask for island, mask in masks.items() if island]
    return tuple(sorted(stated, key=lambda mask: mask & -mask)) if stated else ()


def _islands_apart(nodes: list[Node]) -> list[Node]:
    """NVLink does not reach from one narrowest domain into another: an island that seems to is one for each of them."""
    paths: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    for node in nodes:
        paths[node.island].add(node.path)
    return [replace(node, island=f"{node.island} at {'/'.join(node.path[1:])}") if len(paths[node.island]) > 1 else node for node in nodes]
