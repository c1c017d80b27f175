"""Draining a node: what it does is shown first, by the names of jobs, and then it does that."""

import pytest
from django.urls import reverse

from gpufleet.core.models import AuditEntry
from gpufleet.core.times import now
from quotas.models import ShareClass
from scheduler.models import Health, JobState, Node
from scheduler.selectors.nodes import node_guests
from tests import builders
from tests.quotas.chargeback.worlds import used

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

    assert "4 GPUs of busy take no new jobs." in shown
    assert "3 jobs run here now." in shown
    assert "If jobs are moved, 2 save their work and wait to resume elsewhere." in shown
    assert "1 job may not be preempted and finishes here in any case." in shown
    assert all(name in shown for name in (">train<", ">serve<", ">theirs<"))
    assert Node.objects.get(pk=busy.pk).health == Health.HEALTHY
    assert personas.client("team_lead").get(address).status_code == 403


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
    assert list(entries) == [("node.health", "new fans"), ("node.move_jobs", "new fans")]


@pytest.mark.parametrize(("share_class", "movable"), [(ShareClass.GUARANTEED, False), (ShareClass.BORROWED, True)])
def test_what_is_preemptible_when_it_borrows_is_moved_only_then(personas, share_class, movable):
    """Serving within its guarantee is promised that nothing puts it out."""
    node = builders.node("serving", gpus=1)
    job = builders.job("chat", on=personas.nodes["acme/research/nlp"], state=JobState.RUNNING, preemptible="when_borrowed")
    placement = builders.placement(job, on=node.gpus.get())
    used(job.quota, now(), None, attempt=placement.attempt_id, share_class=share_class)

    (guest,) = node_guests(personas.access("operator"), node, now=now())

    assert guest.movable == movable


def _is_leaving(job):
    return job.attempts.filter(stop_asked_at__isnull=False).exists()


def test_marking_a_node_down_names_the_jobs_that_lose_workers(personas, busy):
    shown = personas.client("operator").get(reverse("node_health", args=[busy.public_id]), {"to": "down"}).content.decode()

    assert "4 GPUs of busy are out of service at once." in shown
    assert "3 jobs lose their workers here." in shown
