"""Other healths of many nodes at once, as `node_health_change` gives one to a single node: as many queries for many."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Count

from gpufleet.core.audit import audit_entry, audit_write
from gpufleet.core.bulk import objects_update, rows_insert
from gpufleet.core.faults import Conflict
from quotas.permissions import Access, Can
from scheduler.hardware.lifecycle import MUST_BE_EMPTY
from scheduler.models import IN_SERVICE, Gpu, InventoryEvent, Node, Placement
from scheduler.selectors.holders import open_placements
from scheduler.services.hardware.deadlines import deadlines_call_off, deadlines_of
from scheduler.services.hardware.hardware import (
    DRAIN,
    HEALTH,
    check_step,
    hardware_published,
    health_take,
    jobs_of_nodes_locked,
)
from scheduler.services.loop.lease import lease_want
from scheduler.services.loop.usage import timeline_follow, usage_moment

EVENT = ("at", "node_id", "cluster_id", "kind", "before", "after", "cause", "actor_id", "actor_name")


@dataclass(frozen=True, slots=True)
class HealthStep:
    """A node by key, the health that it is to have, and the one that the caller saw."""

    node: int
    to: str
    reason: str
    seen: str


@dataclass(frozen=True, slots=True)
class Changed:
    """The nodes that have their new health, and why others were left as they are, by key."""

    done: Sequence[int]
    refused: dict[int, str]


def nodes_health_change(*, access: Access, steps: Sequence[HealthStep], now: datetime) -> Changed:
    """One step of each node. What one of them cannot take keeps the others from nothing."""
    access.must_everywhere(Can.OPERATE)
    asked = {step.node: step for step in steps}
    with transaction.atomic():
        now = usage_moment(now=now)
        there = list(Node.objects.filter(pk__among=sorted(asked)).order_by("pk"))
        jobs_of_nodes_locked(there)
        nodes = {node.pk: node for node in Node.objects.select_for_update().filter(pk__among=sorted(asked)).order_by("pk")}
        held = _held([key for key, step in asked.items() if step.to in MUST_BE_EMPTY])
        refused = {key: fault for key, step in asked.items() if (fault := _fault(nodes.get(key), step, held.get(key, 0)))}
        fit = [node for key, node in nodes.items() if key not in refused]
        _write(access, fit, asked, now)
    return Changed([node.pk for node in fit], refused)


def _held(nodes: Sequence[int]) -> dict[int, int]:
    """How many jobs are on each of these nodes that has some."""
    there = open_placements().filter(node__among=nodes) if nodes else Placement.objects.none()
    return dict(there.order_by().values_list("node").annotate(jobs=Count("job", distinct=True)))


def _fault(node: Node | None, step: HealthStep, running: int) -> str:
    """Why a node cannot take its step; empty where it can."""
    if node is None or node.removed_at is not None:
        return "It was taken out of the fleet."
    try:
        check_step(node, step.to, step.reason, step.seen, lambda: running)
    except ValidationError as fault:
        return " ".join(fault.messages)
    except Conflict as fault:
        return str(fault)
    return ""


def _write(access: Access, nodes: Sequence[Node], asked: dict[int, HealthStep], now: datetime) -> None:
    if not nodes:
        return
    actor, events, entries = access.actor, [], []
    back = [node for node in nodes if asked[node.pk].to in IN_SERVICE]
    deadlines_call_off(access=access, deadlines=deadlines_of(back, now), now=now)
    for node in nodes:
        step = asked[node.pk]
        reason = step.reason.strip()
        before, after = health_take(node, step.to, reason, now)
        events.append((now, node.pk, node.cluster_id, "health", before, after, reason, actor.user.pk if actor.user else None, actor.name))
        entries.append(
            audit_entry(actor=actor, action="node.health", kind="node", object_id=node.public_id, before=before, after=after, reason=reason)
        )
    objects_update(nodes, (*HEALTH, *DRAIN))
    rows_insert(InventoryEvent, EVENT, events)
    audit_write(entries=entries)
    keys = [node.pk for node in nodes]
    gpus = list(Gpu.objects.filter(node__among=keys, removed_at__isnull=True).order_by("node", "index").values_list("pk", flat=True))
    hardware_published(nodes=keys, gpus=gpus)
    timeline_follow(gpus=gpus, at=now)
    lease_want()


def pcie_lost_write(lost: Mapping[int, int]) -> None:
    """What nodes by key have lost of the bandwidth of PCIe, in percent, as health rules find it now; the others have all of theirs."""
    known = dict(Node.objects.filter(pcie_lost__gt=0).values_list("pk", "pcie_lost"))
    changed = [Node(pk=key, pcie_lost=lost.get(key, 0)) for key in sorted({*known, *lost}) if known.get(key, 0) != lost.get(key, 0)]
    if changed:
        with transaction.atomic():
            objects_update(changed, ("pcie_lost",))
            hardware_published(nodes=[node.pk for node in changed], gpus=())
            lease_want()
