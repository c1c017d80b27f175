"""A drain that begins later: planned with its effect shown, begun when its moment has come, and called off until then."""

from datetime import timedelta

import pytest
from django.core.exceptions import PermissionDenied, ValidationError
from django.urls import reverse

from gpufleet.core.faults import Conflict
from gpufleet.core.models import AuditEntry
from gpufleet.core.times import now
from gpufleet.core.undo import undo_of
from scheduler.models import Attempt, Health, InventoryEvent, JobState, Node, PlannedDrain
from scheduler.presenters.hardware import history_lines
from scheduler.services.hardware.draining import nodes_drain
from scheduler.services.hardware.hardware import node_health_change
from scheduler.services.hardware.planned_drains import drain_plans_call_off, drains_plan, planned_drains_begin
from tests import builders

pytestmark = pytest.mark.django_db


@pytest.fixture
def busy(personas):
    node = builders.node("busy", gpus=2)
    job = builders.job("train", on=personas.nodes["acme/research/nlp"], state=JobState.RUNNING)
    builders.placement(job, on=node.gpus.first())
    return node


def _plan(personas, node, *, hours=2.0, way="move", at=None, who="operator", moment=None):
    moment = moment or now()
    begins = moment + timedelta(hours=hours)
    return drains_plan(access=personas.access(who), nodes=[node], begins_at=begins, way=way, at=at, reason="new fans", now=moment)[0]


def _health(node):
    return Node.objects.values_list("health", "health_reason", "drain_way").get(pk=node.pk)


def test_a_planned_drain_begins_when_its_moment_has_come(personas, busy):
    plan = _plan(personas, busy)

    assert planned_drains_begin(now=plan.begins_at - timedelta(seconds=1)) == 0
    assert _health(busy)[0] == Health.HEALTHY
    assert not Attempt.objects.filter(stop_asked_at__isnull=False).exists()

    assert planned_drains_begin(now=plan.begins_at) == 1
    assert _health(busy) == (Health.DRAINING, "new fans", "move")
    assert Attempt.objects.filter(stop_asked_at__isnull=False).exists(), "it is moved at once, as no other time was named"
    assert not PlannedDrain.objects.exists()
    assert planned_drains_begin(now=plan.begins_at) == 0


def test_jobs_leave_at_the_time_of_the_plan_or_at_once_where_that_is_past(personas, busy):
    moment = now()
    at = moment + timedelta(hours=3)
    _plan(personas, busy, at=at, moment=moment)
    other = builders.node("other", gpus=1)
    _plan(personas, other, at=at, moment=moment)

    assert planned_drains_begin(now=moment + timedelta(hours=2)) == 2
    assert Node.objects.get(pk=busy.pk).drain_at == at

    Node.objects.filter(pk=busy.pk).update(health=Health.HEALTHY)
    plan = _plan(personas, busy, at=at, moment=moment)
    late = at + timedelta(hours=1)
    assert planned_drains_begin(now=late) == 1, "the console was away"
    assert Node.objects.get(pk=busy.pk).drain_at == late
    assert not PlannedDrain.objects.filter(pk=plan.pk).exists()


def test_a_node_has_one_plan_and_it_is_called_off_once(personas, busy):
    first = _plan(personas, busy)
    second = _plan(personas, busy, hours=5, way="finish")
    call_off = {"access": personas.access("operator"), "reason": "not tonight", "now": now()}

    with pytest.raises(Conflict):
        drain_plans_call_off(plans=[first.public_id], **call_off)
    assert PlannedDrain.objects.get().public_id == second.public_id
    done = drain_plans_call_off(plans=[first.public_id, second.public_id], **call_off)
    assert [node.name for node in done] == ["busy"], "what was changed since keeps no other from being called off"
    assert not PlannedDrain.objects.exists()
    assert [entry.reason for entry in AuditEntry.objects.filter(action="node.drain_plan").order_by("pk")] == ["new fans", "new fans", "not tonight"]
    told = [line.text for line in history_lines(list(InventoryEvent.objects.filter(kind="planned_drain").order_by("pk")))]
    assert "drain planned for" in told[0] and "running jobs are moved at" in told[0]
    assert told[2] == "planned drain called off"


def test_a_node_that_is_in_repair_by_then_is_left_alone_and_its_history_says_so(personas, busy):
    plan = _plan(personas, busy)
    Node.objects.filter(pk=busy.pk).update(health=Health.REPAIRING)

    assert planned_drains_begin(now=plan.begins_at) == 0

    assert _health(busy)[0] == Health.REPAIRING
    assert not PlannedDrain.objects.exists()
    assert InventoryEvent.objects.filter(kind="planned_drain").latest("pk").cause == "busy was repairing when its planned drain was to begin."


def test_a_node_that_is_down_by_then_drains_when_it_is_back(personas, busy):
    plan = _plan(personas, busy)
    node_health_change(access=personas.access("operator"), node=busy, to=Health.DOWN, reason="rebooted", now=now())

    assert planned_drains_begin(now=plan.begins_at) == 0
    node_health_change(access=personas.access("operator"), node=busy, to=Health.SUSPECT, reason="back", now=now())
    assert planned_drains_begin(now=plan.begins_at) == 1
    assert _health(busy) == (Health.DRAINING, "new fans", "move")


@pytest.mark.parametrize(("way", "begun", "after"), [("move", 1, "move"), ("finish", 0, "finish")])
def test_a_node_that_drains_already_does_so_as_planned_unless_it_does_more(personas, busy, way, begun, after):
    """A health rule, or Slurm, has it drain by itself, and its jobs may finish."""
    plan = _plan(personas, busy, way=way)
    node_health_change(access=personas.access("operator"), node=busy, to=Health.DRAINING, reason="smoke", now=now())

    assert planned_drains_begin(now=plan.begins_at) == begun

    assert (Node.objects.get(pk=busy.pk).drain_way or "finish") == after
    assert not PlannedDrain.objects.exists()


def test_a_drain_at_once_takes_the_place_of_a_planned_one(personas, busy):
    _plan(personas, busy)
    address = reverse("node_health", args=[busy.public_id])
    shown = personas.client("operator").get(address, {"to": "draining"}).content.decode()
    assert "It takes the place of the drain of busy that is planned for" in shown
    assert 'name="begins" type="datetime-local" value=""' in shown, "Drain means now"

    nodes_drain(access=personas.access("operator"), nodes=[busy], way="finish", at=None, reason="smoke", now=now())

    assert not PlannedDrain.objects.exists()
    assert InventoryEvent.objects.filter(kind="planned_drain").latest("pk").cause == "smoke"


def test_a_node_that_was_taken_out_keeps_no_plan(personas, busy):
    plan = _plan(personas, busy)
    Node.objects.filter(pk=busy.pk).update(removed_at=now())

    assert planned_drains_begin(now=plan.begins_at) == 0
    assert not PlannedDrain.objects.exists()


def test_what_makes_no_sense_is_refused_at_its_field(personas, busy):
    moment = now()
    for faulty, field in (
        ({"hours": -1}, "begins"),
        ({"hours": 24 * 400}, "begins"),
        ({"at": moment + timedelta(hours=1)}, "at"),
        ({"at": moment + timedelta(hours=3), "way": "finish"}, "at"),
        ({"way": "fly"}, "jobs"),
    ):
        with pytest.raises(ValidationError) as raised:
            _plan(personas, busy, moment=moment, **faulty)
        assert list(raised.value.message_dict) == [field], faulty
    with pytest.raises(PermissionDenied):
        _plan(personas, busy, who="team_lead")
    Node.objects.filter(pk=busy.pk).update(health=Health.DRAINED)
    with pytest.raises(Conflict, match="busy is drained"):
        _plan(personas, busy)
    assert not PlannedDrain.objects.exists()


def test_an_operator_plans_a_drain_on_its_page_sees_it_on_the_node_and_takes_it_back(personas, busy):
    client, begins = personas.client("operator"), (now() + timedelta(hours=2)).replace(second=0, microsecond=0)
    address = reverse("node_health", args=[busy.public_id])
    sent = {"to": "draining", "jobs": "move", "begins": f"{begins:%Y-%m-%dT%H:%M}", "reason": "new fans"}

    shown = client.post(address, {**sent, "preview": "1"}).content.decode()
    assert f"From {begins:%Y-%m-%d %H:%M} UTC on, 2 GPUs of busy take no new jobs." in shown
    assert f"1 job saves its work and is moved at {begins:%Y-%m-%d %H:%M} UTC." in shown
    assert "Their owners are notified when it begins." in shown
    assert ">Schedule drain</button>" in shown
    assert ">Drain</button>" in client.post(address, {**sent, "begins": "", "preview": "1"}).content.decode()
    assert not PlannedDrain.objects.exists()
    refused = client.post(address, {**sent, "begins": "2020-01-01T00:00"})
    assert refused.status_code == 422 and "The time must be in the future." in refused.content.decode()

    done = client.post(address, sent, follow=True)
    (message,) = done.context["messages"]
    assert str(message) == f"busy drains from {begins:%Y-%m-%d %H:%M} UTC on."
    assert "Planned drain" in done.content.decode() and "Call off" in done.content.decode()
    changing = client.get(address, {"to": "draining", "planned": "1"}).content.decode()
    assert f'value="{begins:%Y-%m-%dT%H:%M}"' in changing, "a change begins with what is planned"
    assert "Call off" not in personas.client("viewer").get(reverse("node", args=[busy.public_id])).content.decode()

    undo = undo_of(message)
    said = client.post(undo.address, undo.fields, follow=True)
    assert "The planned drain of busy is called off." in said.content.decode()
    assert not PlannedDrain.objects.exists()
    again = client.post(undo.address, undo.fields, follow=True)
    assert "has begun or was changed since" in again.content.decode()


def test_the_api_plans_a_drain_and_calls_it_off(personas, busy):
    client, begins = personas.client("operator"), (now() + timedelta(hours=2)).replace(microsecond=0)
    body = {"nodes": [busy.public_id], "jobs": "move", "begins": begins.isoformat(), "reason": "new fans"}

    told = client.post("/api/v1/nodes/drain?dry_run=true", body, content_type="application/json").json()
    assert [(job["name"], job["fate"]) for job in told["jobs"]] == [("train", "moved")]
    assert not PlannedDrain.objects.exists()
    assert client.post("/api/v1/nodes/drain", body, content_type="application/json").json()["nodes"][0]["health"] == "healthy"
    planned = client.get(f"/api/v1/nodes/{busy.public_id}").json()["planned_drain"]
    assert (planned["jobs"], planned["at"], planned["reason"]) == ("move", None, "new fans")
    assert personas.client("team_lead").delete(f"/api/v1/nodes/{busy.public_id}/planned-drain").status_code == 403
    assert client.delete(f"/api/v1/nodes/{busy.public_id}/planned-drain").json()["planned_drain"] is None
    assert client.delete(f"/api/v1/nodes/{busy.public_id}/planned-drain").status_code == 404
