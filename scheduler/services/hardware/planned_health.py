"""Another health of nodes that begins later, drains among them: planned by an operator, begun by the console when its moment has come, and called
off until then."""

import logging
from collections.abc import Sequence
from datetime import UTC, datetime

from django.core.exceptions import ValidationError
from django.db import transaction

from gpufleet.core.audit import SYSTEM
from gpufleet.core.faults import Conflict
from gpufleet.core.ids import public_ids
from quotas.permissions import Access, Can, Grant
from scheduler.models import IN_SERVICE, DrainWay, Health, Node, PlannedHealth
from scheduler.services.beginnings import begins_checked
from scheduler.services.hardware.draining import MOST_NODES, PLANNED, drain_checked, health_plan_record, nodes_drain
from scheduler.services.hardware.hardware import (
    check_reason,
    jobs_of_nodes_locked,
    locked_node,
    newest_or_conflict,
    node_health_change,
    unfit_step,
    unseen_or_conflict,
)
from scheduler.services.loop.usage import usage_moment

ITSELF = Access(SYSTEM, (Grant("", frozenset({Can.OPERATE})),))
WAYS = [DrainWay.FINISH.value, DrainWay.MOVE.value, DrainWay.STOP.value]
log = logging.getLogger(__name__)


def drain_plan_checked(*, begins_at: datetime, way: str, at: datetime | None, now: datetime) -> None:
    """A `ValidationError` where the moments of a drain make no sense. `at` None: as it begins."""
    begins_checked(begins_at=begins_at, now=now)
    if at is not None and at < begins_at and way != DrainWay.FINISH:
        raise ValidationError({"at": ["Jobs can leave when the drain begins or later."]})
    drain_checked(way=way, at=at, now=now)


def health_plan(
    *,
    access: Access,
    nodes: Sequence[Node],
    to: str,
    begins_at: datetime,
    reason: str,
    now: datetime,
    way: str = DrainWay.FINISH,
    at: datetime | None = None,
    seen: str | None = None,
    undone: str = "",
) -> list[PlannedHealth]:
    """Have nodes take another health at a moment; what was planned for them before gives way to this. All of them or none. `way` and `at` are those
    of a drain. `seen` is the health that was shown, `undone` the id of the step that called a node's plan off, where this takes that back."""
    access.must_everywhere(Can.OPERATE)
    drains = to == Health.DRAINING
    if drains:
        drain_plan_checked(begins_at=begins_at, way=way, at=at, now=now)
    else:
        begins_checked(begins_at=begins_at, now=now)
    check_reason(reason)
    if not 1 <= len(nodes) <= MOST_NODES:
        raise ValidationError({"nodes": [f"Name 1 to {MOST_NODES} nodes; these are {len(nodes):,}."]})
    with transaction.atomic():
        locked = [locked_node(node) for node in sorted(nodes, key=lambda node: node.pk)]
        for node in locked:
            newest_or_conflict(node, PLANNED, undone)
            _must_follow(node, to, seen)
        before = {plan.node_id: plan for plan in PlannedHealth.objects.filter(node__in=locked)}
        PlannedHealth.objects.filter(node__in=locked).delete()
        plans = [
            PlannedHealth(
                public_id=name,
                node=node,
                to=to,
                begins_at=begins_at.astimezone(UTC),
                way=way if drains else "",
                at=at.astimezone(UTC) if drains and at is not None else None,
                reason=reason.strip(),
                author_name=access.actor.name,
                made_at=now,
            )
            for node, name in zip(locked, public_ids("hp", len(locked)), strict=True)
        ]
        PlannedHealth.objects.bulk_create(plans)
        for plan in plans:
            health_plan_record(access.actor, plan.node, before=before.get(plan.node_id), after=plan, reason=reason, now=now)
    return plans


def health_plan_checked(*, node: Node, to: str, begins_at: datetime, reason: str, now: datetime, seen: str | None = None) -> None:
    """What `health_plan` refuses now of a node, refused before anything is planned. A drain lets jobs finish."""
    begins_checked(begins_at=begins_at, now=now)
    check_reason(reason)
    _must_follow(node, to, seen)


def _must_follow(node: Node, to: str, seen: str | None) -> None:
    unseen_or_conflict(node, seen)
    if to == Health.DRAINING and node.health not in IN_SERVICE:
        raise Conflict(f"{node.name} is {Health(node.health).label.lower()}; only nodes in service can be planned to drain.")
    if fault := unfit_step(node, to):
        raise ValidationError({"to": [fault]})


def health_plans_call_off(*, access: Access, plans: Sequence[str], reason: str, now: datetime) -> list[Node]:
    """Planned changes of health, by id, do not begin. Those that have begun or were changed are left alone; a `Conflict` where no other is left."""
    access.must_everywhere(Can.OPERATE)
    check_reason(reason)
    with transaction.atomic():
        found = list(PlannedHealth.objects.filter(public_id__in=plans[: MOST_NODES + 1]).select_related("node").order_by("node_id"))
        nodes = [locked_node(plan.node) for plan in found]
        done = []
        for plan, node in zip(found, nodes, strict=True):
            if PlannedHealth.objects.filter(pk=plan.pk).delete()[0]:
                health_plan_record(access.actor, node, before=plan, after=None, reason=reason, now=now)
                done.append(node)
        if not done:
            raise Conflict("This planned change has begun or was changed since. Look again, then decide.")
    return done


def planned_health_begin(*, now: datetime) -> int:
    """Begin the changes that are due, each by itself, so that none keeps another from it. Returns how many have begun."""
    due = PlannedHealth.objects.filter(begins_at__lte=now).exclude(to=Health.DRAINING, node__health=Health.DOWN)
    return sum(_begin(plan, now) for plan in due.select_related("node"))


def _begin(plan: PlannedHealth, now: datetime) -> bool:
    """A node that is down keeps its planned drain until it is back. One that drains already does so as planned, unless it does more. Where the
    health cannot follow by then the node is left as it is, and its history says so."""
    try:
        with transaction.atomic():
            moment = usage_moment(now=now)
            jobs_of_nodes_locked([plan.node])
            node = Node.objects.select_for_update().get(pk=plan.node_id)
            drains = plan.to == Health.DRAINING
            if node.removed_at is None and drains and node.health == Health.DOWN:
                return False
            if not PlannedHealth.objects.filter(pk=plan.pk).delete()[0]:
                raise Conflict("It was changed since.")
            if node.removed_at is not None:
                return False
            refused = _drain(plan, node, moment) if drains else _step(plan, node, moment)
            if refused:
                health_plan_record(SYSTEM, node, before=plan, after=None, reason=refused, now=moment)
            return not refused
    except Conflict as fault:
        log.info("the planned change of %s is looked at again: %s", plan.node.name, fault)
    return False


def _step(plan: PlannedHealth, node: Node, now: datetime) -> str:
    """Take the step, as an operator would. Returns why not, where it cannot be taken."""
    if node.health == plan.to:
        return f"{_was(plan, node)}."
    try:
        node_health_change(access=ITSELF, node=node, to=plan.to, reason=plan.reason, now=now)
    except ValidationError as fault:
        return f"{_was(plan, node)}: {' '.join(fault.messages)}"
    return ""


def _drain(plan: PlannedHealth, node: Node, now: datetime) -> str:
    """Drain the node, or change how it drains. Returns why not, where it is not drained."""
    if node.health not in IN_SERVICE and not (node.health == Health.DRAINING and _does_more(plan, node, now)):
        return f"{_was(plan, node)}."
    at = plan.at if plan.at is not None and plan.at > now else None
    nodes_drain(access=ITSELF, nodes=[node], way=plan.way, at=at, reason=plan.reason, now=now)
    return ""


def _was(plan: PlannedHealth, node: Node) -> str:
    what = "drain" if plan.to == Health.DRAINING else "change"
    return f"{node.name} was {Health(node.health).label.lower()} when its planned {what} was to begin"


def _does_more(plan: PlannedHealth, node: Node, now: datetime) -> bool:
    """Whether more jobs leave by a plan than as the node drains now, or as many sooner."""
    planned, current = WAYS.index(plan.way), WAYS.index(node.drain_way or DrainWay.FINISH)
    sooner = plan.way != DrainWay.FINISH and node.drain_at is not None and (plan.at or now) < node.drain_at
    return planned > current or (planned == current and sooner)
