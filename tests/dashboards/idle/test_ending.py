"""Jobs that asked to be ended when their GPUs are idle: only after all of that time, and never for want of readings."""

from datetime import timedelta

import pytest

from dashboards.idle.ending import idle_ends
from scheduler.models import JobEvent, JobState
from tests import builders
from tests.builders import NOON
from tests.dashboards.signals import watched
from tests.dashboards.worlds import gpus_of

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)


@pytest.fixture
def notebook():
    job = builders.job(state=JobState.RUNNING, gpus_milli=2000, launch={"shell": "jupyter lab", "idle_end_s": 1200})
    builders.attempt(job, running_at=NOON - timedelta(hours=1))
    gpus = gpus_of(builders.node(gpus=2))
    for gpu in gpus:
        builders.placement(job, gpu, since=NOON - timedelta(hours=1))
    return job, gpus


@pytest.mark.parametrize(
    ("figures", "ends"),
    [((0, 2), True), ((0, 60), False), ((0, None), False), ((0, [50] * 5 + [0] * 15), False), ((0, [90] * 10 + [0] * 20), True)],
    ids=["idle", "one works", "no readings", "not for so long", "idle since"],
)
def test_it_is_ended_after_all_of_its_time_without_activity(notebook, figures, ends):
    job, gpus = notebook
    watched(dict(zip(gpus, figures, strict=True)), until=NOON)

    assert idle_ends(now=NOON) == ends
    assert job.attempts.get().stop_to == ("cancelled" if ends else "")
    if ends:
        assert "idle for 20 min" in JobEvent.objects.filter(job=job).latest("id").cause
        assert idle_ends(now=NOON + MINUTE) == 0, "it is being ended"


def test_one_that_has_just_begun_and_one_that_did_not_ask_go_on(notebook):
    job, gpus = notebook
    watched(dict.fromkeys(gpus, 0), until=NOON)
    job.attempts.update(running_at=NOON - 19 * MINUTE)
    assert idle_ends(now=NOON) == 0
    job.attempts.update(running_at=NOON - 30 * MINUTE)
    type(job).objects.update(launch={"shell": "jupyter lab"})
    assert idle_ends(now=NOON) == 0


@pytest.mark.parametrize("later", [0, 1, 3, 5])
def test_zeros_of_a_source_that_lied_end_nobody(notebook, later):
    _, gpus = notebook
    others = [builders.job(state=JobState.RUNNING, gpus_milli=8000) for _ in range(2)]
    for other in others:
        for gpu in gpus_of(builders.node(gpus=8)):
            builders.placement(other, gpu, since=NOON - timedelta(hours=1))
            gpus.append(gpu)
    figures = [80] * 30 + [0] * 20 + [80] * later

    watched(dict.fromkeys(gpus, figures[-30:]), until=NOON)

    assert idle_ends(now=NOON) == 0
