"""Whether the local back-end vouches that this machine pins jobs to their processors: tried now and then, and withdrawn where it no longer holds."""

import logging
from collections.abc import Mapping
from datetime import datetime

from django.conf import settings
from django.db import transaction

from gpufleet.core.audit import SYSTEM
from gpufleet.core.faults import Conflict
from gpufleet.core.times import now as now_is
from scheduler.backends.base import BackendError
from scheduler.backends.registry import LOCAL, local_backend, why_not_local
from scheduler.hardware.boundaries import CORES, VERIFIED, labels_verified
from scheduler.hardware.discovery import machine_name
from scheduler.models import Node
from scheduler.services.hardware.hardware import REASON_LENGTH, hardware_record, locked_node
from scheduler.services.loop.lease import lease_want

log = logging.getLogger(__name__)
TRIED = "A worker that was pinned on trial could not leave its processor."


def why_no_boundary(*, now: datetime) -> str:
    """Why pinned processors are no boundary on this machine; empty: the back-end has just tried that they are."""
    backend = local_backend()
    if not backend.rules.pin:
        return "Processors are not pinned (GPUFLEET_LOCAL_PIN)."
    if why := why_not_local():
        return why
    try:
        return backend.pins.missing(backend.accounts.of_jobs()) or backend.pins.unvouched(now)
    except (BackendError, OSError) as fault:
        return str(fault)


def labels_now(labels: Mapping[str, object]) -> dict[str, object]:
    """The labels of this machine with what is true of it now."""
    return labels_verified(labels, pins=not why_no_boundary(now=now_is()))


def local_nodes_verify(*, now: datetime) -> int:
    """Let the inventory say of the nodes of local clusters what was just tried. Returns of how many it changed."""
    found = Node.objects.filter(cluster__backend=LOCAL, cluster__removed_at__isnull=True, removed_at__isnull=True).order_by("pk")
    nodes = list(found if settings.LOCAL["LOCAL_PIN"] else found.filter(labels__has_key=CORES))
    if not nodes:
        return 0
    why, here = why_no_boundary(now=now), machine_name()
    changed = 0
    for node in nodes:
        try:
            changed += _told(node, why if node.name == here else f"{node.name} is not this machine, {here}.", now)
        except Conflict as fault:
            log.info("%s stays as somebody else has just left it: %s", node.name, fault)
    return changed


def _told(node: Node, why: str, now: datetime) -> bool:
    with transaction.atomic():
        node = locked_node(node)
        was, labels = node.labels.get(CORES) == VERIFIED, labels_verified(node.labels, pins=not why)
        if labels == node.labels:
            return False
        node.labels = labels
        node.save(update_fields=["labels"])
        states = {"verified": ["cores"] if was else []}, {"verified": [] if why else ["cores"]}
        hardware_record(SYSTEM, "node.boundaries", node, None, "boundaries", *states, (why or TRIED)[:REASON_LENGTH], now)
        lease_want()
    if why:
        log.warning("%s no longer vouches for pinned processors: %s", node.name, why)
    return True
