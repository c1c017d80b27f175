"""What reclaims win back: of many episodes at once as of each by itself, and in as many queries."""

from datetime import datetime, timedelta
from random import Random

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from dashboards.idle.models import IdleEpisode, Stage
from dashboards.idle.winning import WON_FOR, won_back_follow
from quotas.models import QuotaNode
from scheduler.models import Gpu, Job, JobState, Placement
from tests import builders
from tests.builders import NOON
from tests.dashboards.worlds import gpus_of

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)


def reclaimed(job: Job, gpus: list[Gpu], at: datetime) -> IdleEpisode:
    milli = 1000 * len(gpus)
    facts = {"job": job, "quota": job.quota, "attempt": job.attempts.get(), "gpus": [gpu.pk for gpu in gpus], "held_milli": milli}
    facts |= {"idle_milli": milli, "waste": "low", "activity_centi": 0, "started_at": at - 60 * MINUTE, "seen_at": at, "stage_at": at}
    name = f"e-{IdleEpisode.objects.count()}"
    return IdleEpisode.objects.create(public_id=name, ended_at=at, reclaimed_at=at, stage=Stage.RECLAIMED, **facts)


def by_itself(episode: IdleEpisode, now: datetime) -> int:
    """The slow, obvious twin: minute by minute."""
    assert episode.reclaimed_at is not None
    total = 0
    for gpu in episode.gpus:
        at = episode.reclaimed_at
        others = [one.reclaimed_at for one in IdleEpisode.objects.all() if gpu in one.gpus and one.reclaimed_at and one.reclaimed_at > at]
        end = min([now, at + WON_FOR, *others])
        held = [one for one in Placement.objects.filter(gpu=gpu).select_related("job") if one.job_id != episode.job_id]
        while at < end:
            total += sum(60_000 * one.gpu_milli for one in held if one.since <= at and (one.until is None or one.until > at))
            at += MINUTE
    return total


def world(rng: Random, team: QuotaNode, episodes: int) -> None:
    """Jobs of some minutes on a few GPUs, one after the other, some of which were reclaimed, up to a day and a half ago."""
    gpus = gpus_of(builders.node(gpus=4))
    for gpu in gpus:
        at = NOON - timedelta(hours=36)
        while at < NOON:
            job = builders.job(f"job-{rng.random()}", state=JobState.RUNNING, on=team)
            until = at + rng.randint(30, 300) * MINUTE
            builders.placement(job, gpu, since=at, until=until if until < NOON else None)
            at = until + rng.choice([0, 0, 20]) * MINUTE
    jobs = list(Job.objects.filter(placements__gpu__in=gpus).distinct().order_by("pk"))
    for job in rng.sample(jobs, episodes):
        reclaimed(job, rng.sample(gpus, rng.randint(1, 4)), NOON - rng.randint(0, 24 * 60) * MINUTE)


@pytest.mark.parametrize("seed", range(4))
def test_of_many_episodes_it_is_what_it_is_of_each(seed: int) -> None:
    world(Random(seed), builders.quota(), 6)

    won_back_follow(now=NOON)

    found = {one.pk: one.won_milli_millis for one in IdleEpisode.objects.all()}
    assert found == {one.pk: by_itself(one, NOON) for one in IdleEpisode.objects.all()}
    assert any(found.values())
    assert won_back_follow(now=NOON) == 0


def test_forty_episodes_cost_as_many_queries_as_four() -> None:
    team, counts = builders.quota(), []
    for episodes in (4, 36):
        for _ in range(episodes // 4):
            world(Random(episodes), team, 4)
        with CaptureQueriesContext(connection) as asked:
            assert won_back_follow(now=NOON)
        counts.append(len(asked))
    assert counts[0] == counts[1]
