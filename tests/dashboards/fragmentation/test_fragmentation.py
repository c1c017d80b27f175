"""Fragmentation as it is read, kept and shown."""

from datetime import timedelta

import pytest

from dashboards.fragmentation.measure import Shape, Why
from dashboards.fragmentation.snapshot import usual_demand
from dashboards.fragmentation.store import fragmentation_course, fragmentation_newest, fragmentation_sum, fragmentation_turn
from dashboards.telemetry.spans import HOUR, QUARTER
from gpufleet.core.times import now
from scheduler.models import Health, JobState
from tests import builders
from tests.builders import NOON
from tests.dashboards.worlds import gpus_of
from tests.personas import Personas

pytestmark = pytest.mark.django_db


def scattered_fleet() -> None:
    """Three nodes of four GPUs with one GPU taken of each, a broken one, and a job that waits for a whole node."""
    for _ in range(3):
        node = builders.node(gpus=4)
        placed = builders.placement(on=gpus_of(node)[0])
        placed.job.state = JobState.RUNNING
        placed.job.save(update_fields=["state"])
    builders.node(gpus=4, health=Health.DOWN)
    builders.job("wide", state=JobState.QUEUED, spec={"roles": [{"name": "worker", "gpus": 4, "min": 2}]}, gpus_milli=8000)


def test_a_snapshot_says_what_is_useless_and_what_it_keeps_out() -> None:
    scattered_fleet()
    assert fragmentation_turn(now=NOON)
    assert not fragmentation_turn(now=NOON + timedelta(seconds=30))

    at, found = fragmentation_newest() or pytest.fail("no snapshot")
    (pile,) = found.piles
    assert at == NOON
    assert (pile.free_milli, pile.idle) == (9000, {3: 3})
    assert (pile.waiting.jobs, pile.waiting.useless[Why.PARTIAL], pile.waiting.short) == (1, 9000, 0)
    (out,) = found.kept_out
    assert (out.shape.workers, out.shape.gpus, out.free, out.room, out.why) == (2, 4, 9, 0, Why.PARTIAL)
    assert found.largest[pile.gpu_type]["node"] == 3


def test_the_usual_demand_is_learnt_from_four_weeks() -> None:
    for days, gpus in ((1, 2), (2, 2), (40, 8)):
        builders.job(f"old-{days}", gpus_milli=1000 * gpus, submitted_at=NOON - timedelta(days=days))

    assert usual_demand(now=NOON) == {Shape(1, 2, level="cluster"): 2}


def test_grains_are_sums_of_minutes_and_made_once() -> None:
    scattered_fleet()
    for minute in range(0, 60, 10):
        fragmentation_turn(now=NOON + timedelta(minutes=minute))
    fragmentation_sum(now=NOON + timedelta(hours=1))
    assert fragmentation_sum(now=NOON + timedelta(hours=1)) == 0

    for span in (60, QUARTER, HOUR):
        (step,) = fragmentation_course(NOON, NOON + timedelta(hours=1), step=timedelta(hours=1), span=span)
        assert (step.free, step.waiting and step.waiting[Why.PARTIAL]) == (9000, 9000)
    before = fragmentation_course(NOON - timedelta(hours=1), NOON, step=timedelta(minutes=15), span=QUARTER)
    assert [step.free for step in before] == [None] * 4


def test_the_page_its_chart_and_the_api(personas: Personas) -> None:
    browser = personas.client("operator")
    assert "The first snapshot" in browser.get("/fragmentation/").content.decode()
    assert browser.get("/api/v1/fleet/fragmentation").json()["at"] is None
    scattered_fleet()
    fragmentation_turn(now=now() - timedelta(minutes=2))

    page = browser.get("/fragmentation/?type=H100-SXM-80GB").content.decode()
    assert "2 workers × 4 GPUs" in page
    assert "Nodes too full" in page
    assert browser.get("/fragmentation/history?range=1h").json()["empty"] is False
    told = browser.get("/api/v1/fleet/fragmentation").json()
    assert told["piles"][0]["waiting"]["causes"] == {"partial": 9000}
    assert told["kept_out"][0]["room_workers"] == 0
    history = browser.get("/api/v1/fleet/fragmentation/history?range=1h&pool=").json()
    assert [milli for milli in history["free_milli"] if milli is not None] == [9000]
