"""Drains that begin later: planned by an operator, begun by the console when their moment has come, and called off until then."""

import logging
from collections.abc import Sequence
from datetime import UTC, datetime

from django.core.exceptions import ValidationError
from django.db import transaction

from gpufleet.core.audit import SYSTEM
from gpufleet.core.faults import Conflict
from gpufleet.core.ids import public_ids
from quotas.permissions import Access, Can, Grant
from scheduler.models import IN_SERVICE, DrainWay, Health, Node, PlannedDrain
from scheduler.services.beginnings import begins_checked
from scheduler.services.hardware.draining import MOST_NODES, PLANNED, drain_checked, drain_plan_record, nodes_drain
from scheduler.services.hardware.hardware import check_reason, jobs_of_nodes_locked, locked_node, newest_or_conflict
from scheduler.services.loop.usage import usage_moment

ITSELF = Access(SYSTEM, (Grant("", frozenset({Can.OPERATE})),))
WAYS = [DrainWay.FINISH.value, DrainWay.MOVE.value, DrainWay.STOP.value]
log = logging.getLogger(__name__)


def plan_checked(*, begins_at: datetime, way: str, at: datetime | None, now: datetime) -> None:
    """A `ValidationError` where its moments make no sense. `at` None: as it begins."""
    begins_checked(begins_at=begins_at, now=now)
    if at is not None and at < begins_at and way != DrainWay.FINISH:
        raise ValidationError({"at": ["Jobs can leave when the drain begins or later."]})
    drain_checked(way=way, at=at, now=now)


def drains_plan(
    *, access: Access, nodes: Sequence[Node], begins_at: datetime, way: str, at: datetime | None, reason: str, now: datetime, undone: str = ""
) -> list[PlannedDrain]:
    """Have nodes drain from a moment on; a drain that was planned before gives way to this one. All of them or none. `undone` is the id of the step
    that called a node's plan off, where this takes that back."""
    access.must_everywhere(Can.OPERATE)
    plan_checked(begins_at=begins_at, way=way, at=at, now=now)
    check_reason(reason)
    if not 1 <= len(nodes) <= MOST_NODES:
        raise ValidationError({"nodes": [f"Name 1 to {MOST_NODES} nodes; these are {len(nodes):,}."]})
    with transaction.atomic():
        locked = [locked_node(node) for node in sorted(nodes, key=lambda node: node.pk)]
        for node in locked:
            newest_or_conflict(node, PLANNED, undone)
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
            drain_plan_record(access.actor, plan.node, before=before.get(plan.node_id), after=plan, reason=reason, now=now)
    return plans


def drain_plans_call_off(*, access: Access, plans: Sequence[str], reason: str, now: datetime) -> list[Node]:
    """Planned drains, by id, do not begin. Those that have begun or were changed are left alone; a `Conflict` where no other is left."""
    access.must_everywhere(Can.OPERATE)
    check_reason(reason)
    with transaction.atomic():
        found = list(PlannedDrain.objects.filter(public_id__in=plans[: MOST_NODES + 1]).select_related("node").order_by("node_id"))
        nodes = [locked_node(plan.node) for plan in found]
        done = []
        for plan, node in zip(found, nodes, strict=True):
            if PlannedDrain.objects.filter(pk=plan.pk).delete()[0]:
                drain_plan_record(access.actor, node, before=plan, after=None, reason=reason, now=now)
                done.append(node)
        if not done:
            raise Conflict("This planned drain has begun or was changed since. Look again, then decide.")
    return done


def planned_drains_begin(*, now: datetime) -> int:
    """Begin the drains that are due; each by itself, so that none keeps another from it. Returns how many have begun."""
    return sum(_begin(plan, now) for plan in PlannedDrain.objects.filter(begins_at__lte=now).exclude(node__health=Health.DOWN).select_related("node"))


def _begin(plan: PlannedDrain, now: datetime) -> bool:
    """A node that is down keeps its plan until it is back. One that drains already does so as planned, unless it does more. Any other is left
    as it is, and its history says so."""
    try:
        with transaction.atomic():
            moment = usage_moment(now=now)
            jobs_of_nodes_locked([plan.node])
            node = Node.objects.select_for_update().get(pk=plan.node_id)
            if node.removed_at is None and node.health == Health.DOWN:
                return False
            if not PlannedDrain.objects.filter(pk=plan.pk).delete()[0]:
                raise Conflict("It was changed since.")
            if node.removed_at is not None:
                return False
            if node.health in IN_SERVICE or (node.health == Health.DRAINING and _does_more(plan, node, moment)):
                at = plan.at if plan.at is not None and plan.at > moment else None
                nodes_drain(access=ITSELF, nodes=[node], way=plan.way, at=at, reason=plan.reason, now=moment)
                return True
            told = f"{node.name} was {Health(node.health).label.lower()} when its planned drain was to begin."
            drain_plan_record(SYSTEM, node, before=plan, after=None, reason=told, now=moment)
    except Conflict as fault:
        log.info("the planned drain of %s is looked at again: %s", plan.node.name, fault)
    return False


def _does_more(plan: PlannedDrain, node: Node, now: datetime) -> bool:
    """Whether more jobs leave by a plan than as the node drains now, or as many sooner."""
    planned, current = WAYS.index(plan.way), WAYS.index(node.drain_way or DrainWay.FINISH)
    sooner = plan.way != DrainWay.FINISH and node.drain_at is not None and (plan.at or now) < node.drain_at
    return planned > current or (planned == current and sooner)
