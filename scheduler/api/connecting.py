"""Adding a cluster over HTTP: each step of the way of a job is tried first, and what is there is imported by the usual preview."""

from collections.abc import Collection
from dataclasses import asdict
from datetime import datetime
from typing import Any, Literal

from django.conf import settings
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from ninja import Query, Router, Schema
from pydantic import Field

from gpufleet.core.faults import Conflict
from gpufleet.core.taken import SAID, Taken
from gpufleet.core.times import now
from gpufleet.web import Can, access_of
from scheduler.api.imports import PreviewOut, previewed
from scheduler.api.lists import answered
from scheduler.backends.base import BackendError
from scheduler.models import KubernetesCluster, SlurmCluster
from scheduler.selectors.clusters import cluster_for, kubernetes_for, slurm_for
from scheduler.services.hardware import kubernetes
from scheduler.services.hardware.checks import Step, StepsFailed
from scheduler.services.hardware.discovery import machine_add
from scheduler.services.hardware.kubernetes_checks import kubernetes_check
from scheduler.services.hardware.local_checks import local_check
from scheduler.services.hardware.slurm import (
    must_be_local,
    must_be_valid,
    slurm_asked,
    slurm_connect,
    slurm_preview,
    slurm_types,
)
from scheduler.services.hardware.slurm_accounts import accounts_propose, accounts_read
from scheduler.services.hardware.slurm_checks import slurm_check
from scheduler.services.hardware.slurm_imports import MOST_MINUTES, import_every

router = Router(tags=["Import"])
LEVELS = (
    "Labels of nodes that become levels of the topology, wide to narrow: `label=level` with commas between them. "
    "Empty: region and zone, if every node has their labels; `none`: no label."
)


class TryQuery(Schema):
    dry_run: bool = Field(False, description="Try each step, and change nothing.")


class SlurmIn(Taken):
    """How a Slurm cluster is reached. What is left out keeps its value; of a new cluster it is empty."""

    folder: str | None = Field(None, max_length=300, description="For logs and checkpoints, at the same path on the console and on every node.")
    user: str | None = Field(
        None, max_length=60, description="User that jobs run as in Slurm, one of those that `GPUFLEET_SLURM_USERS` names; empty: the console's own."
    )
    partition: str | None = Field(None, max_length=60, description="Empty: the default partition.")
    account: str | None = Field(None, max_length=60, description="Account that jobs are charged to in Slurm; empty: the default of the user.")
    rest_url: str | None = Field(
        None, max_length=300, description="slurmrestd to read with, one of those that `GPUFLEET_SLURM_REST_URLS` names; empty: Slurm's commands."
    )
    node_logs: str | None = Field(None, max_length=300, description="Log folder of the nodes; empty: logs lie in the shared folder.")


class StepFindingOut(Schema):
    """What is not as it should be. A note is worth knowing and needs nothing done."""

    what: str = Field(description="What is not as it should be.")
    means: str = Field(description="What follows from it.")
    do: str = Field(description="What helps.")
    note: bool = Field(description="Whether nothing has to be done.")


class TriedStepOut(Schema):
    name: str = Field(description="What was tried.")
    result: Literal["ok", "warning", "failed", "skipped"] = Field(description="`skipped` where it would only fail for an earlier reason.")
    seen: str = Field(description="What was seen.")
    findings: list[StepFindingOut] = Field(description="What is wrong, or worth knowing.")


class ConnectedOut(Schema):
    """How each step went. With `passes` the cluster can be added, or was added."""

    name: str = Field(description="Name of the cluster.")
    passes: bool = Field(description="Whether no step fails that is needed.")
    steps: list[TriedStepOut] = Field(description="Each step in its order.")
    warnings: list[str] = Field(description="What becomes of files that are there, and why slurmrestd is not read.")


class SlurmOut(Schema):
    """How a cluster's Slurm is reached, and how often its nodes are imported by themselves."""

    name: str = Field(description="Name of the cluster.")
    folder: str = Field(description="For logs and checkpoints, at the same path on the console and on every node.")
    user: str = Field(description="User that jobs run as in Slurm; empty: the console's own.")
    partition: str = Field(description="Empty: the default partition.")
    account: str = Field(description="Account that jobs are charged to in Slurm; empty: the default of the user.")
    rest_url: str = Field(description="slurmrestd that is read; empty: Slurm's commands.")
    node_logs: str = Field(description="Log folder of the nodes; empty: logs lie in the shared folder.")
    former_folders: list[str] = Field(description="Shared folders of before, the newest first: files of earlier jobs lie there.")
    changed_at: datetime = Field(description="When the connection was changed last.")
    import_minutes: int = Field(description="Its nodes are imported so often by themselves; 0: never.")
    imported_at: datetime | None = Field(description="When that was done last.")
    import_fault: str = Field(description="Why the last of these imports changed nothing.")
    import_waits: str | None = Field(description="Id of an import that an operator is to look at.")


class GresOut(Schema):
    """The types of GRES that the nodes of a cluster have."""

    found: list[str] = Field(description="All of them.")
    unknown: list[str] = Field(description="Those of which an import has to say what they are.")
    known_types: list[str] = Field(description="Types of GPUs that the inventory has.")


class KnownTypeIn(Taken):
    name: str = Field(max_length=60, description="Type of the inventory.", json_schema_extra=SAID)
    memory_mib: int | None = Field(None, ge=1, le=10_000_000, description="Memory of one GPU. Required for a type that the inventory does not have.")


class SlurmImportIn(Taken):
    types: dict[str, KnownTypeIn] = Field({}, description="What each type of GRES is, by its name in Slurm: `unknown` of `GET …/slurm/types`.")


class EveryIn(Taken):
    minutes: int = Field(ge=0, le=MOST_MINUTES, description="5 minutes to a week; 0: never.")


class AccountsIn(Taken):
    under: str = Field("", max_length=500, description="Path of the quota node below which they are proposed; empty: the top.")


class AccountsOut(Schema):
    """What Slurm's accounts would change of the quotas. `change` is null where nothing is to change, and with `dry_run`."""

    change: str | None = Field(description="Id of the drafted change of quotas.")
    edits: list[str] = Field(description="Each edit for people to read.")
    left_out: list[str] = Field(description="What Slurm has and quotas have no place for.")


class KubernetesIn(Taken):
    """How a Kubernetes cluster is reached. What is left out keeps its value; of a new cluster it is empty."""

    context: str | None = Field(
        None, max_length=200, description="Of the kubeconfig that the console's machine offers (`GPUFLEET_KUBECONFIG`), or `in-cluster`."
    )
    namespace: str | None = Field(None, max_length=63, description="Where pods are created; empty: that of the context.")
    image: str | None = Field(None, max_length=500, description="Of jobs that name none.")
    service_account: str | None = Field(None, max_length=253, description="Of the pods; empty: that of the namespace.")
    pull_secret: str | None = Field(None, max_length=253, description="Name of a Secret with which images are pulled.")
    runtime_class: str | None = Field(None, max_length=253, description="Of the pods; empty: the default one.")
    priority_class: str | None = Field(None, max_length=253, description="Of the pods; empty: the default one.")
    tolerates: str | None = Field(None, max_length=300, description="Keys of taints beside `nvidia.com/gpu`, with commas between them.")
    levels: str | None = Field(None, max_length=1000, description=LEVELS)
    uid: int | None = Field(None, ge=0, le=2**31 - 1, description="User id that pods run as. Required with a volume claim.")
    claim: str | None = Field(None, max_length=253, description="Volume claim for checkpoints; empty: none.")
    mount: str | None = Field(None, max_length=300, description="Where pods see the volume. Required with a volume claim.")
    folder: str | None = Field(None, max_length=300, description="Where the console sees the same volume; empty: it does not.")


class KubernetesOut(Schema):
    """How a cluster's Kubernetes is reached, and what its pods are given."""

    name: str = Field(description="Name of the cluster.")
    context: str = Field(description="Of the kubeconfig that the console's machine offers.")
    namespace: str = Field(description="Where pods are created.")
    image: str = Field(description="Of jobs that name none.")
    service_account: str = Field(description="Of the pods; empty: that of the namespace.")
    pull_secret: str = Field(description="Name of a Secret with which images are pulled.")
    runtime_class: str = Field(description="Of the pods; empty: the default one.")
    priority_class: str = Field(description="Of the pods; empty: the default one.")
    tolerates: str = Field(description="Keys of taints beside `nvidia.com/gpu`, with commas between them.")
    levels: str = Field(description=LEVELS)
    uid: int | None = Field(description="User id that pods run as; null: what their image says.")
    claim: str = Field(description="Volume claim for checkpoints; empty: none.")
    mount: str = Field(description="Where pods see the volume.")
    folder: str = Field(description="Where the console sees the same volume; empty: it does not.")
    changed_at: datetime = Field(description="When the connection was changed last.")
    import_minutes: int = Field(description="Its nodes are imported so often by themselves; 0: never.")
    imported_at: datetime | None = Field(description="When that was done last.")
    import_fault: str = Field(description="Why the last of these imports changed nothing.")
    import_waits: str | None = Field(description="Id of an import that an operator is to look at.")


class LocalOut(PreviewOut):
    """How each step went, and the preview of this machine. `id` is null where there is nothing to apply, and with `dry_run`."""

    passes: bool = Field(description="Whether no step fails that is needed.")
    steps: list[TriedStepOut] = Field(description="Each step in its order.")


@router.get("/clusters/{name}/slurm", response=SlurmOut, url_name="cluster_slurm", summary="How a Slurm cluster is reached")
def cluster_slurm(request: HttpRequest, name: str) -> HttpResponse:
    return answered(_slurm(slurm_for(access_of(request), name)))


@router.put("/clusters/{name}/slurm", response=ConnectedOut, url_name="cluster_slurm", summary="Add a Slurm cluster, or change how it is reached")
def cluster_slurm_put(request: HttpRequest, name: str, body: SlurmIn, asked: Query[TryQuery]) -> HttpResponse:
    """Each step of the way of a job is tried first. When one fails the answer is 422 and nothing is stored. With `?dry_run=true` nothing is stored in
    any case, and the answer has how each step went. A cluster that is new is imported next: `POST /clusters/{name}/slurm/imports`."""
    access = access_of(request)
    access.must_everywhere(Can.OPERATE)
    chosen = slurm_asked(name, {key: value for key, value in body.dict().items() if value is not None})
    warnings: list[str] = []
    if asked.dry_run:
        must_be_valid(name, chosen)
        steps = slurm_check(chosen)
    else:
        try:
            made = slurm_connect(access=access, cluster=name, settings=chosen, now=now())
        except StepsFailed as fault:
            raise ValidationError(_by_field(fault.steps, SlurmIn.model_fields)) from fault
        steps, warnings = made.steps, [told for told in (made.told, made.not_read) if told]
    return answered({"name": name, "warnings": warnings, **_steps(steps)})


@router.get("/clusters/{name}/slurm/types", response=GresOut, url_name="cluster_slurm_types", summary="GPU types that a Slurm cluster has")
def cluster_slurm_types(request: HttpRequest, name: str) -> HttpResponse:
    """Asks Slurm. 409 where it does not answer."""
    access = access_of(request)
    slurm_for(access, name)
    try:
        types = slurm_types(access=access, cluster=name)
    except BackendError as fault:
        raise Conflict(f"Slurm does not answer: {fault}") from fault
    return answered({"found": types.found, "unknown": types.unknown, "known_types": types.known})


@router.post("/clusters/{name}/slurm/imports", response=PreviewOut, url_name="cluster_slurm_import", summary="What an import from Slurm would change")
def cluster_slurm_import(request: HttpRequest, name: str, body: SlurmImportIn) -> HttpResponse:
    """Asks Slurm and previews its nodes; nothing is written. `POST /inventory/imports/{id}/apply` applies it. 409 where Slurm does not answer."""
    access = access_of(request)
    slurm_for(access, name)
    named = {gres: (one.name, one.memory_mib) for gres, one in body.types.items()}
    try:
        preview = slurm_preview(access=access, cluster=name, named=named, now=now())
    except BackendError as fault:
        raise Conflict(f"Slurm does not answer: {fault}") from fault
    return answered(previewed(preview))


@router.put("/clusters/{name}/slurm/every", response=SlurmOut, url_name="cluster_slurm_every", summary="Import a Slurm cluster by itself")
def cluster_slurm_every(request: HttpRequest, name: str, body: EveryIn) -> HttpResponse:
    """What is safe is applied, and anything else is kept as a preview for an operator."""
    access = access_of(request)
    slurm_for(access, name)
    import_every(access=access, cluster=name, minutes=body.minutes, now=now())
    return answered(_slurm(slurm_for(access, name)))


@router.post("/clusters/{name}/slurm/accounts", response=AccountsOut, url_name="cluster_slurm_accounts", summary="Propose quotas by Slurm's accounts")
def cluster_slurm_accounts(request: HttpRequest, name: str, body: AccountsIn, asked: Query[TryQuery]) -> HttpResponse:
    """A draft of a change of quotas, which is previewed, approved and applied like every other. The same draft is not made
    twice. 409 where Slurm does not answer, or keeps no accounts."""
    access = access_of(request)
    access.must_everywhere(Can.EDIT_QUOTA)
    cluster_for(access, name)
    try:
        read = accounts_read(access=access, cluster=name, under=body.under.strip("/ "))
    except BackendError as fault:
        raise Conflict(f"Slurm's accounts cannot be read: {fault}") from fault
    draft = None if asked.dry_run else accounts_propose(access=access, cluster=name, read=read, now=now())
    return answered({"change": draft.public_id if draft is not None else None, "edits": read.lines, "left_out": read.left_out})


@router.get("/clusters/{name}/kubernetes", response=KubernetesOut, url_name="cluster_kubernetes", summary="How a Kubernetes cluster is reached")
def cluster_kubernetes(request: HttpRequest, name: str) -> HttpResponse:
    return answered(_kubernetes(kubernetes_for(access_of(request), name)))


@router.put(
    "/clusters/{name}/kubernetes",
    response=ConnectedOut,
    url_name="cluster_kubernetes",
    summary="Add a Kubernetes cluster, or change how it is reached",
)
def cluster_kubernetes_put(request: HttpRequest, name: str, body: KubernetesIn, asked: Query[TryQuery]) -> HttpResponse:
    """Each step of the way of a job is tried first. When one fails the answer is 422 and nothing is stored. With `?dry_run=true` nothing is stored in
    any case, and the answer has how each step went. A cluster that is new is imported next: `POST /clusters/{name}/kubernetes/imports`."""
    access = access_of(request)
    access.must_everywhere(Can.OPERATE)
    chosen = kubernetes.kubernetes_asked(name, {key: value for key, value in body.dict().items() if value is not None})
    if asked.dry_run:
        kubernetes.must_be_valid(name, chosen)
        steps = kubernetes_check(chosen, cluster=name, kubeconfig=settings.KUBECONFIG)
    else:
        try:
            steps = kubernetes.kubernetes_connect(access=access, cluster=name, settings=chosen, now=now()).steps
        except StepsFailed as fault:
            raise ValidationError(_by_field(fault.steps, KubernetesIn.model_fields)) from fault
    return answered({"name": name, "warnings": [], **_steps(steps)})


@router.post(
    "/clusters/{name}/kubernetes/imports",
    response=PreviewOut,
    url_name="cluster_kubernetes_import",
    summary="What an import from Kubernetes would change",
)
def cluster_kubernetes_import(request: HttpRequest, name: str) -> HttpResponse:
    """Asks Kubernetes and previews its nodes; nothing is written. `POST /inventory/imports/{id}/apply` applies it. 409 where it does not answer."""
    access = access_of(request)
    kubernetes_for(access, name)
    try:
        preview = kubernetes.kubernetes_preview(access=access, cluster=name, now=now())
    except BackendError as fault:
        raise Conflict(f"Kubernetes does not answer: {fault}") from fault
    return answered(previewed(preview))


@router.put(
    "/clusters/{name}/kubernetes/every",
    response=KubernetesOut,
    url_name="cluster_kubernetes_every",
    summary="Import a Kubernetes cluster by itself",
)
def cluster_kubernetes_every(request: HttpRequest, name: str, body: EveryIn) -> HttpResponse:
    """What is safe is applied, and anything else is kept as a preview for an operator."""
    access = access_of(request)
    kubernetes_for(access, name)
    import_every(access=access, cluster=name, minutes=body.minutes, now=now())
    return answered(_kubernetes(kubernetes_for(access, name)))


@router.post("/clusters/{name}/local", response=LocalOut, url_name="cluster_local", summary="Add the console's own machine")
def cluster_local_add(request: HttpRequest, name: str, asked: Query[TryQuery]) -> HttpResponse:
    """Each step of the way of a local job is tried first; when one fails the answer is 422. The machine is previewed, and
    `POST /inventory/imports/{id}/apply` adds it. With `?dry_run=true` the steps are tried alone, and the answer has how each went."""
    access = access_of(request)
    access.must_everywhere(Can.OPERATE)
    if asked.dry_run:
        must_be_local(name)
        return answered({"id": None, "changes": [], "counts": {}, **_steps(local_check())})
    try:
        found = machine_add(access=access, cluster=name, now=now())
    except StepsFailed as fault:
        raise ValidationError(_by_field(fault.steps, ())) from fault
    return answered(previewed(found.preview) | _steps(found.steps))


def _slurm(row: SlurmCluster) -> dict[str, Any]:
    kept = ("folder", "user", "partition", "account", "rest_url", "node_logs", "former_folders", "changed_at", "import_minutes", "imported_at")
    waits = row.import_waits.public_id if row.import_waits is not None else None
    return {"name": row.cluster.name, **{field: getattr(row, field) for field in kept}, "import_fault": row.import_fault, "import_waits": waits}


def _kubernetes(row: KubernetesCluster) -> dict[str, Any]:
    kept = (*kubernetes.KEPT, "changed_at", "import_minutes", "imported_at", "import_fault")
    waits = row.import_waits.public_id if row.import_waits is not None else None
    return {"name": row.cluster.name, **{field: getattr(row, field) for field in kept}, "import_waits": waits}


def _steps(steps: list[Step]) -> dict[str, Any]:
    told = [
        {"name": step.name, "result": step.result, "seen": step.seen, "findings": [asdict(finding) for finding in step.findings]} for step in steps
    ]
    return {"passes": not any(step.hinders for step in steps), "steps": told}


def _by_field(steps: list[Step], fields: Collection[str]) -> dict[str, list[str]]:
    """What failed, and what to do about it, at the field that is wrong; where it is no field's, by the name of the step."""
    found: dict[str, list[str]] = {}
    for step in steps:
        if step.result == "failed":
            does = " ".join(dict.fromkeys(finding.do for finding in step.findings if finding.do))
            told = " ".join(filter(None, (step.told, does)))
            if step.field in fields:
                found.setdefault(step.field, []).append(told)
            else:
                found.setdefault("__all__", []).append(f"{step.name}: {told}")
    return found
