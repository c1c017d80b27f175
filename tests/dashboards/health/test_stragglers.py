"""Stragglers: named within two minutes, and nobody named in a week of quiet."""

import itertools
import os
from collections import deque
from collections.abc import Iterator
from datetime import timedelta

import numpy as np
import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from dashboards.health.detect import LOOKS, Slow, slow_ranks
from dashboards.health.models import HealthBucket, Straggler
from dashboards.health.selectors import replacements
from dashboards.health.state import RawState, state_write
from dashboards.health.steps import LOOK, looks_of, steps_report
from dashboards.health.stragglers import causes_of, slow_links, stragglers_round
from dashboards.models import ActivityEntry, StepLook
from scheduler.models import Attempt, Delivery, Health, Job, JobState, OutsideJob, OutsideSeat, Promise, PromisedSeat
from scheduler.services.jobs.tokens import token_digest
from tests import builders
from tests.builders import NOON
from tests.dashboards.signals import watched
from tests.dashboards.worlds import gpus_of
from tests.personas import Personas

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
@pytest.mark.parametrize(("ranks", "telling"), [(16, range(1)), (16, range(12)), (2, range(2)), (16, range(16))])
def test_only_step_times_of_the_whole_gang_count_instead_of_its_activity(ranks, telling):
    """The first rank alone reports for MFU, as docs/job-processes.md shows; and a rank may be a node. Each says nothing about who is slow."""
    job, nodes = gang(2)
    gpus = [gpu for node in nodes for gpu in gpus_of(node)]
    watched({gpu: (55 if gpu == gpus[11] else 80) for gpu in gpus}, until=NOON)
    for step in range(8):
        steps_report(attempt=job.attempts.get().pk, ranks=ranks, seconds=dict.fromkeys(telling, 1.27), at=NOON - (8 - step) * LOOK, flops=1e15)

    whole = len(telling) == 16
    assert stragglers_round(now=NOON) == (0 if whole else 1)
    assert list(Straggler.objects.values_list("rank", "measure")) == ([] if whole else [(11, "sm")])


@pytest.mark.django_db
@pytest.mark.parametrize(("step", "pauses"), [(1, {20, 21, 40, 41}), (18, ()), (20, ()), (25, ()), (10, set(range(30, 35)))])
def test_a_rank_that_is_slow_by_its_steps_is_told_once_through_long_steps_and_checkpoints(step, pauses):
    """The SM activity of the gang, which waits busily, is no word against what its steps told a moment ago."""
    job, nodes = gang(2)
    gpus = [gpu for node in nodes for gpu in gpus_of(node)]
    times = {rank: step * (1.4 if rank == 11 else 1.0) for rank in range(16)}
    told = timedelta(0)
    for look in range(80):
        at = NOON + look * LOOK
        while NOON + told <= at:
            if (look if step < 15 else -1) not in pauses:
                steps_report(attempt=job.attempts.get().pk, ranks=16, seconds=times if look >= 2 else dict.fromkeys(times, 1.0), at=NOON + told)
            told += max(timedelta(seconds=step), LOOK)
        watched(dict.fromkeys(gpus, 80), until=at)
        stragglers_round(now=at + timedelta(seconds=1))

    assert list(Straggler.objects.values_list("rank", "measure", "ended_at")) == ([(11, "step", None)] if step < 25 else [])


@pytest.mark.django_db
@pytest.mark.parametrize("after", ["keeps up", "tells no more", "first rank alone tells"])
def test_a_rank_that_is_slow_by_its_steps_is_so_until_they_or_then_its_activity_say_otherwise(after):
    job, nodes = gang(2)
    gpus = [gpu for node in nodes for gpu in gpus_of(node)]
    run = job.attempts.get().pk
    slow = {rank: 1.4 if rank == 11 else 1.0 for rank in range(16)}
    later = {"keeps up": dict.fromkeys(slow, 1.0), "tells no more": {}, "first rank alone tells": {0: 1.0}}[after]
    for look in range(24):
        at = NOON + look * LOOK
        # Steps of half a minute then, of which too few are read to name anybody.
        if look < 8 or look % 2 == 0:
            steps_report(attempt=run, ranks=16, seconds=slow if look < 8 else later, at=at)
        watched(dict.fromkeys(gpus, 80), until=at)
        stragglers_round(now=at + timedelta(seconds=10))
        if look == 9:
            assert Straggler.objects.get().ended_at is None

    ended = Straggler.objects.get().ended_at
    assert ended is not None and ended <= NOON + 8 * LOOK + 3 * MINUTE


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("signal", "value", "cause"),
    [
        ("temperature", 84, "Heat: up to 84 °C in 30 min."),
        ("pcie_lost", 50, "PCIe downgrade: up to 50% of bandwidth lost in 30 min."),
        ("thermal", 60, "Thermal throttling: 360 s in 30 min."),
    ],
)
def test_a_cause_tells_the_highest_level_and_the_sum_of_what_is_counted(signal, value, cause):
    gpu = builders.gpu()
    for number in range(6):
        HealthBucket.objects.create(at=NOON - 5 * number * MINUTE, device=2 * gpu.pk, node=gpu.node, gpu=gpu, signal=signal, value=value)

    assert causes_of([(gpu.pk, gpu.node_id)], NOON) == {(gpu.pk, gpu.node_id): cause}


@pytest.mark.django_db
def test_a_link_that_is_15_percent_slower_is_named_within_six_minutes_at_64_ranks():
    """All compute alike, as they wait for each other busily; NVLink tells. Looks of a source come each fifteen seconds, and some are missed."""
    _, nodes = gang(8)
    gpus = [gpu for node in nodes for gpu in gpus_of(node)]
    rng, began, named = np.random.default_rng(5), NOON + 10 * MINUTE, None
    for look in range(80):
        at = NOON + look * timedelta(seconds=15)
        mib = 90_000 * (1 + 0.02 * rng.standard_normal(64))
        mib[8:16] *= 0.7  # another stage of the pipeline, as a whole
        if at >= began:
            mib[37] *= 0.85
        told = mib.astype(np.uint32)
        told[rng.random(64) < 0.05] = 0xFFFFFFFF
        state_write(cluster_id=nodes[0].cluster_id, at=at, source="test", state=RawState(gpus=[gpu.pk for gpu in gpus], columns={"nvlink_mib": told}))
        if look % 4 == 1 and look >= 24:
            watched(dict.fromkeys(gpus, 80), until=at, minutes=8)
            stragglers_round(now=at)
            if named is None and Straggler.objects.exists():
                named = at

    assert named is not None and named - began <= 6 * MINUTE
    found = Straggler.objects.get()
    assert (found.rank, found.node, found.gpu.index, found.measure, found.ended_at) == (37, nodes[4], 5, "nvlink", None)
    assert 10 <= found.percent <= 20


@pytest.mark.django_db
def test_what_a_gpu_did_before_its_gang_ran_is_not_held_against_it():
    job, nodes = gang(1)
    gpus = gpus_of(nodes[0])
    job.attempts.update(running_at=NOON - MINUTE)
    watched({gpu: ([0] * 29 + [80] if gpu == gpus[3] else 80) for gpu in gpus}, until=NOON)
    assert stragglers_round(now=NOON + timedelta(seconds=5)) == 0

    job.attempts.update(running_at=NOON - timedelta(hours=1))
    job.placements.filter(gpu=gpus[3]).update(since=NOON - MINUTE)
    watched({gpu: ([0] * 29 + [80] if gpu == gpus[3] else 80) for gpu in gpus}, until=NOON)
    assert stragglers_round(now=NOON + timedelta(seconds=5)) == 0


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


def gang_steps(rng: np.random.Generator, looks: int, ranks: int = 64) -> Iterator[np.ndarray]:
    """Step times by look of fifteen seconds, and no straggler: noise with a memory, a slower half, checkpoints of the first rank, evaluations, bursts
    of one rank or one node of up to a minute, restarts on other hardware, and ranks that are not read.
    """
    uneven, drift, burst, left, down = np.ones(ranks), np.zeros(ranks), slice(0, 0), 0, 0
    for look in range(looks):
        if look % 1500 == 0:  # a restart: nobody is read for two minutes, then the gang has a pace of its own
            down, uneven = 8, rng.permutation(np.where(np.arange(ranks) < ranks // 2, 1.0, 1.01)) * rng.uniform(0.5, 3)
        drift = 0.9 * drift + 0.004 * rng.standard_normal(ranks)
        seconds = uneven * (1 + drift + 0.012 * rng.standard_normal(ranks)) * (1.3 if look % 200 < 12 else 1.0)
        if look % 90 < 3:
            seconds[0] *= 2.5
        if left <= -8 and rng.random() < 0.03:
            first = int(rng.integers(1, ranks // 8)) * 8  # beside a checkpoint of the first rank it would last
            burst, left = (slice(first, first + 8) if rng.random() < 0.3 else slice(first, first + 1)), int(rng.integers(1, 5))
        if left > 0:
            seconds[burst] *= 1.5
        left -= 1
        seconds[rng.random(ranks) < 0.01] = np.nan
        if down:
            seconds[:], down = np.nan, down - 1
        yield seconds


def gang_activity(rng: np.random.Generator, looks: int, ranks: int = 64) -> Iterator[np.ndarray]:
    """SM activity by minute in whole percent, likewise: loading takes twenty minutes, checkpoints and bursts one to three."""
    uneven, drift, burst, left = np.ones(ranks), np.zeros(ranks), slice(0, 0), 0
    for look in range(looks):
        if look % 400 == 0:
            uneven = rng.permutation(np.where(np.arange(ranks) < ranks // 2, 1.0, 0.99))
        level = 2.0 if look % 400 < 20 else 40.0 if look % 50 < 3 else 85.0
        drift = 0.9 * drift + 0.004 * rng.standard_normal(ranks)
        percent = level * uneven * (1 + drift) + rng.standard_normal(ranks)
        if look % 400 < 20:
            percent[look // 400 % ranks] = 0.0  # it has its part loaded, and waits for the others
        if look % 30 == 0:
            percent[0] = 30
        if left <= -8 and rng.random() < 0.03:
            first = int(rng.integers(1, ranks // 8)) * 8  # beside a checkpoint of the first rank it would last
            burst, left = (slice(first, first + 8) if rng.random() < 0.3 else slice(first, first + 1)), int(rng.integers(1, 4))
        if left > 0:
            percent[burst] *= 0.6
        left -= 1
        percent = np.clip(np.round(percent), 0, 100)
        percent[rng.random(ranks) < 0.01] = np.nan
        yield percent


def gang_traffic(rng: np.random.Generator, looks: int, ranks: int = 64) -> Iterator[np.ndarray]:
    """NVLink traffic in MiB/s by minute, likewise: stages of a pipeline talk each at a level of its own, and a gang that loads hardly at all."""
    stages, drift, burst, left = np.ones(ranks), np.zeros(ranks), slice(0, 0), 0
    for look in range(looks):
        if look % 400 == 0:
            stages = np.repeat(rng.uniform(0.5, 1, ranks // 8), 8) * rng.uniform(2_000, 400_000)
        drift = 0.9 * drift + 0.004 * rng.standard_normal(ranks)
        mib = stages * (1 + drift + 0.012 * rng.standard_normal(ranks)) * (0.4 if look % 50 < 3 else 1.0)
        if look % 400 < 20:
            mib = rng.uniform(0, 150, ranks)
            mib[look // 400 % ranks] = 0.0
        if look % 30 == 0:
            mib[0] *= 0.4
        if left <= -8 and rng.random() < 0.03:
            first = int(rng.integers(1, ranks // 8)) * 8
            burst, left = (slice(first, first + 8) if rng.random() < 0.3 else slice(first, first + 1)), int(rng.integers(1, 4))
        if left > 0:
            mib[burst] *= 0.6
        left -= 1
        mib[rng.random(ranks) < 0.01] = np.nan
        yield mib


@pytest.mark.parametrize("days", [1, pytest.param(7, marks=pytest.mark.soak)])
@pytest.mark.parametrize(("gang_of", "looks_a_day", "slowed"), [(gang_steps, 5760, 1.15), (gang_activity, 1440, 0.7), (gang_traffic, 1440, 0.85)])
def test_no_false_alarm_in_a_simulated_week(gang_of, looks_a_day, slowed, days):
    """Every look of the week, each judged with those before it as the rounds do. A rank that then gets slower is still found."""
    rng = np.random.default_rng(int(os.environ.get("SOAK_SEED") or 11))
    history: deque[np.ndarray] = deque(maxlen=LOOKS)
    nodes = [rank // 8 for rank in range(64)]

    def named() -> list[Slow]:
        figures = np.array(history)
        return slow_links(figures, nodes) if gang_of is gang_traffic else slow_ranks(figures, higher_is_slow=slowed > 1)

    alarms = []
    for look, figures in enumerate(gang_of(rng, days * looks_a_day)):
        history.append(figures)
        alarms += [(look, one) for one in named()]
    assert alarms == []

    history.clear()
    found = []
    for figures in itertools.islice(gang_of(rng, looks_a_day), 706, 706 + 20):  # a burst or a missing reading may put it off for a few looks
        figures[37] *= slowed
        history.append(figures)
        found = found or (len(history) == LOOKS and [one.rank for one in named()])
    assert found == [37]


def test_a_slow_link_among_the_eight_of_its_node_is_found_within_ten_minutes_in_every_draw():
    """Eight readings say little about how far ranks usually differ: a rank that was clearly slower could stay unfound for twenty."""
    nodes, missed = [rank // 8 for rank in range(64)], []
    for seed in range(100):
        looks = np.array(list(itertools.islice(gang_traffic(np.random.default_rng(seed), 1440), 106, 116)))
        looks[:, 37] *= 0.85
        if {one.rank for end in range(LOOKS, 11) for one in slow_links(looks[end - LOOKS : end], nodes)} != {37}:
            missed.append(seed)
    assert missed == []


def test_a_gang_that_is_uneven_all_over_has_no_straggler():
    figures = np.tile(np.array([1.0] * 6 + [1.5] * 4), (6, 1))
    assert slow_ranks(figures) == []
    assert slow_ranks(np.ones((3, 8))) == []
    assert [one.rank for one in slow_ranks(np.tile(np.array([1.0] * 7 + [1.3]), (6, 1)))] == [7]
    assert [one.rank for one in slow_ranks(np.tile(np.array([90.0] * 7 + [60.0]), (6, 1)), higher_is_slow=False)] == [7]
    assert slow_ranks(np.tile(np.array([3.0] * 7 + [0.0]), (6, 1)), higher_is_slow=False) == [], "a gang that loads computes next to nothing"


@pytest.mark.django_db
def test_only_a_node_that_is_whole_and_that_nobody_holds_or_waits_for_is_a_replacement():
    nodes = [builders.node(gpus=2) for _ in range(5)]
    builders.placement(on=gpus_of(nodes[0])[0])
    promise = Promise.objects.create(job=builders.job(), kind=Promise.Kind.START, until=NOON)
    PromisedSeat.objects.create(promise=promise, role="worker", worker=0, node=nodes[1], gpu=gpus_of(nodes[1])[0])
    outside = OutsideJob.objects.create(cluster=nodes[2].cluster, number=1, since=NOON)
    OutsideSeat.objects.create(job=outside, node=nodes[2], gpu=gpus_of(nodes[2])[0])
    nodes[3].gpus.filter(index=1).update(health=Health.DOWN)

    assert replacements({nodes[0].gpu_type_id}) == {(nodes[0].cluster_id, nodes[0].gpu_type_id): nodes[4]}
    outside.until = NOON
    outside.save()
    assert replacements({nodes[0].gpu_type_id}) == {(nodes[0].cluster_id, nodes[0].gpu_type_id): nodes[2]}


@pytest.mark.django_db
def test_ranks_report_their_steps_with_the_token_of_their_attempt(client: Client) -> None:
    run = builders.attempt(builders.job(state=JobState.RUNNING), token_digest=token_digest("secret"))

    def report(token: str, **body: object) -> int:
        sent = {"HTTP_AUTHORIZATION": f"Bearer {token}"} if token else {}
        return client.post("/api/v1/steps", body, content_type="application/json", **sent).status_code  # type: ignore[arg-type]

    assert report("secret", ranks=4, seconds={"1": 1.5, "9": 2.0, "2": -1}) == 204
    assert np.nan_to_num(looks_of(StepLook.objects.get(attempt=run))[-1]).tolist() == [0, 1.5, 0, 0]
    assert (report("", ranks=4, seconds={}), report("wrong", ranks=4, seconds={}), report("secret", ranks=0, seconds={})) == (401, 403, 422)


@pytest.mark.django_db
def test_two_hundred_stragglers_cost_a_round_as_many_queries_as_twenty(personas: Personas):
    """As they are named, go on and keep up again. A chat gets one message that lists them."""
    for name, form in (("Program", "json"), ("Chat", "slack")):
        builders.webhook(builders.quota(), kinds=["straggler.named"], name=name, form=form)
    found = []
    for count in (20, 200):
        start = NOON + count * timedelta(hours=1)
        gangs = [gang(1)[0] for _ in range(count)]
        runs = dict(Attempt.objects.filter(job__in=gangs).values_list("pk", "job_id"))
        Attempt.objects.filter(pk__in=runs).update(running_at=start - timedelta(hours=1))
        queries, told = [], []
        for minute, slow in ((0, 1.4), (1, 1.4), (4, 1.0)):
            at = start + minute * MINUTE
            figures = np.full((8, 8), 1.0, "<f4")
            figures[:, 3] = slow
            StepLook.objects.all().delete()
            StepLook.objects.bulk_create(StepLook(attempt_id=run, at=at - LOOK, ranks=8, figures=figures.tobytes()) for run in runs)
            Delivery.objects.all().delete()
            with CaptureQueriesContext(connection) as asked:
                named = stragglers_round(now=at)
            queries.append(len(asked))
            told.append((named, *(Delivery.objects.filter(hook__name=name).count() for name in ("Program", "Chat"))))
        assert told == [(count, count, 1), (count, 0, 0), (0, 0, 0)]
        assert Straggler.objects.filter(job__in=gangs, rank=3, ended_at__isnull=False).count() == count
        Job.objects.filter(pk__in=[job.pk for job in gangs]).update(state=JobState.COMPLETED, ended_at=start)
        found.append(queries)

    assert found[0] == found[1]


@pytest.mark.django_db
def test_the_page_of_incidents_leads_to_stragglers_beside_its_title_and_operators_to_the_drain(personas: Personas):
    _, nodes = gang(2)
    gpus = [gpu for node in nodes for gpu in gpus_of(node)]
    watched({gpu: (55 if gpu == gpus[11] else 80) for gpu in gpus}, until=NOON)
    assert stragglers_round(now=NOON) == 1

    pages = [personas.client(name).get("/incidents/").content.decode() for name in ("operator", "viewer")]

    drain = f"/nodes/{nodes[1].public_id}/health/?to=draining"
    assert [drain in page for page in pages] == [True, False]
    for page in pages:
        assert page.index('<a class="value" href="#stragglers">1</a>') < page.index('id="stragglers"')
        assert "#holding" not in page, "no rule holds"
