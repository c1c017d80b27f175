"""Draining a node: what it does is shown first, by the names of jobs, and then it does that."""

from dataclasses import replace
from datetime import timedelta, timezone

import pytest
from django.db.models.signals import post_save
from django.urls import reverse

from gpufleet.core.live.news import News
from gpufleet.core.models import AuditEntry
from gpufleet.core.times import now
from quotas.models import ShareClass
from quotas.permissions import Can
from scheduler.backends.base import Refusal
from scheduler.backends.slurm.values import SlurmNode
from scheduler.hardware.draining import Running, outcome_of
from scheduler.loop.policy import policy
from scheduler.models import Attempt, Health, Job, JobEvent, JobState, Node, Notice, Placement
from scheduler.selectors.nodes import node_guests
from scheduler.services.forecasts import grounds
from scheduler.services.hardware.draining import nodes_drain
from scheduler.services.hardware.hardware import node_health_change
from scheduler.services.hardware.refusing import nodes_refused
from scheduler.services.hardware.slurm_nodes import _difference
from scheduler.services.loop.timers import timers_next, timers_run
from scheduler.services.notify.outbox import outbox_turn
from tests import builders
from tests.quotas.chargeback.worlds import used
from tests.scheduler.loop.worlds import Loop, leaf, submit

pytestmark = pytest.mark.django_db


@pytest.fixture
def busy(personas):
    """A node with a job that may be preempted, one that may not, and one of a team that the team lead does not see."""
    node = builders.node("busy", gpus=4)
    gpus = list(node.gpus.order_by("index"))
    nlp, vision = (personas.nodes[f"acme/research/{name}"] for name in ("nlp", "vision"))
    train = builders.job("train", on=nlp, state=JobState.RUNNING, estimate_seconds=7200, owner=personas.users["submitter"])
    serve = builders.job("serve", on=nlp, state=JobState.RUNNING, preemptible="no", limit_seconds=36_000)
    for job, gpu in ((train, gpus[0]), (train, gpus[1]), (serve, gpus[2]), (builders.job("theirs", on=vision, state=JobState.RUNNING), gpus[3])):
        builders.placement(job, on=gpu)
    return node


def test_what_a_drain_does_is_told_before_it_is_done(personas, busy):
    address = reverse("node_health", args=[busy.public_id])

    shown = personas.client("operator").get(address, {"to": "draining"}).content.decode()
    assert 'data-label="Expected end"' in shown, "on a phone each column but the first says what it is"

    assert "4 GPUs of busy take no new jobs." in shown
    assert "3 jobs run here now." in shown
    assert "Running jobs finish here." in shown
    moved = personas.client("operator").post(address, {"to": "draining", "jobs": "move", "preview": "1"}).content.decode()
    assert "2 jobs are asked to save their work and are moved now." in moved
    assert "1 job may not be preempted and finishes here in any case." in moved
    late = personas.client("operator").post(address, {"to": "draining", "jobs": "move", "at": "2999-01-01T00:00", "preview": "1"})
    preview = late.content.decode().split('id="change-preview"')[1].split("</section>")[0]
    assert late.status_code == 422 and "at most 366 days ahead" in preview and "are moved" not in preview
    assert all(name in shown for name in (">train<", ">serve<", ">theirs<"))
    assert Node.objects.get(pk=busy.pk).health == Health.HEALTHY
    assert personas.client("team_lead").get(address).status_code == 403


def test_what_a_drain_costs_and_whom_it_tells_is_said(personas, busy):
    builders.rate("H100-SXM-80GB", since=now() - timedelta(days=1), micros=2_100_000)
    train = Job.objects.get(name="train")
    builders.placement(train, on=builders.node("other", gpus=1).gpus.get(), attempt=train.attempts.get())
    Attempt.objects.update(started_at=now() - timedelta(hours=3))
    drain, down = (reverse("node_health", args=[busy.public_id]) + f"?to={to}" for to in ("draining", "down"))
    root = personas.client("superuser")

    shown = root.get(drain).content.decode()
    assert "Out of service they cost $8.40 an hour at the guaranteed rate." in shown and "No owner is notified." in shown
    moved = root.post(drain, {"to": "draining", "jobs": "move", "preview": "1"}).content.decode()
    # Of train on all of its 3 GPUs, also the one elsewhere: it leaves that as well.
    assert "12.0 GPU-hours of work are repeated, worth $25.20 at the guaranteed rate." in moved and "Their owners are notified." in moved
    assert "Their owners are notified." in root.get(down).content.decode()
    gpu = reverse("gpu_health", args=[busy.gpus.first().public_id]) + "?to=suspect"
    assert "an hour" not in root.get(gpu).content.decode(), "it stays in service"
    without = personas.client("operator").get(drain).content.decode()
    assert ("an hour at" in without) == personas.access("operator").can_everywhere(Can.SEE_COSTS)


@pytest.mark.parametrize("room", [True, False])
def test_a_drain_that_moves_says_who_finds_no_place_elsewhere(personas, room):
    """It said that a gang moves now, which then waited for hours as too few GPUs were free."""
    busy, other = builders.node("busy", gpus=4), builders.node("other", gpus=4)
    loop, moment = Loop(), now()
    loop.now = moment
    team = leaf("team", 8)
    first, second = (submit(team, gpus=4, at=moment, name=name) for name in ("train", "beside"))
    loop.tick()
    for job in (first, second):
        loop.up(job)
    if room:
        loop.over(second)
    placed = {job.placements.get(until__isnull=True, gpu__index=0).node_id: job for job in ((first,) if room else (first, second))}
    drained = busy if busy.pk in placed else other
    loop.after(seconds=1).tick()
    grounds.GROUNDS.forget()
    grounds.GROUNDS.read(now())

    address = reverse("node_health", args=[drained.public_id])
    shown = personas.client("superuser").post(address, {"to": "draining", "jobs": "move", "preview": "1"}).content.decode()

    assert ("It finds a place elsewhere at once." in shown) == room
    assert ("1 job finds no place elsewhere now and waits in the queue." in shown) != room
    assert ("Moves now" in shown) == room
    assert ("then waits" in shown) != room
    grounds.GROUNDS.forget()


def test_jobs_of_others_are_counted_and_not_named(personas, busy):
    guests = node_guests(personas.access("team_lead"), busy, now=builders.NOON)

    assert [(guest.job.name, guest.named, guest.milli) for guest in guests] == [("train", True, 2000), ("serve", True, 1000), ("theirs", False, 1000)]
    assert [guest.by_limit for guest in guests[:2]] == [False, True]


def test_a_drain_that_moves_asks_what_may_be_preempted_to_leave(personas, busy, django_capture_on_commit_callbacks):
    address = reverse("node_health", args=[busy.public_id])
    client = personas.client("operator")
    sent = {"to": "draining", "seen": "healthy", "jobs": "move"}
    refused = client.post(address, {**sent, "reason": " "})
    assert refused.status_code == 422
    assert "A reason is required" in refused.content.decode()
    assert "What happens" in refused.content.decode()

    answer = client.post(address, {**sent, "reason": "new fans"}, follow=True).content.decode()

    assert "busy is draining now. 2 jobs are asked to save and leave." in answer
    leaving = {guest.job.name for guest in node_guests(personas.access("operator"), busy, now=now()) if _is_leaving(guest.job)}
    assert leaving == {"train", "theirs"}
    entries = AuditEntry.objects.filter(object_id=busy.public_id).order_by("pk").values_list("action", "reason")
    assert list(entries) == [("node.health", "new fans"), ("node.drain", "new fans")]


@pytest.mark.parametrize(("share_class", "movable"), [(ShareClass.GUARANTEED, False), (ShareClass.BORROWED, True)])
def test_what_is_preemptible_when_it_borrows_is_moved_only_then(personas, share_class, movable):
    """Serving within its guarantee is promised that nothing puts it out."""
    node = builders.node("serving", gpus=1)
    job = builders.job("chat", on=personas.nodes["acme/research/nlp"], state=JobState.RUNNING, preemptible="when_borrowed")
    placement = builders.placement(job, on=node.gpus.get())
    used(job.quota, now(), None, attempt=placement.attempt_id, share_class=share_class)

    (guest,) = node_guests(personas.access("operator"), node, now=now())

    assert guest.movable == movable


def at_the_deadline(personas, node, way, **changes):
    """Drain until six, and let the loop look before and after that. Returns which jobs were asked to leave, each time."""
    six = now() + timedelta(hours=6)
    Attempt.objects.update(running_at=now())
    nodes_drain(access=personas.access("operator"), nodes=[node], way=way, at=six, reason="new fans", now=now())
    if changes:
        node_health_change(access=personas.access("operator"), node=node, now=now(), reason="all is well", **changes)
    told = []
    for moment in (six - timedelta(seconds=1), six):
        timers_run(now=moment, policy=policy(), news=News())
        told.append({guest.job.name for guest in node_guests(personas.access("operator"), node, now=moment) if guest.leaving})
    return six, told


@pytest.mark.parametrize(("way", "leave"), [("move", {"train", "theirs"}), ("stop", {"train", "theirs", "serve"})])
def test_the_loop_carries_the_deadline_out(personas, busy, way, leave):
    six, told = at_the_deadline(personas, busy, way)

    assert told == [set(), leave]
    event = JobEvent.objects.filter(job__name="train").latest("pk")
    assert event.cause == f"busy is drained (new fans), and its jobs leave at {six:%Y-%m-%d %H:%M} UTC. The job resumes elsewhere."
    assert timers_next(now=six - timedelta(hours=1), policy=policy()) == six
    assert timers_run(now=six + timedelta(seconds=1), policy=policy(), news=News()) == 0, "nobody is asked twice"


def test_a_node_that_is_back_in_service_keeps_its_jobs_at_the_deadline(personas, busy):
    assert at_the_deadline(personas, busy, "move", to=Health.HEALTHY)[1] == [set(), set()]
    assert Node.objects.get(pk=busy.pk).drain_at is None


def test_owners_are_told_of_the_deadline_and_a_later_one_replaces_it(personas, busy):
    access, at = personas.access("operator"), now() + timedelta(hours=3)
    done = nodes_drain(access=access, nodes=[busy], way="move", at=at, reason="new fans", now=now())
    assert (done.asked, done.told) == (0, 2)
    outbox_turn(now=now())
    (notice,) = Notice.objects.filter(user=personas.users["submitter"], kind="drain")
    assert notice.title == "Drain of the node of train"
    assert f"If the job still runs at {at:%Y-%m-%d %H:%M} UTC, it is asked to save and resumes elsewhere." in notice.text

    later = now() + timedelta(hours=9)
    nodes_drain(access=access, nodes=[busy], way="move", at=later, reason="the fans are late", now=now())

    assert Node.objects.get(pk=busy.pk).drain_at == later.replace(microsecond=later.microsecond // 1000 * 1000)
    shown = personas.client("operator").get(reverse("node", args=[busy.public_id])).content.decode()
    assert "0 of 3 jobs have left." in shown and "Change drain" in shown


@pytest.mark.parametrize(
    ("way", "at", "fate", "lost"),
    [
        ("finish", None, "stays", 0),
        ("move", None, "moved", 10),
        ("move", 6, "moved", 4),  # it saves at 8 before that
        ("move", 60, "ends", 0),
        ("stop", 6, "moved", 4),
    ],
)
def test_what_becomes_of_a_run(way, at, fate, lost):
    minutes = lambda count: builders.NOON + timedelta(minutes=count)  # noqa: E731
    run = Running(minutes(-30), minutes(-10), 720, minutes(45), True)

    found = outcome_of(run, way, None if at is None else minutes(at), minutes(0))

    assert (found.fate, found.lost_seconds // 60) == (fate, lost)
    stays = outcome_of(replace(run, movable=False, ends_at=None), way, None, minutes(0))
    assert stays.fate == ("stopped" if way == "stop" else "stays")


def test_many_nodes_are_drained_at_once_or_none(personas, busy):
    other = builders.node("down", gpus=1, health=Health.DOWN)
    client, address = personas.client("operator"), reverse("nodes_drain")
    sent = {"node": [busy.public_id, other.public_id], "jobs": "move", "at": "2999-01-01T00:00", "reason": "new fans"}
    shown = client.post(address, {"row": [busy.public_id, other.public_id]}).content.decode()
    assert "5 GPUs of 2 nodes take no new jobs." in shown and ">train<" in shown
    assert "at most 366 days ahead" in client.post(address, sent).content.decode()

    refused = client.post(address, {**sent, "at": ""})

    assert refused.status_code == 422 and "From down it can become" in refused.content.decode()
    assert Node.objects.get(pk=busy.pk).health == Health.HEALTHY
    assert not AuditEntry.objects.filter(action="node.drain").exists()


def test_the_api_previews_and_drains(personas, busy):
    client = personas.client("operator")
    body = {"nodes": [busy.public_id], "jobs": "move", "reason": "new fans"}

    told = client.post("/api/v1/nodes/drain?dry_run=true", body, content_type="application/json").json()

    assert {job["name"]: job["fate"] for job in told["jobs"]} == {"train": "moved", "serve": "stays", "theirs": "moved"}
    assert Node.objects.get(pk=busy.pk).health == Health.HEALTHY
    done = client.post("/api/v1/nodes/drain", body, content_type="application/json").json()
    assert (done["asked"], done["nodes"][0]["health"]) == (2, "draining")
    assert client.get(f"/api/v1/nodes/{busy.public_id}").json()["drain"]["jobs"] == "move"
    assert personas.client("team_lead").post("/api/v1/nodes/drain", body, content_type="application/json").status_code == 403


def _is_leaving(job):
    return job.attempts.filter(stop_asked_at__isnull=False).exists()


def test_marking_a_node_down_names_the_jobs_that_lose_workers(personas, busy):
    shown = personas.client("operator").get(reverse("node_health", args=[busy.public_id]), {"to": "down"}).content.decode()

    assert "4 GPUs of busy are out of service at once." in shown
    assert "3 jobs lose their workers here." in shown


def test_a_time_with_an_offset_is_told_in_utc_and_one_without_a_zone_is_refused(personas, busy):
    client, at = personas.client("operator"), now().replace(microsecond=0) + timedelta(hours=3)
    body = {"nodes": [busy.public_id], "jobs": "move", "reason": "new fans", "at": at.astimezone(timezone(timedelta(hours=2))).isoformat()}

    def drain(query="", **changes):
        return client.post(f"/api/v1/nodes/drain{query}", body | changes, content_type="application/json")

    for query in ("", "?dry_run=true"):
        assert 400 <= drain(query, at=f"{at:%Y-%m-%dT%H:%M:%S}").status_code < 500
        assert 400 <= drain(query, at="1").status_code < 500
        assert 400 <= drain(query, at="9999-12-31T23:59:59-14:00").status_code < 500
    assert drain().status_code == 200

    assert f"still runs at {at:%Y-%m-%d %H:%M} UTC" in JobEvent.objects.filter(job__name="train").latest("pk").cause
    assert AuditEntry.objects.get(action="node.drain").after["at"] == f"{at:%Y-%m-%dT%H:%M:%SZ}"


def test_a_drain_that_slurm_began_is_the_operator_s_once_it_has_a_deadline(personas, busy):
    Node.objects.filter(pk=busy.pk).update(health=Health.DRAINING, health_reason="Slurm: fans")

    nodes_drain(access=personas.access("operator"), nodes=[busy], way="move", at=now() + timedelta(hours=1), reason=" new fans ", now=now())

    node = Node.objects.get(pk=busy.pk)
    assert node.health_reason == "new fans"
    resumed = _difference(node, SlurmNode("busy", "busy", ("IDLE",), "", 1, 1, ""))
    assert (resumed.there_to, resumed.here_to) == ("DRAIN", ())


def test_more_nodes_than_are_drained_at_once_are_refused_and_none_is_left_out(personas):
    answer = personas.client("operator").post(reverse("nodes_drain"), {"row": [f"n-{number}" for number in range(101)]}, follow=True)

    assert "Choose at most 100 nodes to drain at once. 101 were chosen." in answer.content.decode()


def test_a_refusal_leaves_a_drain_alone_that_comes_at_the_same_time(personas):
    first, second = builders.node("a", gpus=1), builders.node("b", gpus=1)

    def drain(sender, instance, **_):
        if instance.pk == first.pk:  # after both were read
            Node.objects.filter(pk=second.pk).update(health=Health.DRAINING, health_reason="new fans")

    post_save.connect(drain, sender=Node)
    try:
        changed = nodes_refused(cluster=first.cluster_id, refusals=[Refusal("a", "no_gpu", "No GPU."), Refusal("b", "no_gpu", "No GPU.")], now=now())
    finally:
        post_save.disconnect(drain, sender=Node)

    assert changed == 1
    assert list(Node.objects.order_by("name").values_list("health", flat=True)) == [Health.SUSPECT, Health.DRAINING]


def test_a_job_whose_workers_there_leave_already_is_not_stopped(personas, busy):
    Placement.objects.filter(job__name="train").update(leaving_since=now())
    Attempt.objects.update(running_at=now())
    six = now() + timedelta(hours=6)
    assert nodes_drain(access=personas.access("operator"), nodes=[busy], way="move", at=six, reason="new fans", now=now()).told == 1

    timers_run(now=six, policy=policy(), news=News())

    assert not Attempt.objects.filter(job__name="train", stop_asked_at__isnull=False).exists()
    assert Attempt.objects.filter(job__name="theirs", stop_asked_at__isnull=False).exists()


@pytest.mark.parametrize("how", ["finish", "healthy"])
def test_owners_are_told_that_a_deadline_is_called_off(personas, busy, how):
    access, at = personas.access("operator"), now() + timedelta(hours=3)
    nodes_drain(access=access, nodes=[busy], way="move", at=at, reason="new fans", now=now())

    if how == "finish":
        nodes_drain(access=access, nodes=[busy], way="finish", at=None, reason="the fans are late", now=now())
    else:
        node_health_change(access=access, node=busy, to=Health.HEALTHY, reason="all is well", now=now())

    off = f"The deadline of busy at {at:%Y-%m-%d %H:%M} UTC is called off. The job may finish there."
    assert set(JobEvent.objects.filter(cause=off).values_list("job__name", flat=True)) == {"train", "theirs"}
    outbox_turn(now=now())
    assert any(off in notice.text for notice in Notice.objects.filter(user=personas.users["submitter"], kind="drain"))


def test_a_gang_that_another_deadline_still_ends_is_not_told_that_it_may_stay(personas, busy):
    access, at = personas.access("operator"), now() + timedelta(hours=3)
    other = builders.node("other", of=busy.cluster, gpus=1)
    gang = Job.objects.get(name="train")
    builders.placement(gang, other.gpus.get(), worker=9)
    nodes_drain(access=access, nodes=[busy, other], way="move", at=at, reason="new fans", now=now())

    nodes_drain(access=access, nodes=[busy], way="finish", at=None, reason="the fans are late", now=now())

    assert set(JobEvent.objects.filter(cause__contains="is called off").values_list("job__name", flat=True)) == {"theirs"}


@pytest.mark.parametrize(
    ("to", "told", "effect"),
    [
        ("suspect", "New gangs avoid 1 GPU of busy; other jobs may use it.", "Runs on"),
        ("draining", "1 GPU of busy takes no new jobs. Running jobs finish.", "Runs on"),
        ("down", "1 job loses its workers here.", "Loses its workers here"),
    ],
)
def test_another_health_of_a_gpu_is_shown_before_it_is_done(personas, busy, to, told, effect):
    gpu = busy.gpus.get(index=0)
    address = reverse("gpu_health", args=[gpu.public_id])

    shown = personas.client("operator").get(address, {"to": to}).content.decode()

    assert told in shown and ">train<" in shown and effect in shown
    assert ">serve<" not in shown  # it is on another GPU of the node
    refused = personas.client("operator").post(address, {"to": to, "seen": "healthy", "reason": ""})
    assert refused.status_code == 422 and "A reason is required" in refused.content.decode()
    assert personas.client("operator").post(address, {"to": to, "seen": "healthy", "reason": "new fans"}).status_code == 302
    gpu.refresh_from_db()
    assert gpu.health == to
