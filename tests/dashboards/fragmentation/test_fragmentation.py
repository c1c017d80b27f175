"""Fragmentation as it is read, kept and shown."""

from datetime import timedelta

import pytest

from dashboards.fragmentation import store
from dashboards.fragmentation.measure import Shape, Why
from dashboards.fragmentation.models import FragmentationRollup
from dashboards.fragmentation.snapshot import Fragments, usual_demand
from dashboards.fragmentation.store import fragmentation_course, fragmentation_newest, fragmentation_sum, fragmentation_turn
from dashboards.telemetry.spans import HOUR, QUARTER
from gpufleet.core.times import now
from quotas.models import Reservation, Window
from scheduler.models import Health, JobState
from tests import builders
from tests.builders import NOON
from tests.dashboards.worlds import gpus_of
from tests.personas import Personas

H100 = "H100-SXM-80GB"
pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is remembered of another test's rows, which have the same keys."""
    monkeypatch.setattr(store, "_fragments", Fragments())


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
    assert "The first figures appear" in browser.get("/fragmentation/").content.decode()
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


def test_rows_from_before_reservations_were_told_apart_are_read_and_added_up() -> None:
    old = [9000, 1, 1000, 2000, 3000, 0, 500, 2, 10, 20, 30, 40, 50]
    document = {"piles": [["H100", "", old]], "largest": {}, "idle": [[]], "kept_out": [["H100", [2, 4, [], "", 0, 0], 1, "partial", 9, 0]]}
    FragmentationRollup.objects.create(span=60, at=NOON, minutes=1, figures=document)
    FragmentationRollup.objects.create(span=60, at=NOON + timedelta(minutes=1), minutes=1, figures=document)
    fragmentation_sum(now=NOON + timedelta(hours=1))

    _, found = fragmentation_newest() or pytest.fail("no snapshot")
    (pile,) = found.piles
    assert {why: milli for why, milli in pile.waiting.useless.items() if milli} == {Why.PARTIAL: 1000, Why.HOST: 2000, Why.TOPOLOGY: 3000}
    assert (pile.waiting.short, pile.usual.jobs, pile.usual.short, pile.usual.milli) == (500, 2, 50, 100)
    assert found.kept_out[0].shape == Shape(2, 4)
    for span in (60, QUARTER, HOUR):
        (step,) = fragmentation_course(NOON, NOON + timedelta(hours=1), step=timedelta(hours=1), span=span)
        assert (step.free, step.usual, step.waiting and step.waiting[Why.HOST]) == (9000, 100, 2000)


def test_a_reservation_keeps_free_gpus_from_all_but_its_owner() -> None:
    builders.node(gpus=8)
    owner, other = builders.quota("vision", parent=builders.quota()), builders.quota("speech", parent=builders.quota())
    facts = {"gpu_type": H100, "gpus_milli": 6000, "starts_at": NOON, "state": "approved", "idle": "held"}
    kept = Reservation.objects.create(public_id="r-1", name="Evaluation", quota=owner, **facts)
    Window.objects.create(reservation=kept, starts_at=NOON - timedelta(hours=1), ends_at=NOON + timedelta(hours=1))
    for leaf in (owner, other):
        builders.job(f"of-{leaf.name}", on=leaf, state=JobState.QUEUED, gpus_milli=8000)
    assert fragmentation_turn(now=NOON)

    _, found = fragmentation_newest() or pytest.fail("no snapshot")
    assert found.piles[0].waiting.useless[Why.RESERVATION] == 4000, "8 GPUs are useless to one of two jobs"
    (out,) = found.kept_out
    assert (out.jobs, out.why) == (1, Why.RESERVATION)
