"""Health of nodes in both directions: what Slurm says of a node reaches the inventory, and a drain by an operator here is a drain in Slurm.
What Slurm runs beside gpufleet's jobs is written down with it.

Whoever set it ends it: the reason says who did (`Slurm: …` here, `gpufleet: …` there), and what the other side has set is left alone.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.core.exceptions import ValidationError

from gpufleet.core.audit import SYSTEM
from gpufleet.core.faults import Conflict
from quotas.permissions import Access, Can, Grant
from scheduler.backends.base import BackendError
from scheduler.backends.registry import backends_all, slurm_settings
from scheduler.backends.slurm.client import SlurmClient
from scheduler.backends.slurm.site import jobs_of_others
from scheduler.backends.slurm.values import SlurmNode
from scheduler.models import IN_SERVICE, Health, Node, SlurmCluster
from scheduler.services.hardware.hardware import node_health_change
from scheduler.services.hardware.outside import outside_follow

log = logging.getLogger(__name__)
FROM_SLURM, FROM_HERE = "Slurm: ", "gpufleet: "
REASON_LENGTH = 200
ITSELF = Access(SYSTEM, (Grant("", frozenset({Can.OPERATE})),))
DOWN_STATES = ("DOWN", "FAIL", "ERROR", "FUTURE")
# Not heard of just now, also right after a resume: Slurm itself calls it down when that lasts.
SILENT_STATES = ("NOT_RESPONDING", "NO_RESPOND")
# From down a node comes back by way of suspect.
BACK_FROM = {Health.DOWN: (Health.SUSPECT, Health.HEALTHY), Health.DRAINING: (Health.HEALTHY,), Health.SUSPECT: (Health.HEALTHY,)}


@dataclass(frozen=True, slots=True)
class Difference:
    """A node of which Slurm and the inventory do not say the same: what would make them agree."""

    node: Node
    there: SlurmNode
    here_to: tuple[Health, ...] = ()
    there_to: str = ""
    reason: str = ""


def slurm_nodes_reconcile(*, now: datetime) -> int:
    """Make both sides of every Slurm cluster say the same of each node, and follow the jobs there that are not ours. Returns how many nodes and
    such jobs changed. A controller that is silent says nothing."""
    changed, known = 0, backends_all().outside
    for row in SlurmCluster.objects.select_related("cluster").filter(cluster__removed_at__isnull=True).order_by("cluster_id"):
        client = SlurmClient(slurm_settings(row))
        try:
            nodes = client.nodes()
            found = differences(row, nodes)
            others = jobs_of_others(row.cluster_id, client.settings, client.jobs(), now=now)
            others = client.with_known_gpus(others, known[row.cluster_id], most=len(others))
        except BackendError as fault:
            log.warning("the nodes and jobs of %s could not be read from Slurm: %s", row.cluster.name, fault)
            continue
        changed += sum(_agree(client, one, now) for one in found)
        changed += outside_follow(cluster=row.cluster_id, jobs=others, now=now, gres={node.name: node.gres for node in nodes})
    return changed


def differences(row: SlurmCluster, told: Sequence[SlurmNode]) -> list[Difference]:
    there = {one.name: one for one in told}
    nodes = Node.objects.filter(cluster=row.cluster, removed_at__isnull=True, name__in=there).order_by("name")
    return [found for node in nodes if (found := _difference(node, there[node.name])) is not None]


def _difference(node: Node, there: SlurmNode) -> Difference | None:
    down = any(state.startswith(DOWN_STATES) for state in there.states)
    drained = any("DRAIN" in state for state in there.states)
    if not down and any(state.startswith(SILENT_STATES) for state in there.states):
        return None
    by_us, by_slurm = there.reason.startswith(FROM_HERE), node.health_reason.startswith(FROM_SLURM)
    said = f"{FROM_SLURM}{there.reason or 'no reason given'}"
    if down and node.health in (*IN_SERVICE, Health.DRAINING):
        return Difference(node, there, here_to=(Health.DOWN,), reason=said)
    if node.health in IN_SERVICE and not down:
        if drained and by_us:
            return Difference(node, there, there_to="RESUME")
        return Difference(node, there, here_to=(Health.DRAINING,), reason=said) if drained else None
    if by_slurm:
        back = BACK_FROM.get(Health(node.health), ())
        return None if down or drained or not back else Difference(node, there, here_to=back, reason=f"{FROM_SLURM}in service again")
    if not drained and not down:
        return Difference(node, there, there_to="DRAIN", reason=f"{FROM_HERE}{node.health_reason or node.get_health_display()}")
    return None


def _agree(client: SlurmClient, found: Difference, now: datetime) -> bool:
    try:
        if found.there_to:
            client.node_update(found.node.name, found.there_to, found.reason)
        for health in found.here_to:
            node_health_change(access=ITSELF, node=found.node, to=health, reason=found.reason[:REASON_LENGTH], now=now)
    except (BackendError, Conflict, ValidationError) as fault:
        log.warning("Slurm and the inventory do not agree on %s: %s", found.node.name, fault)
        return False
    return True
