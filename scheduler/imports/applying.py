"""Carries a plan out with few statements, whatever its size, and writes the history of what it touched. The caller holds the transaction."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db.models import Model, QuerySet

from gpufleet.core.audit import Actor
from gpufleet.core.ids import public_ids
from scheduler.engine.model.mig import BOARDS
from scheduler.imports.plan import Change, ChangedGpu, NodeKey, Plan
from scheduler.models import Cluster, Domain, Gpu, GpuMode, GpuType, Health, InventoryEvent, MigInstance, Nic, Node, Pool, TopologyLevel
from scheduler.services.hardware.geometry import geometry_of, instance_rows
from scheduler.services.loop.usage import timeline_follow

BATCH = 500


@dataclass
class Applying:
    plan: Plan
    actor: Actor
    cause: str
    now: datetime
    clusters: dict[str, Cluster] = field(default_factory=dict)
    pools: dict[tuple[str, str], Pool] = field(default_factory=dict)
    domains: dict[tuple[str, str], Domain] = field(default_factory=dict)
    nodes: dict[NodeKey, Node] = field(default_factory=dict)
    gpus: dict[tuple[NodeKey, int], Gpu] = field(default_factory=dict)
    restored: list[Cluster] = field(default_factory=list)  # back in the fleet, as they were before
    touched_nodes: set[int] = field(default_factory=set)
    touched_gpus: set[int] = field(default_factory=set)

    def run(self) -> None:
        self._frame()
        self._nodes()
        self._gone()
        self._gpus()
        self._ports()
        self._history()
        timeline_follow(gpus=self.touched_gpus, at=self.now)

    # Types, clusters, levels, pools, domains

    def _frame(self) -> None:
        plan = self.plan
        GpuType.objects.bulk_create(plan.new_types)
        for changed in (plan.changed_types, plan.changed_clusters, plan.changed_levels, plan.changed_domains):
            for row, fields in changed:
                _save(row, fields)
        ids = _ids("c", len(plan.new_clusters))
        Cluster.objects.bulk_create(
            Cluster(public_id=public, name=name, created_at=self.now, **fields) for public, (name, fields) in zip(ids, plan.new_clusters, strict=True)
        )
        keys = {change.node[0] for change in plan.changes if change.node} | {name for name, _ in plan.new_clusters}
        keys |= {name for name, _ in plan.new_pools} | {name for name, _, _ in plan.new_domains} | {name for name, _, _ in plan.new_levels}
        self.restored = list(Cluster.objects.select_for_update().filter(name__in=keys, removed_at__isnull=False).order_by("name"))
        Cluster.objects.filter(pk__in=[cluster.pk for cluster in self.restored]).update(removed_at=None)
        self.clusters = {cluster.name: cluster for cluster in Cluster.objects.filter(name__in=keys)}
        by_pk = {cluster.pk: cluster.name for cluster in self.clusters.values()}
        TopologyLevel.objects.bulk_create(
            TopologyLevel(cluster=self.clusters[name], depth=depth, **fields) for name, depth, fields in plan.new_levels
        )
        ids = _ids("p", len(plan.new_pools))
        Pool.objects.bulk_create(
            Pool(public_id=public, cluster=self.clusters[cluster], name=name) for public, (cluster, name) in zip(ids, plan.new_pools, strict=True)
        )
        self.pools = {(by_pk[pool.cluster_id], pool.name): pool for pool in Pool.objects.filter(cluster__in=by_pk)}
        self.domains = {(by_pk[domain.cluster_id], domain.path): domain for domain in Domain.objects.filter(cluster__in=by_pk)}
        self._new_domains(by_pk)

    def _new_domains(self, by_pk: dict[int, str]) -> None:
        """Level by level, as a domain needs its parent's key."""
        levels = {(by_pk[level.cluster_id], level.depth): level for level in TopologyLevel.objects.filter(cluster__in=by_pk)}
        for depth in sorted({len(place) for _, place, _ in self.plan.new_domains}):
            layer = [(cluster, place, fields) for cluster, place, fields in self.plan.new_domains if len(place) == depth]
            rows = [
                Domain(
                    public_id=public,
                    cluster=self.clusters[cluster],
                    level=levels[cluster, depth - 1],
                    parent=self.domains.get((cluster, "/".join(place[:-1]))),
                    name=place[-1],
                    path="/".join(place),
                    **fields,
                )
                for public, (cluster, place, fields) in zip(_ids("d", len(layer)), layer, strict=True)
            ]
            for row, (cluster, *_) in zip(Domain.objects.bulk_create(rows, batch_size=BATCH), layer, strict=True):
                self.domains[cluster, row.path] = row

    # Nodes

    def _nodes(self) -> None:
        plan = self.plan
        rows = [
            Node(
                public_id=public,
                cluster=self.clusters[new.key[0]],
                name=new.key[1],
                pool=self.pools[new.key[0], new.pool] if new.pool else None,
                domain=self.domains[new.key[0], new.place] if new.place else None,
                health_since=self.now,
                health_reason=self.cause[:300] if new.fields.get("health", Health.HEALTHY) != Health.HEALTHY else "",
                created_at=self.now,
                **new.fields,
            )
            for public, new in zip(_ids("n", len(plan.new_nodes)), plan.new_nodes, strict=True)
        ]
        for row, new in zip(Node.objects.bulk_create(rows, batch_size=BATCH), plan.new_nodes, strict=True):
            self.nodes[new.key] = row
        for changed in plan.changed_nodes:
            fields = dict(changed.fields)
            if "pool" in changed.moves:
                pool = changed.moves["pool"]
                fields["pool"] = self.pools[changed.key[0], pool] if pool else None
            if "path" in changed.moves:
                path = changed.moves["path"]
                fields["domain"] = self.domains[changed.key[0], path] if path else None
            _save(changed.node, fields)
        touched = {change.node for change in plan.changes if change.node and change.kind != "kept"} - self.nodes.keys()
        for node in Node.objects.filter(cluster__name__in={key[0] for key in touched}, removed_at__isnull=True).select_related("cluster"):
            if (node.cluster.name, node.name) in touched:
                self.nodes[node.cluster.name, node.name] = node
        self.touched_nodes = {node.pk for node in self.nodes.values()}

    def _gone(self) -> None:
        plan = self.plan
        gone = Gpu.objects.filter(node__in=plan.gone_nodes, removed_at__isnull=True) | Gpu.objects.filter(pk__in=[gpu.pk for gpu in plan.gone_gpus])
        keys = list(gone.values_list("pk", flat=True))
        self.touched_gpus.update(keys)
        _update(MigInstance.objects.filter(removed_at__isnull=True), "gpu_id__in", keys, removed_at=self.now)
        _update(Gpu.objects.all(), "pk__in", keys, removed_at=self.now)
        _update(Node.objects.all(), "pk__in", [node.pk for node in plan.gone_nodes], removed_at=self.now)
        _delete(Nic.objects.all(), [nic.pk for nic in plan.gone_nics])

    # GPUs

    def _gpus(self) -> None:
        plan = self.plan
        memory = dict(GpuType.objects.values_list("name", "memory_mib"))
        boards = dict(GpuType.objects.values_list("name", "board"))
        rows = [
            Gpu(
                public_id=public,
                node=self.nodes[new.node],
                index=new.index,
                health_since=self.now,
                health_reason=self.cause[:300] if new.fields.get("health", Health.HEALTHY) != Health.HEALTHY else "",
                created_at=self.now,
                **({"memory_mib": memory[new.fields["gpu_type_id"]]} | new.fields),
            )
            for public, new in zip(_ids("g", len(plan.new_gpus)), plan.new_gpus, strict=True)
        ]
        # A board that moved must leave its old row before its UUID can stand in another.
        moved = [changed.gpu.pk for changed in plan.changed_gpus if "uuid" in changed.fields and changed.fields["uuid"] != changed.gpu.uuid]
        _update(Gpu.objects.all(), "pk__in", moved, uuid="")
        instances: list[MigInstance] = []
        for row, new in zip(Gpu.objects.bulk_create(rows, batch_size=BATCH), plan.new_gpus, strict=True):
            self.gpus[new.node, new.index] = row
            if new.layout:
                instances += self._instances(row, boards[row.gpu_type_id], new.layout, new.instance_uuids)
        for changed in plan.changed_gpus:
            instances += self._changed_gpu(changed, boards)
        for instance, public in zip(instances, _ids("m", len(instances)), strict=True):
            instance.public_id = public
        MigInstance.objects.bulk_create(instances, batch_size=BATCH)
        self.touched_gpus |= {gpu.pk for gpu in self.gpus.values()} | {changed.gpu.pk for changed in plan.changed_gpus}
        self.touched_gpus.update(
            Gpu.objects.filter(node__in=[changed.node for changed in plan.changed_nodes], removed_at__isnull=True).values_list("pk", flat=True)
        )

    def _changed_gpu(self, changed: ChangedGpu, boards: dict[str, str]) -> list[MigInstance]:
        gpu = changed.gpu
        _save(gpu, changed.fields)
        if changed.layout is None:
            return []
        present = list(MigInstance.objects.filter(gpu=gpu, removed_at__isnull=True))
        leaving = [instance.pk for instance in present if geometry_of([instance])[0] not in changed.layout]
        _update(MigInstance.objects.all(), "pk__in", leaving, removed_at=self.now)
        coming = tuple(instance for instance in changed.layout if instance not in geometry_of(present))
        return self._instances(gpu, boards[gpu.gpu_type_id], coming, changed.instance_uuids) if gpu.mode == GpuMode.MIG else []

    def _instances(self, gpu: Gpu, board: str, layout: tuple[Any, ...], uuids: dict[int, str]) -> list[MigInstance]:
        rows = instance_rows(gpu, BOARDS[board], layout, [""] * len(layout), self.now)
        for row in rows:
            row.uuid = uuids.get(row.start, "")
        return rows

    def _ports(self) -> None:
        new = self.plan.new_nics
        Nic.objects.bulk_create(
            (
                Nic(public_id=public, node=self.nodes[key], name=name, **fields)
                for public, (key, name, fields) in zip(_ids("nic", len(new)), new, strict=True)
            ),
            batch_size=BATCH,
        )
        for nic, fields in self.plan.changed_nics:
            _save(nic, fields)

    # History

    def _history(self) -> None:
        changed = {(changed.gpu.node_id, changed.gpu.index): changed.gpu for changed in self.plan.changed_gpus}
        gone = {(gpu.node_id, gpu.index): gpu for gpu in self.plan.gone_gpus}
        gone_nodes = {(node.cluster.name, node.name): node for node in self.plan.gone_nodes}
        events = []
        for change in self.plan.effective:
            if change.node is None:
                continue
            node = self.nodes.get(change.node) or gone_nodes[change.node]
            place = (node.pk, change.gpu if change.gpu is not None else -1)
            gpu = changed.get(place) or gone.get(place) or (self.gpus.get((change.node, change.gpu)) if change.gpu is not None else None)
            events.append(self._event(change, node, gpu))
        InventoryEvent.objects.bulk_create(events, batch_size=BATCH)

    def _event(self, change: Change, node: Node, gpu: Gpu | None) -> InventoryEvent:
        kind = "geometry" if change.kind == "changed" and "split" in change.after else change.kind
        after = {**change.after, "mode": gpu.mode, "layout": change.after["split"]} if kind == "geometry" and gpu else change.after
        return InventoryEvent(
            at=self.now,
            node=node,
            gpu=gpu,
            cluster_id=node.cluster_id,
            kind=kind,
            before=change.before or None,
            after=after or None,
            cause=self.cause[:300],
            actor=self.actor.user,
            actor_name=self.actor.name,
        )


def _ids(prefix: str, count: int) -> list[str]:
    return public_ids(prefix, count) if count else []


def _save(row: Model, fields: dict[str, Any]) -> None:
    for name, value in fields.items():
        setattr(row, name, value)
    if fields:
        row.save(update_fields=[name.removesuffix("_id") for name in fields])


def _batches(keys: list[int]) -> Iterable[list[int]]:
    return (keys[first : first + BATCH] for first in range(0, len(keys), BATCH))


def _update(rows: "QuerySet[Any, Any]", column: str, keys: list[int], **values: Any) -> None:
    for some in _batches(keys):
        rows.filter(**{column: some}).update(**values)


def _delete(rows: "QuerySet[Any, Any]", keys: list[int]) -> None:
    for some in _batches(keys):
        rows.filter(pk__in=some).delete()
