"""Idle episodes: what opens one, what ends one, what is done about it, and what must never count as idle."""

from datetime import timedelta

import numpy as np
import pytest
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import connection
from django.test.utils import CaptureQueriesContext
from hypothesis import given
from hypothesis import strategies as st

from dashboards.health.state import RawState, state_write
from dashboards.idle.detection import idleness
from dashboards.idle.episodes import episodes_end, idle_round
from dashboards.idle.models import IdleEpisode, IdlePolicy, IdleStep, Stage
from dashboards.idle.policies import Rules, exemption_create, policy_save, rules_faults, steps_due
from dashboards.idle.steps import Act, acts_take, episode_notify, episode_reclaim, episode_snooze
from dashboards.idle.winning import won_back_follow
from dashboards.models import ActivityEntry
from dashboards.signals import Window
from gpufleet.core.faults import Conflict
from gpufleet.core.models import AuditEntry
from quotas.models import LedgerClock
from scheduler.models import Delivery, Job, JobState, Node, Notice, Order, OrderKind, Placement
from tests import builders
from tests.builders import NOON
from tests.dashboards.signals import watched
from tests.dashboards.worlds import gpus_of
from tests.personas import Personas

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)


@pytest.fixture
def gang(personas: Personas):
    """A job that holds four GPUs since the morning; its team has a policy that reclaims after an hour."""
    team = builders.quota("nlp", parent=builders.quota("research", parent=builders.quota()))
    owner = builders.person("ada")
    job = builders.job(state=JobState.RUNNING, on=team, owner=owner, gpus_milli=4000)
    gpus = gpus_of(builders.node(gpus=4))
    for gpu in gpus:
        builders.placement(job, gpu, since=NOON - timedelta(hours=5))
    return job, gpus


def policy(node, **fields):
    return IdlePolicy.objects.create(node=node, **({"classes": ["batch", "interactive"], "notify_minutes": 20} | fields))


def look(gpus, figures, *, at=NOON, **more):
    watched(dict(zip(gpus, figures, strict=True)), until=at, **more)
    return idle_round(now=at)


def test_only_the_idle_gpus_of_a_gang_count(gang):
    job, gpus = gang

    look(gpus, [90, 1, 0, 85])

    episode = IdleEpisode.objects.get()
    assert (episode.job, episode.idle_milli, episode.held_milli) == (job, 2000, 4000)
    assert episode.gpus == [gpus[1].pk, gpus[2].pk]
    assert episode.started_at == NOON - 20 * MINUTE
    assert episode.wasted_milli_millis == 2000 * 20 * 60_000


def test_an_allocation_without_a_process_is_the_worst_waste_and_is_told_apart(gang):
    _, gpus = gang

    look(gpus, [0, 0, 0, 0], memory=0)

    assert IdleEpisode.objects.get().waste == "empty"


def test_an_allocation_with_a_process_that_holds_next_to_no_memory_is_not_without_one(gang):
    _, gpus = gang
    state_write(cluster_id=gpus[0].node.cluster_id, at=NOON, source="nvml", state=RawState(gpus=[gpus[2].pk], columns={"processes": [1]}))

    look(gpus, [0, 0, 0, 0], memory=0)

    assert IdleEpisode.objects.get().waste == "low"


@pytest.mark.parametrize(
    ("milli", "sm", "idle"), [((125,), 4, 0), ((125,), 0, 1), ((500,), 2, 1), ((500,), 3, 0), ((125, 875), 4, 2), ((125, 375), 4, 0)]
)
def test_a_part_of_a_gpu_is_idle_by_what_is_held_of_it(milli, sm, idle):
    """A seventh that is busy for a third of the time is 4% of the GPU. Jobs that share one compute in proportion to their parts."""
    team, (gpu,) = builders.quota("nlp", parent=builders.quota()), gpus_of(builders.node(gpus=1))
    for part in milli:
        job = builders.job(f"part-{part}", state=JobState.RUNNING, on=team, gpus_milli=part)
        builders.placement(job, gpu, gpu_milli=part, since=NOON - timedelta(hours=5))

    look([gpu], [sm])

    assert IdleEpisode.objects.count() == idle


def test_a_part_that_came_a_moment_ago_makes_nobody_idle_who_was_at_work_before(gang):
    (gpu,) = gpus_of(builders.node(gpus=1))
    for name, part, since in (("old", 125, 300), ("new", 875, 4)):
        job = builders.job(name, state=JobState.RUNNING, on=gang[0].quota, gpus_milli=part)
        builders.placement(job, gpu, gpu_milli=part, since=NOON - since * MINUTE)

    look([gpu], [4])

    assert not IdleEpisode.objects.filter(job__name__in=("old", "new")).exists()


def test_a_short_burst_neither_hides_an_episode_nor_ends_one(gang):
    _, gpus = gang
    burst = [0] * 24 + [80] + [0] * 5
    look(gpus, [burst] * 4)
    assert IdleEpisode.objects.count() == 1

    look(gpus, [[*burst[5:], 95, 95, 0, 0, 0]] * 4, at=NOON + 5 * MINUTE)

    episode = IdleEpisode.objects.get()
    assert episode.ended_at is None
    assert episode.wasted_milli_millis == 4000 * 25 * 60_000


def test_work_ends_an_episode_and_the_owner_is_left_alone(gang):
    job, gpus = gang
    policy(job.quota)
    look(gpus, [0] * 4)

    look(gpus, [80] * 4, at=NOON + 30 * MINUTE)

    episode = IdleEpisode.objects.get()
    assert episode.ended_at == NOON + 30 * MINUTE
    assert episode.end_reason == "The GPUs compute again."


@pytest.mark.parametrize("figures", [[None] * 30, [None] * 10 + [0] * 20, [0] * 15 + [None] * 15], ids=["none", "late", "gone"])
def test_what_was_not_read_is_not_idle(gang, figures):
    job, gpus = gang
    policy(job.quota, window_minutes=30)

    found = look(gpus, [figures] * 4)

    assert IdleEpisode.objects.count() == 0
    assert found.unknown == 1


def test_a_stale_source_marks_nobody_idle_and_reclaims_nothing(gang):
    job, gpus = gang
    policy(job.quota, notify_minutes=0, warn_minutes=0, reclaim_minutes=20)
    look(gpus, [0] * 4)
    wasted = IdleEpisode.objects.get().wasted_milli_millis

    for later in (5, 15, 25, 90):  # nothing is read any more
        idle_round(now=NOON + later * MINUTE)

    episode = IdleEpisode.objects.get()
    assert (episode.ended_at, episode.wasted_milli_millis) == (None, wasted)
    assert episode.stage == Stage.NOTIFIED
    assert Job.objects.get(pk=job.pk).state == JobState.RUNNING


@pytest.mark.parametrize("lost", [1, 4])
def test_a_gpu_whose_exporter_died_is_not_idle_while_others_of_its_cluster_are_read(gang, lost):
    """Also in the first minutes, in which most of its window was read."""
    job, gpus = gang
    policy(job.quota, notify_minutes=0, warn_minutes=0, reclaim_minutes=25, reclaim_share_percent=100)
    other = gpus_of(builders.node(gpus=1))
    look([*gpus, *other], [0] * 5)
    before = IdleEpisode.objects.get()

    for later in (1, 2, 3):
        figures = [[0] * (30 - later) + [None] * later] * lost + [0] * (5 - lost)
        look([*gpus, *other], figures, at=NOON + later * MINUTE)

    episode = IdleEpisode.objects.get()
    assert episode.idle_milli == (4000 if lost == 4 else 3000)
    assert episode.idle_millis == before.idle_millis + (0 if lost == 4 else 3 * 60_000)
    assert Job.objects.get(pk=job.pk).state == JobState.RUNNING


def test_a_long_window_makes_no_gpu_idle_that_was_read_hours_ago(gang):
    job, gpus = gang
    policy(job.quota, window_minutes=120)
    other = gpus_of(builders.node(gpus=1))

    found = look([*gpus, *other], [[0] * 100 + [None] * 20] * 4 + [50], minutes=120)

    assert (IdleEpisode.objects.count(), found.unknown) == (0, 1)


def test_a_source_that_reads_zero_everywhere_is_not_believed():
    team = builders.quota("nlp", parent=builders.quota())
    nodes = [builders.node(gpus=8) for _ in range(3)]
    for node in nodes:
        job = builders.job(state=JobState.RUNNING, on=team, gpus_milli=8000)
        for gpu in gpus_of(node):
            builders.placement(job, gpu, since=NOON - timedelta(hours=5))
    gpus = [gpu for node in nodes for gpu in gpus_of(node)]

    found = look(gpus, [0] * 24)
    assert IdleEpisode.objects.count() == 0
    assert len(found.lying) == 1

    look(gpus, [0] * 16 + [70] * 8, at=NOON + MINUTE)
    assert IdleEpisode.objects.count() == 2


@pytest.fixture
def three_jobs():
    """Three jobs of eight GPUs each, at work for hours, whose team loses what is idle for half an hour."""
    team = builders.quota("nlp", parent=builders.quota())
    policy(team, notify_minutes=0, warn_minutes=0, reclaim_minutes=30)
    for _ in range(3):
        job = builders.job(state=JobState.RUNNING, on=team, gpus_milli=8000)
        for gpu in gpus_of(builders.node(gpus=8)):
            builders.placement(job, gpu, since=NOON - timedelta(hours=5))
    return [gpu for node in Node.objects.order_by("pk") for gpu in gpus_of(node)]


@pytest.mark.parametrize("length", [2, 5, 17, 20, 29])
def test_minutes_in_which_a_source_lied_are_not_believed_once_it_tells_the_truth_again(three_jobs, length):
    for later in range(0, 30, 2):
        figures = [80] * 30 + [0] * length + [80] * later
        found = look(three_jobs, [figures[-30:]] * 24, at=NOON + later * MINUTE)
        assert len(found.lying) == (later == 0)

    assert not IdleEpisode.objects.exists()
    assert set(Job.objects.values_list("state", flat=True)) == {JobState.RUNNING}


def test_a_lie_hides_neither_the_idle_minutes_before_it_nor_those_after_it(three_jobs):
    idle, lied = [0] * 25 + [0] * 3 + [0] * 2, [80] * 25 + [0] * 3 + [80] * 2

    assert look(three_jobs, [idle] * 8 + [lied] * 16).opened == 1


def test_gpus_that_are_free_through_the_night_make_no_lie_of_it(three_jobs):
    Placement.objects.filter(gpu__in=three_jobs[8:]).update(since=NOON - 6 * MINUTE)

    assert look(three_jobs, [[0] * 30] * 8 + [[0] * 24 + [80] * 6] * 16).opened == 1


def test_a_fresh_allocation_has_its_window_first(gang):
    job, gpus = gang
    job.placements.update(since=NOON - 10 * MINUTE)

    look(gpus, [0] * 4)

    assert IdleEpisode.objects.count() == 0


def test_the_policy_of_the_nearest_node_notifies_warns_and_reclaims_in_turn(gang):
    job, gpus = gang
    builders.webhook(job.quota.parent, kinds=["idle.notified", "idle.warned", "idle.reclaimed"])
    policy(job.quota.parent, enabled=False)
    policy(job.quota, notify_minutes=20, warn_minutes=30, warn_again_minutes=45, reclaim_minutes=60)
    stages = []
    for minute in range(0, 60, 2):
        look(gpus, [0] * 4, at=NOON + minute * MINUTE)
        stage = IdleEpisode.objects.get().stage
        if not stages or stages[-1][1] != stage:
            stages.append((minute, stage))

    assert stages == [(0, "notified"), (10, "warned"), (26, "warned_again"), (40, "reclaiming")]
    fresh = Job.objects.get(pk=job.pk)
    assert fresh.state == JobState.CHECKPOINTING
    assert Order.objects.get(attempt__job=job).kind == OrderKind.SIGNAL  # it saves its work first
    assert fresh.attempts.get().stop_to == JobState.PREEMPTED
    assert [notice.kind for notice in Notice.objects.filter(user=job.owner)] == ["idle"] * 4
    assert list(Delivery.objects.order_by("pk").values_list("kind", flat=True)) == ["idle.notified", "idle.warned", "idle.warned", "idle.reclaimed"]
    assert ActivityEntry.objects.filter(path=job.quota.path).count() == 4
    assert list(AuditEntry.objects.filter(object_kind="idle_episode").values_list("action", flat=True).order_by("pk"))[-1] == "idle.reclaiming"


def test_two_hundred_idle_jobs_cost_a_round_as_many_queries_as_twenty(personas: Personas):
    """As they are notified, warned, reclaimed and end. Their owner and chats get one message that lists them; programs get one of each."""
    kinds, owner = ["idle.notified", "idle.warned", "idle.reclaimed"], builders.person("ada")
    for name, form in (("Program", "json"), ("Chat", "slack")):
        builders.webhook(builders.quota(), kinds=kinds, name=name, form=form)
    busy = gpus_of(builders.node(gpus=8)) + gpus_of(builders.node(gpus=8))
    for gpu in busy:  # a source that reads zero everywhere is not believed
        builders.placement(builders.job(state=JobState.RUNNING, gpus_milli=1000), gpu, since=NOON - timedelta(days=2))
    found = []
    for count in (8, 20, 200):  # the first ones open the books
        start = NOON + count * timedelta(hours=1)
        team = builders.quota(f"team-{count}", parent=builders.quota())
        policy(team, notify_minutes=20, warn_minutes=25, reclaim_minutes=35, hold_after=True)
        gpus = [gpu for _ in range(-(-count // 4)) for gpu in gpus_of(builders.node(gpus=4))]
        for gpu in gpus[:count]:
            job = builders.job(state=JobState.RUNNING, on=team, owner=owner, gpus_milli=1000, preemptible="yes")
            builders.placement(job, gpu, since=start - timedelta(hours=5))
        queries, told = [], []
        for minute in (0, 5, 10, 15, 16):
            at = start + minute * MINUTE
            watched({**dict.fromkeys(gpus, 95 if minute == 16 else 0), **dict.fromkeys(busy, 95)}, until=at)
            Delivery.objects.all().delete()
            Notice.objects.all().delete()
            with CaptureQueriesContext(connection) as asked:
                done = idle_round(now=at)
            queries.append(len(asked))
            sent = [Delivery.objects.filter(hook__name=name, kind__in=kinds).count() for name in ("Program", "Chat")]
            told.append((done.opened, done.acted, done.ended, *sent, Notice.objects.filter(kind="idle").count()))
        acted, opened, ended = (0, count, 0, count, 1, 1), (count, count, 0, count, 1, 1), (0, 0, count, 0, 0, 0)
        assert told == [opened, acted, (0,) * 6, acted, ended]
        assert Job.objects.filter(quota=team, state=JobState.CHECKPOINTING, held_at__isnull=False).count() == count
        assert set(IdleEpisode.objects.filter(quota=team).values_list("stage", flat=True)) == {Stage.RECLAIMED}
        assert IdleStep.objects.filter(episode__quota=team).count() == 5 * count
        assert AuditEntry.objects.filter(object_kind="idle_episode", quota_id=team.pk).count() == 3 * count
        found.append(queries)

    assert found[1] == found[2]


def test_hours_that_nobody_read_bring_no_step_nearer(gang):
    """A warning, an outage of seven and a half hours, and then twenty idle minutes: 31 of 480 are read."""
    job, gpus = gang
    policy(job.quota, notify_minutes=20, warn_minutes=30, warn_again_minutes=40, reclaim_minutes=480)
    for minute in (0, 5, 10):
        look(gpus, [0] * 4, at=NOON + minute * MINUTE)
    assert IdleEpisode.objects.get().stage == Stage.WARNED
    for minute in range(20, 460, 20):
        idle_round(now=NOON + minute * MINUTE)

    back = NOON + 470 * MINUTE
    watched(dict.fromkeys(gpus, 0), until=back, minutes=20)
    idle_round(now=back)

    episode = IdleEpisode.objects.get()
    assert (episode.stage, episode.idle_millis) == (Stage.WARNED, 35 * 60_000)
    watched(dict.fromkeys(gpus, 0), until=back + 5 * MINUTE, minutes=20)
    idle_round(now=back + 5 * MINUTE)
    assert IdleEpisode.objects.get().stage == Stage.WARNED_AGAIN
    said = IdleStep.objects.latest("pk").text
    assert said.startswith("4 GPUs idle for 40 min since 2026-11-20 11:40 UTC, not read for 455 min.")
    assert "reclaimed from 03:15 UTC on" in said
    assert Job.objects.get(pk=job.pk).state == JobState.RUNNING


@pytest.mark.parametrize(("share", "idle", "reclaims"), [(50, 1, False), (50, 2, True), (25, 1, True), (100, 3, False), (100, 4, True)])
def test_a_job_most_of_whose_gpus_compute_is_warned_and_not_reclaimed(gang, share, idle, reclaims):
    job, gpus = gang
    policy(job.quota, notify_minutes=20, warn_minutes=20, reclaim_minutes=35, reclaim_share_percent=share)

    for minute in (0, 5, 10, 15, 20):
        look(gpus, [0] * idle + [95] * (4 - idle), at=NOON + minute * MINUTE)

    assert IdleEpisode.objects.get().stage == (Stage.RECLAIMING if reclaims else Stage.WARNED)
    assert Job.objects.get(pk=job.pk).state == (JobState.CHECKPOINTING if reclaims else JobState.RUNNING)
    assert ("are reclaimed from" in IdleStep.objects.get(kind=Stage.WARNED).text) is reclaims


def test_outside_of_working_hours_nothing_is_done(gang):
    job, gpus = gang
    policy(job.quota, notify_minutes=0, hours_from=8 * 60, hours_until=12 * 60)

    look(gpus, [0] * 4)
    assert IdleEpisode.objects.get().stage == Stage.OPEN

    look(gpus, [0] * 4, at=NOON + timedelta(hours=20))
    assert IdleEpisode.objects.get().stage == Stage.NOTIFIED


def test_an_exemption_keeps_policies_off_until_it_expires(gang, personas: Personas):
    job, gpus = gang
    policy(job.quota, notify_minutes=0)
    access = personas.access("superuser")
    with pytest.raises(ValidationError):
        exemption_create(access=access, node=job.quota, reason=" ", until=NOON + timedelta(days=400), now=NOON)
    exemption_create(access=access, node=job.quota.parent, reason="Hardware debugging.", until=NOON + timedelta(hours=1), now=NOON)

    look(gpus, [0] * 4)
    assert IdleEpisode.objects.get().stage == Stage.OPEN

    look(gpus, [0] * 4, at=NOON + 61 * MINUTE)
    assert IdleEpisode.objects.get().stage == Stage.NOTIFIED


def test_an_owner_snoozes_twice_and_then_asks(gang):
    job, gpus = gang
    policy(job.quota, notify_minutes=0)
    builders.role(job.owner, "submitter", job.quota)
    from quotas.permissions import access_for_user

    access = access_for_user(job.owner)
    watched(dict.fromkeys(gpus, 0), until=NOON - MINUTE)
    IdlePolicy.objects.update(notify_minutes=None)
    idle_round(now=NOON - MINUTE)
    IdlePolicy.objects.update(notify_minutes=0)
    episode = IdleEpisode.objects.get()
    for _ in range(2):
        episode_snooze(access=access, episode=episode, hours=1, reason="Debugging.", now=NOON)
    with pytest.raises(Conflict):
        episode_snooze(access=access, episode=episode, hours=1, reason="Debugging.", now=NOON)

    look(gpus, [0] * 4, at=NOON)

    assert IdleEpisode.objects.get().stage == Stage.OPEN
    with pytest.raises(PermissionDenied):
        episode_reclaim(access=access, episode=episode, reason="Mine", now=NOON)


def unexpected(act, fault):
    raise fault


def test_a_step_that_a_round_has_found_due_is_not_taken_if_somebody_was_faster(gang, personas: Personas):
    """Its owner has snoozed it meanwhile, or its GPUs are being reclaimed already."""
    job, gpus = gang
    access = personas.access("superuser")
    policy(job.quota, notify_minutes=None)
    look(gpus, [0] * 4)
    episode = IdleEpisode.objects.get()

    episode_snooze(access=access, episode=episode, hours=1, reason="Debugging.", now=NOON)
    assert not acts_take(acts=[Act(episode.pk, Stage.RECLAIMING)], failed=unexpected, now=NOON)
    assert Job.objects.get(pk=job.pk).state == JobState.RUNNING
    episode_reclaim(access=access, episode=episode, reason="Others wait.", now=NOON)
    assert not acts_take(acts=[Act(episode.pk, Stage.NOTIFIED)], failed=unexpected, now=NOON + timedelta(hours=2))
    assert IdleEpisode.objects.get().stage == Stage.RECLAIMING


def test_a_reclaim_locks_the_ledger_before_the_job_and_the_feed_before_the_lease(gang, personas: Personas):
    """As everybody does (`lease.py`)."""
    job, gpus = gang
    policy(job.quota, notify_minutes=None)
    look(gpus, [0] * 4)
    with CaptureQueriesContext(connection) as asked:
        episode_reclaim(access=personas.access("superuser"), episode=IdleEpisode.objects.get(), reason="Others wait.", hold=True, now=NOON)

    def first(words: str) -> int:
        return next(number for number, one in enumerate(asked) if words in one["sql"])

    assert first(f'FROM "{LedgerClock._meta.db_table}"') < first(f'FROM "{Job._meta.db_table}"')
    assert first("INTO feed") < first("INTO scheduler_lease")


def test_an_episode_that_a_round_ends_while_somebody_reclaims_its_gpus_counts_as_reclaimed(gang, personas: Personas):
    job, gpus = gang
    policy(job.quota, notify_minutes=None)
    look(gpus, [0] * 4)
    read = IdleEpisode.objects.get()
    episode_reclaim(access=personas.access("superuser"), episode=read, reason="Others wait.", now=NOON)

    episodes_end([(read, "The GPUs compute again.")], NOON + MINUTE)

    episode = IdleEpisode.objects.get()
    assert (episode.stage, episode.reclaimed_at, episode.end_reason) == (Stage.RECLAIMED, NOON + MINUTE, "The GPUs compute again.")


def test_a_person_notifies_and_reclaims_and_what_was_won_is_measured(gang, personas: Personas):
    job, gpus = gang
    access = personas.access("superuser")
    policy(job.quota, notify_minutes=None)
    look(gpus, [0] * 4)
    episode = episode_notify(access=access, episode=IdleEpisode.objects.get(), text="Please look.", now=NOON)
    assert episode.stage == Stage.NOTIFIED
    with pytest.raises(ValidationError):
        episode_reclaim(access=access, episode=episode, reason="", now=NOON)

    episode_reclaim(access=access, episode=episode, reason="Others wait.", hold=True, now=NOON)
    said = ActivityEntry.objects.filter(kind="idle.reclaimed").count(), Notice.objects.count()
    for again in (episode_reclaim, episode_notify):
        with pytest.raises(Conflict):
            again(access=access, episode=episode, **({"reason": "Others wait."} if again is episode_reclaim else {}), now=NOON)
    assert (ActivityEntry.objects.filter(kind="idle.reclaimed").count(), Notice.objects.count()) == said
    assert Job.objects.get(pk=job.pk).held_at is not None
    job.placements.update(until=NOON + MINUTE)
    look(gpus, [0] * 4, at=NOON + 2 * MINUTE)
    other = builders.job("other", state=JobState.RUNNING, on=job.quota)
    for gpu in gpus[:3]:
        builders.placement(other, gpu, since=NOON + 12 * MINUTE)
    won_back_follow(now=NOON + 72 * MINUTE)

    ended = IdleEpisode.objects.get()
    assert (ended.stage, ended.end_reason) == (Stage.RECLAIMED, "The job left its GPUs.")
    assert ended.won_milli_millis == 3000 * 3_600_000


def test_what_was_reclaimed_again_is_won_once(gang):
    """Reclaimed at noon from one job and an hour later, three GPUs of it, from the next: the hours after that are of the second reclaim."""
    job, gpus = gang
    job.placements.update(until=NOON)
    second, third = (builders.job(name, state=JobState.RUNNING, on=job.quota) for name in ("second", "third"))
    for gpu in gpus:
        builders.placement(second, gpu, since=NOON, until=NOON + 60 * MINUTE if gpu != gpus[3] else None)
    for gpu in gpus[:3]:
        builders.placement(third, gpu, since=NOON + 60 * MINUTE)
    sizes = {"waste": "low", "activity_centi": 0, "started_at": NOON, "seen_at": NOON, "stage_at": NOON, "quota": job.quota}
    for number, (one, held) in enumerate(((job, gpus), (second, gpus[:3]))):
        at, milli = NOON + 60 * number * MINUTE, 1000 * len(held)
        facts = {"job": one, "attempt": one.attempts.get(), "gpus": [gpu.pk for gpu in held], "held_milli": milli, "idle_milli": milli}
        IdleEpisode.objects.create(public_id=f"e-{number}", ended_at=at, reclaimed_at=at, stage=Stage.RECLAIMED, **facts, **sizes)

    won_back_follow(now=NOON + 180 * MINUTE)

    hour = 3_600_000
    assert list(IdleEpisode.objects.order_by("pk").values_list("won_milli_millis", flat=True)) == [(4 + 2) * 1000 * hour, 3 * 2 * 1000 * hour]


def test_a_policy_is_stated_changed_and_audited(gang, personas: Personas):
    job, _ = gang
    access = personas.access("superuser")
    policy_save(access=access, node=job.quota, values={"reclaim_minutes": 120}, reason="Test", now=NOON, revision=0)
    with pytest.raises(Conflict):
        policy_save(access=access, node=job.quota, values={"reclaim_minutes": 240}, reason="Test", now=NOON, revision=0)
    with pytest.raises(PermissionDenied):
        policy_save(access=personas.access("team_lead"), node=job.quota, values={}, reason="Test", now=NOON)

    assert AuditEntry.objects.get(action="idle.policy").after["reclaim_minutes"] == 120
    assert rules_faults(Rules(reclaim_share_percent=0)).keys() == {"reclaim_share_percent"}
    assert rules_faults(Rules(warn_minutes=10, notify_minutes=20)).keys() == {"warn_minutes"}
    assert "reclaim_minutes" in rules_faults(Rules(warn_minutes=None, warn_again_minutes=None, reclaim_minutes=100))


@given(st.lists(st.one_of(st.none(), st.integers(0, 100)), min_size=1, max_size=60), st.integers(1, 50))
def test_nothing_but_readings_below_the_threshold_makes_a_gpu_idle(figures, threshold):
    row = np.array([[np.nan if value is None else float(value) for value in figures]])
    found = idleness(Window(np.array([1]), np.array([True]), row, row), threshold_percent=threshold)
    read = [value for value in figures if value is not None]
    low = sum(value < threshold for value in read)

    assert bool(found.opens[0]) == (len(read) >= 0.8 * len(figures) and bool(read) and low >= 0.9 * len(read))
    assert not found.opens[0] or found.stays[0]
    stale = idleness(Window(np.array([1]), np.array([False]), row, row), threshold_percent=threshold)
    assert not stale.opens[0] and not stale.known[0]


def test_steps_fall_due_in_order():
    rules = Rules(notify_minutes=10, warn_minutes=20, warn_again_minutes=30, reclaim_minutes=40)
    assert [len(steps_due(rules, timedelta(minutes=at))) for at in (5, 10, 25, 39, 41)] == [0, 1, 2, 3, 4]


def test_the_pages_show_an_episode_to_those_who_see_its_team(gang, personas: Personas):
    job, gpus = gang
    look(gpus, [0, 0, 80, 80])
    episode = IdleEpisode.objects.get()
    for who, acts in (("operator", True), ("team_lead", True), ("viewer", False)):
        client = personas.client(who)
        listed, page = client.get("/idle/").content.decode(), client.get(f"/idle/{episode.public_id}/").content.decode()
        assert job.name in listed and "of 4" in listed
        assert ("/reclaim/" in listed) is acts and ("/reclaim/" in page) is acts
        # To which the map leads.
        of_gpus = [client.get(f"/gpus/{gpu.public_id}/").content.decode() for gpu in gpus]
        assert [f"/idle/{episode.public_id}/reclaim/" in one for one in of_gpus] == [acts, acts, False, False]
        assert ["Idle <time" in one for one in of_gpus] == [True, True, False, False]
    (other,) = gpus_of(builders.node(gpus=1))
    assert "Idle since" not in personas.client("operator").get(f"/gpus/{other.public_id}/").content.decode()
    assert personas.client("stranger").get(f"/idle/{episode.public_id}/").status_code == 403
