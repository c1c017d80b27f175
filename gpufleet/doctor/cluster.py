"""One cluster on Slurm or Kubernetes: does each step of a job's way work, and do both sides say the same of its nodes?"""

import os
from collections.abc import Iterator
from functools import partial

from django.conf import settings
from django.db.models import Q

from gpufleet.core.times import now
from gpufleet.doctor import Check, Finding, some
from scheduler.backends.base import BackendError
from scheduler.backends.kubernetes.values import node_of
from scheduler.backends.registry import kubernetes_settings, slurm_settings
from scheduler.backends.slurm.client import SlurmClient
from scheduler.models import Cluster, KubernetesCluster, SlurmCluster
from scheduler.services.hardware.checks import in_time
from scheduler.services.hardware.kubernetes import client_of
from scheduler.services.hardware.kubernetes_checks import kubernetes_check
from scheduler.services.hardware.kubernetes_nodes import differences as kubernetes_differences
from scheduler.services.hardware.slurm_checks import slurm_check
from scheduler.services.hardware.slurm_nodes import differences


def checks_of(name: str) -> dict[str, Check]:
    row = SlurmCluster.objects.select_related("cluster").filter(cluster__name=name).first()
    if row is None:
        connected = KubernetesCluster.objects.select_related("cluster").filter(cluster__name=name).first()
        return _of_kubernetes(connected) if connected is not None else {"connection": partial(_unknown, name)}
    steps = [step for step in slurm_check(slurm_settings(row)) if step.tried]
    checks: dict[str, Check] = {step.name: partial(iter, step.findings) for step in steps}
    if row.import_minutes:
        checks["periodic import"] = partial(_imports, row)
    if row.former_folders:
        checks["former shared folders"] = partial(former_folders_answer, row)
    if "nodes" in checks:
        checks["health of nodes"] = partial(_nodes, row)
    return checks


def _of_kubernetes(row: KubernetesCluster) -> dict[str, Check]:
    steps = [step for step in kubernetes_check(kubernetes_settings(row), cluster=row.cluster.name, kubeconfig=settings.KUBECONFIG) if step.tried]
    checks: dict[str, Check] = {step.name: partial(iter, step.findings) for step in steps}
    if row.import_minutes:
        checks["periodic import"] = partial(_imports, row)
    if "nodes" in checks:
        checks["health of nodes"] = partial(_nodes_of_kubernetes, row)
    return checks


def _nodes_of_kubernetes(row: KubernetesCluster) -> Iterator[Finding]:
    with client_of(kubernetes_settings(row)) as client:
        nodes, _ = client.every("/api/v1/nodes")
    if found := kubernetes_differences(row, [node_of(one) for one in nodes], now=now()):
        told = [f"{one.node.name} ({one.node.health} here, {one.reason.removeprefix('Kubernetes: ')} in Kubernetes)" for one in found]
        yield Finding(f"Kubernetes and the inventory differ on {some(told)}.", "They agree within 15 s when the worker runs.", "Check the worker.")


def _unknown(name: str) -> Iterator[Finding]:
    there = Cluster.objects.filter(removed_at__isnull=True).filter(Q(slurm__isnull=False) | Q(kubernetes__isnull=False))
    known = list(there.order_by("name").values_list("name", flat=True))
    yield Finding(
        f"Cluster {name} is not connected to Slurm or Kubernetes.",
        f"Connected: {some(known)}." if known else "No cluster is connected.",
        "Connect it: gpufleet inventory connect-slurm, or connect-kubernetes.",
    )


def _imports(row: SlurmCluster | KubernetesCluster) -> Iterator[Finding]:
    name = "Slurm" if isinstance(row, SlurmCluster) else "Kubernetes"
    if row.import_fault:
        told = f"The last import of {row.cluster.name} failed: {row.import_fault}"
        yield Finding(told, f"The inventory may lag behind {name}.", f"Import it by hand: gpufleet inventory {name.lower()}.")
    if (waits := row.import_waits) is not None and waits.applied_at is None:
        yield Finding(
            f"Changes of {row.cluster.name} wait for an operator (preview {waits.public_id}).",
            "They move nodes, or change GPUs or how they are split.",
            f"Look at the preview and apply it: the page of the cluster, Import from {name}.",
            note=True,
        )


def former_folders_answer(row: SlurmCluster) -> Iterator[Finding]:
    for folder in row.former_folders:
        try:
            in_time(folder, partial(_look, folder))
        except (BackendError, OSError) as fault:
            yield Finding(
                f"The former shared folder {folder} cannot be looked at: {fault}",
                "Logs there cannot be read, jobs do not resume from there, and old checkpoints there stay. The folder of today is not concerned.",
                "Mount it again. If no job resumes from it (page Connection) and its logs are not needed, unmount it and delete the folder.",
            )


def _look(folder: str) -> None:
    """One that is gone altogether was given up."""
    try:
        os.lstat(folder)
    except FileNotFoundError:
        return
    os.scandir(folder).close()


def _nodes(row: SlurmCluster) -> Iterator[Finding]:
    found = differences(row, SlurmClient(slurm_settings(row)).nodes())
    if found:
        told = [f"{one.node.name} ({one.node.health} here, {'+'.join(one.there.states).lower()} in Slurm)" for one in found]
        yield Finding(
            f"Slurm and the inventory differ on {some(told)}.",
            "They agree within 15 s when the worker runs and the console may change nodes in Slurm.",
            "Check that the console's user is an operator of Slurm (sacctmgr, or SlurmUser).",
        )
