"""The fleet over a week, as the tiles of Home tell it."""

from datetime import timedelta

import pytest
from django.urls import reverse

from dashboards.fragmentation.models import FragmentationRollup
from dashboards.gap.causes import Cause, Part
from dashboards.gap.store import Gap, gaps_write
from dashboards.home.week import SAMPLED, IdleOfMonth, idle_of_month, waits_sampled, week_tiles
from dashboards.idle.episodes import idle_round
from dashboards.idle.models import IdleEpisode, IdlePolicy
from dashboards.telemetry.spans import HOUR, QUARTER
from gpufleet.core.templatetags.shell import duration
from scheduler.models import Attempt, Job, JobState
from tests import builders
from tests.builders import NOON
from tests.dashboards.signals import watched
from tests.dashboards.worlds import gpus_of

pytestmark = pytest.mark.django_db
H100 = "H100-SXM-80GB"


def hour(*ago: int, computing: int = 0, idle: int = 0, down: int = 0, span: int = HOUR) -> None:
    """Hours before noon, each of two snapshots: GPUs by cause on average."""
    parts = {Part(cause, H100, "", "", None): 2000 * gpus for cause, gpus in ((Cause.COMPUTING, computing), (Cause.IDLE, idle), (Cause.FAILED, down))}
    gaps_write(span, {NOON - timedelta(hours=one): Gap(2, parts) for one in ago})


def tiles(**more):
    return {tile.label.split(",")[0]: tile for tile in week_tiles(now=NOON + timedelta(minutes=20), **more)}


def test_the_tiles_compare_a_week_with_the_week_before(django_assert_max_num_queries) -> None:
    hour(*range(1, 85), computing=6, idle=1, down=1)
    hour(*range(85, 169), computing=2, idle=3, down=3)
    hour(*range(169, 337), computing=2, idle=1, down=5)
    hour(*range(337, 469), idle=1)
    hour(1, computing=8, span=QUARTER)  # of another grain: counts nowhere
    for span, ago, largest in ((60, 0, 24), (HOUR, 1, 64)):
        figures = {"piles": [], "largest": {H100: {"cluster": largest, "leaf": 8}}, "idle": [], "kept_out": []}
        FragmentationRollup.objects.create(span=span, at=NOON - timedelta(hours=ago), minutes=1 if span == 60 else 2, figures=figures)
    for number, (ago, waited) in enumerate(((1, 100), (2, 40), (8, 10))):
        started = NOON - timedelta(days=ago)
        job = builders.job(f"job-{number}")
        Job.objects.filter(pk=job.pk).update(submitted_at=started - timedelta(seconds=waited))
        Attempt.objects.create(job=job, number=1, started_at=started)

    with django_assert_max_num_queries(6):
        told = tiles(rates={H100: 2_000_000})

    assert (told["Utilization"].value, told["Utilization"].note) == ("50%", "+25 points on the week before")
    assert (told["Idle cost this month"].value, told["Idle cost this month"].note) == ("$1,272", "$672 in 7 days, +100%")
    assert idle_of_month(rates={H100: 2_000_000}, now=NOON + timedelta(minutes=20)) == IdleOfMonth(1_272_000_000)
    (row,) = told["Largest job that fits now"].rows
    assert (row.gpus, row.change) == (24, "-8 on the mean of 7 days")
    assert (told["Waiting p95"].value, told["Waiting p95"].note) == (duration(100), f"+{duration(90)} on the week before")
    assert [len(tile.course) for tile in told.values()] == [56, 56, 0, 7]
    assert "Idle cost this month" not in tiles(rates=None)


def test_a_week_or_month_of_few_figures_says_how_many() -> None:
    for ago in range(1, 4):
        hour(ago, computing=6, idle=2)
    told = tiles(rates={H100: 2_000_000})
    few = f"from {duration(3 * HOUR)} of figures"
    assert [told[name].note for name in ("Utilization", "Idle cost this month")] == [few] * 2
    assert idle_of_month(rates={H100: 2_000_000}, now=NOON) == IdleOfMonth(12_000_000, few), "what finance reads of the month says so, too"

    for ago in range(4, 168):
        hour(ago, computing=6, idle=2)
    told = tiles(rates={H100: 2_000_000})
    assert told["Utilization"].note == "no figures of the week before"
    assert told["Idle cost this month"].note == f"from {duration(167 * HOUR)} of figures", "it is the 20th"


def test_few_figures_of_the_week_are_told_whatever_there_is_of_the_weeks_before() -> None:
    hour(1, 2, 3, computing=6, idle=2)
    hour(169, computing=2, idle=1)
    few = f"from {duration(3 * HOUR)} of figures"
    assert tiles(rates={})["Utilization"].note == few

    hour(*range(44, 469), computing=2, idle=1)
    assert tiles(rates={H100: 2_000_000})["Idle cost this month"].note == f"$262 in 7 days, from {duration(128 * HOUR)} of figures"


def test_a_week_without_figures_says_so() -> None:
    told = tiles(rates={})
    assert [tile.value for tile in told.values()] == ["–"] * 4


def test_of_many_jobs_some_are_read(monkeypatch) -> None:
    monkeypatch.setattr("dashboards.home.week.SAMPLED", 2)
    for number in range(5):
        Attempt.objects.create(job=builders.job(f"job-{number}"), number=1, started_at=NOON)
    assert 1 <= len(waits_sampled(NOON - timedelta(days=3650))) <= 2 < SAMPLED


def test_a_job_that_waited_for_weeks_counts_in_the_week_in_which_it_started() -> None:
    job = builders.job("old", submitted_at=NOON - timedelta(days=40))
    Attempt.objects.create(job=job, number=1, started_at=NOON - timedelta(days=1), ended_at=NOON)
    Attempt.objects.create(job=job, number=2, started_at=NOON)
    assert waits_sampled(NOON - timedelta(days=14)) == [(NOON - timedelta(days=1), 39 * 86_400)]
    assert waits_sampled(NOON - timedelta(hours=12)) == [], "its second start is not its first"


def test_the_idle_holder_is_notified_from_the_home_of_the_operator(personas) -> None:
    team = personas.nodes["acme/research/vision"]
    gpu = gpus_of(builders.node(gpus=1))[0]
    held = builders.placement(builders.job("secret-project", state=JobState.RUNNING, on=team, owner=builders.person("ada")), on=gpu)
    IdlePolicy.objects.create(node=team, classes=["batch"])
    held.job.placements.update(since=NOON - timedelta(hours=5))
    watched({gpu: 0}, until=NOON)
    idle_round(now=NOON)
    notify = reverse("idle_notify", args=[IdleEpisode.objects.get().public_id])

    for name, sees in (("operator", True), ("viewer", False)):
        shown = personas.client(name).get(reverse("overview")).content.decode()
        assert (f'href="{notify}"' in shown, "secret-project" in shown) == (sees, sees)
