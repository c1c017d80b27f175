"""Another health that begins later, a drain among them: planned with its effect shown, begun when its moment has come, and called off until then."""

from datetime import timedelta

import pytest
from django.core.exceptions import PermissionDenied, ValidationError
from django.urls import reverse

from gpufleet.core.faults import Conflict
from gpufleet.core.models import AuditEntry
from gpufleet.core.times import now
from gpufleet.core.undo import undo_of
from scheduler.hardware.lifecycle import steps_from
from scheduler.models import Attempt, Health, InventoryEvent, JobState, Node, PlannedHealth
from scheduler.presenters.hardware import history_lines
from scheduler.services.hardware.draining import nodes_drain
from scheduler.services.hardware.hardware import node_health_change
from scheduler.services.hardware.planned_health import health_plan, health_plans_call_off, planned_health_begin
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
    return health_plan(
        access=personas.access(who), nodes=[node], to=Health.DRAINING, begins_at=begins, way=way, at=at, reason="new fans", now=moment
    )[0]


def _health(node):
    return Node.objects.values_list("health", "health_reason", "drain_way").get(pk=node.pk)


def test_a_planned_drain_begins_when_its_moment_has_come(personas, busy):
    plan = _plan(personas, busy)

    assert planned_health_begin(now=plan.begins_at - timedelta(seconds=1)) == 0
    assert _health(busy)[0] == Health.HEALTHY
    assert not Attempt.objects.filter(stop_asked_at__isnull=False).exists()

    assert planned_health_begin(now=plan.begins_at) == 1
    assert _health(busy) == (Health.DRAINING, "new fans", "move")
    assert Attempt.objects.filter(stop_asked_at__isnull=False).exists(), "it is moved at once, as no other time was named"
    assert not PlannedHealth.objects.exists()
    assert planned_health_begin(now=plan.begins_at) == 0


def test_jobs_leave_at_the_time_of_the_plan_or_at_once_where_that_is_past(personas, busy):
    moment = now()
    at = moment + timedelta(hours=3)
    _plan(personas, busy, at=at, moment=moment)
    other = builders.node("other", gpus=1)
    _plan(personas, other, at=at, moment=moment)

    assert planned_health_begin(now=moment + timedelta(hours=2)) == 2
    assert Node.objects.get(pk=busy.pk).drain_at == at

    Node.objects.filter(pk=busy.pk).update(health=Health.HEALTHY)
    plan = _plan(personas, busy, at=at, moment=moment)
    late = at + timedelta(hours=1)
    assert planned_health_begin(now=late) == 1, "the console was away"
    assert Node.objects.get(pk=busy.pk).drain_at == late
    assert not PlannedHealth.objects.filter(pk=plan.pk).exists()


def test_a_node_has_one_plan_and_it_is_called_off_once(personas, busy):
    first = _plan(personas, busy)
    second = _plan(personas, busy, hours=5, way="finish")
    call_off = {"access": personas.access("operator"), "reason": "not tonight", "now": now()}

    with pytest.raises(Conflict):
        health_plans_call_off(plans=[first.public_id], **call_off)
    assert PlannedHealth.objects.get().public_id == second.public_id
    done = health_plans_call_off(plans=[first.public_id, second.public_id], **call_off)
    assert [node.name for node in done] == ["busy"], "what was changed since keeps no other from being called off"
    assert not PlannedHealth.objects.exists()
    assert [entry.reason for entry in AuditEntry.objects.filter(action="node.health_plan").order_by("pk")] == ["new fans", "new fans", "not tonight"]
    told = [line.text for line in history_lines(list(InventoryEvent.objects.filter(kind="planned_health").order_by("pk")))]
    assert "drain planned for" in told[0] and "running jobs are moved at" in told[0]
    assert told[2] == "planned drain called off"


def test_a_node_that_is_in_repair_by_then_is_left_alone_and_its_history_says_so(personas, busy):
    plan = _plan(personas, busy)
    Node.objects.filter(pk=busy.pk).update(health=Health.REPAIRING)

    assert planned_health_begin(now=plan.begins_at) == 0

    assert _health(busy)[0] == Health.REPAIRING
    assert not PlannedHealth.objects.exists()
    assert InventoryEvent.objects.filter(kind="planned_health").latest("pk").cause == "busy was repairing when its planned drain was to begin."


def test_a_node_that_is_down_by_then_drains_when_it_is_back(personas, busy):
    plan = _plan(personas, busy)
    node_health_change(access=personas.access("operator"), node=busy, to=Health.DOWN, reason="rebooted", now=now())

    assert planned_health_begin(now=plan.begins_at) == 0
    node_health_change(access=personas.access("operator"), node=busy, to=Health.SUSPECT, reason="back", now=now())
    assert planned_health_begin(now=plan.begins_at) == 1
    assert _health(busy) == (Health.DRAINING, "new fans", "move")


@pytest.mark.parametrize(("way", "begun", "after"), [("move", 1, "move"), ("finish", 0, "finish")])
def test_a_node_that_drains_already_does_so_as_planned_unless_it_does_more(personas, busy, way, begun, after):
    """A health rule, or Slurm, has it drain by itself, and its jobs may finish."""
    plan = _plan(personas, busy, way=way)
    node_health_change(access=personas.access("operator"), node=busy, to=Health.DRAINING, reason="smoke", now=now())

    assert planned_health_begin(now=plan.begins_at) == begun

    assert (Node.objects.get(pk=busy.pk).drain_way or "finish") == after
    assert not PlannedHealth.objects.exists()


def test_a_drain_at_once_takes_the_place_of_a_planned_one(personas, busy):
    _plan(personas, busy)
    address = reverse("node_health", args=[busy.public_id])
    shown = personas.client("operator").get(address, {"to": "draining"}).content.decode()
    assert "It takes the place of the drain of busy that is planned for" in shown
    assert 'name="begins" type="datetime-local" value=""' in shown, "Drain means now"

    nodes_drain(access=personas.access("operator"), nodes=[busy], way="finish", at=None, reason="smoke", now=now())

    assert not PlannedHealth.objects.exists()
    assert InventoryEvent.objects.filter(kind="planned_health").latest("pk").cause == "smoke"


def test_a_node_that_was_taken_out_keeps_no_plan(personas, busy):
    plan = _plan(personas, busy)
    Node.objects.filter(pk=busy.pk).update(removed_at=now())

    assert planned_health_begin(now=plan.begins_at) == 0
    assert not PlannedHealth.objects.exists()


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
    assert not PlannedHealth.objects.exists()


def test_an_operator_plans_a_drain_on_its_page_sees_it_on_the_node_and_takes_it_back(personas, busy):
    client, begins = personas.client("operator"), (now() + timedelta(hours=2)).replace(second=0, microsecond=0)
    address = reverse("node_health", args=[busy.public_id])
    sent = {"to": "draining", "jobs": "move", "begins": f"{begins:%Y-%m-%dT%H:%M}", "reason": "new fans"}

    shown = client.post(address, {**sent, "preview": "1"}).content.decode()
    assert f"From {begins:%Y-%m-%d %H:%M} UTC on, 2 GPUs of busy take no new jobs." in shown
    assert f"1 job is asked to save its work and is moved at {begins:%Y-%m-%d %H:%M} UTC." in shown
    assert "Their owners are notified when it begins." in shown
    assert ">Schedule drain</button>" in shown
    assert ">Drain</button>" in client.post(address, {**sent, "begins": "", "preview": "1"}).content.decode()
    assert not PlannedHealth.objects.exists()
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
    assert not PlannedHealth.objects.exists()
    again = client.post(undo.address, undo.fields, follow=True)
    assert "has begun or was changed since" in again.content.decode()


def test_the_api_plans_a_drain_and_calls_it_off(personas, busy):
    client, begins = personas.client("operator"), (now() + timedelta(hours=2)).replace(microsecond=0)
    body = {"nodes": [busy.public_id], "jobs": "move", "begins": begins.isoformat(), "reason": "new fans"}

    told = client.post("/api/v1/nodes/drain?dry_run=true", body, content_type="application/json").json()
    assert [(job["name"], job["fate"]) for job in told["jobs"]] == [("train", "moved")]
    assert not PlannedHealth.objects.exists()
    assert client.post("/api/v1/nodes/drain", body, content_type="application/json").json()["nodes"][0]["health"] == "healthy"
    planned = client.get(f"/api/v1/nodes/{busy.public_id}").json()["planned_health"]
    assert (planned["jobs"], planned["at"], planned["reason"]) == ("move", None, "new fans")
    assert personas.client("team_lead").delete(f"/api/v1/nodes/{busy.public_id}/planned-health").status_code == 403
    assert client.delete(f"/api/v1/nodes/{busy.public_id}/planned-health").json()["planned_health"] is None
    assert client.delete(f"/api/v1/nodes/{busy.public_id}/planned-health").status_code == 404


# Other healths than draining


def _plan_to(personas, node, to, *, who="operator", moment=None, **given):
    moment = moment or now()
    given = {"begins_at": moment + timedelta(hours=2), "reason": "night shift", "now": moment} | given
    return health_plan(access=personas.access(who), nodes=[node], to=to, **given)[0]


def _told():
    return InventoryEvent.objects.filter(kind="planned_health").latest("pk").cause


@pytest.mark.parametrize(("was", "to"), [(was, step.to) for was in Health for step in steps_from(was) if step.to != Health.DRAINING])
def test_each_step_that_an_operator_may_take_can_be_planned(personas, was, to):
    node = builders.node("n1", gpus=1, health=was)
    plan = _plan_to(personas, node, to)

    assert planned_health_begin(now=plan.begins_at - timedelta(seconds=1)) == 0
    assert _health(node)[0] == was
    assert planned_health_begin(now=plan.begins_at) == 1

    assert _health(node) == (to, "night shift", "")
    assert not PlannedHealth.objects.exists()
    entry = AuditEntry.objects.filter(action="node.health").latest("pk")
    assert (entry.before["health"], entry.after["health"], entry.actor_name) == (was, to, "gpufleet")


@pytest.mark.parametrize(
    ("was", "to", "by_then", "told"),
    [
        (Health.HEALTHY, Health.SUSPECT, Health.SUSPECT, "n1 was suspect when its planned change was to begin."),
        (
            Health.SUSPECT,
            Health.HEALTHY,
            Health.DOWN,
            "n1 was down when its planned change was to begin: From down it can become repairing, burn-in, drained, suspect, not healthy.",
        ),
    ],
)
def test_what_cannot_follow_by_then_is_left_alone_and_the_history_says_so(personas, was, to, by_then, told):
    node = builders.node("n1", gpus=1, health=was)
    plan = _plan_to(personas, node, to)
    Node.objects.filter(pk=node.pk).update(health=by_then)

    assert planned_health_begin(now=plan.begins_at) == 0

    assert (_health(node)[0], _told()) == (by_then, told)
    assert not PlannedHealth.objects.exists()


def test_a_node_on_which_jobs_run_by_then_does_not_become_drained(personas, busy):
    Node.objects.filter(pk=busy.pk).update(health=Health.DRAINING)
    plan = _plan_to(personas, busy, Health.DRAINED)
    client = personas.client("operator")
    assert "1 job runs here. It must be empty by then." in _page_of_plan(client, busy, Health.DRAINED)

    assert planned_health_begin(now=plan.begins_at) == 0

    assert _health(busy)[0] == Health.DRAINING
    assert _told().startswith("busy was draining when its planned change was to begin: 1 job runs here.")


def _page_of_plan(client, node, to):
    page = client.get(reverse("node_health", args=[node.public_id]), {"to": to, "planned": "1"})
    assert page.status_code == 200
    return page.content.decode()


def test_a_node_has_one_plan_and_a_drain_at_once_leaves_another_change_planned(personas, busy):
    _plan(personas, busy)
    down = _plan_to(personas, busy, Health.DOWN)
    assert PlannedHealth.objects.get() == down

    told = [line.text for line in history_lines(list(InventoryEvent.objects.filter(kind="planned_health").order_by("pk")))]
    assert told[1] == f"change to down planned for {down.begins_at:%Y-%m-%d %H:%M} UTC"
    shown = personas.client("operator").get(reverse("node_health", args=[busy.public_id]), {"to": "draining"}).content.decode()
    assert f"The change of busy to down stays planned for {down.begins_at:%Y-%m-%d %H:%M} UTC." in shown

    nodes_drain(access=personas.access("operator"), nodes=[busy], way="finish", at=None, reason="smoke", now=now())
    assert PlannedHealth.objects.get() == down
    assert planned_health_begin(now=down.begins_at) == 1
    assert _health(busy)[0] == Health.DOWN


def test_a_planned_change_that_makes_no_sense_is_refused(personas, busy):
    for given, field in (
        ({"begins_at": now() - timedelta(hours=1)}, "begins"),
        ({"reason": " "}, "reason"),
        ({"to": Health.REPAIRING}, "to"),
        ({"to": "gone"}, "to"),
        ({"to": Health.HEALTHY}, "to"),
    ):
        with pytest.raises(ValidationError) as raised:
            _plan_to(personas, busy, **({"to": Health.DOWN} | given))
        assert list(raised.value.message_dict) == [field], given
    with pytest.raises(PermissionDenied):
        _plan_to(personas, busy, Health.DOWN, who="team_lead")
    with pytest.raises(Conflict, match="It is healthy by now"):
        _plan_to(personas, busy, Health.DOWN, seen="suspect")
    assert not PlannedHealth.objects.exists()


def test_an_operator_plans_another_health_on_its_page_sees_it_everywhere_and_takes_it_back(personas, busy):
    client, begins = personas.client("operator"), (now() + timedelta(hours=2)).replace(second=0, microsecond=0)
    address, moment = reverse("node_health", args=[busy.public_id]), f"{begins:%Y-%m-%d %H:%M} UTC"
    sent = {"to": "down", "seen": "healthy", "begins": f"{begins:%Y-%m-%dT%H:%M}", "reason": "power work"}
    assert ">Mark down</button>" in client.get(address, {"to": "down"}).content.decode()

    shown = client.post(address, {**sent, "preview": "1", "reason": ""}).content.decode()
    assert f"It begins at {moment} and is checked again then. This is what it would do now." in shown
    assert "2 GPUs of busy are out of service from then on." in shown and "1 job loses its workers here." in shown
    assert "Their owners are notified when it begins." in shown
    assert ">Schedule change to down</button>" in shown
    assert not PlannedHealth.objects.exists()
    refused = client.post(address, {**sent, "begins": "2020-01-01T00:00"})
    assert refused.status_code == 422 and refused.content.decode().count("The time must be in the future.") == 2, "at its field and in the preview"
    assert client.post(address, {**sent, "begins": "soon", "preview": "1"}).status_code == 422
    assert client.post(address, {**sent, "reason": ""}).status_code == 422
    assert client.post(address, {**sent, "seen": "suspect"}).status_code == 409

    done = client.post(address, sent, follow=True)
    (message,) = done.context["messages"]
    assert str(message) == f"busy will be down from {moment} on."
    assert "Planned change" in done.content.decode() and "Mark down." in done.content.decode()
    assert "Planned (1)" in client.get(reverse("nodes")).content.decode()
    assert f'value="{begins:%Y-%m-%dT%H:%M}"' in _page_of_plan(client, busy, "down")
    viewer = personas.client("viewer").get(reverse("health_plans")).content.decode()
    assert "power work" in viewer and "Call off" not in viewer

    undo = undo_of(message)
    off = client.post(undo.address, undo.fields, follow=True)
    assert "The planned change of busy is called off." in off.content.decode()
    assert "Planned (" not in client.get(reverse("nodes")).content.decode()
    client.post(address, sent)
    listed = client.get(reverse("health_plans")).content.decode()
    assert "Mark down</strong>" in listed and "power work" in listed
    plan = PlannedHealth.objects.get()
    off = client.post(reverse("health_plans_call_off"), {"plan": plan.public_id, "reason": "Called off.", "list": "yes"}, follow=True)
    assert off.redirect_chain[-1][0] == reverse("health_plans") and "No change is planned." in off.content.decode()
    (message,) = off.context["messages"]
    undo = undo_of(message)
    client.post(undo.address, undo.fields)
    assert (PlannedHealth.objects.get().to, PlannedHealth.objects.get().begins_at) == ("down", begins)


def test_the_api_plans_another_health_lists_it_and_calls_it_off(personas, busy):
    client, begins = personas.client("operator"), (now() + timedelta(hours=2)).replace(microsecond=0)
    address, listed = f"/api/v1/nodes/{busy.public_id}", "/api/v1/nodes/planned-health"
    body = {"to": "suspect", "begins": begins.isoformat(), "reason": "odd noise", "seen": "healthy"}

    told = client.post(f"{address}/health", body, content_type="application/json").json()
    assert (told["health"], told["planned"]["to"], told["planned"]["jobs"]) == ("healthy", "suspect", None)
    assert client.get(address).json()["planned_health"] == told["planned"]
    (row,) = personas.client("viewer").get(listed).json()["items"]
    assert (row["id"], row["node"], row["node_name"]) == (told["planned"]["id"], busy.public_id, "busy")
    assert client.post(f"{address}/health", {**body, "begins": "2020-01-01T00:00:00Z"}, content_type="application/json").status_code == 422
    assert client.post(f"{address}/health", {**body, "to": "repairing"}, content_type="application/json").status_code == 422
    assert client.post(f"{address}/health", {**body, "seen": "down"}, content_type="application/json").status_code == 409
    drain = client.post(f"{address}/health", {**body, "to": "draining"}, content_type="application/json").json()
    assert (drain["health"], drain["planned"]["jobs"]) == ("healthy", "finish")
    assert client.delete(f"{address}/planned-health").json()["planned_health"] is None
    assert client.get(listed).json() == {"items": [], "more": False}
    at_once = client.post(f"{address}/health", {"to": "suspect", "reason": "odd noise"}, content_type="application/json").json()
    assert (at_once["health"], at_once["planned"]) == ("suspect", None)
