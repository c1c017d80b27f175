"""A cluster without a back-end that answers: nothing is placed there, what runs goes on, and a cancel ends all the same."""

from contextlib import nullcontext
from datetime import timedelta

import pytest
from django.urls import reverse

from scheduler.backends.base import BackendError, Facts
from scheduler.models import Attempt, Cluster, Job, JobEvent, JobState, Node, Placement
from scheduler.services.hardware.hardware import node_health_change
from scheduler.services.loop.runs import Stop, attempts_stop
from scheduler.services.loop.tick import Memory, tick_run
from tests import builders
from tests.builders import NOON
from tests.invariants import fleet_faults
from tests.scheduler.loop.worlds import Loop, leaf, state, submit

pytestmark = pytest.mark.django_db


class Silent:
    """A back-end of which nothing is heard."""

    facts = Facts()

    def together(self, keys=()):
        return nullcontext()

    def next_event_at(self, *, now):
        return None

    def __getattr__(self, name):
        def call(*_, **__):
            raise BackendError("no answer")

        return call


def test_nothing_is_placed_where_no_back_end_is():
    builders.node("n1", of=builders.cluster("far", backend="nowhere"), gpus=8)
    job = submit(leaf("team", 8), gpus=8)

    Loop().tick()

    assert state(job) == JobState.QUEUED
    assert not Placement.objects.exists()


def test_it_is_placed_beside_and_what_runs_there_goes_on():
    far = builders.cluster("far")
    builders.node("n1", of=far, gpus=8)
    loop, first = Loop(), submit(leaf("team", 16), gpus=8)
    loop.tick()
    loop.up(first)

    Cluster.objects.filter(pk=far.pk).update(backend="nowhere")
    builders.node("n2", of=builders.cluster("near"), gpus=8)
    second = submit(leaf("team", 16), gpus=8)
    loop.after(seconds=10).tick(force=True)

    assert state(first) == JobState.RUNNING
    assert set(Placement.objects.filter(job=second, until__isnull=True).values_list("node__name", flat=True)) == {"n2"}


def test_a_cancel_ends_within_grace_and_a_minute_and_the_ledger_is_closed():
    cluster = builders.cluster("far")
    builders.node("n1", of=cluster, gpus=8)
    loop, job = Loop(), submit(leaf("team", 8), gpus=8)
    loop.tick()
    loop.up(job)
    Cluster.objects.update(backend="nowhere")
    attempts_stop(stops=[Stop(job.pk, JobState.CANCELLED, "cancelled", "Wrong data.", grace_seconds=30)], now=loop.now)
    backends, memory = {cluster.pk: Silent()}, Memory()

    def later(seconds: int) -> None:
        tick_run(holder="one", now=NOON + timedelta(seconds=seconds), backends=backends, memory=memory)

    for seconds in (1, 31, 40, 60, 80):
        later(seconds)
        assert state(job) != JobState.CANCELLED
    for seconds in (91, 95):
        later(seconds)

    assert state(job) == JobState.CANCELLED
    assert not Placement.objects.filter(until__isnull=True).exists()
    assert not fleet_faults()
    assert Job.objects.get(pk=job.pk).ended_at == NOON + timedelta(seconds=91)


def three_nodes():
    cluster = builders.cluster("near")
    return [builders.node(f"n{number}", of=cluster, gpus=8) for number in (1, 2, 3)]


def down(node, personas, at):
    node_health_change(access=personas.access("superuser"), node=node, to="down", reason="It does not answer.", now=at)


def where(job):
    return sorted(set(Placement.objects.filter(job=job, until__isnull=True).values_list("node__name", flat=True)))


def test_a_gang_on_a_node_set_down_degrades_and_is_repaired_elsewhere(personas):
    nodes, loop = three_nodes(), Loop()
    gang = submit(leaf("team", 24), gpus=8, workers=2)
    loop.tick()
    loop.up(gang)
    kept, lost = where(gang)

    down(next(node for node in nodes if node.name == lost), personas, loop.now)
    loop.after(seconds=1).tick(force=True)

    assert lost not in where(gang)
    assert kept in where(gang)
    assert len(where(gang)) == 2
    assert any(f"{lost} is down: 1 worker lost." in event.cause for event in JobEvent.objects.filter(job=gang))
    assert not fleet_faults()
    page = personas.client("superuser").get(reverse("node", args=[Node.objects.get(name=lost).public_id])).content.decode()
    assert "Jobs that left" in page
    assert gang.public_id in page
    assert ", ".join(where(gang)) in page
    stranger = personas.client("submitter").get(reverse("node", args=[Node.objects.get(name=lost).public_id])).content.decode()
    assert gang.public_id not in stranger


def test_a_lone_job_on_a_node_set_down_is_stopped_and_starts_elsewhere(personas):
    loop = Loop()
    three_nodes()
    job = submit(leaf("team", 24), gpus=8)
    loop.tick()
    loop.up(job)
    (lost,) = where(job)

    down(Node.objects.get(name=lost), personas, loop.now)
    loop.after(seconds=1).tick(force=True)
    assert Attempt.objects.get(job=job).stop_to == JobState.QUEUED
    assert any(f"{lost} is down: 1 worker lost." in event.cause for event in JobEvent.objects.filter(job=job))
    loop.over(job, exit_code=None)
    loop.after(seconds=120).tick(force=True)

    assert Attempt.objects.filter(job=job).count() == 2
    assert where(job)
    assert lost not in where(job)
    assert not fleet_faults()
