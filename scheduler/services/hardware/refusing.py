"""A node that did not start a job, as it has not what was promised, is suspect until an operator has looked at it."""

import logging
from collections.abc import Sequence
from datetime import datetime

from gpufleet.core.audit import SYSTEM
from gpufleet.core.faults import Conflict
from quotas.permissions import Access, Can, Grant
from scheduler.backends.base import Refusal
from scheduler.models import Health, Node
from scheduler.services.hardware.hardware import REASON_LENGTH, node_health_change

log = logging.getLogger(__name__)
ITSELF = Access(SYSTEM, (Grant("", frozenset({Can.OPERATE})),))


def nodes_refused(*, cluster: int, refusals: Sequence[Refusal], now: datetime) -> int:
    """Take healthy nodes that refused a job out of normal placement. Returns how many. Told twice it changes nothing."""
    if not refusals:
        return 0
    why = {refusal.node: f"Refused a job ({refusal.code}): {refusal.words}" for refusal in reversed(refusals)}
    nodes = Node.objects.filter(cluster=cluster, name__in=why, health=Health.HEALTHY, removed_at__isnull=True).order_by("name")
    changed = 0
    for node in nodes:
        reason = why[node.name][:REASON_LENGTH]
        try:
            node_health_change(access=ITSELF, node=node, to=Health.SUSPECT, reason=reason, now=now, seen=Health.HEALTHY)
        except Conflict as fault:
            log.info("%s refused a job, and stays as somebody else has just left it: %s", node.name, fault)
            continue
        changed += 1
    return changed
