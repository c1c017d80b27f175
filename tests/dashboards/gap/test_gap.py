"""The gap as it is kept and shown: out of one snapshot, adding up in every column, for each viewer what that person may see."""

import itertools
from collections import Counter
from datetime import datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from dashboards.gap.causes import Cause
from dashboards.gap.figures import CAUSES, DIMENSIONS, gap_by, gap_report, gap_weeks
from dashboards.gap.models import GapRollup
from dashboards.gap.snapshot import gap_now
from dashboards.gap.store import gap_between, gap_course, gap_newest, gap_over, gap_turn, pieces_newest, spans_sum
from dashboards.telemetry.spans import HOUR, QUARTER
from gpufleet.core.times import now
from scheduler.models import Health, Job, JobState, Node, Outlook
from tests import builders
from tests.builders import NOON
from tests.dashboards.worlds import gpus_of, readings
from tests.personas import Personas

pytestmark = pytest.mark.django_db


def small_fleet(at: datetime = NOON) -> None:
    """Eight GPUs: one computes at 40 percent, one has no reading, one starts, a node of two is down, three are free and one job waits for eight."""
    node, down = builders.node(gpus=6), builders.node(gpus=2, health=Health.DOWN)
    gpus = gpus_of(node)
    for gpu, state in zip(gpus, (JobState.RUNNING, JobState.RUNNING, JobState.STARTING), strict=False):
        placed = builders.placement(on=gpu)
        placed.job.state = state
        placed.job.save(update_fields=["state"])
        placed.attempt.running_at = None if state == JobState.STARTING else NOON - timedelta(hours=1)
        placed.attempt.save(update_fields=["running_at"])
    readings({gpu: None if number == 1 else 40 for number, gpu in enumerate(gpus)}, at=at)
    assert down.gpus.count() == 2


def test_a_snapshot_is_the_fleet() -> None:
    small_fleet()
    assert gap_turn(now=NOON)
    assert not gap_turn(now=NOON + timedelta(seconds=30))

    at, gap = gap_newest() or pytest.fail("no snapshot")
    causes = {cause: sum(milli for part, milli in gap.sums.items() if part.cause == cause) for cause in Cause}
    assert at == NOON
    assert gap.total == 8000
    assert {cause.value: milli for cause, milli in causes.items() if milli} == {
        "computing": 400,
        "idle": 600,
        "unread": 1000,
        "starting": 1000,
        "failed": 2000,
        "unwanted": 3000,
    }


def test_a_turn_that_comes_late_leaves_the_newest_rows_alone() -> None:
    small_fleet()
    gap_turn(now=NOON + timedelta(minutes=1))
    builders.node(gpus=1)
    assert gap_turn(now=NOON)

    (at, gap), (rows_at, pieces) = gap_newest() or pytest.fail("no snapshot"), pieces_newest() or pytest.fail("no rows")
    assert rows_at == at == NOON + timedelta(minutes=1)
    assert sum(piece.milli for piece in pieces) == gap.total == 8000


def test_what_waits_behind_a_window_is_not_wanted_by_the_next_plan() -> None:
    small_fleet()
    waiting = builders.job(state=JobState.QUEUED, spec={"roles": [{"name": "worker", "gpus": 2}]}, gpus_milli=2000)
    Outlook.objects.create(job=waiting, codes=" window ")

    sums = gap_now(now=NOON)

    assert {part.cause: milli for part, milli in sums.items() if part.cause in (Cause.RESERVED, Cause.WANTED)} == {Cause.RESERVED: 2000}


def test_what_waits_for_one_leaf_is_served_by_one_leaf() -> None:
    builders.cluster(levels=("spine", "leaf"))
    nodes = [builders.node(gpus=8, at=f"spine-1/leaf-{number}") for number in (1, 2)]
    builders.node(gpus=8, of=builders.cluster("south"))
    roles = {"roles": [{"name": "worker", "min": 2, "gpus": 8}]}
    waiting = builders.job(state=JobState.QUEUED, spec=roles | {"topology": {"required": "leaf"}}, gpus_milli=16_000)

    def causes() -> dict[str, int]:
        found: Counter[str] = Counter()
        for part, milli in gap_now(now=NOON).items():
            found[part.cause.value] += milli
        return dict(found)

    def asks(spec: dict[str, object]) -> dict[str, int]:
        Job.objects.filter(pk=waiting.pk).update(spec=spec)
        return causes()

    assert causes() == {"fragmented": 16_000, "unwanted": 8_000}
    assert asks(roles | {"topology": {"required": "spine"}}) == {"wanted": 16_000, "unwanted": 8_000}
    three = {"roles": [{"min": 3, "gpus": 8}]}
    assert asks(three) == {"fragmented": 24_000}
    assert asks(three | {"topology": {"span_clusters": True}}) == {"wanted": 24_000}
    Node.objects.filter(pk=nodes[0].pk).update(spare=True)
    assert asks(roles) == {"fragmented": 16_000, "unwanted": 8_000}


def test_stale_telemetry_makes_nobody_idle() -> None:
    small_fleet(at=NOON - timedelta(minutes=3))
    gap_turn(now=NOON)
    _, gap = gap_newest() or pytest.fail("no snapshot")

    assert not [part for part in gap.sums if part.cause in (Cause.IDLE, Cause.COMPUTING)]
    assert gap.total == 8000


def test_grains_add_up_and_are_made_once() -> None:
    small_fleet()
    for minute in range(0, 60, 5):
        gap_turn(now=NOON + timedelta(minutes=minute))
    spans_sum(now=NOON + timedelta(hours=1))
    rows = list(GapRollup.objects.order_by("span", "at").values_list())
    spans_sum(now=NOON + timedelta(hours=1))

    assert list(GapRollup.objects.order_by("span", "at").values_list()) == rows
    for span in (60, QUARTER, HOUR):
        gap = gap_between(NOON, NOON + timedelta(hours=1), span=span)
        assert (gap.snapshots, gap.total) == (12, 12 * 8000)
    steps = gap_course(NOON - timedelta(hours=1), NOON + timedelta(hours=1), step=timedelta(minutes=15), span=QUARTER)
    assert [step.causes and round(sum(step.causes.values())) for step in steps] == [None] * 4 + [8000] * 4


def test_a_time_is_the_same_from_hours_and_quarters() -> None:
    """Also where it begins or ends within an hour, and where parts come and go."""
    small_fleet()
    for number, minute in enumerate(range(5, 300, 10)):
        if number % 7 == 0:
            builders.node(gpus=1 + number)
        gap_turn(now=NOON + timedelta(minutes=minute))
    spans_sum(now=NOON + timedelta(hours=5))

    quarters = [NOON + timedelta(minutes=15 * step) for step in range(13)]
    for start, end in itertools.combinations(quarters, 2):
        assert gap_over(start, end) == gap_between(start, end, span=QUARTER)
    (step,) = gap_course(NOON, NOON + timedelta(hours=5), step=timedelta(hours=5), span=60)
    whole = gap_over(NOON, NOON + timedelta(hours=5))
    assert whole.snapshots == 30
    assert step.causes == {cause: sum(milli for part, milli in whole.sums.items() if part.cause == cause) / 30 for cause in Cause}


@pytest.mark.parametrize("viewer", ["superuser", "viewer"])
def test_printed_columns_add_up(personas: Personas, viewer: str) -> None:
    small_fleet(at=now())
    builders.placement(on=builders.gpu(builders.node(gpus=3)), job=builders.job(quota=personas.nodes["acme/research/vision"]))
    moment = now()
    gap_turn(now=moment)
    access = personas.access(viewer)
    report = gap_report(access, weeks=gap_weeks(now=moment), now=moment)

    assert report is not None
    assert report.whole.milli == sum(row.milli for row in report.causes) == 11_000
    assert report.whole.tenths == sum(row.tenths for row in report.causes) == 110
    assert report.whole.hour_micros == (None if viewer == "viewer" else 0)
    for dimension in DIMENSIONS:
        rows = gap_by(access, dimension, weeks=gap_weeks(now=moment), now=moment)
        assert sum(row.milli for row in rows) == 11_000
        assert sum(row.tenths for row in rows) == 110
        assert all(sum((row.causes or {}).values()) == row.milli for row in rows)
    names = {row.key for row in gap_by(access, "team", weeks=gap_weeks(now=moment), now=moment)}
    assert ("vision" in names) == (viewer == "superuser")
    assert ("Other teams" in names) == (viewer == "viewer")


def test_the_page_and_its_chart(personas: Personas) -> None:
    browser = personas.client("operator")
    assert "The first figures appear" in browser.get("/gap/").content.decode()
    moment = now() - timedelta(minutes=2)
    small_fleet(at=moment)
    gap_turn(now=moment)

    with CaptureQueriesContext(connection) as queries:
        page = browser.get("/gap/?by=pool").content.decode()
    assert "Allocated, idle" in page
    assert len(queries) < 40
    assert browser.get("/gap/history?range=1h").json()["empty"] is False
    assert browser.get("/api/v1/fleet/gap?by=type").json()["gpu_milli"] == 8000
    history = browser.get("/api/v1/fleet/gap/history?range=1h").json()
    assert [sum(column[number] for column in history["causes"].values()) for number in (-1, -2) if history["causes"]["idle"][number] is not None] in (
        [8000],
        [],
    )


def test_every_cause_leads_to_a_page_that_is_there(personas: Personas) -> None:
    reader = personas.client("superuser")

    assert {told.link: status for told in CAUSES.values() if (status := reader.get(told.link).status_code) != 200} == {}
