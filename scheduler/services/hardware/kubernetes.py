"""Connecting a cluster to Kubernetes: each step is tried first, and what was found is imported by the usual preview."""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any

import orjson
from django.conf import settings as chosen_settings
from django.core.exceptions import ValidationError
from django.core.validators import slug_re
from django.db import transaction

from gpufleet.core.audit import audit_record
from gpufleet.core.findings import some
from gpufleet.core.ids import public_id
from quotas.permissions import Access, Can
from scheduler.backends.base import BackendError
from scheduler.backends.kubernetes.client import KubernetesClient
from scheduler.backends.kubernetes.config import contexts_of, endpoint_of
from scheduler.backends.kubernetes.values import Settings, quantity, runs_jobs
from scheduler.backends.registry import kubernetes_settings
from scheduler.hardware.kubernetes import Described
from scheduler.hardware.kubernetes_levels import levels_fault, levels_stated, levels_text
from scheduler.imports.documents import Unreadable
from scheduler.imports.plan import Plan
from scheduler.jobs.image import image_fault
from scheduler.models import Cluster, KubernetesCluster
from scheduler.services.hardware.checks import Step, StepsFailed
from scheduler.services.hardware.imports import Preview, import_preview, kubernetes_text, topology_known
from scheduler.services.hardware.kubernetes_checks import kubernetes_check
from scheduler.services.hardware.slurm import must_be_of

BACKEND = "kubernetes"
KEPT = tuple(one.name for one in fields(Settings) if one.name != "tag")


@dataclass(frozen=True, slots=True)
class Connected:
    """A cluster that is kept, and how each step went."""

    row: KubernetesCluster
    steps: list[Step]


def kubernetes_connect(*, access: Access, cluster: str, settings: Settings, now: datetime) -> Connected:
    """Try each step, then keep how a cluster's Kubernetes is reached. The cluster is made where there is none of that name.

    Raises ValidationError for what is wrong by itself, and StepsFailed.
    """
    access.must_everywhere(Can.OPERATE)
    must_be_valid(cluster, settings)
    tried = replace(settings, tag=kubernetes_known(cluster).tag)
    steps = kubernetes_check(tried, cluster=cluster, kubeconfig=chosen_settings.KUBECONFIG)
    if any(step.hinders for step in steps):
        raise StepsFailed(steps)
    with transaction.atomic():
        row, made = Cluster.objects.get_or_create(name=cluster, defaults={"public_id": public_id("c"), "backend": BACKEND})
        must_be_of(row, BACKEND)
        removed_at = Cluster.objects.select_for_update().get(pk=row.pk).removed_at
        Cluster.objects.filter(pk=row.pk).update(removed_at=None)
        before = KubernetesCluster.objects.select_for_update().filter(cluster=row).first()
        values = {name: getattr(settings, name) for name in KEPT} | {"changed_at": now}
        kept, _ = KubernetesCluster.objects.update_or_create(cluster=row, defaults=values, create_defaults=values | {"tag": secrets.token_hex(4)})
        audit_record(
            actor=access.actor,
            action="kubernetes.connect",
            kind="cluster",
            object_id=row.public_id,
            before=({} if before is None else {name: getattr(before, name) for name in KEPT})
            | ({} if removed_at is None else {"removed": f"{removed_at:%Y-%m-%d %H:%M:%S}"}),
            after={name: getattr(kept, name) for name in KEPT} | ({"cluster": cluster} if made or removed_at is not None else {}),
        )
    return Connected(kept, steps)


def must_be_valid(cluster: str, settings: Settings) -> None:
    """What is seen to be wrong before anything is tried, by its field."""
    faults: dict[str, list[str]] = {}
    try:
        Cluster(name=cluster).clean_fields(exclude={"public_id"})
    except ValidationError as fault:
        faults["cluster"] = fault.messages
    try:
        KubernetesCluster(**{name: getattr(settings, name) for name in KEPT}).clean_fields(exclude={"cluster", "tag"})
    except ValidationError as fault:
        faults |= fault.message_dict
    if "cluster" not in faults and (row := Cluster.objects.filter(name=cluster).first()):
        must_be_of(row, BACKEND)
    if settings.image and (wrong := image_fault(settings.image)):
        faults["image"] = [wrong]
    try:
        stated = levels_stated(settings.levels) or ()
    except ValueError as fault:
        faults["levels"] = [str(fault)]
    else:
        if "cluster" not in faults and (wrong := levels_fault(stated, topology_known(cluster).levels, cluster=cluster)):
            faults["levels"] = [wrong]
    for field in ("mount", "folder"):
        value = getattr(settings, field)
        if value and (not value.startswith("/") or value.strip("/") == "" or ".." in value.split("/")):
            faults[field] = ["State an absolute path."]
    if settings.claim and not settings.mount:
        faults["mount"] = ["State where pods see the volume of the claim."]
    if settings.claim and settings.uid is None:
        faults["uid"] = ["State the user id of pods: checkpoints in the volume belong to it."]
    if (settings.mount or settings.folder) and not settings.claim:
        faults["claim"] = ["Name the volume claim, or leave its paths empty."]
    if faults:
        raise ValidationError(faults)


def kubernetes_known(cluster: str) -> Settings:
    """How a cluster is reached so far; nothing is known of one that is new, or of what is no name."""
    row = KubernetesCluster.objects.filter(cluster__name=cluster).first() if slug_re.match(cluster) else None
    return Settings() if row is None else kubernetes_settings(row)


def kubernetes_is_connected(cluster: str) -> bool:
    """A cluster that was removed is not: it is added again as a new one is, and goes on with its history."""
    return bool(slug_re.match(cluster)) and KubernetesCluster.objects.filter(cluster__name=cluster, cluster__removed_at__isnull=True).exists()


def kubernetes_contexts(known: Settings | None = None) -> tuple[str, ...]:
    """What may be chosen: the contexts that this machine offers, and that which the cluster has already."""
    had = (known.context,) if known is not None and known.context else ()
    return tuple(dict.fromkeys((*contexts_of(chosen_settings.KUBECONFIG), *had)))


def kubernetes_asked(cluster: str, given: Mapping[str, Any]) -> Settings:
    """How a cluster is reached once somebody has changed `given` of it. Raises ValidationError for a context that this machine does not offer.
    Without a namespace it is that of the context, else `default`."""
    known = kubernetes_known(cluster)
    chosen = replace(known, **given)
    chosen = replace(chosen, levels=levels_text(chosen.levels))
    contexts = kubernetes_contexts(known)
    if not chosen.context and len(contexts) == 1:
        chosen = replace(chosen, context=contexts[0])
    if chosen.context not in contexts:
        offers = f"This machine offers {some(contexts)}." if contexts else "This machine offers none: set GPUFLEET_KUBECONFIG."
        raise ValidationError({"context": [offers]})
    if not chosen.namespace:
        try:
            chosen = replace(chosen, namespace=endpoint_of(chosen_settings.KUBECONFIG, chosen.context).namespace or "default")
        except BackendError:
            chosen = replace(chosen, namespace="default")  # the steps say what is wrong
    return chosen


def kubernetes_row(cluster: str) -> KubernetesCluster:
    row = KubernetesCluster.objects.select_related("cluster", "import_waits").filter(cluster__name=cluster).first()
    if row is None:
        raise ValidationError({"cluster": f"Cluster {cluster} is not connected to Kubernetes."})
    return row


@contextmanager
def client_of(settings: Settings) -> Iterator[KubernetesClient]:
    """A client for a few calls; its connections are closed after them."""
    client = KubernetesClient(endpoint_of(chosen_settings.KUBECONFIG, settings.context))
    try:
        yield client
    finally:
        client.close()


def kubernetes_document(*, cluster: str) -> Described:
    """The nodes of a connected cluster as an import file. Raises BackendError, and `Unreadable` for labels that make no sense."""
    with client_of(kubernetes_settings(kubernetes_row(cluster))) as client:
        nodes, _ = client.every("/api/v1/nodes")
    return kubernetes_text(orjson.dumps({"items": [_described(node) for node in nodes if runs_jobs(node)]}).decode(), cluster)


def kubernetes_preview(*, access: Access, cluster: str, now: datetime) -> Preview:
    """What an import of a connected cluster would change. Raises BackendError where it does not answer."""
    access.must_everywhere(Can.OPERATE)
    try:
        found = kubernetes_document(cluster=cluster)
    except Unreadable as fault:
        return Preview(Plan(faults=fault.faults), None)
    source = f"Kubernetes of {cluster}"
    return import_preview(access=access, text=found.text, form="yaml", source=source, remove_missing=False, notes=found.notes, now=now)


def _described(node: Mapping[str, Any]) -> dict[str, Any]:
    """A node with what pods may have of it. Its health is followed apart (`kubernetes_nodes`)."""
    meta, status = node.get("metadata") or {}, node.get("status") or {}
    there = {**(status.get("capacity") or {}), **(status.get("allocatable") or {})}
    if "cpu" in there:
        there["cpu"] = str(int(quantity(there["cpu"])))
    return {"kind": "Node", "metadata": {"name": meta.get("name"), "labels": meta.get("labels") or {}}, "status": {"capacity": there}}


def all_connected() -> Sequence[KubernetesCluster]:
    return list(KubernetesCluster.objects.select_related("cluster").filter(cluster__removed_at__isnull=True).order_by("cluster_id"))
