"""Drains that begin later: planned by an operator, begun by the console when their moment has come, and called off until then."""

import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction

from gpufleet.core.audit import SYSTEM
from gpufleet.core.faults import Conflict
from gpufleet.core.ids import public_ids
from quotas.permissions import Access, Can, Grant
from scheduler.models import IN_SERVICE, DrainWay, Health, Node, PlannedDrain
from scheduler.services.hardware.draining import FARTHEST, MOST_NODES, drain_checked, nodes_drain
from scheduler.services.hardware.hardware import check_reason, hardware_record, locked_node

ITSELF = Access(SYSTEM, (Grant("", frozenset({Can.OPERATE})),))
KIND = "planned_drain"
log = logging.getLogger(__name__)


def plan_checked(*, begins_at: datetime, way: str, at: datetime | None, now: datetime) -> None:
    """A `ValidationError` where its moments make no sense. `at` None: as it begins."""
    if begins_at <= now:
        raise ValidationError({"begins": ["The time must be in the future."]})
    if begins_at > now + FARTHEST:
        raise ValidationError({"begins": [f"The time is at most {FARTHEST.days} days ahead."]})
    if at is not None and at < begins_at and way != DrainWay.FINISH:
        raise ValidationError({"at": ["Jobs can leave when the drain begins or later."]})
    drain_checked(way=way, at=at, now=now)


def drains_plan(
    *, access: Access, nodes: Sequence[Node], begins_at: datetime, way: str, at: datetime | None, reason: str, now: datetime
) -> list[PlannedDrain]:
    """Have nodes drain from a moment on; a drain that was planned before gives way to this one. All of them or none."""
    access.must_everywhere(Can.OPERATE)
    plan_checked(begins_at=begins_at, way=way, at=at, now=now)
    check_reason(reason)
    if not 1 <= len(nodes) <= MOST_NODES:
        raise ValidationError({"nodes": [f"Name 1 to {MOST_NODES} nodes; these are {len(nodes):,}."]})
    with transaction.atomic():
        locked = [locked_node(node) for node in sorted(nodes, key=lambda node: node.pk)]
        for node in locked:
            if node.health not in IN_SERVICE:
                raise Conflict(f"{node.name} is {Health(node.health).label.lower()}; only nodes in service can be planned to drain.")
        before = {plan.node_id: plan for plan in PlannedDrain.objects.filter(node__in=locked)}
        PlannedDrain.objects.filter(node__in=locked).delete()
        plans = [
            PlannedDrain(
                public_id=name,
                node=node,
                begins_at=begins_at.astimezone(UTC),
                way=way,
                at=at.astimezone(UTC) if at is not None else None,
                reason=reason.strip(),
                author_name=access.actor.name,
                made_at=now,
            )
            for node, name in zip(locked, public_ids("dp", len(locked)), strict=True)
        ]
        PlannedDrain.objects.bulk_create(plans)
        for plan in plans:
            hardware_record(access.actor, "node.drain_plan", plan.node, None, KIND, _facts(before.get(plan.node_id)), _facts(plan), reason, now)
    return plans


def drain_plans_call_off(*, access: Access, plans: Sequence[str], reason: str, now: datetime) -> list[Node]:
    """Planned drains, by id, do not begin. A `Conflict` where one has begun or was called off."""
    access.must_everywhere(Can.OPERATE)
    check_reason(reason)
    with transaction.atomic():
        found = list(PlannedDrain.objects.filter(public_id__in=plans[: MOST_NODES + 1]).select_related("node").order_by("node_id"))
        nodes = [locked_node(plan.node) for plan in found]
        gone, _ = PlannedDrain.objects.filter(pk__in=[plan.pk for plan in found]).delete()
        if gone != len(set(plans)):
            raise Conflict("This planned drain has begun or was changed since. Look again, then decide.")
        for plan, node in zip(found, nodes, strict=True):
            hardware_record(access.actor, "node.drain_plan", node, None, KIND, _facts(plan), {}, reason, now)
    return nodes


def planned_drains_begin(*, now: datetime) -> int:
    """Begin the drains that are due; each by itself, so that none keeps another from it. Returns how many nodes drain by that."""
    return sum(_begin(plan, now) for plan in PlannedDrain.objects.filter(begins_at__lte=now).select_related("node"))


def _begin(plan: PlannedDrain, now: datetime) -> bool:
    """A node that is out of service by then, or drains already, is left as it is, and its history says so."""
    node = plan.node
    try:
        with transaction.atomic():
            begins = node.removed_at is None and node.health in IN_SERVICE
            if begins:
                at = plan.at if plan.at is not None and plan.at > now else None
                nodes_drain(access=ITSELF, nodes=[node], way=plan.way, at=at, reason=plan.reason, now=now, seen={node.public_id: node.health})
            if not PlannedDrain.objects.filter(pk=plan.pk).delete()[0]:
                raise Conflict("It was changed since.")
            if not begins and node.removed_at is None:
                told = f"{node.name} was {Health(node.health).label.lower()} when its planned drain was to begin."
                hardware_record(SYSTEM, "node.drain_plan", node, None, KIND, _facts(plan), {}, told, now)
    except Conflict as fault:
        log.info("the planned drain of %s is looked at again: %s", node.name, fault)
        return False
    return begins


def _facts(plan: PlannedDrain | None) -> dict[str, Any]:
    if plan is None:
        return {}
    return {"begins": _written(plan.begins_at), "jobs": plan.way, "at": _written(plan.at)}


def _written(at: datetime | None) -> str | None:
    return f"{at:%Y-%m-%dT%H:%M:%SZ}" if at is not None else None
