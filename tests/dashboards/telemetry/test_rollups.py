"""Frames become minutes, minutes become samples; what was not read is never taken for idle, and what was handed out adds up."""

import itertools
from datetime import datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboards.models import NO_READING, FleetSample, NodeSample, TelemetryFrame, TelemetryMinute
from dashboards.telemetry.frames import Columns, added, frame_write, sums_of
from dashboards.telemetry.rollups import FOREVER, Holds, gpus_of, held_milli_millis, telemetry_rollup
from gpufleet.core.times import millis
from scheduler.models import Cluster, Gpu, Health, Placement
from tests import builders
from tests.builders import NOON

pytestmark = pytest.mark.django_db
SOON = NOON + timedelta(seconds=70)


def frame(of: Cluster, at: datetime, *percent: int, gpus: list[int] | None = None) -> bool:
    keys = gpus or list(Gpu.objects.filter(node__cluster=of).order_by("node_id", "index").values_list("pk", flat=True))
    column = np.array(percent, np.uint8)
    columns = Columns(np.array(keys, np.uint32), column, column, np.full(len(keys), 300, np.uint16), column)
    return frame_write(cluster_id=of.pk, at=at, source="simulated", columns=columns)


def sample() -> FleetSample:
    return FleetSample.objects.get(at=NOON)


def test_a_minute_is_the_mean_of_its_frames_and_of_the_time_held() -> None:
    node = builders.node(gpus=2)
    builders.placement(on=builders.gpu(node), since=NOON + timedelta(seconds=45))
    for second, percent in ((0, 40), (20, 60), (40, 80)):
        assert frame(node.cluster, NOON + timedelta(seconds=second), percent, 0)

    assert telemetry_rollup(now=SOON) > 0
    found = sample()
    assert (found.capacity_milli, found.healthy_milli, found.allocated_milli, found.active_milli, found.unread_milli) == (2000, 2000, 250, 600, 0)


def test_a_gpu_without_a_reading_is_unread_and_not_idle() -> None:
    node = builders.node(gpus=3)
    frame(node.cluster, NOON, 50, NO_READING, 0)
    frame(node.cluster, NOON + timedelta(seconds=2), NO_READING, NO_READING, 0)
    telemetry_rollup(now=SOON)

    assert (sample().active_milli, sample().unread_milli) == (500, 1000)


def test_a_minute_without_frames_is_all_unread() -> None:
    builders.node(gpus=4)
    telemetry_rollup(now=SOON)

    assert (sample().active_milli, sample().unread_milli, sample().capacity_milli) == (0, 4000, 4000)


def test_a_gpu_that_came_in_the_middle_of_a_minute_keeps_what_was_read() -> None:
    node = builders.node(gpus=2)
    first, second = Gpu.objects.filter(node=node).order_by("index").values_list("pk", flat=True)
    frame(node.cluster, NOON, 30, gpus=[first])
    frame(node.cluster, NOON + timedelta(seconds=2), 80, 50, gpus=[second, first])

    sums = sums_of(TelemetryMinute.objects.get())
    assert dict(zip(sums.gpus.tolist(), sums.sm_sum.tolist(), strict=True)) == {first: 80, second: 80}
    telemetry_rollup(now=SOON)
    assert sample().active_milli == 400 + 800


def test_hardware_out_of_service_is_capacity_but_not_healthy() -> None:
    for health in (Health.HEALTHY, Health.SUSPECT, Health.DRAINING, Health.DOWN):
        builders.node(gpus=1, health=health)
    telemetry_rollup(now=SOON)

    assert (sample().capacity_milli, sample().healthy_milli) == (4000, 2000)


def test_an_older_frame_never_becomes_the_newest_and_counts_once() -> None:
    node = builders.node(gpus=1)
    frame(node.cluster, NOON + timedelta(seconds=5), 90)

    for late in (NOON + timedelta(seconds=5), NOON, NOON):
        assert not frame(node.cluster, late, 10)
    assert bytes(TelemetryFrame.objects.get().sm_active) == b"\x5a"
    assert TelemetryMinute.objects.get().frames == 2


def test_a_doubled_or_late_call_writes_nothing_twice() -> None:
    builders.node(gpus=1)
    assert telemetry_rollup(now=SOON) > 0
    before = list(FleetSample.objects.order_by("pk").values_list())
    assert telemetry_rollup(now=SOON) == 0
    assert list(FleetSample.objects.order_by("pk").values_list()) == before


def test_a_fast_source_does_not_overflow_its_minute() -> None:
    node = builders.node(gpus=1)
    for number in range(300):
        frame(node.cluster, NOON + timedelta(milliseconds=100 * number), 100)
    telemetry_rollup(now=SOON)

    assert TelemetryMinute.objects.get().frames == 255
    assert sample().active_milli == 1000


def test_five_minutes_of_a_node_are_a_byte_a_gpu() -> None:
    node = builders.node(gpus=3)
    builders.placement(on=builders.gpu(node), since=NOON, until=NOON + timedelta(minutes=2))
    for minute in range(5):
        frame(node.cluster, NOON + timedelta(minutes=minute), 20 + minute, NO_READING, 0)
        telemetry_rollup(now=NOON + timedelta(minutes=minute, seconds=70))

    found = NodeSample.objects.get(at=NOON)
    assert [list(bytes(column)) for column in (found.sm_active, found.memory_used, found.allocated)] == [[22, 255, 0], [22, 255, 0], [40, 0, 0]]


def test_an_empty_fleet_has_no_samples() -> None:
    assert telemetry_rollup(now=SOON) == 0


def test_all_samples_together_are_what_the_placements_say() -> None:
    node = builders.node(gpus=4)
    gpus = itertools.cycle(Gpu.objects.filter(node=node))
    for first, last in ((-30, 3), (5, 400), (61, 62), (100, 899)):
        builders.placement(on=next(gpus), since=NOON + timedelta(seconds=first), until=NOON + timedelta(seconds=last))
    for minute in range(1, 17):
        telemetry_rollup(now=NOON + timedelta(minutes=minute, seconds=10))

    held = sum(FleetSample.objects.filter(at__gte=NOON).values_list("allocated_milli", flat=True)) * 60
    exact = sum((min(p.until, NOON + timedelta(minutes=16)) - max(p.since, NOON)).total_seconds() * p.gpu_milli for p in Placement.objects.all())
    assert exact - 60 * 16 < held <= exact


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 1000), st.integers(-200, 200), st.integers(0, 300)), max_size=20),
    st.lists(st.integers(-200, 300), min_size=2, max_size=6, unique=True),
)
def test_time_held_is_the_same_however_it_is_cut(rows: list[tuple[int, int, int, int]], cuts: list[int]) -> None:
    gpus = gpus_of(np.arange(3), np.zeros(3, np.int64), np.array(["x"] * 3), np.ones(3, np.bool_))
    base = millis(NOON)
    columns = [(gpu, milli, base + since, base + since + length if length < 290 else FOREVER) for gpu, milli, since, length in rows]
    holds = Holds(*np.array(columns, np.int64).reshape(-1, 4).T)
    moments = [NOON + timedelta(milliseconds=cut) for cut in sorted(cuts)]

    parts = sum(held_milli_millis(gpus, holds, low, high) for low, high in itertools.pairwise(moments))
    assert (parts == held_milli_millis(gpus, holds, moments[0], moments[-1])).all()


def test_adding_up_nothing_new_keeps_the_order() -> None:
    node = builders.node(gpus=2)
    frame(node.cluster, NOON, 10, 20)
    one = sums_of(TelemetryMinute.objects.get())
    assert added([one, one]).sm_sum.tolist() == [20, 40]
