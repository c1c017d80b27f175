"""The store's grains agree with each other, whatever comes late, twice or after a restart."""

import random
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pytest
from django.db import connection, models

from dashboards.models import NO_READING, FleetSample, GpuRollup, JobRollup, TelemetryFrame, TelemetryMinute
from dashboards.signals import activity_window
from dashboards.telemetry.frames import Columns, frame_write, sums_of
from dashboards.telemetry.packing import ids_packed, ids_read
from dashboards.telemetry.rollups import telemetry_rollup
from dashboards.telemetry.spans import HOUR, QUARTER, UNREAD, JobSums, gpu_courses, grain_for, job_course, jobs_added, jobs_of, jobs_write, spans_roll
from scheduler.models import Gpu, Node
from tests import builders
from tests.builders import NOON

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)


def frame(node: Node, at: datetime, *percent: int, now: datetime | None = None) -> bool:
    keys = Gpu.objects.filter(node=node).order_by("index").values_list("pk", flat=True)
    column = np.array(percent, np.uint8)
    columns = Columns(np.array(keys, np.uint32), column, column, np.full(len(column), 300, np.uint16), column, tensor_active=column)
    return frame_write(cluster_id=node.cluster_id, at=at, source="simulated", columns=columns, now=now)


def rolled(until: datetime) -> None:
    telemetry_rollup(now=until + timedelta(seconds=5))


def stored() -> list[object]:
    """All that roll-ups say, without keys."""
    samples = FleetSample.objects.order_by("at", "gpu_type").values_list("at", "allocated_milli", "active_milli", "unread_milli")
    gpus = GpuRollup.objects.order_by("span", "at").values_list("span", "at", "gpu_ids", "minutes", "sm", "memory", "power", "tensor")
    jobs = JobRollup.objects.order_by("span", "at").values_list("span", "at", "job_ids", "sums")
    return [*samples, *([value if not isinstance(value, memoryview) else bytes(value) for value in row] for row in (*gpus, *jobs))]


def test_a_late_frame_counts_in_its_minute_once() -> None:
    node = builders.node(gpus=1)
    assert frame(node, NOON, 40)
    assert frame(node, NOON + 2 * MINUTE, 80)
    rolled(NOON + 3 * MINUTE)
    assert FleetSample.objects.get(at=NOON).active_milli == 400

    clock = NOON + 3 * MINUTE
    for _ in range(3):
        assert not frame(node, NOON + timedelta(seconds=30), 60, now=clock)
    assert TelemetryFrame.objects.get().at == NOON + 2 * MINUTE
    assert TelemetryMinute.objects.get(at=NOON).frames == 2
    rolled(NOON + 3 * MINUTE)
    assert FleetSample.objects.get(at=NOON).active_milli == 500


def test_a_frame_that_is_later_than_anyone_looks_back_changes_nothing() -> None:
    node = builders.node(gpus=1)
    frame(node, NOON, 40)
    assert not frame(node, NOON - 11 * MINUTE, 90, now=NOON)
    assert TelemetryMinute.objects.count() == 1


def test_a_quarter_and_an_hour_are_the_mean_of_their_minutes() -> None:
    node = builders.node(gpus=3)
    for minute in range(60):
        frame(node, NOON + minute * MINUTE, minute, NO_READING, 50 if minute % 2 else NO_READING)
    rolled(NOON + 60 * MINUTE)

    assert list(GpuRollup.objects.filter(span=QUARTER).values_list("at", flat=True).order_by("at")) == [NOON + 15 * k * MINUTE for k in range(4)]
    hour = GpuRollup.objects.get(span=HOUR)
    assert np.frombuffer(hour.sm, "<u2").tolist() == [2950, UNREAD, 5000]
    assert list(hour.minutes) == [60, 0, 30]
    assert np.frombuffer(hour.tensor, "<u2").tolist() == [2950, UNREAD, 5000]
    assert np.frombuffer(hour.power, "<u2").tolist() == [300, 300, 300]


def test_frames_in_any_order_twice_and_with_restarts_end_in_the_same_store() -> None:
    node = builders.node(gpus=2)
    builders.placement(on=builders.gpu(node), since=NOON + 3 * MINUTE, until=NOON + 17 * MINUTE)
    looks = [(NOON + timedelta(seconds=20 * number), (7 * number % 101, 3 * number % 101)) for number in range(60)]
    for at, percent in looks:
        frame(node, at, *percent, now=NOON + 21 * MINUTE)
    rolled(NOON + 20 * MINUTE)
    orderly = stored()

    for model in (FleetSample, GpuRollup, JobRollup, TelemetryMinute, TelemetryFrame):
        model.objects.all().delete()
    rng = random.Random(7)
    # Late by up to two minutes, each up to three times; a round of roll-ups now and then, whoever calls it, and none for a while.
    jumbled = sorted((at + timedelta(seconds=rng.uniform(0, 120)), at, percent) for at, percent in looks for _ in range(rng.randint(1, 3)))
    for arrives, at, percent in jumbled:
        frame(node, at, *percent, now=arrives)
        if rng.random() < 0.2 and not NOON + 4 * MINUTE < arrives < NOON + 9 * MINUTE:
            telemetry_rollup(now=arrives)
    rolled(NOON + 23 * MINUTE)

    minutes = {row[0] for row in FleetSample.objects.filter(at__lt=NOON + 20 * MINUTE).values_list("at")}
    assert [row for row in stored() if row[0] in minutes and row[0] >= NOON] == [row for row in orderly if row[0] in minutes and row[0] >= NOON]  # type: ignore[index]
    spans = [row for row in stored() if row[0] == QUARTER]  # type: ignore[index]
    assert [row for row in spans if row[1] == NOON] == [row for row in orderly if row[0] == QUARTER and row[1] == NOON]  # type: ignore[index]


def test_a_late_frame_is_in_the_quarter_also_where_the_round_broke_off_before_that() -> None:
    node = builders.node(gpus=1)
    for minute in range(20):
        frame(node, NOON + minute * MINUTE, 30)
    rolled(NOON + 20 * MINUTE)
    frame(node, NOON + 14 * MINUTE + timedelta(seconds=30), 90, now=NOON + 20 * MINUTE)

    def broken(execute: Any, query: str, *rest: Any) -> Any:
        if query.startswith('INSERT INTO "gpu_rollup"'):
            raise ConnectionError
        return execute(query, *rest)

    with connection.execute_wrapper(broken), pytest.raises(ConnectionError):
        rolled(NOON + 20 * MINUTE)
    rolled(NOON + 21 * MINUTE)

    assert np.frombuffer(GpuRollup.objects.get(span=QUARTER).sm, "<u2").tolist() == [3200]  # fourteen minutes of 30%, one of 60%
    assert not TelemetryMinute.objects.filter(is_rolled=False).exists()


def test_a_stopped_console_makes_up_for_spans_from_the_minutes() -> None:
    node = builders.node(gpus=1)
    for minute in range(60):
        frame(node, NOON + minute * MINUTE, 30)
    telemetry_rollup(now=NOON + timedelta(hours=5))

    assert GpuRollup.objects.filter(span=QUARTER).count() == 4
    assert GpuRollup.objects.filter(span=HOUR).count() == 1
    before = stored()
    telemetry_rollup(now=NOON + timedelta(hours=5))
    assert stored() == before


def test_sums_of_jobs_are_what_placements_say_at_every_grain() -> None:
    node = builders.node(gpus=4)
    gpus = list(Gpu.objects.filter(node=node).order_by("index"))
    placements = [
        builders.placement(on=gpu, since=NOON + timedelta(seconds=first), until=NOON + timedelta(seconds=last), gpu_milli=milli)
        for gpu, first, last, milli in ((gpus[0], -30, 3001, 1000), (gpus[1], 5, 400, 500), (gpus[1], 61, 1900, 300), (gpus[2], 100, 5899, 1000))
    ]
    for minute in range(60):
        frame(node, NOON + minute * MINUTE, 50, 50, NO_READING, 50)
        if minute % 12 == 11:
            rolled(NOON + (minute + 1) * MINUTE)

    end = NOON + timedelta(hours=1)
    exact = {one.job_id: int((min(one.until, end) - max(one.since, NOON)).total_seconds() * 1000) * one.gpu_milli for one in placements}
    for span in (60, QUARTER, HOUR):
        found = jobs_added([jobs_of(row) for row in JobRollup.objects.filter(span=span, at__gte=NOON)])
        assert dict(zip(found.jobs.tolist(), found.held.tolist(), strict=True)) == exact
        assert (found.computing + found.unread <= found.held).all()
        assert found.unread.tolist() == [0, 0, 0, exact[placements[3].job_id]]
    held, computing = job_course(job_id=placements[0].job_id, since=NOON, until=end, span=QUARTER)
    assert held.values.tolist()[:3] == [1000.0, 1000.0, 1000.0]
    assert computing.values.tolist()[:3] == [500.0, 500.0, 500.0]


@pytest.mark.parametrize(("late", "steps"), [(0, 2), (1_000, 3), (999_000, 3), (59_000_000, 3)])
def test_a_course_has_its_last_step_also_where_that_has_hardly_begun(late: int, steps: int) -> None:
    """The page of a job that had ended in the first second of a minute was a fault of the console's for ever."""
    job = builders.job("train")
    sums = JobSums(np.array([job.pk], np.uint32), *(np.array([value]) for value in (60_000_000, 0, 0)))
    jobs_write(60, {NOON + minute * MINUTE: sums for minute in range(4)})

    held, computing = job_course(job_id=job.pk, since=NOON, until=NOON + 2 * MINUTE + timedelta(microseconds=late), span=60)

    assert held.values.tolist() == [1000.0] * steps
    assert len(held.at) == len(computing.values) == steps


def test_the_course_of_a_gpu_is_the_same_at_each_grain() -> None:
    node = builders.node(gpus=2)
    for minute in range(60):
        frame(node, NOON + minute * MINUTE, 20 if minute < 30 else 60, NO_READING)
    rolled(NOON + 60 * MINUTE)
    key = Gpu.objects.filter(node=node).order_by("index").values_list("pk", flat=True)

    for span, steps in ((60, 60), (QUARTER, 4), (HOUR, 1)):
        asked = {"cluster_id": node.cluster_id, "measures": ["sm"], "since": NOON, "until": NOON + timedelta(hours=1), "span": span}
        (course,) = gpu_courses(gpus=[key[0]], **asked)  # type: ignore[arg-type]
        assert len(course.values) == steps
        assert np.mean(course.values) == 40
        assert np.isnan(gpu_courses(gpus=[key[1]], **asked)[0].values).all()  # type: ignore[arg-type]


def test_rules_look_further_back_than_half_an_hour() -> None:
    node = builders.node(gpus=1)
    for minute in range(0, 600, 5):
        frame(node, NOON + minute * MINUTE, 70)
    window = activity_window(minutes=600, now=NOON + 600 * MINUTE + timedelta(seconds=10))

    assert window.minutes == 600
    assert np.isfinite(window.sm).sum() == 120


def test_the_finest_grain_that_reaches_back_is_chosen() -> None:
    def chosen(days: float) -> int:
        return grain_for(since=NOON - timedelta(days=days), now=NOON, most=2_000)

    assert [chosen(days) for days in (0.5, 1, 7, 20, 60, 300)] == [60, 60, QUARTER, QUARTER, HOUR, HOUR]


@pytest.mark.parametrize("keys", [[], [5], [3, 1, 4_000_000_000, 7], list(range(10, 4010))])
def test_keys_are_packed_without_loss(keys: list[int]) -> None:
    packed = ids_packed(np.array(keys, np.uint32))

    assert ids_read(packed).tolist() == keys
    assert len(packed) < 160


def test_a_measure_that_a_source_does_not_have_is_not_stored() -> None:
    node = builders.node(gpus=1)
    one = np.array([5], np.uint8)
    keys = np.array([builders.gpu(node).pk], np.uint32)
    frame_write(cluster_id=node.cluster_id, at=NOON, source="nvml", columns=Columns(keys, one, one, np.array([70], np.uint16), one))
    rolled(NOON + 15 * MINUTE)

    row = TelemetryMinute.objects.get()
    assert set(sums_of(row).measures) == {"sm", "memory", "power"}
    assert bytes(GpuRollup.objects.get().tensor) == b""


def test_a_thousand_gpus_take_no_more_than_the_manual_says() -> None:
    node = builders.node(gpus=0)
    rng = np.random.default_rng(5)
    keys = np.arange(40, 1040, dtype=np.uint32)
    for second in range(0, 60, 15):
        percent = [rng.integers(0, 101, 1000).astype(np.uint8) for _ in range(4)]
        watts = rng.integers(70, 700, 1000).astype(np.uint16)
        columns = Columns(keys, percent[0], percent[1], watts, percent[0], tensor_active=percent[2], dram_active=percent[3])
        frame_write(cluster_id=node.cluster_id, at=NOON + timedelta(seconds=second), source="x", columns=columns)
    spans_roll(late=(), now=NOON + timedelta(minutes=16))
    sums = rng.integers(0, 64_000 * HOUR * 1000, (3, 300))
    jobs_write(HOUR, {NOON: JobSums(np.sort(rng.choice(20_000, 300, replace=False)).astype(np.uint32), *sums)})

    def size(row: models.Model) -> int:
        return sum(len(value) for field in row._meta.fields if isinstance(value := getattr(row, field.attname), bytes | memoryview))

    minute, quarter, jobs = (size(row) / 1000 for row in (TelemetryMinute.objects.get(), GpuRollup.objects.get(), JobRollup.objects.get(span=HOUR)))
    assert (minute <= 17.2, quarter <= 11.2, jobs <= 6.2) == (True, True, True), (minute, quarter, jobs)
    assert 2880 * minute + (2880 + 9600) * quarter + 15_360 * jobs <= 280_000
