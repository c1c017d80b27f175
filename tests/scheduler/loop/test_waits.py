"""How long jobs have waited for quota, for GPUs, or aside: told by the loop as it goes, written only when it becomes another thing."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from scheduler.jobs.waiting import wait_kind
from scheduler.models import Health, Job, JobState, Node, Wait
from scheduler.presenters.jobs import life_of
from scheduler.selectors.jobs import job_attempts
from scheduler.services.forecasts.forecasting import ForecastMemory, forecast_run
from scheduler.services.forecasts.outlooks import Told, outlooks_write
from scheduler.services.jobs.jobs import job_hold, job_let_go, job_stop
from scheduler.services.loop.tick import Memory
from tests.builders import NOON, job, node
from tests.scheduler.loop.worlds import H100, Loop, leaf, state, submit

pytestmark = pytest.mark.django_db
LIMIT = {"code": "limit", "detail": "x", "type": H100}
CAPACITY = {"code": "capacity", "detail": "x", "type": H100}
SHARE = {"code": "share", "detail": "x"}
OTHER = {"code": "capacity", "detail": "x", "type": "L40S-48GB"}


@pytest.mark.parametrize(
    ("reasons", "kind"),
    [
        ([], "gpus"),
        ([CAPACITY, SHARE], "gpus"),
        ([LIMIT], "quota"),
        ([LIMIT, CAPACITY], "quota"),
        ([{"code": "guarantee", "detail": "x"}, OTHER], "quota"),
        ([LIMIT, OTHER], "gpus"),
        ([{"code": "hold", "detail": "x"}], "aside"),
        ([{"code": "held", "detail": "x"}, {"code": "dependency", "detail": "x"}], "aside"),
        ([{"code": "order", "detail": "x"}], "gpus"),
    ],
)
def test_what_it_waits_for_in_a_word(reasons, kind):
    assert wait_kind(reasons) == kind


def lived(of: Job, at) -> dict[str, float]:
    """Minutes by part."""
    fresh = Job.objects.get(pk=of.pk)
    life = life_of(fresh, job_attempts(fresh), at, Wait.objects.filter(job=fresh).first())
    return {part.key: part.seconds / 60 for part in life.parts}


def test_a_wait_for_a_limit_and_one_for_gpus_are_told_apart():
    team = leaf("team", 8, limit=8)
    one = node("n1", gpus=8)
    loop = Loop()
    first = submit(team, gpus=6)
    loop.tick()
    loop.up(first)
    waiting = submit(team, gpus=4)
    loop.tick()
    assert lived(waiting, loop.after(minutes=10).now) == {"quota": 10, "gpus": 0, "start": 0, "run": 0}

    # The limit has room again, and the machine is away.
    loop.over(first)
    Node.objects.filter(pk=one.pk).update(health=Health.DOWN)
    loop.memory = Memory()
    loop.tick(force=True)
    assert state(waiting) == JobState.QUEUED
    forecast_run(holder="one", now=loop.now, force=True)
    assert lived(waiting, loop.after(minutes=20).now) == {"quota": 10, "gpus": 20, "start": 0, "run": 0}

    Node.objects.filter(pk=one.pk).update(health=Health.HEALTHY)
    loop.memory = Memory()
    loop.tick(force=True)
    loop.after(minutes=1).up(waiting)
    loop.after(minutes=30)
    assert lived(waiting, loop.now) == {"quota": 10, "gpus": 20, "start": 1, "run": 30}


def test_who_starts_out_of_a_wait_for_quota_has_waited_for_no_more():
    team = leaf("team", 8, limit=8)
    node("n1", gpus=16)
    loop = Loop()
    first = submit(team, gpus=8)
    loop.tick()
    loop.up(first)
    waiting = submit(team, gpus=4)
    loop.tick()
    loop.after(minutes=10).over(first)
    loop.tick()
    assert state(waiting) == JobState.STARTING
    loop.after(minutes=2).up(waiting)

    assert lived(waiting, loop.after(minutes=50).now) == {"quota": 10, "gpus": 0, "start": 2, "run": 50}
    wait = Wait.objects.get(job=waiting)
    assert (wait.kind, wait.quota_ms) == ("gpus", 600_000)


def test_the_time_aside_is_neither():
    node("n1", gpus=1)
    team = leaf("team", 8)
    loop = Loop()
    running = submit(team)
    loop.tick()
    loop.up(running)
    waiting = submit(team)
    loop.tick()
    memory = ForecastMemory.empty()

    job_hold(job=waiting, now=loop.after(minutes=5).now)
    forecast_run(holder="one", now=loop.now, memory=memory, force=True)
    assert lived(waiting, loop.after(minutes=7).now) == {"quota": 0, "gpus": 5, "aside": 7, "start": 0, "run": 0}
    job_let_go(job=Job.objects.get(pk=waiting.pk), now=loop.now)
    loop.tick()
    forecast_run(holder="one", now=loop.now, memory=memory, force=True)
    assert lived(waiting, loop.after(minutes=3).now) == {"quota": 0, "gpus": 8, "aside": 7, "start": 0, "run": 0}


def test_nothing_is_written_for_those_who_wait_as_before():
    jobs = [job(f"train-{number}") for number in range(20)]

    def written(reasons, at=NOON):
        with CaptureQueriesContext(connection) as asked:
            outlooks_write(told={one.pk: Told(reasons) for one in jobs}, now=at, forecast=False)
        return [query["sql"] for query in asked if "job_wait" in query["sql"]]

    assert len(written([CAPACITY])) == 1, "who waits for GPUs has no row"
    assert not Wait.objects.exists()
    assert len(written([LIMIT])) == 2, "all that changed at once"
    assert len(written([LIMIT | {"used": 7}], NOON + timedelta(minutes=1))) == 1, "nothing but the question"
    assert {wait.since for wait in Wait.objects.all()} == {NOON}


def test_what_began_to_run_meanwhile_is_not_said_to_wait():
    """The forecast looks at a moment that is over: who has started since has no wait, and what was written too late adds no time that it ran."""
    running, again = job(state=JobState.RUNNING), job(state=JobState.PREEMPTED, state_since=NOON + timedelta(hours=5))
    outlooks_write(told={running.pk: Told([LIMIT])}, now=NOON, forecast=False)
    assert not Wait.objects.exists()

    Wait.objects.create(job=again, kind="quota", since=NOON)
    assert lived(again, NOON + timedelta(hours=6))["quota"] == 60
    outlooks_write(told={again.pk: Told([CAPACITY])}, now=NOON + timedelta(hours=6), forecast=False)
    assert Wait.objects.get(job=again).quota_ms == 3_600_000


def test_a_job_that_gives_up_waiting_has_waited_until_then():
    team = leaf("team", 8, limit=2)
    node("n1", gpus=4)
    loop = Loop()
    submit(team, gpus=2)
    loop.tick()
    waiting = submit(team, gpus=1)
    loop.tick()
    job_stop(job=waiting, to=JobState.CANCELLED, outcome="cancelled", cause="Enough.", now=loop.after(minutes=4).now)

    assert lived(waiting, loop.after(hours=9).now) == {"quota": 4, "gpus": 0, "start": 0, "run": 0}
