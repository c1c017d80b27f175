"""What there is in Kubernetes, as values: how a cluster is reached, and its pods and nodes as far as they are looked at."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

NVIDIA = "nvidia.com/"
GPU, MIG, SHARED = f"{NVIDIA}gpu", f"{NVIDIA}mig-", f"{NVIDIA}gpu.shared"
IN_CLUSTER = "in-cluster"  # the context of the service account that Kubernetes gives a console that runs in a pod
CONSOLE, RUN, ROLE, INDEX = "gpufleet/console", "gpufleet/run", "gpufleet/role", "gpufleet/worker"  # labels of what is ours
SEQUENCE, OWNER, QUEUE = "gpufleet/sequence", "gpufleet/owner", "gpufleet/queue"  # annotations
CONTROL_PLANE = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")
GATE = "gpufleet/gang"  # of pods that wait until all of their gang are there
CONTAINER = "worker"
LONGEST = 200  # characters of what Kubernetes says to people
QUANTITY = re.compile(r"([+-]?[0-9]+(?:\.[0-9]+)?)(?:[eE]([+-]?[0-9]+)|(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?)")
UNITS = {None: 1.0, "m": 0.001, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15} | {
    f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTP", 1)
}


@dataclass(frozen=True, slots=True)
class Settings:
    """How one cluster is reached and what its pods are given."""

    context: str = ""  # of the kubeconfig that the console's machine offers
    namespace: str = ""
    image: str = ""  # of jobs that name none
    service_account: str = ""
    pull_secret: str = ""
    runtime_class: str = ""
    priority_class: str = ""
    tolerates: str = ""  # keys of taints, with commas between them
    levels: str = ""  # labels of nodes that become levels of the topology (scheduler/hardware/kubernetes_levels.py)
    uid: int | None = None  # whom pods run as; None: whom their image says
    claim: str = ""  # volume claim for checkpoints
    mount: str = ""  # where pods see it
    folder: str = ""  # where the console sees the same volume; empty: it does not
    tag: str = ""  # marks this console's pods

    @property
    def taints(self) -> tuple[str, ...]:
        return tuple(word for word in (part.strip() for part in self.tolerates.split(",")) if word)


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod as Kubernetes shows it."""

    name: str
    uid: str
    labels: Mapping[str, str]
    node: str
    phase: str  # Pending, Running, Succeeded, Failed, Unknown
    reason: str  # of the pod as a whole, such as Evicted
    message: str
    gated: bool
    deleting_since: datetime | None  # when its grace is over, of one that was deleted
    has_deadline: bool  # it was asked to leave
    made_at: datetime | None
    scheduled_at: datetime | None
    unschedulable: str  # why the scheduler of Kubernetes finds no place for it
    waiting: str  # reason of a container that does not start, such as ImagePullBackOff
    waiting_message: str
    started_at: datetime | None
    exit_code: int | None
    exit_reason: str  # such as OOMKilled
    exit_message: str
    ended_at: datetime | None
    disrupted: str  # who ends it, such as DeletionByTaintManager
    disrupted_message: str
    ready: bool
    ready_at: datetime | None
    version: str
    sequence: int

    @property
    def key(self) -> str:
        return self.labels.get(RUN, "")

    @property
    def is_over(self) -> bool:
        return self.phase in ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """One node, as far as its health is followed."""

    name: str
    ready: str  # True, False or Unknown; empty: it does not say
    message: str
    cordoned: bool
    gpus: int  # whole ones that the device plugin offers
    mig: int
    version: str
    taints: tuple[str, ...] = field(default=())
    since: datetime | None = None  # when it began to be as ready as it is
    labels: Mapping[str, str] = field(default_factory=dict)
    runs_jobs: bool = True


def moment_of(text: object) -> datetime | None:
    """None also of the beginning of 1970, which a node tells of a container that never started."""
    if not isinstance(text, str) or not text or text.startswith("1970-"):
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def pod_of(found: Mapping[str, Any]) -> Pod:
    meta, spec, status = _map(found.get("metadata")), _map(found.get("spec")), _map(found.get("status"))
    conditions = {str(one.get("type")): one for one in map(_map, status.get("conditions") or ())}
    scheduled, ready, disrupted = (_map(conditions.get(name)) for name in ("PodScheduled", "Ready", "DisruptionTarget"))
    container = next((one for one in map(_map, status.get("containerStatuses") or ()) if one.get("name") == CONTAINER), {})
    state = _map(container.get("state"))
    waiting, running, ended = (_map(state.get(name)) for name in ("waiting", "running", "terminated"))
    is_disrupted = disrupted.get("status") == "True"
    stuck = scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable"
    sequence = str(_map(meta.get("annotations")).get(SEQUENCE, ""))
    return Pod(
        name=str(meta.get("name") or ""),
        uid=str(meta.get("uid") or ""),
        labels={str(key): str(value) for key, value in _map(meta.get("labels")).items()},
        node=str(spec.get("nodeName") or ""),
        phase=str(status.get("phase") or "Pending"),
        reason=str(status.get("reason") or ""),
        message=str(status.get("message") or "")[:LONGEST],
        gated=bool(spec.get("schedulingGates")),
        deleting_since=moment_of(meta.get("deletionTimestamp")),
        has_deadline=spec.get("activeDeadlineSeconds") is not None,
        made_at=moment_of(meta.get("creationTimestamp")),
        scheduled_at=moment_of(scheduled.get("lastTransitionTime")) if scheduled.get("status") == "True" else None,
        unschedulable=str(scheduled.get("message") or "Unschedulable")[:LONGEST] if stuck else "",
        waiting=str(waiting.get("reason") or ""),
        waiting_message=str(waiting.get("message") or "")[:LONGEST],
        started_at=moment_of(running.get("startedAt") or ended.get("startedAt")),
        exit_code=ended.get("exitCode") if isinstance(ended.get("exitCode"), int) else None,
        exit_reason=str(ended.get("reason") or ""),
        exit_message=str(ended.get("message") or "")[:LONGEST],
        ended_at=moment_of(ended.get("finishedAt")),
        disrupted=str(disrupted.get("reason") or "") if is_disrupted else "",
        disrupted_message=str(disrupted.get("message") or "")[:LONGEST] if is_disrupted else "",
        ready=ready.get("status") == "True",
        ready_at=moment_of(ready.get("lastTransitionTime")),
        version=str(meta.get("resourceVersion") or ""),
        sequence=int(sequence) if sequence.isdigit() else 0,
    )


def node_of(found: Mapping[str, Any]) -> NodeSeen:
    meta, spec, status = _map(found.get("metadata")), _map(found.get("spec")), _map(found.get("status"))
    ready = next((one for one in map(_map, status.get("conditions") or ()) if one.get("type") == "Ready"), {})
    there = _map(status.get("allocatable")) or _map(status.get("capacity"))
    return NodeSeen(
        name=str(meta.get("name") or ""),
        ready=str(ready.get("status") or ""),
        message=str(ready.get("message") or ready.get("reason") or ""),
        cordoned=bool(spec.get("unschedulable")),
        gpus=int(quantity(there.get(GPU))),
        mig=sum(int(quantity(value)) for key, value in there.items() if str(key).startswith(MIG)),
        version=str(_map(status.get("nodeInfo")).get("kubeletVersion") or ""),
        taints=tuple(str(one.get("key") or "") for one in map(_map, spec.get("taints") or ())),
        since=moment_of(ready.get("lastTransitionTime")),
        labels={str(key): str(value) for key, value in _map(meta.get("labels")).items()},
        runs_jobs=runs_jobs(found),
    )


def runs_jobs(node: Mapping[str, Any]) -> bool:
    """Control planes run none, unless they have GPUs."""
    labels, there = _map(_map(node.get("metadata")).get("labels")), _map(_map(node.get("status")).get("capacity"))
    return not any(label in labels for label in CONTROL_PLANE) or any(key == GPU or str(key).startswith(MIG) for key in there)


def quantity(value: object) -> float:
    """What Kubernetes writes as a quantity, as a number; 0 for what is none."""
    found = QUANTITY.fullmatch(str(value)) if value is not None else None
    if found is None:
        return 0.0
    return float(found[1]) * (10.0 ** int(found[2]) if found[2] else UNITS[found[3]])


def held_by(pod: Mapping[str, Any]) -> tuple[int, float, float]:
    """GPUs, whole or as instances, processors and bytes of memory that the containers of a pod hold on its node."""
    containers = [_map(one) for one in _map(pod.get("spec")).get("containers") or ()]
    requests = [_map(_map(one.get("resources")).get("requests")) for one in containers]
    asked = [{**_map(_map(one.get("resources")).get("limits")), **those} for one, those in zip(containers, requests, strict=True)]
    gpus = sum(int(quantity(value)) for one in asked for key, value in one.items() if key == GPU or str(key).startswith((MIG, SHARED)))
    return gpus, _sum(requests, "cpu"), _sum(requests, "memory")


def _sum(asked: Sequence[Mapping[str, Any]], name: str) -> float:
    return sum(quantity(one.get(name)) for one in asked)


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
