"""A fault at one episode or job: the others of the round are done, and it is told."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db.models import JSONField, Value

from dashboards.idle import episodes as round_of
from dashboards.idle.ending import idle_ends
from dashboards.idle.episodes import idle_round
from dashboards.idle.models import IdleEpisode, IdlePolicy, IdleStep, Stage
from dashboards.tasks import idle_look
from gpufleet.core.models import Progress
from gpufleet.core.times import now
from quotas.models import QuotaNode
from scheduler.models import Gpu, Job, JobState, Node
from scheduler.services.loop.measuring import tally
from tests import builders
from tests.builders import NOON
from tests.dashboards.signals import watched
from tests.dashboards.worlds import gpus_of
from tests.personas import Personas

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)
COUNTED = ("gpufleet_round_faults", '["idle"]', "count")


def idle_jobs(count: int, team: QuotaNode, *, since: datetime = NOON, **fields: Any) -> list[Job]:
    """Jobs with a GPU each that has been idle for long."""
    gpus = gpus_of(builders.node(name=f"node-{team.name}-{len(fields)}", gpus=count))
    jobs = []
    for number, gpu in enumerate(gpus):
        job = builders.job(f"{team.name}-{number}", state=JobState.RUNNING, on=team, owner=builders.person(f"{team.name}{number}"), **fields)
        builders.placement(job, gpu, since=since - timedelta(hours=5))
        job.attempts.update(running_at=since - timedelta(hours=5))
        jobs.append(job)
    return jobs


def read(at: datetime) -> None:
    watched(dict.fromkeys(Gpu.objects.all(), 0), until=at)


@pytest.fixture
def teams(personas: Personas) -> tuple[QuotaNode, QuotaNode]:
    top = personas.nodes["acme/research"]
    teams = builders.quota("one", parent=top), builders.quota("two", parent=top)
    for team in teams:
        IdlePolicy.objects.create(node=team, classes=["batch"], notify_minutes=None, warn_minutes=20, reclaim_minutes=20)
    tally.take()
    return teams


def test_one_job_that_cannot_be_reclaimed_keeps_no_other_from_it(
    teams: tuple[QuotaNode, QuotaNode], personas: Personas, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = idle_jobs(5, teams[0])
    bad = jobs[2]
    Job.objects.filter(pk=bad.pk).update(spec=bad.spec | {"grace_s": 1e300})
    read(NOON)
    assert idle_round(now=NOON).opened == 5
    at = NOON + 11 * MINUTE
    read(at)

    done = idle_round(now=at)

    assert (done.acted, done.faults) == (4, 1)
    assert dict(Job.objects.values_list("pk", "state")) == {job.pk: JobState.RUNNING if job == bad else JobState.CHECKPOINTING for job in jobs}
    stages = dict(IdleEpisode.objects.values_list("job_id", "stage"))
    assert stages == {job.pk: Stage.WARNED if job == bad else Stage.RECLAIMING for job in jobs}
    episode = IdleEpisode.objects.get(job=bad)
    assert "OverflowError" in episode.fault and "Traceback" in caplog.text and episode.public_id in caplog.text
    assert tally.take()[COUNTED] == 1
    page = personas.client("operator").get("/idle/").content.decode()
    assert "1 episode" in page[page.index('data-part="faults"') :][:400] and f"/idle/{episode.public_id}/" in page
    assert "OverflowError" in personas.client("operator").get(f"/idle/{episode.public_id}/").content.decode()
    assert 'data-part="faults"' not in personas.client("viewer").get("/idle/").content.decode()
    assert personas.client("operator").get(f"/api/v1/idle/{episode.public_id}").json()["fault"] == episode.fault

    Job.objects.filter(pk=bad.pk).update(spec=bad.spec)
    read(at + MINUTE)
    assert (idle_round(now=at + MINUTE).faults, IdleEpisode.objects.get(job=bad).fault) == (0, "")
    assert Job.objects.get(pk=bad.pk).state == JobState.CHECKPOINTING
    assert 'data-part="faults"' not in personas.client("operator").get("/idle/").content.decode()


def test_a_policy_that_cannot_be_read_holds_up_its_own_episodes_alone(teams: tuple[QuotaNode, QuotaNode]) -> None:
    """Their idle time counts on."""
    sound, broken = idle_jobs(2, teams[0]), idle_jobs(2, teams[1])
    IdlePolicy.objects.filter(node=teams[1]).update(zone="Mars/Olympus_Mons", weekdays=[0, 1, 2, 3, 4, 5, 6])
    read(NOON)
    assert (idle_round(now=NOON).opened, IdleEpisode.objects.count()) == (4, 4)
    read(NOON + MINUTE)
    assert idle_round(now=NOON + MINUTE).faults == 2

    stages = dict(IdleEpisode.objects.values_list("job_id", "stage"))
    assert {stages[job.pk] for job in sound} == {Stage.WARNED}
    assert {stages[job.pk] for job in broken} == {Stage.OPEN}
    assert set(IdleEpisode.objects.values_list("idle_millis", flat=True)) == {21 * 60_000}
    assert set(IdleEpisode.objects.filter(job__in=broken).values_list("fault", flat=True)) != {""}


def test_an_episode_that_cannot_be_written_keeps_no_other_from_being_opened_counted_and_ended(
    teams: tuple[QuotaNode, QuotaNode],
) -> None:
    """What was gone on with in a try that failed counts once."""
    IdlePolicy.objects.update(warn_minutes=None, reclaim_minutes=None)
    jobs = idle_jobs(4, teams[0])
    read(NOON)
    assert idle_round(now=NOON).opened == 4
    late = idle_jobs(2, teams[1])
    bad = IdleEpisode.objects.get(job=jobs[1])
    IdleEpisode.objects.filter(pk=bad.pk).update(idle_millis=2**63 - 1)
    ended = gpus_of(Node.objects.get(placements__job=jobs[3]))[3]
    watched({gpu: 95 if gpu == ended else 0 for gpu in Gpu.objects.all()}, until=NOON + MINUTE)

    done = idle_round(now=NOON + MINUTE)

    assert (done.opened, done.ended, done.faults) == (2, 1, 1)
    counted = dict(IdleEpisode.objects.filter(ended_at__isnull=True).values_list("job_id", "idle_millis"))
    assert counted == {jobs[0].pk: 21 * 60_000, jobs[1].pk: 2**63 - 1, jobs[2].pk: 21 * 60_000} | {job.pk: 20 * 60_000 for job in late}
    assert IdleStep.objects.filter(episode__job__in=jobs, kind="ended").count() == 1


def test_faults_without_end_are_no_bad_rows_and_end_the_round(teams: tuple[QuotaNode, QuotaNode], monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = idle_jobs(8, teams[0])
    Job.objects.update(spec=jobs[0].spec | {"grace_s": 1e300})
    monkeypatch.setattr(round_of, "MOST_FAULTS", 3)
    read(NOON)
    idle_round(now=NOON)
    read(NOON + 11 * MINUTE)

    with pytest.raises(OverflowError):
        idle_round(now=NOON + 11 * MINUTE)


def test_a_notebook_that_cannot_be_ended_keeps_no_other_from_it(teams: tuple[QuotaNode, QuotaNode], caplog: pytest.LogCaptureFixture) -> None:
    jobs = idle_jobs(3, teams[0], launch={"argv": ["jupyter"], "idle_end_s": 1800})
    Job.objects.filter(pk=jobs[0].pk).update(spec=jobs[0].spec | {"grace_s": 1e300})
    watched({gpu: [0] * 60 for gpu in Gpu.objects.all()}, until=NOON)

    assert idle_ends(now=NOON) == 2

    assert Job.objects.get(pk=jobs[0].pk).state == JobState.RUNNING
    assert jobs[0].public_id in caplog.text and "Traceback" in caplog.text
    assert tally.take()[COUNTED] == 1


def test_a_round_that_fails_keeps_the_others_of_its_task_from_nothing(teams: tuple[QuotaNode, QuotaNode]) -> None:
    """No policy can be read; notebooks are ended all the same."""
    IdlePolicy.objects.filter(node=teams[0]).update(classes=Value(None, JSONField()))
    (job,) = idle_jobs(1, teams[1], since=now(), launch={"argv": ["jupyter"], "idle_end_s": 1200})
    watched(dict.fromkeys(Gpu.objects.all(), 0), until=now())

    Progress.objects.create(name=round_of.TURN, reached_at=now() - 2 * MINUTE)

    with pytest.raises(TypeError):
        idle_look()

    assert job.attempts.get().stop_to == JobState.CANCELLED
