"""Stragglers: named within two minutes, and nobody named in a week of quiet."""

from datetime import timedelta

import numpy as np
import pytest
from django.test import Client

from dashboards.health.detect import slow_ranks
from dashboards.health.models import HealthBucket, Straggler
from dashboards.health.steps import LOOK, looks_of, steps_report
from dashboards.health.stragglers import stragglers_round
from dashboards.models import ActivityEntry, StepLook
from scheduler.models import JobState
from scheduler.services.jobs.tokens import token_digest
from tests import builders
from tests.builders import NOON
from tests.dashboards.signals import watched
from tests.dashboards.worlds import gpus_of

MINUTE = timedelta(minutes=1)


def gang(nodes, *, gpus=8):
    made = [builders.node(gpus=gpus) for _ in range(nodes)]
    job = builders.job(state=JobState.RUNNING, gpus_milli=1000 * gpus * nodes)
    for worker, node in enumerate(made):
        for gpu in gpus_of(node):
            builders.placement(job, gpu, worker=worker, since=NOON - timedelta(hours=1))
    job.attempts.update(running_at=NOON - timedelta(hours=1))
    return job, made


@pytest.mark.django_db
def test_a_rank_that_is_15_percent_slower_is_named_within_two_minutes_at_64_ranks():
    job, nodes = gang(8)
    rng = np.random.default_rng(5)
    run, slow, began = job.attempts.get(), 37, NOON + 5 * MINUTE
    HealthBucket.objects.create(
        at=NOON, device=2 * gpus_of(nodes[4])[5].pk, node=nodes[4], gpu=gpus_of(nodes[4])[5], signal="nvlink_errors", value=420
    )
    named = None
    for step in range(60):
        at = NOON + step * LOOK
        seconds = 1.0 + 0.02 * rng.standard_normal(64)
        if at >= began:
            seconds[slow] *= 1.15
        steps_report(attempt=run.pk, ranks=64, seconds=dict(enumerate(seconds.tolist())), at=at)
        stragglers_round(now=at + LOOK / 2)
        if named is None and Straggler.objects.exists():
            named = at + LOOK / 2

    assert named is not None and named - began <= 2 * MINUTE
    found = Straggler.objects.get()
    assert (found.rank, found.node, found.gpu.index, found.measure) == (37, nodes[4], 5, "step")
    assert found.cause == "NVLink errors: 420 errors in 30 min."
    assert 10 <= found.percent <= 20
    assert ActivityEntry.objects.get().kind == "straggler.named"


@pytest.mark.django_db
def test_without_step_times_the_activity_of_the_gang_tells():
    job, nodes = gang(2)
    gpus = [gpu for node in nodes for gpu in gpus_of(node)]
    watched({gpu: (55 if gpu == gpus[11] else 80) for gpu in gpus}, until=NOON)

    assert stragglers_round(now=NOON) == 1
    found = Straggler.objects.get()
    assert (found.rank, found.measure, found.ended_at) == (11, "sm", None)

    watched(dict.fromkeys(gpus, 80), until=NOON + 10 * MINUTE)
    assert stragglers_round(now=NOON + 10 * MINUTE) == 0
    assert Straggler.objects.get().ended_at == NOON + 10 * MINUTE
    assert job.stragglers.count() == 1


@pytest.mark.django_db
def test_step_times_are_kept_as_the_last_looks_and_impossible_ones_are_not():
    job, _ = gang(1)
    run = job.attempts.get()
    for step in range(12):
        steps_report(attempt=run.pk, ranks=4, seconds={0: 1.0 + step, 1: -1.0, 2: float("inf"), 9: 1.0}, at=NOON + step * LOOK)
    steps_report(attempt=run.pk, ranks=4, seconds={0: 99.0}, at=NOON)

    kept = looks_of(StepLook.objects.get())
    assert kept[:, 0].tolist() == [float(step) for step in range(5, 13)]
    assert np.isnan(kept[:, 1:]).all()


def test_no_false_alarm_in_a_simulated_week():
    """Noise, checkpoints of rank 0, evaluations of the whole gang, ranks that go missing, and a fast and a slow half never name anybody."""
    rng = np.random.default_rng(11)
    looks = 7 * 24 * 240
    ranks = 64
    history: list[np.ndarray] = []
    alarms = 0
    uneven = 1 + 0.03 * np.repeat([0, 1], ranks // 2)
    for look in range(0, looks, 3):
        pace = 1.0 + 0.3 * (look % 200 < 12)
        seconds = pace * uneven * (1 + 0.02 * rng.standard_normal(ranks))
        if look % 90 < 3:
            seconds[0] *= 2.5
        if rng.random() < 0.02:
            seconds[rng.integers(ranks)] *= 1.5
        seconds[rng.random(ranks) < 0.01] = np.nan
        history = [*history[-5:], seconds]
        alarms += bool(slow_ranks(np.array(history)))

    assert alarms == 0


def test_a_gang_that_is_uneven_all_over_has_no_straggler():
    figures = np.tile(np.array([1.0] * 6 + [1.5] * 4), (6, 1))
    assert slow_ranks(figures) == []
    assert slow_ranks(np.ones((3, 8))) == []
    assert [one.rank for one in slow_ranks(np.tile(np.array([1.0] * 7 + [1.3]), (6, 1)))] == [7]
    assert [one.rank for one in slow_ranks(np.tile(np.array([90.0] * 7 + [60.0]), (6, 1)), higher_is_slow=False)] == [7]


@pytest.mark.django_db
def test_ranks_report_their_steps_with_the_token_of_their_attempt(client: Client) -> None:
    run = builders.attempt(builders.job(state=JobState.RUNNING), token_digest=token_digest("secret"))

    def report(token: str, **body: object) -> int:
        sent = {"HTTP_AUTHORIZATION": f"Bearer {token}"} if token else {}
        return client.post("/api/v1/steps", body, content_type="application/json", **sent).status_code  # type: ignore[arg-type]

    assert report("secret", ranks=4, seconds={"1": 1.5, "9": 2.0, "2": -1}) == 204
    assert np.nan_to_num(looks_of(StepLook.objects.get(attempt=run))[-1]).tolist() == [0, 1.5, 0, 0]
    assert (report("", ranks=4, seconds={}), report("wrong", ranks=4, seconds={}), report("secret", ranks=0, seconds={})) == (401, 403, 422)
