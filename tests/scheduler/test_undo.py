"""After a change the console offers to take it back: that is a new change with its own audit entry, and overwrites nobody."""

import json
import re
from datetime import timedelta
from html import unescape
from typing import Any

import orjson
import pytest
from django.urls import reverse

from gpufleet.core.audit import SYSTEM
from gpufleet.core.models import AuditEntry
from gpufleet.core.times import now
from quotas.models import QuotaChange, QuotaShare, Reservation, RoleBinding
from quotas.services.changes import Wanted, change_draft
from scheduler.backends.slurm.values import SlurmNode
from scheduler.models import Gpu, GpuSplit, Health, Job, Lease, MigInstance, Node, PlannedHealth, Schedule
from scheduler.services.hardware.geometry import splits_confirm
from scheduler.services.hardware.hardware import health_mark
from scheduler.services.hardware.planned_health import health_plan
from scheduler.services.hardware.slurm_nodes import _difference
from scheduler.services.jobs.bulk import asked_checked, jobs_steer
from scheduler.services.jobs.jobs import job_hold
from scheduler.services.loop.lease import TICK
from scheduler.services.windows.reservations import reservation_request
from tests import builders
from tests.builders import NOON, job, placement
from tests.scheduler.loop.worlds import H100
from tests.scheduler.schedules.making import make
from tests.servers import Manage

pytestmark = pytest.mark.django_db
UNDO = re.compile(r'<form method="post" action="([^"]+)">((?:(?!</form>).)*)<button type="submit" class="btn btn-small">Undo</button>', re.DOTALL)


def undone(client: Any, answer: Any) -> Any:
    """What the Undo button of the page sends."""
    found = UNDO.search(answer.content.decode())
    assert found is not None, "no Undo is offered"
    fields = {name: unescape(value) for name, value in re.findall(r'name="([^"]+)" value="([^"]*)"', found[2])}
    return client.post(found[1], fields, follow=True)


def reasons(of: str) -> list[str]:
    return list(AuditEntry.objects.filter(object_id=of).order_by("pk").values_list("reason", flat=True))


@pytest.mark.parametrize("many", [False, True])
def test_a_hold_is_undone_by_a_release_that_leaves_the_next_try_when_it_is_due(personas, many):
    mine, due = job("mine", on=personas.nodes["acme/research/nlp"]), now() + timedelta(hours=1)
    Job.objects.filter(pk=mine.pk).update(retry_at=due)
    client = personas.client("team_lead")

    if many:
        asked = asked_checked(action="hold", jobs=[(mine.public_id, None)])
        batch = jobs_steer(access=personas.access("team_lead"), asked=asked, reason="later", now=now()).batch
        client.post(reverse("job_batch_undo", args=[batch.public_id]))
    else:
        held = client.post(reverse("job_hold", args=[mine.public_id]), {"reason": "later"}, follow=True)
        assert Job.objects.get(pk=mine.pk).held_at is not None
        undone(client, held)

    assert Job.objects.values_list("held_at", "retry_at").get(pk=mine.pk) == (None, due)
    assert reasons(mine.public_id) == ["later", f"Undo of {batch.public_id}." if many else "Undo of a hold."]


def test_priorities_come_back_each_to_its_own_but_for_jobs_that_have_changed_since(personas):
    ours = personas.nodes["acme/research/nlp"]
    first, second, third = job("first", on=ours, priority=40), job("second", on=ours, priority=60), job("third", on=ours, priority=60)
    asked = asked_checked(action="priority", jobs=[(one.public_id, None) for one in (first, second, third)], priority=80)
    batch = jobs_steer(access=personas.access("team_lead"), asked=asked, reason="urgent", now=NOON).batch
    job_hold(job=third, now=NOON, actor=SYSTEM)
    client = personas.client("team_lead")

    told = client.post(reverse("job_batch_undo", args=[batch.public_id]), follow=True).content.decode()

    assert dict(Job.objects.values_list("name", "priority")) == {"first": 40, "second": 60, "third": 80}
    assert "2 jobs are as before. 1 job has changed since and is left alone: third." in told
    assert reasons(first.public_id) == ["urgent", f"Undo of {batch.public_id}."]
    again = client.post(reverse("job_batch_undo", args=[batch.public_id]), follow=True).content.decode()
    assert "These jobs have changed since. Nothing was undone." in again
    assert personas.client("operator").post(reverse("job_batch_undo", args=[batch.public_id])).status_code == 404


def test_a_drain_and_the_health_of_a_gpu_are_undone(personas):
    node = builders.node("busy", gpus=1)
    gpu = node.gpus.get()
    client = personas.client("operator")

    undone(client, client.post(reverse("node_health", args=[node.public_id]), {"to": "draining", "jobs": "finish", "reason": "fans"}, follow=True))
    undone(client, client.post(reverse("gpu_health", args=[gpu.public_id]), {"to": "suspect", "reason": "hot"}, follow=True))

    assert (Node.objects.get(pk=node.pk).health, Gpu.objects.get(pk=gpu.pk).health) == (Health.HEALTHY, Health.HEALTHY)
    assert reasons(node.public_id)[-1] == "Undo of draining."
    # From down nothing leads straight back to healthy: nothing is offered.
    down = client.post(reverse("node_health", args=[node.public_id]), {"to": "down", "reason": "gone"}, follow=True).content.decode()
    assert UNDO.search(down) is None


def test_a_reservation_is_undone_by_cancelling_it(personas):
    builders.node(gpus=8)
    builders.rate(H100, since=NOON, micros=2_500_000)
    client, start = personas.client("superuser"), now().replace(microsecond=0, tzinfo=None) + timedelta(days=2)
    times = {"start": start.isoformat(timespec="minutes"), "end": (start + timedelta(hours=2)).isoformat(timespec="minutes"), "zone": "UTC"}
    what = {"name": "Morning", "owner": "acme/research", "gpu_type": H100, "amount": 4, "shape": "gpus", "idle": "held"}
    form = what | times | {"notice_min": 10, "lead_min": 15}

    page = client.post(reverse("reservation_new"), form).content.decode()
    assert "Nothing has changed yet" in page and "You approve it yourself." in page
    assert "It costs $20.00 at the guaranteed rate." in page, "4 GPUs for 2 hours"
    assert not Reservation.objects.exists(), "a preview writes nothing"
    reserved = client.post(reverse("reservation_new"), form | {"do": "write", "seen": "yes"}, follow=True)
    made = Reservation.objects.get()
    assert made.state == "approved"
    undone(client, reserved)

    made.refresh_from_db()
    assert made.state == "cancelled"
    assert reasons(made.public_id)[-1] == "Undo."


def test_what_is_done_to_a_reservation_is_undone_on_its_page(personas):
    builders.node(gpus=8)
    client, start = personas.client("superuser"), now().replace(microsecond=0) + timedelta(days=2)
    asked = {"name": "Morning", "quota": "acme/research", "gpu_type": H100, "gpus": 4, "starts_at": start, "ends_at": start + timedelta(hours=2)}
    made = reservation_request(access=personas.access("superuser"), given=asked, now=now())
    form = {"name": "Evening", "gpu_type": H100, "amount": 8, "shape": "gpus", "start": f"{start:%Y-%m-%dT20:00}", "zone": "UTC", "idle": "held"}
    form |= {"notice_min": 10, "lead_min": 15, "do": "write", "seen": "yes", "revision": made.revision}

    changed = client.post(reverse("reservation_edit", args=[made.public_id]), form, follow=True)
    assert Reservation.objects.values_list("name", "gpus_milli", "ends_at").get() == ("Evening", 8_000, None)
    told = undone(client, changed).content.decode()
    assert "Undone: Morning is as before." in told and UNDO.search(told) is None
    address = reverse("reservation_cancel", args=[made.public_id])
    cancelled = client.post(address, {"revision": made.revision + 2, "reason": "not needed"}, follow=True)
    assert Reservation.objects.get().state == "cancelled"
    undone(client, cancelled)

    assert Reservation.objects.values_list("name", "gpus_milli", "ends_at", "state").get() == ("Morning", 4_000, asked["ends_at"], "approved")


def test_a_reservation_is_put_back_over_the_api(personas):
    builders.node(gpus=8)
    client, start = personas.client("superuser"), now().replace(microsecond=0) + timedelta(days=2)
    asked = {"name": "Morning", "quota": "acme/research", "gpu_type": H100, "gpus": 4, "starts_at": start, "ends_at": start + timedelta(hours=2)}
    made = reservation_request(access=personas.access("superuser"), given=asked, now=now())
    address = f"/api/v1/reservations/{made.public_id}"
    cancelled = client.post(f"{address}/cancel", {"reason": "not needed"}, content_type="application/json")
    assert cancelled.json()["state"] == "cancelled"

    stale = client.post(f"{address}/undo", {}, content_type="application/json", headers={"If-Match": '"1"'})
    back = client.post(f"{address}/undo", {"reason": "needed after all"}, content_type="application/json")

    assert (stale.status_code, back.status_code) == (409, 200)
    assert Reservation.objects.get().state == back.json()["state"] == "approved"
    again = client.post(f"{address}/undo", {}, content_type="application/json")
    assert (again.status_code, again.json()["state"]) == (200, "cancelled"), "an Undo is a change like another"


def test_a_quota_node_is_archived_and_is_back_with_its_roles(personas):
    builders.node(gpus=8)
    for path in ("acme", "acme/research", "acme/research/nlp"):
        QuotaShare.objects.create(node=personas.nodes[path], gpu_type=H100, guaranteed_milli=4_000)
    builders.rate(H100, since=NOON, micros=2_000_000)
    client, node = personas.client("superuser"), personas.nodes["acme/research/nlp"]
    address, before = reverse("quota-archive", args=[node.public_id]), list(RoleBinding.objects.order_by("pk"))

    asked = client.get(address).content.decode()
    assert f"guaranteed 4 GPUs of {H100} less: $5,840 a month at the guaranteed rate." in asked and "No owner is notified." in asked
    old = client.post(address, {"revision": node.revision - 1, "reason": "closed"})
    assert (old.status_code, f'name="revision" value="{node.revision}"' in old.content.decode()) == (409, True), "a second press is about this page"
    archived = client.post(address, {"revision": node.revision, "reason": "closed"}, follow=True)
    node.refresh_from_db()
    assert node.archived_at is not None
    assert f"guaranteed 4 GPUs of {H100} more: $5,840 a month" in client.get(reverse("quota-restore", args=[node.public_id])).content.decode()
    told = undone(client, archived).content.decode()

    node.refresh_from_db()
    assert (node.archived_at, list(RoleBinding.objects.order_by("pk"))) == (None, before)
    assert "Undone: acme/research/nlp is back." in told and UNDO.search(told) is None
    assert reasons(node.public_id) == ["closed", "Undo of archiving."]


def test_a_spare_a_pause_and_a_called_off_drain_are_undone_once(personas):
    node, client = builders.node("n1", gpus=1), personas.client("operator")
    begins = (now() + timedelta(hours=2)).replace(microsecond=0)
    how: dict[str, Any] = {"to": "draining", "way": "move", "at": begins + timedelta(hours=1), "reason": "new fans"}
    plan = health_plan(access=personas.access("operator"), nodes=[node], begins_at=begins, **how, now=now())[0]
    paused = Lease.objects.filter(name=TICK, paused_at__isnull=False)

    back = undone(client, client.post(reverse("node_spare", args=[node.public_id]), {"spare": "yes", "reason": "replacement"}, follow=True))
    assert not Node.objects.get().spare
    assert UNDO.search(back.content.decode()) is None
    held = client.post(reverse("scheduler_pause"), {"reason": "power test"}, follow=True)
    assert paused.exists()
    assert UNDO.search(undone(client, held).content.decode()) is None
    assert not paused.exists()
    called_off = client.post(reverse("health_plans_call_off"), {"plan": plan.public_id, "reason": "Called off."}, follow=True)
    assert not PlannedHealth.objects.exists()
    assert UNDO.search(undone(client, called_off).content.decode()) is None
    assert PlannedHealth.objects.values_list("begins_at", "way", "at", "reason").get() == (begins, "move", how["at"], "new fans")


def test_a_pause_of_a_schedule_is_undone_once(personas):
    builders.node(gpus=4)
    schedule, client = make(personas), personas.client("submitter")

    paused = client.post(reverse("schedule_switch", args=[schedule.public_id]), {"to": "paused", "reason": "holidays"}, follow=True)
    assert Schedule.objects.get().paused_at is not None
    assert UNDO.search(undone(client, paused).content.decode()) is None
    assert Schedule.objects.get().paused_at is None


def test_an_undo_of_a_pause_a_spare_or_a_called_off_drain_leaves_what_somebody_did_since(personas):
    builders.node("n1", gpus=4)
    node, schedule, client, other = Node.objects.get(), make(personas), personas.client("superuser"), personas.client("operator")
    spare, pause, resume = reverse("node_spare", args=[node.public_id]), reverse("scheduler_pause"), reverse("scheduler_resume")
    switch, calls_off = reverse("schedule_switch", args=[schedule.public_id]), reverse("health_plans_call_off")
    begins = (now() + timedelta(hours=2)).replace(microsecond=0)

    def plan(hours: int) -> str:
        how: dict[str, Any] = {"to": "draining", "begins_at": begins + timedelta(hours=hours), "way": "finish", "at": None, "reason": "fans"}
        return health_plan(access=personas.access("operator"), nodes=[node], **how, now=now())[0].public_id

    def since(first: Any, *steps: tuple[str, dict[str, str]]) -> str:
        for address, fields in steps:
            other.post(address, {"reason": "incident", **fields})
        return str(undone(client, first).content.decode())

    paused = client.post(pause, {"reason": "test"}, follow=True)
    assert "paused or resumed since" in since(paused, (resume, {}), (pause, {}))
    assert Lease.objects.get(name=TICK).paused_reason == "incident"
    resumed = client.post(resume, {"reason": ""}, follow=True)
    assert "paused or resumed since" in since(resumed, (pause, {}), (resume, {}))
    assert Lease.objects.get(name=TICK).paused_at is None

    stopped = client.post(switch, {"to": "paused", "reason": "test"}, follow=True)
    for to in ("active", "paused"):
        personas.client("team_lead").post(switch, {"to": to, "reason": "incident"})
    assert "by now" in undone(client, stopped).content.decode()
    assert Schedule.objects.get().paused_reason == "incident"

    kept = client.post(spare, {"spare": "yes", "reason": "test"}, follow=True)
    assert "changed since" in since(kept, (spare, {"spare": "no"}), (spare, {"spare": "yes"}))
    assert Node.objects.get().spare

    called_off = client.post(calls_off, {"plan": plan(0), "reason": "test"}, follow=True)
    newer = plan(5)
    assert "changed since" in since(called_off)
    assert PlannedHealth.objects.get().public_id == newer
    called_off = client.post(calls_off, {"plan": newer, "reason": "test"}, follow=True)
    assert "changed since" in since(called_off, (calls_off, {"plan": plan(9)}))
    assert not PlannedHealth.objects.exists(), "the other called off his own"


def test_an_undo_of_a_resume_tells_the_reason_of_the_pause_again(personas):
    builders.node("n1", gpus=4)
    schedule, client = make(personas), personas.client("superuser")
    switch = reverse("schedule_switch", args=[schedule.public_id])

    client.post(reverse("scheduler_pause"), {"reason": "power test"}, follow=True)
    client.post(switch, {"to": "paused", "reason": "holidays"}, follow=True)
    undone(client, client.post(reverse("scheduler_resume"), {"reason": ""}, follow=True))
    undone(client, client.post(switch, {"to": "active", "reason": ""}, follow=True))

    assert (Lease.objects.get(name=TICK).paused_reason, Schedule.objects.get().paused_reason) == ("power test", "holidays")


def test_an_applied_quota_change_is_undone_by_a_draft_that_is_read_first(personas):
    builders.node(gpus=8)
    share = QuotaShare.objects.create(node=personas.nodes["acme"], gpu_type=H100, guaranteed_milli=4_000)
    edit = {"op": "update", "node": personas.nodes["acme"].public_id, "set": {"shares": {H100: {"guaranteed_milli": 8_000}}}}
    draft = change_draft(access=personas.access("superuser"), wanted=Wanted([edit]), now=now())
    client = personas.client("superuser")
    step = reverse("quota-change-step", args=[draft.public_id])

    assert "No job starts, stops or changes its class." in client.get(reverse("quota-change", args=[draft.public_id])).content.decode()
    applied = client.post(step, {"step": "apply", "revision": draft.revision}, follow=True)
    assert QuotaShare.objects.get(pk=share.pk).guaranteed_milli == 8_000
    shown = undone(client, applied)

    back = QuotaChange.objects.get(reverts=draft)
    assert shown.redirect_chain[-1][0] == reverse("quota-change", args=[back.public_id])
    assert "Read the preview, then apply it." in shown.content.decode()
    assert QuotaShare.objects.get(pk=share.pk).guaranteed_milli == 8_000, "not before it is applied"
    client.post(reverse("quota-change-step", args=[back.public_id]), {"step": "apply", "revision": back.revision})
    assert QuotaShare.objects.get(pk=share.pk).guaranteed_milli == 4_000


def test_an_undo_takes_back_nothing_that_somebody_else_did_since(personas):
    """Between a step and its Undo a second person comes to the same by a step of his own, or changes it: his stays."""
    mine, free = job("mine", on=personas.nodes["acme/research/nlp"]), job("free", on=personas.nodes["acme/research/nlp"])
    client, other = personas.client("team_lead"), personas.client("superuser")

    held = client.post(reverse("job_hold", args=[mine.public_id]), follow=True)
    for step in ("job_release", "job_hold"):
        other.post(reverse(step, args=[mine.public_id]), {"reason": "data is moved"})
    assert "by now" in undone(client, held).content.decode()
    assert Job.objects.get(pk=mine.pk).held_at is not None, "the hold is the other's now"
    again = client.post(reverse("job_hold", args=[mine.public_id]), follow=True)
    assert UNDO.search(again.content.decode()) is None, "nothing was changed by that"

    released = client.post(reverse("job_release", args=[mine.public_id]), follow=True)
    for step in ("job_hold", "job_release"):
        other.post(reverse(step, args=[mine.public_id]))
    undone(client, released)
    assert Job.objects.get(pk=mine.pk).held_at is None

    page = client.get(reverse("job_cancel", args=[free.public_id])).content.decode()
    seen = re.search(r'name="revision" value="(\d+)"', page)
    assert seen is not None
    other.post(reverse("job_hold", args=[free.public_id]))
    assert client.post(reverse("job_cancel", args=[free.public_id]), {"revision": seen[1]}).status_code == 409
    assert Job.objects.get(pk=free.pk).state == "queued"


def drained(client: Any, node: Node, **fields: str) -> Any:
    return client.post(reverse("node_health", args=[node.public_id]), {"to": "draining", "reason": "fans", **fields}, follow=True)


def test_a_drain_comes_back_as_it_was_and_overwrites_no_newer_one(personas):
    node = builders.node("busy", gpus=1)
    gpu, client, other = node.gpus.get(), personas.client("operator"), personas.client("superuser")
    first, second, third = (f"{now() + timedelta(hours=hours):%Y-%m-%dT%H:00:00}" for hours in (6, 9, 12))

    def stands() -> tuple[str, str, str]:
        found = Node.objects.get(pk=node.pk)
        return found.health, found.drain_way, f"{found.drain_at:%Y-%m-%dT%H:%M:%S}" if found.drain_at else ""

    def to(who: Any, health: str) -> Any:
        return who.post(reverse("node_health", args=[node.public_id]), {"to": health, "reason": "fans"}, follow=True)

    drained(client, node, jobs="move", at=first)
    undone(client, to(client, "healthy"))
    assert stands() == ("draining", "move", first), "with its way and its time"

    changed = drained(client, node, jobs="stop", at=second)
    drained(other, node, jobs="move", at=third)
    assert undone(client, changed).status_code == 409
    assert stands() == ("draining", "move", third)

    left = to(client, "healthy")
    drained(other, node, jobs="stop", at=second)
    undone(client, left)
    to(other, "healthy")
    again = drained(client, node, jobs="finish")
    to(other, "healthy")
    drained(other, node, jobs="stop", at=third)
    undone(client, again)
    assert stands() == ("draining", "stop", third), "that drain is another one"

    suspect = client.post(reverse("gpu_health", args=[gpu.public_id]), {"to": "suspect", "reason": "hot"}, follow=True)
    for health in ("healthy", "suspect"):
        other.post(reverse("gpu_health", args=[gpu.public_id]), {"to": health, "reason": "hot"})
    undone(client, suspect)
    assert Gpu.objects.get(pk=gpu.pk).health == Health.SUSPECT


def test_a_drain_of_many_nodes_is_undone_at_once_but_for_those_that_have_changed_since(personas):
    first, second, third, gone = (builders.node(name, gpus=1) for name in ("first", "second", "third", "gone"))
    client, other, many = personas.client("operator"), personas.client("superuser"), reverse("nodes_drain")
    soon, later = (f"{now() + timedelta(hours=hours):%Y-%m-%dT%H:00:00}" for hours in (6, 9))
    drained(client, second, jobs="move", at=soon)
    names = [node.public_id for node in (first, second, third, gone)]

    done = client.post(many, {"node": names, "jobs": "stop", "at": later, "reason": "power"}, follow=True)
    assert {node.drain_way for node in Node.objects.all()} == {"stop"}
    drained(other, third, jobs="stop", at=soon)
    Node.objects.filter(pk=gone.pk).update(removed_at=now())
    told = undone(client, done).content.decode()

    assert "2 nodes are as before. 2 nodes have changed since and are left alone: third, gone." in told
    stands = {node.name: (node.health, node.drain_way, f"{node.drain_at:%H}" if node.drain_at else "") for node in Node.objects.all()}
    assert stands["first"] == ("healthy", "", "") and stands["second"] == ("draining", "move", soon[11:13])
    assert stands["third"] == ("draining", "stop", soon[11:13])
    assert (reasons(first.public_id)[-1], reasons(second.public_id)[-1]) == ("Undo of draining.", "Undo of a change of the drain.")
    assert "These nodes have changed since. Nothing was undone." in undone(client, done).content.decode()
    for wrong in ("[", '[["n-1"]]', "[]", f'[["{first.public_id}", "", "broken", "", "2026-01-01T00:00:00"]]'):
        assert client.post(many, {"undo": wrong}, follow=True).status_code == 200
    assert personas.client("viewer").post(many, {"undo": "[]"}).status_code == 403


def test_a_repartition_is_undone_once_its_back_end_has_answered_and_no_job_uses_it(personas):
    gpu = builders.node("n1", gpus=1).gpus.get()
    client, moment, page = personas.client("operator"), now(), reverse("gpu_geometry", args=[gpu.public_id])
    halves = {"step": "apply", "mode": "mig", "layout": "3g.40gb@0 3g.40gb@4", "reason": "small jobs"}

    done = client.post(page, halves, follow=True)
    early = undone(client, done)
    assert "The back-end of GPU 0 of n1 has not answered yet." in early.content.decode()
    splits_confirm(orders=[GpuSplit.objects.get().order_id], now=moment)
    held = placement(job("sliced", state="running"), gpu, mig=MigInstance.objects.filter(gpu=gpu).first(), gpu_milli=500)
    assert "1 job on GPU 0 of n1 would have to end first." in undone(client, early).content.decode()
    held.delete()
    undone(client, early)
    back = GpuSplit.objects.latest("pk")
    assert (back.mode, back.state, back.reason) == ("whole", "ordered", "Undo of a repartition.")
    splits_confirm(orders=[back.order_id], now=moment)
    assert "was repartitioned or given up since" in undone(client, early).content.decode(), "it is another one now"

    placement(job("there", state="running"), gpu, gpu_milli=1000)
    waits = client.post(page, halves, follow=True)
    assert Gpu.objects.get(pk=gpu.pk).health == Health.DRAINING
    assert "The repartition was cancelled." in undone(client, waits).content.decode()
    assert (Gpu.objects.get(pk=gpu.pk).health, GpuSplit.objects.latest("pk").state) == (Health.HEALTHY, "cancelled")


def test_undo_is_offered_while_a_job_is_as_it_was_left_and_leads_back_to_a_single_one(personas):
    mine = job("mine", on=personas.nodes["acme/research/nlp"], priority=40)
    asked = asked_checked(action="priority", jobs=[(mine.public_id, None)], priority=80)
    batch = jobs_steer(access=personas.access("team_lead"), asked=asked, reason="urgent", now=NOON).batch
    client, page = personas.client("team_lead"), reverse("job_batch", args=[batch.public_id])
    undo = reverse("job_batch_undo", args=[batch.public_id])

    assert undo in client.get(page).content.decode()
    assert client.post(undo).headers["Location"] == reverse("job", args=[mine.public_id])
    assert undo not in client.get(page).content.decode()


@pytest.mark.parametrize("many", [False, True])
def test_a_drain_that_another_repeats_is_the_others(personas, many):
    """A second drain in the same way changes nothing of the node but whose decision stands."""
    nodes = [builders.node(name, gpus=1) for name in ("first", "second")]
    client, other = personas.client("operator"), personas.client("superuser")
    names = [node.public_id for node in nodes]
    done = (
        client.post(reverse("nodes_drain"), {"node": names, "jobs": "finish", "reason": "power"}, follow=True)
        if many
        else drained(client, nodes[0], jobs="finish")
    )
    drained(other, nodes[0], jobs="finish")

    told = undone(client, done)

    assert Node.objects.get(pk=nodes[0].pk).health == Health.DRAINING
    if many:
        assert "1 node is as before. 1 node has changed since and is left alone: first." in told.content.decode()
    else:
        assert told.status_code == 409


def test_an_undo_offers_no_undo_of_itself(personas):
    """What went back is said; to do it again is a new change."""
    mine = job("mine", on=personas.nodes["acme/research/nlp"])
    node, lead, operator = builders.node("busy", gpus=1), personas.client("team_lead"), personas.client("operator")

    held = undone(lead, lead.post(reverse("job_hold", args=[mine.public_id]), follow=True)).content.decode()
    drain = undone(operator, drained(operator, node, jobs="finish")).content.decode()
    gpu = operator.post(reverse("gpu_health", args=[node.gpus.get().public_id]), {"to": "suspect", "reason": "hot"}, follow=True)
    gpu_back = undone(operator, gpu).content.decode()

    assert "Undone: mine may start again." in held
    assert "Undone: busy is healthy again." in drain
    assert "Undone: GPU 0 of busy is healthy again." in gpu_back
    assert [UNDO.search(page) for page in (held, drain, gpu_back)] == [None, None, None]


@pytest.mark.parametrize("many", [False, True])
def test_a_node_gets_back_the_reason_by_which_slurm_owns_its_drain(personas, many):
    nodes = [builders.node(name, gpus=1) for name in ("first", "second")]
    Node.objects.filter(pk=nodes[0].pk).update(health=Health.DRAINING, health_reason="Slurm: fans")
    client, names = personas.client("operator"), [node.public_id for node in nodes]
    how = {"jobs": "move", "at": f"{now() + timedelta(hours=6):%Y-%m-%dT%H:00:00}", "reason": "power"}

    done = client.post(reverse("nodes_drain"), {"node": names, **how}, follow=True) if many else drained(client, nodes[0], **how)
    undone(client, done)

    stands = dict(Node.objects.values_list("name", "health_reason"))
    assert stands == {"first": "Slurm: fans", "second": ""}
    assert reasons(nodes[0].public_id)[-1] == "Undo of a change of the drain."
    resumed = _difference(Node.objects.get(pk=nodes[0].pk), SlurmNode("first", "first", ("IDLE",), "", 1, 1, ""))
    assert resumed is not None and resumed.here_to == (Health.HEALTHY,), "Slurm ends what Slurm began"


def test_a_node_whose_earlier_deadline_has_passed_is_named_and_stays(personas):
    late, free = builders.node("late", gpus=1), builders.node("free", gpus=1)
    Node.objects.filter(pk=late.pk).update(health=Health.DRAINING, drain_way="move", drain_at=now() - timedelta(hours=1))
    client = personas.client("operator")

    done = client.post(reverse("nodes_drain"), {"node": [late.public_id, free.public_id], "jobs": "finish", "reason": "power"}, follow=True)
    told = undone(client, done).content.decode()

    assert "1 node is as before. 1 node cannot go back, as its earlier deadline has passed: late." in told
    assert dict(Node.objects.values_list("name", "health")) == {"late": "draining", "free": "healthy"}


def test_an_undo_of_a_drain_leads_to_no_other_health_than_a_drain_comes_from(personas):
    node = builders.node("busy", gpus=1)
    client, many = personas.client("operator"), reverse("nodes_drain")
    drained(client, node, jobs="finish")
    mark = health_mark(Node.objects.get(pk=node.pk))

    told = client.post(many, {"undo": orjson.dumps([[node.public_id, mark, "down", "", None, ""]]).decode()}, follow=True).content.decode()

    assert "Nothing was undone." in told
    assert Node.objects.get(pk=node.pk).health == Health.DRAINING


@pytest.mark.parametrize("mode", ["mps", "timeslice"])
def test_a_repartition_of_a_shared_gpu_is_given_up_while_it_waits_and_stays_once_it_is_done(personas, mode):
    gpu = builders.node("n1", gpus=1).gpus.get()
    Gpu.objects.filter(pk=gpu.pk).update(mode=mode)
    client, page = personas.client("operator"), reverse("gpu_geometry", args=[gpu.public_id])
    halves = {"step": "apply", "mode": "mig", "layout": "3g.40gb@0 3g.40gb@4", "reason": "small jobs"}
    there = placement(job("there", state="running"), gpu, gpu_milli=500)

    waits = client.post(page, halves, follow=True)
    assert "The repartition was cancelled." in undone(client, waits).content.decode()
    assert Gpu.objects.get(pk=gpu.pk).health == Health.HEALTHY
    there.delete()
    assert UNDO.search(client.post(page, halves, follow=True).content.decode()) is None, "nothing leads back to a shared GPU"


def test_an_undo_names_only_jobs_that_its_person_may_still_see(personas):
    ours, theirs = personas.nodes["acme/research/nlp"], builders.quota("moved", parent=personas.nodes["acme"])
    jobs = [job(name, on=ours, priority=40) for name in ("first", "seen", "hidden")]
    asked = asked_checked(action="priority", jobs=[(one.public_id, None) for one in jobs], priority=80)
    batch = jobs_steer(access=personas.access("team_lead"), asked=asked, reason="urgent", now=NOON).batch
    for one in jobs[1:]:
        job_hold(job=one, now=NOON, actor=SYSTEM)
    Job.objects.filter(name="hidden").update(quota=theirs, name="secret")

    told = personas.client("team_lead").post(reverse("job_batch_undo", args=[batch.public_id]), follow=True).content.decode()

    assert "1 job is as before. 2 jobs have changed since and are left alone: seen and 1 more." in told


# A person edits a job while a drain is undone: he holds the job and wants the feed. Whoever holds the feed by then must not want the job.
BOTH = """
import json
from datetime import timedelta
from gpufleet.core.audit import Actor
from gpufleet.core.live.feed import feed_publish
from gpufleet.core.models import User
from gpufleet.core.times import now
from quotas.permissions import Access, Can, Grant
from scheduler.models import DrainWay, Health, Job, Node
from scheduler.services.hardware.draining import Back, nodes_drain, nodes_drain_undo
from scheduler.services.hardware.hardware import health_mark, node_health_change
from scheduler.services.jobs.bulk import asked_checked, jobs_steer
from scheduler.services.jobs.undoing import batch_undo
from tests import builders
from tests.locking import together

access = Access(Actor(builders.person("root"), "root", "session"), (Grant("", frozenset(Can)),))
team = builders.quota("acme")
free, busy = builders.node("a-free", gpus=1), builders.node("b-busy", gpus=1)
runs = builders.job("runs", state="running", on=team)
waits = [builders.job(name, on=team, priority=priority) for name, priority in (("w1", 40), ("w2", 60))]
builders.placement(runs, busy.gpus.get())
at = now()
soon, later = at + timedelta(hours=2), at + timedelta(hours=6)

def drain(**how):
    return nodes_drain(access=access, nodes=[free, busy], reason="power", now=now(), **how)

def undo():
    nodes_drain_undo(access=access, back=back, now=now())

def batch():
    batch_undo(access=access, batch=steered, now=now())

def beside(write, key):
    return together(write, lambda: feed_publish(changes={"jobs": [{"id": key}]}), job=key)

told = {"drain": beside(lambda: drain(way="stop", at=soon), runs.pk)}
done = drain(way="stop", at=later)
back = [Back(free, health_mark(done.nodes[0]), "healthy", "", None, ""), Back(busy, health_mark(done.nodes[1]), "draining", "stop", soon, "power")]
told["undo"] = beside(undo, runs.pk)
told["health"] = beside(lambda: node_health_change(access=access, node=busy, to="healthy", reason="well", now=now()), runs.pk)
asked = asked_checked(action="priority", jobs=[(one.public_id, None) for one in waits], priority=80)
steered = jobs_steer(access=access, asked=asked, reason="", now=now()).batch
told["batch"] = beside(batch, waits[1].pk)
told["stands"] = [dict(Node.objects.values_list("name", "health")), dict(Job.objects.filter(state="queued").values_list("name", "priority"))]
print(json.dumps(told))
"""


@pytest.mark.postgres
def test_a_drain_an_undo_and_an_edit_of_a_job_never_wait_for_each_other_in_a_ring(tmp_path, migrated_postgres):
    manage = Manage(tmp_path, GPUFLEET_DATABASE_URL=migrated_postgres())

    told = json.loads(manage.run("shell", "--verbosity", "0", "-c", BOTH).stdout.splitlines()[-1])

    both = ["done", "mine"]
    assert {name: told[name] for name in ("drain", "undo", "health", "batch")} == {"drain": both, "undo": both, "health": both, "batch": both}
    assert told["stands"] == [{"a-free": "healthy", "b-busy": "healthy"}, {"w1": 40, "w2": 60}]
