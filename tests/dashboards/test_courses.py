"""How a GPU, a node and a job went over time, as their pages draw it."""

from datetime import timedelta

import numpy as np
import pytest

from dashboards.activity import Activity
from dashboards.courses import gpu_chart, job_chart, node_chart
from dashboards.models import GpuRollup
from dashboards.telemetry.packing import ids_packed
from dashboards.telemetry.spans import HOUR, QUARTER, UNREAD, JobSums, jobs_write
from gpufleet.core.ranges import BY_KEY
from scheduler.models import JobState
from tests import builders
from tests.builders import NOON
from tests.dashboards.worlds import gpus_of

pytestmark = pytest.mark.django_db


def rollup(cluster: int, gpus: list[int], percents: list[int | None], *, span: int, ago: timedelta) -> None:
    column = np.array([UNREAD if percent is None else 100 * percent for percent in percents], "<u2").tobytes()
    ids = ids_packed(np.array(gpus, np.uint32))
    GpuRollup.objects.create(cluster_id=cluster, span=span, at=NOON - ago, gpu_ids=ids, minutes=bytes(len(gpus)), sm=column, memory=column)


def test_gpus_and_nodes_are_drawn_from_the_grain_that_their_range_has() -> None:
    node = builders.node(gpus=2)
    first, second = gpus_of(node)
    rollup(node.cluster_id, [first.pk, second.pk], [20, 60], span=QUARTER, ago=timedelta(minutes=15))
    for hours, percents in ((3, [10, None]), (2, [40, None]), (1, [None, None])):
        rollup(node.cluster_id, [first.pk, second.pk], percents, span=HOUR, ago=timedelta(hours=hours))

    day = node_chart(node, chosen=BY_KEY["24h"], now=NOON)
    assert (len(day.rows), day.rows[-1][1:], day.rows[-2][1:]) == (96, (40, 40), (None, None))
    assert gpu_chart(first, chosen=BY_KEY["24h"], now=NOON).rows[-1][1] == 20
    quarter = gpu_chart(first, chosen=BY_KEY["90d"], now=NOON)
    assert (len(quarter.rows), quarter.rows[-1][1]) == (720, 25)
    assert gpu_chart(second, chosen=BY_KEY["90d"], now=NOON).is_empty


def test_a_job_is_drawn_over_its_own_time() -> None:
    placed = builders.placement(of=builders.job(state=JobState.RUNNING))
    job, attempt = placed.job, placed.attempt
    assert job_chart(job, [], now=NOON).is_empty
    for minute, computing in ((0, 750), (1, 250)):
        sums = [np.array([amount * 60_000], np.int64) for amount in (1000, computing, 0)]
        jobs_write(60, {NOON + timedelta(minutes=minute): JobSums(np.array([job.pk], np.uint32), *sums)})

    chart = job_chart(job, [attempt], now=NOON + timedelta(minutes=3))
    assert [row[1:] for row in chart.rows] == [(1.0, 0.75), (1.0, 0.25), (None, None)]


def test_gaps_break_a_drawing_and_no_reading_is_not_zero() -> None:
    assert Activity((50, 100, None, 0)).path == "M0 100V50H1V0H2V100H0ZM3 100V100H4V100H3Z"
    assert Activity((None, None)).path == ""
