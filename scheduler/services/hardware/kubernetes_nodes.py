"""What Kubernetes says of nodes reaches the inventory: one that is not ready is suspect, and down when that lasts, one that is cordoned drains. What
other pods hold there is written down with it.

Whoever set it ends it: the reason says who did (`Kubernetes: …`), and what an operator has set here is left alone.
"""

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256
from math import ceil
from typing import Any

from django.core.exceptions import ValidationError

from gpufleet.core.audit import SYSTEM
from gpufleet.core.faults import Conflict
from quotas.permissions import Access, Can, Grant
from scheduler.backends.base import BackendError
from scheduler.backends.kubernetes.client import KubernetesClient
from scheduler.backends.kubernetes.errors import KubernetesDenied
from scheduler.backends.kubernetes.pods import LOST_AFTER
from scheduler.backends.kubernetes.values import CONSOLE, NodeSeen, held_by, moment_of, node_of
from scheduler.backends.registry import kubernetes_settings
from scheduler.models import IN_SERVICE, Health, KubernetesCluster, Node
from scheduler.services.hardware.hardware import node_health_change
from scheduler.services.hardware.kubernetes import all_connected, client_of
from scheduler.services.hardware.outside import outside_follow

log = logging.getLogger(__name__)
FROM_THERE = "Kubernetes: "
REASON_LENGTH = 200
GIB = 1024**3
ITSELF = Access(SYSTEM, (Grant("", frozenset({Can.OPERATE})),))
# From down a node comes back by way of suspect.
BACK_FROM = {Health.DOWN: (Health.SUSPECT, Health.HEALTHY), Health.DRAINING: (Health.HEALTHY,), Health.SUSPECT: (Health.HEALTHY,)}


@dataclass(frozen=True, slots=True)
class Difference:
    """A node of which Kubernetes and the inventory do not say the same: what would make them agree."""

    node: Node
    there: NodeSeen
    to: tuple[Health, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Other:
    """What a pod outside gpufleet holds, or all pods of a node that hold no GPU."""

    id: int
    name: str
    user: str
    nodes: tuple[str, ...]
    gpu_count: int
    cpus: int
    memory_mib: int
    started_at: datetime | None
    partition: str = ""
    running: bool = True
    gpus: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # Kubernetes does not tell which


def kubernetes_nodes_reconcile(*, now: datetime) -> int:
    """Take over what each Kubernetes says of its nodes, and follow the pods there that are not ours. Returns how many nodes and such pods changed."""
    changed = 0
    for row in all_connected():
        try:
            with client_of(kubernetes_settings(row)) as client:
                nodes = [node_of(one) for one in client.every("/api/v1/nodes")[0]]
                others = pods_of_others(client, row.tag)
        except BackendError as fault:
            log.warning("the nodes and pods of %s could not be read from Kubernetes: %s", row.cluster.name, fault)
            continue
        changed += sum(_agree(one, now) for one in differences(row, nodes, now=now))
        changed += outside_follow(cluster=row.cluster_id, jobs=others, now=now)
    return changed


def differences(row: KubernetesCluster, told: Sequence[NodeSeen], *, now: datetime) -> list[Difference]:
    there = {one.name: one for one in told}
    nodes = Node.objects.filter(cluster=row.cluster, removed_at__isnull=True).order_by("name")
    return [found for node in nodes if (found := _difference(node, there.get(node.name), now)) is not None]


def _difference(node: Node, there: NodeSeen | None, now: datetime) -> Difference | None:
    by_them = node.health_reason.startswith(FROM_THERE)
    seen = there or NodeSeen(node.name, "False", "it has no such node", False, 0, 0, "")
    if seen.ready != "True":
        # As long as Kubernetes itself leaves its pods alone, what runs there goes on.
        is_short = seen.since is not None and now - seen.since < timedelta(seconds=LOST_AFTER)
        if node.health in ((Health.HEALTHY,) if is_short else (*IN_SERVICE, Health.DRAINING)):
            return Difference(node, seen, (Health.SUSPECT if is_short else Health.DOWN,), f"{FROM_THERE}{seen.message or 'not ready'}")
        return None
    if seen.cordoned:
        if node.health in IN_SERVICE:
            return Difference(node, seen, (Health.DRAINING,), f"{FROM_THERE}cordoned")
        return None
    back = BACK_FROM.get(Health(node.health), ()) if by_them else ()
    return Difference(node, seen, back, f"{FROM_THERE}in service again") if back else None


def _agree(found: Difference, now: datetime) -> bool:
    try:
        for health in found.to:
            node_health_change(access=ITSELF, node=found.node, to=health, reason=found.reason[:REASON_LENGTH], now=now)
    except (Conflict, ValidationError) as fault:
        log.warning("Kubernetes and the inventory do not agree on %s: %s", found.node.name, fault)
        return False
    return True


def pods_of_others(client: KubernetesClient, tag: str) -> list[Other]:
    """Where the account may not see them, none."""
    query = {"labelSelector": f"{CONSOLE}!={tag}", "fieldSelector": "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"}
    try:
        pods, _ = client.every("/api/v1/pods", query)
    except KubernetesDenied:
        return []
    with_gpus = [other for pod in pods if (other := _other(pod)) is not None]
    return with_gpus + _without_gpus(pods)


def _other(pod: Mapping[str, Any]) -> Other | None:
    gpus, cpus, memory = held_by(pod)
    if not gpus:
        return None
    meta, status = pod["metadata"], pod.get("status") or {}
    number = int(str(meta["uid"]).replace("-", "")[:13], 16)
    node = (str(pod["spec"]["nodeName"]),)
    began = moment_of(status.get("startTime"))
    return Other(number, str(meta["name"]), str(meta["namespace"]), node, gpus, ceil(cpus), ceil(memory / 1024**2), began)


def _without_gpus(pods: Iterable[Mapping[str, Any]]) -> list[Other]:
    """Of each node together, in whole processors and GiB, so that not every small pod that comes and goes is an event."""
    sums: dict[str, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for pod in pods:
        gpus, cpus, memory = held_by(pod)
        if not gpus:
            before = sums[str(pod["spec"]["nodeName"])]
            sums[str(pod["spec"]["nodeName"])] = (before[0] + cpus, before[1] + memory)
    found = []
    for node, (cpus, memory) in sorted(sums.items()):
        if ceil(cpus) or ceil(memory / GIB):
            number = int(sha256(node.encode()).hexdigest()[:13], 16)
            found.append(Other(number, f"pods of {node} without GPUs", "", (node,), 0, ceil(cpus), ceil(memory / GIB) * 1024, None))
    return found
