"""Healths of many nodes at once are written as those of one: the same nodes, histories, notices and capacity."""

from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import F

from gpufleet.core.faults import Conflict
from gpufleet.core.models import AuditEntry
from scheduler.models import CapacityEntry, DrainWay, Gpu, Health, InventoryEvent, JobEvent, JobState, Node
from scheduler.services.hardware.draining import nodes_drain
from scheduler.services.hardware.hardware import node_health_change
from scheduler.services.hardware.healths import HealthStep, nodes_health_change
from scheduler.services.loop.usage import timeline_follow
from tests import builders
from tests.builders import NOON
from tests.personas import Personas

pytestmark = pytest.mark.django_db
LATER = NOON + timedelta(minutes=5)
STEPS = {
    "well": (Health.HEALTHY, "suspect", "healthy"),
    "gone": (Health.HEALTHY, "down", "healthy"),
    "empty": (Health.DRAINING, "drained", "draining"),
    "held": (Health.DRAINING, "drained", "draining"),
    "due": (Health.DRAINING, "healthy", "draining"),
    "changed": (Health.SUSPECT, "down", "healthy"),
    "wrong": (Health.HEALTHY, "burn_in", "healthy"),
    "removed": (Health.HEALTHY, "suspect", "healthy"),
}
REFUSED = {"held", "changed", "wrong", "removed"}


def world(mark: str, personas: Personas) -> dict[str, Node]:
    """A node of each kind. The jobs on `due` and `held` run; that on `due` had to leave by a deadline that is now called off."""
    nodes = {name: builders.node(f"{name}-{mark}", gpus=2, health=health, health_since=NOON) for name, (health, *_) in STEPS.items()}
    nodes["removed"].removed_at = NOON
    nodes["removed"].save(update_fields=["removed_at"])
    for name in ("held", "due"):
        job = builders.job(f"job-{name}-{mark}", state=JobState.RUNNING, on=personas.nodes["acme/research/vision"], owner=personas.users["submitter"])
        builders.placement(job, nodes[name].gpus.first(), since=NOON - timedelta(hours=1))
        job.attempts.update(running_at=NOON - timedelta(hours=1))
    Node.objects.filter(pk=nodes["due"].pk).update(health=Health.HEALTHY)
    nodes_drain(access=personas.access("operator"), nodes=[nodes["due"]], way=DrainWay.STOP, at=NOON + timedelta(hours=2), reason="a fan", now=NOON)
    return {name: Node.objects.get(pk=node.pk) for name, node in nodes.items()}


def written(nodes: dict[str, Node]) -> dict[str, Any]:
    keys = {node.pk: name for name, node in nodes.items()}
    ids = {node.public_id: name for name, node in nodes.items()}
    rows = Node.objects.filter(pk__in=keys).values_list("pk", "health", "health_since", "health_reason", "drain_way", "drain_at")
    events = InventoryEvent.objects.filter(node__in=keys).order_by("node_id", "pk")
    entries = AuditEntry.objects.filter(object_kind="node", object_id__in=ids).order_by("pk")
    return {
        "nodes": {keys[key]: rest for key, *rest in rows},
        "events": sorted((keys[row.node_id or 0], row.kind, str(row.before), str(row.after), row.cause, row.at, row.actor_name) for row in events),
        "audit": sorted(
            (ids[one.object_id], one.action, str(one.before), str(one.after), one.reason, one.actor_name, one.quota_path) for one in entries
        ),
        "jobs": sorted(
            (one.job.name.rpartition("-")[0], one.cause.replace(nodes["due"].name, "due"))
            for one in JobEvent.objects.filter(job__placements__node__in=keys).select_related("job")
        ),
        "capacity": sorted(
            (keys[entry.gpu.node_id], entry.gpu.index, entry.since, str(entry.until), entry.down_milli, entry.blocked_milli)
            for entry in CapacityEntry.objects.filter(gpu__node__in=keys).exclude(until=F("since")).select_related("gpu")
        ),
    }


def test_many_are_written_as_one_by_one(personas: Personas) -> None:
    access = personas.access("operator")
    alone, together = world("alone", personas), world("together", personas)
    timeline_follow(gpus=Gpu.objects.values_list("pk", flat=True), at=NOON)

    refused = {}
    for name, node in alone.items():
        _, to, seen = STEPS[name]
        try:
            node_health_change(access=access, node=node, to=to, reason=f" because {name} ", now=LATER, seen=seen)
        except (Conflict, ValidationError) as fault:
            refused[name] = " ".join(fault.messages) if isinstance(fault, ValidationError) else str(fault)
    steps = [HealthStep(node.pk, STEPS[name][1], f" because {name} ", STEPS[name][2]) for name, node in together.items()]
    found = nodes_health_change(access=access, steps=steps, now=LATER)

    names = {node.pk: name for name, node in together.items()}
    assert {names[key] for key in found.done} == STEPS.keys() - REFUSED
    told = {names[key]: text for key, text in found.refused.items()}
    assert told.keys() == refused.keys() == REFUSED
    assert {name: told[name] for name in REFUSED - {"removed"}} == {name: refused[name] for name in REFUSED - {"removed"}}
    assert "taken out of the fleet" in told["removed"] and "taken out of the fleet" in refused["removed"]
    assert written(together) == written(alone)
    assert any("is called off" in cause for _, cause in written(together)["jobs"])


def test_only_operators_of_the_fleet_may(personas: Personas) -> None:
    node = builders.node()
    with pytest.raises(PermissionDenied):
        nodes_health_change(access=personas.access("quota_admin"), steps=[HealthStep(node.pk, "down", "x", "healthy")], now=NOON)
    assert nodes_health_change(access=personas.access("operator"), steps=[], now=NOON).done == []


def test_a_step_without_a_reason_is_refused_alone(personas: Personas) -> None:
    first, second = builders.node("first"), builders.node("second")
    steps = [HealthStep(first.pk, "suspect", " ", "healthy"), HealthStep(second.pk, "suspect", "a fan", "healthy")]

    found = nodes_health_change(access=personas.access("operator"), steps=steps, now=NOON)

    assert (found.done, found.refused) == ([second.pk], {first.pk: "A reason is required for the record."})
