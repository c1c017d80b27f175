"""Discovery: what this machine has goes the way of every import, by a preview."""

from dataclasses import dataclass, field, replace
from datetime import datetime

from django.conf import settings

from quotas.permissions import Access, Can
from scheduler.backends.registry import local_backend
from scheduler.hardware.discovery import Machine, document_of, machine_read
from scheduler.models import Cluster, GpuType, Node
from scheduler.services.hardware.checks import Step, StepsFailed
from scheduler.services.hardware.imports import Preview, import_preview
from scheduler.services.hardware.local_checks import local_check
from scheduler.services.hardware.local_pins import labels_now
from scheduler.services.hardware.slurm import must_be_local

DEFAULT_CLUSTER = "local"


@dataclass(frozen=True, slots=True)
class Discovered:
    machine: Machine
    document: str
    preview: Preview
    steps: list[Step] = field(default_factory=list)


def machine_document(machine: Machine, cluster: str = "") -> str:
    """The machine as an import file. Without a cluster it stays in the one that it is in already."""
    if not cluster:
        found = Node.objects.filter(name=machine.name, removed_at__isnull=True).order_by("pk").values_list("cluster__name", flat=True).first()
        cluster = found or DEFAULT_CLUSTER
    known: dict[str, str] = {}
    for name, board in GpuType.objects.exclude(board="").order_by("name").values_list("name", "board"):
        known.setdefault(board, name)
    fresh = not Cluster.objects.filter(name=cluster).exists()
    # Where jobs may run on this machine, that is what its cluster is for.
    backend = "local" if settings.LOCAL["LOCAL"] else ""
    there = Node.objects.filter(name=machine.name, cluster__name=cluster, removed_at__isnull=True).first()
    labels: dict[str, object] | None = None
    if backend and not Cluster.objects.filter(name=cluster).exclude(backend=backend).exists():
        labels = labels_now(there.labels if there is not None else {})
        if labels == (there.labels if there is not None else {}):
            labels = None
        machine = replace(machine, cpus=local_backend().pins.capacity() or machine.cpus)  # so many can be pinned, and more are not planned with
    return document_of(
        machine,
        cluster=cluster,
        new_cluster=fresh,
        known_types=known,
        backend=backend,
        stated_of_types={*GpuType.objects.exclude(hbm_gbps=0).values_list("name", flat=True)},
        stated_of_links=there is not None and there.pcie_gbps is not None,
        stated_ports=there is not None and there.nics.exists(),
        labels=labels,
    )


def machine_add(*, access: Access, cluster: str, now: datetime) -> Discovered:
    """Try each step of the way of a local job, then preview this machine as part of a cluster. Nothing is kept before that is applied.

    Raises ValidationError for a cluster that is another one's, and StepsFailed.
    """
    access.must_everywhere(Can.OPERATE)
    must_be_local(cluster)
    steps = local_check()
    if any(step.hinders for step in steps):
        raise StepsFailed(steps)
    return replace(machine_discover(access=access, cluster=cluster, now=now), steps=steps)


def machine_discover(*, access: Access, cluster: str, now: datetime) -> Discovered:
    """Look at this machine and preview what that would change. Raises `NothingFound` where there is no GPU to ask."""
    access.must_everywhere(Can.OPERATE)
    machine = machine_read(virtual=settings.VIRTUAL_GPUS)
    document = machine_document(machine, cluster)
    preview = import_preview(access=access, text=document, form="yaml", source=f"discovery of {machine.name}", remove_missing=False, now=now)
    return Discovered(machine, document, preview)
