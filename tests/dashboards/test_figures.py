"""The two numbers of HLT-3 and what is made of them."""

from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dashboards.figures import Figures, figures_by_type, gap_cost, holdings, queue_by_class, series_of
from dashboards.selectors import FRESH, NOBODY, SEVERAL, fleet_read
from dashboards.telemetry.rollups import gpus_now
from scheduler.models import Health, JobState
from scheduler.selectors.clusters import cluster_tree, clusters_listed
from tests import builders
from tests.builders import NOON
from tests.dashboards.worlds import gpus_of, readings

pytestmark = pytest.mark.django_db
H100 = "H100-SXM-80GB"


def only(now=NOON):
    return figures_by_type(fleet_read(now=now))[H100]


def test_held_gpus_that_do_not_compute_are_the_gap():
    first, second, third, _ = gpus_of(builders.node(gpus=4))
    builders.placement(on=first)
    builders.placement(on=second)
    readings({first: 90, second: 10, third: 50}, at=NOON)

    found = only()

    assert (found.gpus, found.read, found.held) == (4, 3, 2000)
    assert (found.active, found.active_held, found.gap) == (1500, 1000, 1000)
    assert found.free == 2000


def test_a_missing_reading_is_neither_work_nor_idleness():
    first, second = gpus_of(builders.node(gpus=2))
    builders.placement(on=first)
    builders.placement(on=second)
    readings({first: None, second: 40}, at=NOON)

    found = only()

    assert (found.unread, found.held_unread, found.gap, found.idle) == (1, 1000, 600, 0)


def test_an_old_frame_says_nothing_about_now():
    (gpu,) = gpus_of(builders.node(gpus=1))
    builders.placement(on=gpu)
    readings({gpu: 0}, at=NOON)

    assert only(NOON + FRESH).gap == 1000
    assert only(NOON + FRESH + timedelta(seconds=1)).gap == 0
    assert only(NOON + FRESH + timedelta(seconds=1)).unread == 1


def test_a_part_of_a_gpu_is_idle_by_what_is_held_of_it():
    gpus = gpus_of(builders.node(gpus=3))
    for gpu, milli in zip(gpus, (125, 125, 1000), strict=True):
        builders.placement(on=gpu, gpu_milli=milli)
    readings(dict(zip(gpus, (4, 0, 4), strict=True)), at=NOON)

    assert only().idle == 1125
    assert sum(holding.idle for holding in holdings(fleet_read(now=NOON))) == 1125


def test_a_part_of_a_gpu_computes_no_more_than_is_held_of_it():
    (gpu,) = gpus_of(builders.node(gpus=1))
    builders.placement(on=gpu, gpu_milli=250)
    readings({gpu: 80}, at=NOON)

    found = only()

    assert (found.held, found.active, found.active_held, found.gap) == (250, 800, 250, 0)


def test_a_slice_counts_for_its_board():
    board = builders.mig_gpu(builders.node(gpus=1))
    one, other = board.mig_instances.order_by("start")
    builders.placement(on=board, mig=one, gpu_milli=428)
    builders.placement(builders.job(state=JobState.RUNNING), on=board, mig=other, gpu_milli=428)

    assert only().held == 856


def test_what_is_out_of_service_is_not_free():
    gpus_of(builders.node(gpus=2))
    builders.node(gpus=3, health=Health.DOWN)
    builders.node(gpus=1, health=Health.DRAINING)
    builders.node(gpus=1, health=Health.SUSPECT)

    found = only()

    assert (found.out, found.away, found.free) == (4, 4000, 3000)
    assert (found.suspect, found.kept, found.startable) == (1000, 0, 2000)


def test_what_is_free_is_told_apart():
    busy, *_ = gpus_of(builders.node(gpus=4))
    builders.placement(on=busy, gpu_milli=400)
    spare = builders.node(gpus=2)
    spare.spare = True
    spare.save()

    found = figures_by_type(fleet_read(now=NOON), reserved={H100: 1000}, scattered={H100: 5000})[H100]

    assert (found.free, found.kept, found.scattered, found.startable) == (5600, 3000, 2600, 0)
    assert figures_by_type(fleet_read(now=NOON))[H100].startable == 3600


def test_the_overview_the_cluster_page_and_the_roll_ups_count_the_same_hardware_as_in_service(personas):
    fleet = builders.cluster()
    for health in Health:
        builders.node(of=fleet, gpus=1, health=health)
    access = personas.access("viewer")

    out = only().out
    (cluster,) = clusters_listed(access)
    gpus = gpus_now()

    assert out == len(Health) - 2
    assert cluster.nodes_out == cluster_tree(cluster).sums.nodes_out == out
    assert int((~gpus.in_service).sum()) == out


def test_removed_hardware_is_gone_from_every_figure():
    builders.node(gpus=2, removed_at=NOON)
    builders.gpu(builders.node(gpus=2), removed_at=NOON)

    assert only().gpus == 1


def test_owners_and_sharing():
    a, b = builders.quota("a", parent=builders.quota()), builders.quota("b", parent=builders.quota())
    first, second, third = gpus_of(builders.node(gpus=3))
    job_a, job_b = builders.job(state=JobState.RUNNING, on=a), builders.job(state=JobState.RUNNING, on=b)
    builders.placement(job_a, on=first)
    builders.placement(job_a, on=second, gpu_milli=300)
    builders.placement(job_b, on=second, gpu_milli=300)
    readings({first: 2, second: 2, third: 2}, at=NOON)

    fleet = fleet_read(now=NOON)

    assert fleet.owner.tolist() == [a.pk, SEVERAL, NOBODY]
    assert [(holding.owner, holding.idle) for holding in holdings(fleet)] == [(a.pk, 1000), (SEVERAL, 600)]


def test_the_gap_is_priced_by_type():
    by_type = {"H100": Figures(gap=1500), "L40S": Figures(gap=2000), "new": Figures(gap=9000)}

    assert gap_cost(by_type, {"H100": 2_000_000, "L40S": 500_000}) == 4_000_000


def test_waiting_times_by_class():
    jobs = [("batch", 8000, NOON - timedelta(minutes=minutes)) for minutes in (10, 30, 60)]

    batch, inference = queue_by_class(jobs, classes=["batch", "inference"], now=NOON)

    assert (batch.jobs, batch.milli, batch.median_seconds, batch.longest_seconds) == (3, 24_000, 1800, 3600)
    assert (inference.jobs, inference.longest_seconds) == (0, 0)


def test_the_past_has_holes_where_nothing_was_recorded_and_where_nothing_was_read():
    minute = timedelta(minutes=1)
    rows = [
        (NOON, "a", 8000, 8000, 4000, 2000, 0),
        (NOON, "b", 2000, 2000, 2000, 1000, 0),
        (NOON + minute, "a", 8000, 8000, 4000, 0, 8000),
        (NOON + 4 * minute, "a", 8000, 8000, 6000, 2000, 0),
        (NOON + 5 * minute, "a", 8000, 8000, 8000, 4000, 1000),
        (NOON + 9 * minute, "a", 1, 1, 1, 1, 0),
    ]

    series = series_of(rows, start=NOON, steps=3, step_seconds=120)

    assert series.capacity == (9.0, None, 8.0)
    assert series.allocated == (5.0, None, 7.0)
    assert series.active == (3.0, None, 3.0)
    one_by_one = series_of(rows, start=NOON, steps=3, step_seconds=60)
    assert one_by_one.active == (3.0, None, None)
    assert one_by_one.allocated == (6.0, 4.0, None)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)
@given(
    state=st.lists(st.tuples(st.integers(0, 1000), st.one_of(st.none(), st.integers(0, 100)), st.sampled_from(list(Health))), min_size=1, max_size=8),
    kept=st.integers(0, 9000),
    scattered=st.integers(0, 9000),
)
def test_the_parts_always_add_up(state, kept, scattered):
    node = builders.node(gpus=len(state), type_name="drawn")
    gpus = gpus_of(node)
    for gpu, (milli, _, health) in zip(gpus, state, strict=True):
        gpu.health = health
        gpu.save()
        if milli:
            builders.placement(on=gpu, gpu_milli=milli)
    readings({gpu: percent for gpu, (_, percent, _) in zip(gpus, state, strict=True)}, at=NOON)
    found = figures_by_type(fleet_read(now=NOON), reserved={"drawn": kept}, scattered={"drawn": scattered})["drawn"]
    node.gpus.update(removed_at=NOON)

    assert found.active_held + found.gap + found.held_unread == found.held
    assert found.held + found.free + found.away == found.milli
    assert min(found.startable, found.kept, found.scattered, found.suspect) >= 0
    assert min(found.free, found.away, found.gap, found.active_held) >= 0
    assert found.idle <= found.held_read
    assert found.active_held <= found.active <= found.read * 1000
