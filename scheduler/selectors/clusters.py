"""Clusters, and the topology of one as a tree of any depth with sums on every branch."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from django.db.models import Case, Count, Exists, IntegerField, OuterRef, QuerySet, Subquery, Sum, Value, When
from django.db.models.functions import Coalesce
from django.http import Http404

from gpufleet.core.faults import Missing
from gpufleet.core.ranking import natural
from quotas.permissions import Access, Can
from scheduler.models import IN_SERVICE, Checkpoint, Cluster, Domain, Gpu, Health, KubernetesCluster, Node, Pool, SlurmCluster, TopologyLevel
from scheduler.selectors.holders import open_placements, outside_seats
from scheduler.services.jobs.old_checkpoints import checkpoints_late


@dataclass(slots=True)
class Sums:
    """What a place holds. `free` counts whole GPUs that are healthy, in service, no spare, and held by nobody."""

    nodes: int = 0
    nodes_out: int = 0
    spares: int = 0
    gpus: int = 0
    sick_gpus: int = 0
    free: int = 0
    taken_milli: int = 0
    outside: int = 0  # GPUs of `taken_milli` that jobs hold which are not ours

    def add(self, other: "Sums") -> None:
        self.nodes += other.nodes
        self.nodes_out += other.nodes_out
        self.spares += other.spares
        self.gpus += other.gpus
        self.sick_gpus += other.sick_gpus
        self.free += other.free
        self.taken_milli += other.taken_milli
        self.outside += other.outside

    @property
    def capacity_milli(self) -> int:
        return self.gpus * 1000


@dataclass(frozen=True, slots=True)
class Leaf:
    """A node at its place in the tree."""

    public_id: str
    name: str
    health: str
    spare: bool
    gpu_type: str
    island: str
    pool: int | None
    sums: Sums


@dataclass(slots=True)
class Branch:
    """One domain with everything below it."""

    name: str
    path: str
    level: str
    bandwidth_gbps: int | None
    oversubscription_centi: int
    is_rail_level: bool
    sums: Sums = field(default_factory=Sums)
    branches: list["Branch"] = field(default_factory=list)
    leaves: list[Leaf] = field(default_factory=list)
    rails: int = 0

    @property
    def oversubscription(self) -> str:
        return f"{self.oversubscription_centi / 100:g}:1"

    @property
    def islands(self) -> list[tuple[str, int]]:
        """NVLink islands over several nodes of this domain, with their counts of nodes."""
        names: dict[str, int] = {}
        for leaf in self.leaves:
            if leaf.island:
                names[leaf.island] = names.get(leaf.island, 0) + 1
        return sorted(names.items())


@dataclass(slots=True)
class Tree:
    cluster: Cluster
    levels: list[TopologyLevel]
    pools: dict[Pool, Sums]
    branches: list[Branch]
    unplaced: list[Leaf]
    sums: Sums

    def walk(self) -> Iterator[Branch]:
        waiting = list(reversed(self.branches))
        while waiting:
            branch = waiting.pop()
            yield branch
            waiting.extend(reversed(branch.branches))


def clusters_listed(access: Access) -> QuerySet[Cluster]:
    """Every cluster of the fleet, with counts of its nodes and GPUs, of those out of service, and what is handed out."""
    access.must_somewhere(Can.SEE)
    nodes = Node.objects.filter(cluster=OuterRef("pk"), removed_at__isnull=True).order_by().values("cluster")
    gpus = Gpu.objects.filter(node__cluster=OuterRef("pk"), removed_at__isnull=True, node__removed_at__isnull=True).order_by().values("node__cluster")
    held = open_placements().filter(node__cluster=OuterRef("pk")).order_by().values("node__cluster")
    outside = outside_seats().filter(node__cluster=OuterRef("pk")).order_by().values("node__cluster")
    out = Sum(Case(When(health__in=IN_SERVICE, then=Value(0)), default=Value(1), output_field=IntegerField()))

    def counted(query: QuerySet, expression: object) -> Coalesce:
        return Coalesce(Subquery(query.annotate(n=expression).values("n"), output_field=IntegerField()), 0)

    return Cluster.objects.filter(removed_at__isnull=True).annotate(
        node_count=counted(nodes, Count("pk")),
        nodes_out=counted(nodes, out),
        gpu_count=counted(gpus, Count("pk")),
        capacity_milli=counted(gpus, Count("pk") * 1000),
        taken_milli=counted(held, Sum("gpu_milli")) + counted(outside, Count("pk") * 1000),
    )


def cluster_for(access: Access, name: str) -> Cluster:
    access.must_somewhere(Can.SEE)
    found = Cluster.objects.filter(name=name).first()
    if found is None:
        raise Http404(f"There is no cluster {name}.")
    return found


def slurm_for(access: Access, name: str) -> SlurmCluster:
    """How the Slurm of a cluster is reached, for those who operate it."""
    access.must_everywhere(Can.OPERATE)
    row = SlurmCluster.objects.select_related("cluster", "import_waits").filter(cluster=cluster_for(access, name)).first()
    if row is None:
        raise Missing(f"{name} is not connected to Slurm.")
    return row


def kubernetes_for(access: Access, name: str) -> KubernetesCluster:
    """How the Kubernetes of a cluster is reached, for those who operate it."""
    access.must_everywhere(Can.OPERATE)
    row = KubernetesCluster.objects.select_related("cluster", "import_waits").filter(cluster=cluster_for(access, name)).first()
    if row is None:
        raise Missing(f"{name} is not connected to Kubernetes.")
    return row


def has_gpus() -> Exists:
    """Whether the cluster of a row has GPUs now; what was read of one whose GPUs are gone says nothing of the fleet."""
    return Exists(Gpu.objects.filter(node__cluster=OuterRef("cluster"), removed_at__isnull=True, node__removed_at__isnull=True))


def pool_for(access: Access, cluster: str, name: str) -> Pool:
    access.must_somewhere(Can.SEE)
    found = Pool.objects.filter(cluster__name=cluster, name=name).select_related("cluster").first()
    if found is None:
        raise Http404(f"There is no pool {name} in {cluster}.")
    return found


def pool_sums(pool: Pool) -> Sums:
    """What a pool holds. Four queries."""
    found = Sums()
    for _, leaf in _leaves(pool.cluster, pool=pool):
        found.add(leaf.sums)
    return found


@dataclass(frozen=True, slots=True)
class FormerFolder:
    """A shared folder that a Slurm cluster had before, and what jobs may still resume from there."""

    folder: str
    checkpoints: int
    jobs: int
    late: int  # old checkpoints there that should have been deleted long ago


def former_folders(name: str, *, now: datetime) -> list[FormerFolder]:
    """Those of a connected cluster, the newest first. None is looked at: it may hang."""
    row = SlurmCluster.objects.filter(cluster__name=name).first()
    if row is None:
        return []
    found = []
    for folder in row.former_folders:
        below = f"{Path(folder) / f'gpufleet-{row.tag}'}/"
        kept = Checkpoint.objects.filter(location__startswith=below, removed_at__isnull=True, job__ended_at__isnull=True)
        counts = kept.aggregate(checkpoints=Count("pk"), jobs=Count("job", distinct=True))
        found.append(FormerFolder(folder, **counts, late=checkpoints_late(now=now).filter(location__startswith=below).count()))
    return found


def cluster_tree(cluster: Cluster) -> Tree:
    """The whole tree in seven queries, whatever its depth."""
    levels = list(cluster.levels.order_by("depth"))
    tree = Tree(cluster, levels, {pool: Sums() for pool in cluster.pools.order_by("name")}, [], [], Sums())
    by_pool = {pool.pk: sums for pool, sums in tree.pools.items()}
    by_level = {level.pk: level for level in levels}
    branches: dict[int, Branch] = {}
    parents: dict[int, int | None] = {}
    for domain in sorted(Domain.objects.filter(cluster=cluster), key=lambda domain: natural(domain.path)):
        level = by_level[domain.level_id]
        bandwidth = domain.bandwidth_gbps if domain.bandwidth_gbps is not None else level.bandwidth_gbps
        branches[domain.pk] = Branch(domain.name, domain.path, level.name, bandwidth, level.oversubscription_centi, level.is_rail_level)
        parents[domain.pk] = domain.parent_id
    for pk, branch in branches.items():
        above = parents[pk]
        (branches[above].branches if above in branches and above is not None else tree.branches).append(branch)
    rails = dict(
        Node.objects.filter(cluster=cluster, removed_at__isnull=True, nics__rail__isnull=False)
        .order_by()
        .values_list("domain_id")
        .annotate(Count("nics__rail", distinct=True))
    )
    for domain_id, leaf in _leaves(cluster):
        if domain_id in branches:
            branches[domain_id].leaves.append(leaf)
        else:
            tree.unplaced.append(leaf)
        tree.sums.add(leaf.sums)
        if leaf.pool in by_pool:
            by_pool[leaf.pool].add(leaf.sums)
        above = domain_id
        while above is not None and above in branches:
            branches[above].sums.add(leaf.sums)
            above = parents[above]
    for pk, branch in branches.items():
        branch.rails = rails.get(pk, 0)
    return tree


def _leaves(cluster: Cluster, *, pool: Pool | None = None) -> list[tuple[int | None, Leaf]]:
    """Nodes of a cluster, or of one pool of it, each with its domain."""
    which: dict[str, Any] = {"node__cluster": cluster} if pool is None else {"node__pool": pool}
    nodes = (
        Node.objects.filter(**{place.removeprefix("node__"): one for place, one in which.items()}, removed_at__isnull=True)
        .order_by("pk")
        .values_list("pk", "public_id", "name", "health", "spare", "gpu_type_id", "island", "domain_id", "pool_id")
    )
    present = Gpu.objects.filter(**which, removed_at__isnull=True)
    held = dict(open_placements().filter(**which, gpu__isnull=False).order_by().values_list("gpu_id").annotate(Sum("gpu_milli")))
    outside = set(outside_seats().filter(**which).values_list("gpu_id", flat=True))
    sums: dict[int, Sums] = {}
    for pk, node_id, health in present.order_by().values_list("pk", "node_id", "health"):
        mine = sums.setdefault(node_id, Sums(nodes=1))
        mine.gpus += 1
        mine.sick_gpus += health != Health.HEALTHY
        mine.taken_milli += 1000 if pk in outside else held.get(pk, 0)
        mine.outside += pk in outside
        mine.free += health == Health.HEALTHY and pk not in held and pk not in outside
    leaves: list[tuple[int | None, Leaf]] = []
    for pk, public_id, name, health, spare, gpu_type, island, domain_id, pool_id in sorted(nodes, key=lambda row: natural(row[2])):
        mine = sums.get(pk, Sums(nodes=1))
        mine.nodes_out, mine.spares = int(health not in IN_SERVICE), int(spare)
        if health != Health.HEALTHY or spare:
            mine.free = 0
        leaves.append((domain_id, Leaf(public_id, name, health, spare, gpu_type or "", island, pool_id, mine)))
    return leaves
