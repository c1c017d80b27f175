"""The way of a job to a Kubernetes cluster, step by step: from an answer of its API server to a pod that is tried and not made."""

import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from gpufleet.core.findings import Finding, some
from scheduler.backends.base import BackendError, StartOrder, WorkerSeat
from scheduler.backends.kubernetes.client import KubernetesClient, named
from scheduler.backends.kubernetes.config import endpoint_of
from scheduler.backends.kubernetes.errors import KubernetesDenied, KubernetesFailed
from scheduler.backends.kubernetes.pods import made_for
from scheduler.backends.kubernetes.values import NodeSeen, Settings, node_of
from scheduler.hardware.kubernetes_levels import Known, levels_fault, levels_stated, standing
from scheduler.services.hardware.checks import MEANS, Check, Step, must_be_writable, steps_tried
from scheduler.services.hardware.imports import topology_known

Seen = Iterator[str | Finding]
OLDEST, TESTED = (1, 27), (1, 36)  # pods wait behind gates since 1.27
NEEDED = {"pods": ("create", "delete", "get", "list", "patch", "watch"), "secrets": ("create", "delete"), "services": ("create", "delete", "get")}
OF_KUBERNETES = "node.kubernetes.io/"
ROLE = "Give the console's account the Role and the ClusterRole of docs/operate/kubernetes.md."
REACH = "Name the kubeconfig in GPUFLEET_KUBECONFIG, readable for the console's user; kubectl --context NAME get --raw /version must answer."
KNOWN = "Renew the credentials of the context; kubectl --context NAME auth whoami must answer."
FOLDER = "Mount the volume of the claim on the console's machine, writable for the console's user."


@dataclass(frozen=True)
class Site:
    """One cluster as it answers now; what is asked for twice is asked once."""

    settings: Settings
    kubeconfig: str
    known: Known
    name: str

    @cached_property
    def client(self) -> KubernetesClient:
        return KubernetesClient(endpoint_of(self.kubeconfig, self.settings.context))

    @cached_property
    def version(self) -> dict[str, Any]:
        return self.client.get("/version")

    @cached_property
    def nodes(self) -> list[NodeSeen]:
        return [node_of(one) for one in self.client.every("/api/v1/nodes")[0]]

    def close(self) -> None:
        if "client" in self.__dict__:
            self.client.close()


def kubernetes_check(settings: Settings, *, cluster: str, kubeconfig: str) -> list[Step]:
    """Try each step. Changes nothing: the pod at the end is only tried (`dryRun`)."""
    site = Site(settings, kubeconfig, topology_known(cluster), cluster)
    facts = [
        Check("version", partial(_version, site), "Upgrade Kubernetes."),
        Check("permissions", partial(_permissions, site), ROLE),
        Check("pods of others", partial(_others, site), ROLE, needed=False),
        Check("nodes", partial(_nodes, site), ROLE),
        Check("levels", partial(_levels, site), "Correct the labels that become levels.", needed=False),
        Check("image", partial(_image, settings), "Name an image.", needed=False),
        *([Check("claim", partial(_claim, site), "Create the claim in the namespace.")] if settings.claim else []),
        *([Check("folder", partial(_folder, settings), FOLDER)] if settings.folder else []),
    ]
    try:
        return steps_tried(
            [Check("server", partial(_server, site), REACH)],
            [Check("credentials", partial(_credentials, site), KNOWN)],
            facts,
            [Check("pod", partial(_pod, site), "Put right what Kubernetes says.")],
        )
    finally:
        site.close()


def _server(site: Site) -> Seen:
    yield f"{site.client.endpoint.host}, context {site.settings.context}"
    try:
        _ = site.version
    except KubernetesDenied as fault:
        if "certificate" in str(fault):
            raise


def _credentials(site: Site) -> Seen:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        found = site.client.create("/apis/authentication.k8s.io/v1/selfsubjectreviews", body)
        yield f"as {((found.get('status') or {}).get('userInfo') or {}).get('username') or 'nobody'}"
    except KubernetesFailed:  # before 1.28 it does not say who asks
        site.client.get(named(site.settings.namespace, "pods"), {"limit": 1})
        yield "accepted"


def _version(site: Site) -> Seen:
    told = str(site.version.get("gitVersion") or "")
    yield told
    number = tuple(int("".join(filter(str.isdigit, str(site.version.get(part) or "0"))) or 0) for part in ("major", "minor"))
    if number < OLDEST:
        yield Finding(f"Kubernetes is version {told}; 1.27 or newer is needed.", MEANS, "Upgrade Kubernetes.")
    elif number != TESTED:
        yield Finding(
            f"Kubernetes is version {told}; gpufleet is tested with 1.36.", "Others may answer differently.", "Look at the first job.", note=True
        )


def _permissions(site: Site) -> Seen:
    here = {"namespace": site.settings.namespace}
    asked = [{"verb": verb, "resource": resource, **here} for resource, verbs in NEEDED.items() for verb in verbs]
    asked.append({"verb": "get", "resource": "pods", "subresource": "log", **here})
    asked += [{"verb": verb, "resource": "nodes"} for verb in ("get", "list")]
    if site.settings.claim:
        asked.append({"verb": "get", "resource": "persistentvolumeclaims", **here})
    lacking = [one for one, may in zip(asked, site.client.allowed(asked), strict=True) if not may]
    yield f"{len(asked) - len(lacking)} of {len(asked)} in the namespace {site.settings.namespace}"
    if lacking:
        told = [f"{one['verb']} {one['resource']}{'/log' if 'subresource' in one else ''}" for one in lacking]
        yield Finding(f"The console's account may not {some(told, 6)}.", MEANS, ROLE)


def _others(site: Site) -> Seen:
    may = site.client.allowed([{"verb": "list", "resource": "pods"}])[0]
    yield "seen in all namespaces" if may else "not seen"
    if not may:
        yield Finding(
            "The console's account may not list pods of all namespaces.",
            "It plans as if others held no GPUs of these nodes. A job that finds no room is queued again.",
            ROLE,
        )


def _nodes(site: Site) -> Seen:
    with_gpus = [node for node in site.nodes if node.gpus or node.mig]
    yield f"{len(with_gpus)} of {len(site.nodes)} with GPUs: {some([node.name for node in with_gpus], 4)}" if with_gpus else f"{len(site.nodes)}"
    if not with_gpus:
        do = "Install NVIDIA's GPU operator, or its device plugin and GPU feature discovery."
        yield Finding("No node offers GPUs (nvidia.com/gpu).", "Only jobs without GPUs run.", do, note=True)
    if down := [node.name for node in with_gpus if node.ready != "True"]:
        yield Finding(f"Nodes are not ready: {some(down)}.", "Nothing starts on them.", "Check the kubelet of these nodes.", note=True)
    tolerated = {"nvidia.com/gpu", *site.settings.taints}
    own = [(node.name, taint) for node in with_gpus for taint in node.taints if taint not in tolerated]
    if told := [f"{name} ({taint})" for name, taint in own if not taint.startswith(OF_KUBERNETES)]:
        do = "Name these keys under Taints."
        yield Finding(f"Nodes have taints that pods do not tolerate: {some(told)}.", "No job starts there.", do, note=True)


def _levels(site: Site) -> Seen:
    """How many domains each level would have, by the labels of the nodes that run jobs."""
    stated, nodes = levels_stated(site.settings.levels), [node for node in site.nodes if node.runs_jobs]
    if wrong := levels_fault(stated or (), site.known.levels, cluster=site.name):
        yield "none"
        yield Finding(wrong, "Nodes are not imported.", "Correct the labels that become levels.")
        return
    found = standing({node.name: node.labels for node in nodes}, stated, site.known, cluster=site.name)
    domains = [len({place[: depth + 1] for place in found.places.values() if len(place) > depth}) for depth in range(len(found.levels))]
    yield ", ".join(f"{level} ({count})" for level, count in zip(found.levels, domains, strict=True)) or "none"
    for one in (stated or ()) if nodes else ():
        lacking = [node.name for node in nodes if not node.labels.get(one.label)]
        if len(lacking) == len(nodes):
            do = "Correct the label, or install what gives it to nodes."
            yield Finding(f"No node has the label {one.label}.", f"No node is in a {one.level}.", do)
        elif lacking:
            told = f"Label {one.label} is missing on {len(lacking)} of {len(nodes)} nodes: {some(lacking)}."
            yield Finding(told, f"Without it a node has no neighbors in its {one.level}.", "Label these nodes.", note=True)


def _image(settings: Settings) -> Seen:
    yield settings.image or "none"
    if not settings.image:
        yield Finding("There is no default image.", "A job that names none fails here.", "Name one, or an image in each job.", note=True)


def _claim(site: Site) -> Seen:
    found = site.client.get(named(site.settings.namespace, "persistentvolumeclaims", site.settings.claim))
    phase, modes = (found.get("status") or {}).get("phase"), (found.get("spec") or {}).get("accessModes") or []
    yield f"{site.settings.claim}, {str(phase or 'unknown').lower()}, at {site.settings.mount}"
    if phase == "Lost":
        yield Finding(f"The volume of the claim {site.settings.claim} is lost.", MEANS, "Make another claim.")
    if "ReadWriteMany" not in modes:
        told = f"The claim {site.settings.claim} cannot be mounted on several nodes (ReadWriteMany)."
        yield Finding(told, "Gangs over nodes do not start.", "Use a shared file system.")


def _folder(settings: Settings) -> Seen:
    yield settings.folder
    must_be_writable(settings.folder)
    if os.getuid() not in (0, settings.uid):
        yield Finding(
            f"The console runs as the uid {os.getuid()}, pods as {settings.uid}.",
            "Old checkpoints are not deleted, and anybody who mounts the volume may write to the folders of jobs.",
            "Run the console as root or as that user.",
            note=True,
        )


def _pod(site: Site) -> Seen:
    """One as a gang's is: what a policy of the cluster refuses is told before the first job is."""
    nodes = [node.name for node in site.nodes if node.gpus] or [node.name for node in site.nodes] or ["none"]
    settings = replace(site.settings, image=site.settings.image or "registry.example/any:1", tag=site.settings.tag or "check")
    seats = tuple(WorkerSeat("worker", index, nodes[0], (0,)) for index in range(2))
    order = StartOrder(f"check-{secrets.token_hex(3)}.1", 1, "check", 1, seats, {"command": ["true"]}, {}, "token")
    made = made_for(order, settings, secret=lambda _name, _team: None)
    try:
        site.client.create(named(settings.namespace, "pods"), made.pods[0], {"dryRun": "All"})
    except (KubernetesFailed, KubernetesDenied) as fault:
        raise BackendError(str(fault)) from fault
    yield "would be admitted"
