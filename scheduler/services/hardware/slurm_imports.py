"""Imports of clusters on Slurm and Kubernetes by themselves: what is safe is applied, all else is kept as a preview for an operator."""

import logging
from datetime import datetime, timedelta
from itertools import chain
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import QuerySet

from gpufleet.core.audit import SYSTEM, audit_record
from gpufleet.core.faults import Conflict
from quotas.permissions import Access, Can, Grant
from scheduler.backends.base import BackendError
from scheduler.hardware.slurm import UnknownType
from scheduler.imports.documents import Unreadable
from scheduler.imports.plan import Change, Plan
from scheduler.models import Cluster, InventoryImport, KubernetesCluster, Node, SlurmCluster
from scheduler.services.hardware.imports import import_apply, import_plan, import_preview
from scheduler.services.hardware.kubernetes import kubernetes_document
from scheduler.services.hardware.slurm import slurm_document, slurm_row

log = logging.getLogger(__name__)
ITSELF = Access(SYSTEM, (Grant("", frozenset({Can.OPERATE})),))
Connection = SlurmCluster | KubernetesCluster
LEAST_MINUTES, MOST_MINUTES = 5, 7 * 24 * 60
# Slurm and Kubernetes enforce these whatever the inventory says: with other figures the scheduler would plan what Slurm never starts.
FOLLOWED = frozenset({"cpus", "host_memory_mib", "labels"})
FAULT_LENGTH = 300


def import_every(*, access: Access, cluster: str, minutes: int, now: datetime) -> Connection:
    """Import a cluster by itself so often; 0: never."""
    access.must_everywhere(Can.OPERATE)
    if minutes and not LEAST_MINUTES <= minutes <= MOST_MINUTES:
        raise ValidationError({"minutes": f"State 0, or {LEAST_MINUTES} to {MOST_MINUTES} minutes."})
    with transaction.atomic():
        found = KubernetesCluster.objects.select_related("cluster").filter(cluster__name=cluster).first() or slurm_row(cluster)
        row = _rows(found).select_for_update().get(pk=found.pk)
        before, row.import_minutes = row.import_minutes, minutes
        if before != minutes:
            row.imported_at, row.import_fault, row.import_waits = None, "", None
            row.save(update_fields=["import_minutes", "imported_at", "import_fault", "import_waits"])
            audit_record(
                actor=access.actor,
                action=f"{row.cluster.backend}.import_every",
                kind="cluster",
                object_id=row.cluster.public_id,
                before={"import_minutes": before},
                after={"import_minutes": minutes},
            )
    return row


def imports_turn(*, now: datetime) -> int:
    """Import the clusters that are due. Returns of how many something was applied. A doubled call finds that they were begun."""
    applied = 0
    for row in chain(_due(SlurmCluster), _due(KubernetesCluster)):
        last = row.imported_at
        if last is not None and timedelta() <= now - last < timedelta(minutes=row.import_minutes):
            continue
        if not _rows(row).filter(pk=row.pk, imported_at=last, import_minutes=row.import_minutes).update(imported_at=now):
            continue
        fault, waits, done = "", None, False
        try:
            waits, done = _import(row, now)
        except (BackendError, UnknownType, Unreadable, ValidationError, Conflict) as told:
            fault = " ".join(told.messages) if isinstance(told, ValidationError) else str(told)
            log.warning("%s was not imported by itself: %s", row.cluster.name, fault)
        _rows(row).filter(pk=row.pk).update(import_fault=fault[:FAULT_LENGTH], import_waits=waits)
        applied += done
    return applied


def _rows(row: Connection) -> QuerySet[Any]:
    return type(row).objects.all()


def _due(kind: type[SlurmCluster] | type[KubernetesCluster]) -> QuerySet[Any]:
    return kind.objects.filter(import_minutes__gt=0, cluster__removed_at__isnull=True).select_related("cluster").order_by("cluster_id")


def _import(row: Connection, now: datetime) -> tuple[InventoryImport | None, bool]:
    """The preview that is to be looked at, if any, and whether one was applied."""
    cluster = row.cluster.name
    is_kubernetes = isinstance(row, KubernetesCluster)
    found = kubernetes_document(cluster=cluster) if is_kubernetes else slurm_document(cluster=cluster, types={})
    text, notes, source = found.text, found.notes, f"{'Kubernetes' if is_kubernetes else 'Slurm'} of {cluster}, by itself"
    plan = import_plan(text=text, form="yaml", remove_missing=False)
    if plan.faults:
        raise ValidationError("; ".join(fault.message for fault in plan.faults[:3]))
    # Slurm may have taken its time, and a cluster that somebody has removed meanwhile is brought back by people alone.
    if not plan.effective or Cluster.objects.filter(name=cluster, removed_at__isnull=False).exists():
        return None, False
    # Levels that whoever stands there already would get are for people: nobody takes a level away again.
    is_new = not Node.objects.filter(cluster__name=cluster).exists()
    if not is_safe(plan, levels=is_new):
        known = InventoryImport.objects.filter(source=source, applied_at__isnull=True, digest=plan.digest).order_by("-pk").first()
        if known is not None:
            return known, False
    upload = import_preview(access=ITSELF, text=text, form="yaml", source=source, remove_missing=False, notes=notes, now=now).upload
    if upload is None or not is_safe(plan, levels=is_new):
        return upload, False
    if upload.digest != plan.digest:
        raise Conflict("The inventory has changed since it was compared with Slurm.")
    import_apply(access=ITSELF, upload=upload, now=now)
    return None, True


def is_safe(plan: Plan, *, levels: bool = False) -> bool:
    """Whether it only adds, or follows what Slurm enforces anyway: nothing that runs, waits or is reserved stands elsewhere than before. `levels`:
    they may be added, too."""
    return all(_is_safe(change, levels=levels) for change in plan.effective)


def _is_safe(change: Change, *, levels: bool) -> bool:
    if change.kind == "added":
        return levels or change.what != "level"
    return change.kind == "changed" and change.what == "node" and {difference.field for difference in change.differences} <= FOLLOWED
