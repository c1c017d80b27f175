"""A cluster leaves the fleet: its nodes are no capacity any more, and what ran there stays readable.

Its row stays, as history, ledger and audit log name it. A cluster of that name that is added again is the same one.
"""

from dataclasses import dataclass
from datetime import datetime

from django.db import transaction

from gpufleet.core.audit import audit_record
from gpufleet.core.faults import Conflict
from quotas.permissions import Access, Can
from scheduler.models import (
    Cluster,
    Gpu,
    InventoryEvent,
    Job,
    JobState,
    KubernetesCluster,
    MigInstance,
    Node,
    Order,
    OutsideJob,
    PlannedHealth,
    PromisedSeat,
    SlurmCluster,
)
from scheduler.selectors.holders import open_placements
from scheduler.services.hardware.giving_up import fits_elsewhere
from scheduler.services.hardware.hardware import check_confirmed, hardware_published
from scheduler.services.loop.lease import lease_want
from scheduler.services.loop.usage import silence_follow, timeline_follow, usage_moment


@dataclass(frozen=True, slots=True)
class Leaves:
    """What leaves the fleet with a cluster. `stranded`: jobs that wait and fit no other one. `folder`: the shared one of its Slurm or Kubernetes."""

    nodes: int
    gpus: int
    planned: int
    stranded: int
    folder: str = ""


def why_not_removed(cluster: Cluster) -> str:
    """Why it cannot leave; empty: it can."""
    if cluster.removed_at is not None:
        return f"{cluster.name} was removed already."
    jobs = _jobs_there(cluster)
    if not jobs:
        return ""
    count = f"{jobs} job{' runs' if jobs == 1 else 's run'} on {cluster.name}, or {'was' if jobs == 1 else 'were'} promised its GPUs"
    return f"{count}: {'give them up' if cluster.silent_since is not None else 'drain its nodes'} first."


def _jobs_there(cluster: Cluster) -> int:
    """Those that hold something there, are asked to leave, or were promised to."""
    held = set(open_placements().filter(node__cluster=cluster).values_list("job_id", flat=True))
    untold = Order.objects.filter(cluster=cluster, done_at__isnull=True, attempt__ended_at__isnull=True, attempt__isnull=False)
    held |= set(untold.values_list("attempt__job_id", flat=True))
    return len(held | set(PromisedSeat.objects.filter(node__cluster=cluster).values_list("promise__job_id", flat=True)))


def cluster_leaves(cluster: Cluster) -> Leaves:
    nodes = Node.objects.filter(cluster=cluster, removed_at__isnull=True)
    gpus = Gpu.objects.filter(node__in=nodes, removed_at__isnull=True)
    fits, types = fits_elsewhere(cluster), set(gpus.values_list("gpu_type_id", flat=True))
    waiting = Job.objects.filter(state__in=(JobState.QUEUED, JobState.PREEMPTED), held_at__isnull=True)
    row = SlurmCluster.objects.filter(cluster=cluster).first() or KubernetesCluster.objects.filter(cluster=cluster).first()
    return Leaves(
        nodes.count(),
        gpus.count(),
        PlannedHealth.objects.filter(node__in=nodes).count(),
        sum(_may_use(job, types) and not fits(job) for job in waiting.only("spec").iterator()),
        row.folder if row is not None else "",
    )


def _may_use(job: Job, types: set[str]) -> bool:
    return all(not role.get("gpu_types") or types & set(role["gpu_types"]) for role in job.spec.get("roles", ()))


def cluster_remove(*, access: Access, cluster: Cluster, reason: str, confirm: str, now: datetime) -> Leaves:
    """Take it out of the fleet. What Slurm runs there beside gpufleet's jobs goes on; nothing on its nodes or in its folders is touched."""
    access.must_everywhere(Can.OPERATE)
    check_confirmed(cluster.name, confirm=confirm, reason=reason)
    found = cluster_leaves(cluster)  # goes through all who wait: nobody is to wait for that
    with transaction.atomic():
        at = usage_moment(now=now)
        row = Cluster.objects.select_for_update().get(pk=cluster.pk)
        # Whoever places something there locks its nodes first, and finds them gone.
        nodes = list(Node.objects.select_for_update().filter(cluster=row, removed_at__isnull=True).order_by("pk"))
        if fault := why_not_removed(row):
            raise Conflict(fault)
        keys = [node.pk for node in nodes]
        gpus = list(Gpu.objects.filter(node__among=keys, removed_at__isnull=True).values_list("pk", flat=True))
        PlannedHealth.objects.filter(node__among=keys).delete()
        MigInstance.objects.filter(gpu__among=gpus, removed_at__isnull=True).update(removed_at=at)
        Gpu.objects.filter(pk__among=gpus).update(removed_at=at)
        Node.objects.filter(pk__among=keys).update(removed_at=at)
        timeline_follow(gpus=gpus, at=at)
        cause = f"Cluster {row.name} was removed: {reason.strip()}"[:300]
        InventoryEvent.objects.bulk_create(
            InventoryEvent(
                at=at, node=node, cluster=row, kind="removed", before={"health": node.health}, cause=cause, actor=access.actor.user,
                actor_name=access.actor.name,
            )
            for node in nodes
        )  # fmt: skip
        OutsideJob.objects.filter(cluster=row, until__isnull=True, since__lte=at).update(until=at)
        Order.objects.filter(cluster=row, done_at__isnull=True).update(done_at=at, fault=f"Cluster {row.name} was removed.")
        SlurmCluster.objects.filter(cluster=row).update(import_minutes=0, import_waits=None)
        KubernetesCluster.objects.filter(cluster=row).update(import_minutes=0, import_waits=None)
        row.removed_at, row.silent_since = at, None
        row.save(update_fields=["removed_at", "silent_since"])
        silence_follow(at=at)
        audit_record(
            actor=access.actor,
            action="cluster.remove",
            kind="cluster",
            object_id=row.public_id,
            before={"name": row.name, "backend": row.backend, "nodes": len(nodes), "gpus": len(gpus)},
            reason=reason.strip(),
        )
        hardware_published(nodes=keys, gpus=gpus)
        lease_want()
    return found
