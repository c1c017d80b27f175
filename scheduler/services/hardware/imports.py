"""Import in two steps: a preview that is kept, and applying exactly what it showed, in one transaction."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction

from gpufleet.core.audit import audit_record
from gpufleet.core.faults import Conflict
from gpufleet.core.ids import public_id
from quotas.permissions import Access, Can
from scheduler.hardware.kubernetes import Described, document_of
from scheduler.hardware.kubernetes_levels import Known, levels_stated
from scheduler.imports.applying import Applying
from scheduler.imports.comparison import clusters_named, compare
from scheduler.imports.documents import KUBERNETES, Fault, Unreadable, read
from scheduler.imports.plan import Plan
from scheduler.imports.present import present_read
from scheduler.imports.schema import read_document
from scheduler.imports.spreadsheet import tree_of
from scheduler.models import Cluster, GpuType, InventoryImport, KubernetesCluster, Node, TopologyLevel
from scheduler.services.hardware.hardware import hardware_published
from scheduler.services.loop.lease import lease_want
from scheduler.services.loop.usage import usage_moment

PREVIEWS_KEPT = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class Preview:
    """What a file would do. There is nothing to apply where it has faults or changes nothing. `notes`: what an operator should know of it."""

    plan: Plan
    upload: InventoryImport | None
    notes: Sequence[str] = ()

    @property
    def faults(self) -> list[Fault]:
        return self.plan.faults


def import_plan(*, text: str, form: str, remove_missing: bool, for_update: bool = False) -> Plan:
    """Read a file and compare it with the inventory. All that is wrong with it is in the plan's faults, by line and column."""
    try:
        root, faults = read(text, form)
    except Unreadable as fault:
        return Plan(faults=fault.faults)
    document = read_document(tree_of(root, faults) if form == "csv" else root, faults)
    plan = compare(document, present_read(clusters_named(document), for_update=for_update), remove_missing=remove_missing)
    plan.faults = sorted({(fault.line, fault.column, fault.message): fault for fault in [*document.faults, *plan.faults]}.values())
    return plan


def import_preview(
    *, access: Access, text: str, form: str, source: str, remove_missing: bool, now: datetime, cluster: str = "", notes: Sequence[str] = ()
) -> Preview:
    """Say what the file would do, and keep it for `import_apply`, with `notes`. The inventory is left as it is. `cluster` is that of nodes of
    Kubernetes."""
    access.must_everywhere(Can.OPERATE)
    if form == KUBERNETES:
        try:
            found = kubernetes_text(text, cluster or KUBERNETES)
        except Unreadable as fault:
            return Preview(Plan(faults=fault.faults), None)
        text, form, notes = found.text, "yaml", found.notes
    with transaction.atomic():
        plan = import_plan(text=text, form=form, remove_missing=remove_missing)
        if plan.faults or not plan.effective:
            return Preview(plan, None, notes)
        InventoryImport.objects.filter(applied_at__isnull=True, created_at__lt=now - PREVIEWS_KEPT).delete()
        upload = InventoryImport.objects.create(
            public_id=public_id("i"),
            created_at=now,
            created_by=access.actor.user,
            created_by_name=access.actor.name,
            source=source[:200],
            form=form,
            text=text,
            remove_missing=remove_missing,
            digest=plan.digest,
            counts=plan.counts,
            notes=list(notes),
        )
    return Preview(plan, upload, notes)


def kubernetes_text(text: str, cluster: str) -> Described:
    """Nodes of Kubernetes as an import file, with the GPU types as the inventory has them, and the levels that the cluster's connection states."""
    known: dict[str, str] = {}
    for name, board in GpuType.objects.exclude(board="").order_by("name").values_list("name", "board"):
        known.setdefault(board, name)
    return document_of(
        text,
        cluster=cluster,
        known_types=known,
        new_cluster=not Cluster.objects.filter(name=cluster).exists(),
        stated=levels_stated(KubernetesCluster.objects.filter(cluster__name=cluster).values_list("levels", flat=True).first() or ""),
        there=topology_known(cluster),
    )


def topology_known(cluster: str) -> Known:
    """The levels of a cluster, and where its nodes stand. Nothing is known of one that is new."""
    levels = TopologyLevel.objects.filter(cluster__name=cluster).order_by("depth").values_list("name", flat=True)
    there = Node.objects.filter(cluster__name=cluster, removed_at__isnull=True, domain__isnull=False).values_list("name", "domain__path")
    return Known(tuple(levels), {name: tuple(path.split("/")) for name, path in there})


def import_apply(*, access: Access, upload: InventoryImport, now: datetime) -> Plan:
    """Do what the preview showed, all of it or nothing. Where the inventory has changed so that the file would now do something else, refuse."""
    access.must_everywhere(Can.OPERATE)
    with transaction.atomic():
        now = usage_moment(now=now)
        upload = InventoryImport.objects.select_for_update().get(pk=upload.pk)
        if upload.applied_at is not None:
            raise Conflict(f"{upload.source} was applied already, by {upload.applied_by_name}.")
        plan = import_plan(text=upload.text, form=upload.form, remove_missing=upload.remove_missing, for_update=True)
        if plan.faults or plan.digest != upload.digest:
            raise Conflict("The inventory has changed since this preview was made, so the file would do something else now. Look at a fresh preview.")
        done = Applying(plan=plan, actor=access.actor, cause=f"import {upload.public_id}: {upload.source}", now=now)
        done.run()
        upload.applied_at, upload.applied_by_name = now, access.actor.name
        upload.save(update_fields=["applied_at", "applied_by_name"])
        for cluster in done.restored:
            audit_record(
                actor=access.actor,
                action="cluster.restore",
                kind="cluster",
                object_id=cluster.public_id,
                before={"removed": f"{cluster.removed_at:%Y-%m-%d %H:%M:%S}"},
                after={"cluster": cluster.name, "import": upload.public_id},
            )
        audit_record(
            actor=access.actor,
            action="inventory.import",
            kind="import",
            object_id=upload.public_id,
            after={"source": upload.source, **plan.counts},
        )
        hardware_published(nodes=sorted(done.touched_nodes), gpus=sorted(done.touched_gpus))
        lease_want()
    return plan
