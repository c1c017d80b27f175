"""The inventory as it is now, as far as a document is concerned with it. A dozen queries, whatever the document's size."""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field

from scheduler.models import Cluster, Domain, Gpu, GpuType, MigInstance, Nic, Node, Pool, TopologyLevel
from scheduler.selectors.holders import open_placements


@dataclass(slots=True)
class Present:
    types: dict[str, GpuType] = field(default_factory=dict)
    clusters: dict[str, Cluster] = field(default_factory=dict)
    levels: dict[str, list[TopologyLevel]] = field(default_factory=lambda: defaultdict(list))
    pools: dict[tuple[str, str], Pool] = field(default_factory=dict)
    domains: dict[tuple[str, str], Domain] = field(default_factory=dict)
    nodes: dict[tuple[str, str], Node] = field(default_factory=dict)
    gpus: dict[int, dict[int, Gpu]] = field(default_factory=lambda: defaultdict(dict))
    instances: dict[int, list[MigInstance]] = field(default_factory=lambda: defaultdict(list))
    nics: dict[int, dict[str, Nic]] = field(default_factory=lambda: defaultdict(dict))
    uuids: dict[str, int] = field(default_factory=dict)
    jobs_on_node: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    held_gpus: set[int] = field(default_factory=set)
    held_instances: set[int] = field(default_factory=set)


def present_read(names: Collection[str], *, for_update: bool = False) -> Present:
    """What there is of the named clusters. With `for_update` the clusters are held against other imports until the transaction ends."""
    there = Present(types={kind.name: kind for kind in GpuType.objects.all()})
    clusters = Cluster.objects.filter(name__in=names).order_by("pk")
    there.clusters = {cluster.name: cluster for cluster in (clusters.select_for_update() if for_update else clusters)}
    by_pk = {cluster.pk: cluster.name for cluster in there.clusters.values()}
    for level in TopologyLevel.objects.filter(cluster__in=by_pk).order_by("cluster", "depth"):
        there.levels[by_pk[level.cluster_id]].append(level)
    there.pools = {(by_pk[pool.cluster_id], pool.name): pool for pool in Pool.objects.filter(cluster__in=by_pk)}
    there.domains = {(by_pk[domain.cluster_id], domain.path): domain for domain in Domain.objects.filter(cluster__in=by_pk)}
    nodes = Node.objects.filter(cluster__in=by_pk, removed_at__isnull=True).select_related("cluster", "pool", "domain").order_by("name")
    there.nodes = {(by_pk[node.cluster_id], node.name): node for node in nodes}
    present = {"node__cluster__in": by_pk, "node__removed_at__isnull": True}
    for gpu in Gpu.objects.filter(removed_at__isnull=True, **present):
        there.gpus[gpu.node_id][gpu.index] = gpu
    for instance in MigInstance.objects.filter(removed_at__isnull=True, gpu__node__cluster__in=by_pk).order_by("start"):
        there.instances[instance.gpu_id].append(instance)
    for nic in Nic.objects.filter(**present):
        there.nics[nic.node_id][nic.name] = nic
    there.uuids = dict(Gpu.objects.filter(removed_at__isnull=True).exclude(uuid="").values_list("uuid", "pk"))
    for node_id, gpu_id, mig_id, job_id in open_placements().filter(node__cluster__in=by_pk).values_list("node_id", "gpu_id", "mig_id", "job_id"):
        there.jobs_on_node[node_id].add(job_id)
        there.held_gpus.add(gpu_id)
        there.held_instances.add(mig_id)
    return there
