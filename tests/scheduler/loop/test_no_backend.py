"""A cluster without a back-end that answers: nothing is placed there, what runs goes on, and a cancel ends all the same."""

from contextlib import nullcontext
from datetime import timedelta

import pytest

from scheduler.backends.base import BackendError, Facts
from scheduler.models import Cluster, Job, JobState, Placement
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
