"""Tensor and DRAM activity, memory and power: as pages, charts and files show what is stored, and never more than was read."""

import csv
import re
from datetime import timedelta

import numpy as np
import pytest
from django.urls import reverse

from dashboards.courses import cluster_chart, gpu_chart, job_chart, node_chart, pool_chart
from dashboards.measures import COMPUTE, HARDWARE_MEASURES, JOB_MEASURES, UTILIZATION, WATTS, measure_of
from dashboards.models import NO_READING, GpuRollup, TelemetryFrame
from dashboards.readings import Reading, readings_now
from dashboards.telemetry.frames import MINUTE, NO_POWER, Columns, frame_write, minute_of
from dashboards.telemetry.packing import ids_packed
from dashboards.telemetry.spans import HOUR, UNREAD, JobSums, jobs_write
from gpufleet.core.ranges import BY_KEY
from gpufleet.core.times import now
from scheduler.models import JobState, Placement
from scheduler.services.hardware.hardware import node_health_change
from tests import builders
from tests.builders import NOON
from tests.dashboards.worlds import gpus_of
from tests.personas import Personas

pytestmark = pytest.mark.django_db
HOUR_AGO = BY_KEY["1h"]


def frame(gpus, *, at, sm=50, memory=40, tensor=None, dram=None, watts=None):
    """One reading of these GPUs; a measure is a figure for each of them or one for all, None is no reading, () a source without the counter."""

    def column(given, kind, nothing):
        if given == ():
            return np.zeros(0, kind)
        each = given if isinstance(given, list) else [given] * len(gpus)
        return np.array([nothing if value is None else value for value in each], kind)

    bytes_of = {name: column(given, np.uint8, NO_READING) for name, given in (("sm_active", sm), ("memory_used", memory))}
    bytes_of |= {name: column(given, np.uint8, NO_READING) for name, given in (("tensor_active", tensor), ("dram_active", dram))}
    keys = np.array([gpu.pk for gpu in gpus], np.uint32)
    heat = np.full(len(gpus), 60, np.uint8)
    columns = Columns(gpus=keys, power_watts=column(watts, np.uint16, NO_POWER), temperature_c=heat, **bytes_of)
    frame_write(cluster_id=gpus[0].node.cluster_id, at=at, source="simulated", columns=columns)


def test_a_page_offers_what_is_stored_and_takes_the_first_for_anything_else():
    assert [one.key for one in HARDWARE_MEASURES] == ["utilization", "compute", "power"]
    assert [one.key for one in JOB_MEASURES] == ["allocation", "utilization", "compute", "power"]
    assert measure_of({"measure": "power"}) is WATTS
    assert measure_of({"measure": "allocation"}) is UTILIZATION
    assert measure_of({}, JOB_MEASURES).key == "allocation"


def test_what_was_not_read_is_a_gap_and_never_zero(django_assert_max_num_queries):
    node = builders.node(gpus=2)
    one, two = gpus_of(node)
    frame([one, two], at=NOON - 3 * MINUTE, sm=[20, 60], tensor=[10, None], dram=(), watts=[300, None])
    frame([one, two], at=NOON - 2 * MINUTE, sm=[20, 60], tensor=0, dram=[None, 0], watts=[500, 700])
    frame([one, two], at=NOON - MINUTE, sm=None, tensor=None, dram=None, watts=None)

    with django_assert_max_num_queries(4):
        compute = node_chart(node, chosen=HOUR_AGO, now=NOON, measure=COMPUTE)
    assert [column.name for column in compute.columns] == ["Time", "SM activity", "Tensor activity", "DRAM activity"]
    assert [row[1:] for row in compute.rows[-4:]] == [(None, None, None), (40, 10, None), (40, 0, 0), (None, None, None)]
    assert [row[1] for row in node_chart(node, chosen=HOUR_AGO, now=NOON, measure=WATTS).rows[-3:]] == [300, 600, None]
    alone = gpu_chart(two, chosen=HOUR_AGO, now=NOON, measure=WATTS)
    assert ([row[1] for row in alone.rows[-3:]], alone.unit) == ([None, 700, None], "W")
    assert [row[1] for row in cluster_chart(node.cluster, chosen=HOUR_AGO, now=NOON, measure=WATTS).rows[-3:]] == [300, 600, None]


def test_a_pool_is_drawn_with_its_own_gpus_and_marks(personas: Personas):
    """A pool of the same name in another cluster is another one. The page has the figures and the chart, whose file has the same numbers."""
    pool, other = builders.pool("train"), builders.pool("spot")
    node, beside = builders.node(gpus=2, pool=pool), builders.node(gpus=1, pool=other)
    away = builders.node(gpus=1, of=builders.cluster("south"), pool=builders.pool("train", of=builders.cluster("south")))
    at = minute_of(now()) - 5 * MINUTE
    frame([*gpus_of(node), *gpus_of(beside)], at=at, sm=[20, 60, 99], memory=[10, 30, 99], watts=[300, 500, 700])
    frame(gpus_of(away), at=at, sm=99, memory=99)
    node_health_change(access=personas.access("operator"), node=beside, to="suspect", reason="Test", now=at)
    builders.placement(builders.job(state=JobState.RUNNING), gpus_of(node)[0])

    chart = pool_chart(pool, chosen=HOUR_AGO, now=now())
    assert [row[1:] for row in chart.rows if row[1] is not None] == [(40, 20)]
    assert [row[1] for row in pool_chart(pool, chosen=HOUR_AGO, now=now(), measure=WATTS).rows if row[1] is not None] == [400]
    assert (len(chart.marks), len(pool_chart(other, chosen=HOUR_AGO, now=now()).marks)) == (0, 1)
    viewer = personas.client("viewer")
    page = viewer.get("/clusters/north/pools/train/").content.decode()
    told = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))
    assert "2 GPUs" in told or "GPUs 2" in told
    assert "/nodes/?cluster=north&amp;pool=train" in page
    rows = list(csv.reader(viewer.get("/clusters/north/pools/train/course", {"range": "1h", "format": "csv"}).getvalue().decode().splitlines()))
    assert [row[1:] for row in rows[1:] if row[1]] == [["40.0", "20.0"]]
    assert viewer.get("/clusters/south/pools/spot/").status_code == 404
    assert "/clusters/north/pools/spot/" in viewer.get("/clusters/north/").content.decode()
    assert "/clusters/north/pools/train/" in viewer.get(f"/nodes/{node.public_id}/").content.decode()
    told = viewer.get("/api/v1/clusters/north/pools/train/telemetry", {"range": "1h"}).json()
    assert [value for value in told["power_watts"] if value is not None] == [400]


def test_coarser_grains_have_the_same_measures():
    node = builders.node(gpus=2)
    gpus = gpus_of(node)
    hundredths = np.array([1250, UNREAD], "<u2").tobytes()
    watts = np.array([400, UNREAD], "<u2").tobytes()
    keys = ids_packed(np.array([gpu.pk for gpu in gpus], np.uint32))
    columns = {"gpu_ids": keys, "minutes": bytes(2), "sm": hundredths, "memory": hundredths, "tensor": hundredths, "power": watts}
    GpuRollup.objects.create(cluster=node.cluster, span=HOUR, at=NOON - timedelta(hours=1), **columns)

    month = BY_KEY["30d"]
    assert node_chart(node, chosen=month, now=NOON, measure=COMPUTE).rows[-1][1:] == (12.5, 12.5, None)
    assert node_chart(node, chosen=month, now=NOON, measure=WATTS).rows[-1][1:] == (400,)


def test_a_job_is_drawn_with_the_whole_gpus_that_it_held_while_it_held_them(django_assert_max_num_queries):
    node = builders.node(gpus=3)
    own, shared, others = gpus_of(node)
    job = builders.job(state=JobState.RUNNING)
    first = builders.placement(job, own)
    builders.placement(job, shared, gpu_milli=500)
    builders.placement(of=builders.job(state=JobState.RUNNING), gpu=others)
    attempt = first.attempt
    begin = NOON - 5 * MINUTE
    type(attempt).objects.filter(pk=attempt.pk).update(started_at=begin)
    attempt.refresh_from_db()
    # It came in the middle of a minute, and went in the middle of another one: those were not its own alone.
    Placement.objects.filter(pk=first.pk).update(since=begin + timedelta(seconds=30), until=NOON - timedelta(seconds=90))
    for step in range(5):
        frame([own, shared, others], at=begin + step * MINUTE, sm=[10 + step, 99, 99], tensor=[step, 99, 99], watts=[100 * step, 700, 700])

    with django_assert_max_num_queries(3):
        compute = job_chart(job, [attempt], now=NOON, measure=COMPUTE)
    assert [row[1:] for row in compute.rows] == [(None, None, None), (11, 1, None), (12, 2, None), (None, None, None), (None, None, None)]
    assert [row[1] for row in job_chart(job, [attempt], now=NOON, measure=WATTS).rows] == [None, 100, 200, None, None]


def test_a_job_that_moves_between_clusters_is_one_course():
    job = builders.job(state=JobState.RUNNING)
    old, new = (gpus_of(builders.node(name, gpus=1, cluster=builders.cluster(name)))[0] for name in ("old", "new"))
    begin = NOON - 2 * MINUTE
    gone = builders.placement(job, old)
    came = builders.placement(job, new)
    Placement.objects.filter(pk=gone.pk).update(since=begin, until=begin + MINUTE)
    Placement.objects.filter(pk=came.pk).update(since=begin + MINUTE)
    for gpu, watts in ((old, 100), (new, 200)):
        for step in range(2):
            frame([gpu], at=begin + step * MINUTE, watts=watts)
    attempt = gone.attempt
    attempt.started_at = begin

    assert [row[1] for row in job_chart(job, [attempt], now=NOON, measure=WATTS).rows] == [100, 200]


def test_the_newest_readings_have_all_measures():
    node = builders.node(gpus=3)
    one, two, silent = gpus_of(node)
    frame([one, two], at=NOON, sm=[50, None], memory=[40, None], tensor=[0, None], dram=(), watts=[0, None])
    TelemetryFrame.objects.update(temperature_c=bytes([60, NO_READING]))

    found = readings_now(now=NOON)

    assert found[one.pk] == Reading(50, 40, 60, tensor=0, dram=None, watts=0, at=NOON)
    assert found[two.pk] == Reading(None, None, None), "it has no moment either"
    assert silent.pk not in found


def test_a_gpu_shows_what_its_source_reads_and_nothing_else(personas):
    node = builders.node("n1", gpus=2)
    one, two = gpus_of(node)
    frame([one, two], at=now(), tensor=[31, None], dram=(), watts=[412, None])
    client = personas.client("viewer")

    page = client.get(reverse("gpu", args=[one.public_id])).content.decode()
    assert '<dt title="Tensor cores, newest reading">Tensor activity</dt><dd><span class="value">31%</span></dd>' in page
    assert '<dt>Power</dt><dd><span class="value">412</span> <span class="unit">W</span></dd>' in page
    assert "DRAM activity</dt>" not in page, "its source has no such counter"
    page = client.get(reverse("gpu", args=[two.public_id])).content.decode()
    assert "Tensor activity</dt>" not in page and "<dt>Power</dt>" not in page


def test_the_list_of_gpus_has_them_in_its_file_and_among_the_columns_to_choose(personas):
    one, two = gpus_of(builders.node("n1", gpus=2))
    frame([one, two], at=now(), tensor=[31, None], dram=[0, None], watts=[412, None])
    client = personas.client("viewer")

    answer = client.get(reverse("gpus"))
    page = answer.context["page"]
    assert {"tensor", "dram", "watts"} <= {column.key for column, shown in page.column_choices if not shown}
    text = b"".join(client.get(reverse("gpus"), {"format": "csv"}).streaming_content).decode("utf-8-sig")
    rows = [[row[name] for name in ("Tensor activity", "DRAM activity", "Power")] for row in csv.DictReader(text.splitlines())]
    assert rows == [["31", "0", "412"], ["", "", ""]]
    client.post(reverse("columns"), {"table": "gpus", "column": ["name", "tensor", "dram", "watts"], "next": reverse("gpus")})
    html = client.get(reverse("gpus")).content.decode()
    assert "31%" in html and "0%" in html and "412 W" in html


@pytest.mark.parametrize("of", ["gpu", "node", "cluster", "job"])
def test_the_choice_is_part_of_the_address_of_page_chart_and_file(personas, of):
    node = builders.node("n1", gpus=1)
    placed = builders.placement(builders.job(on=personas.nodes["acme/research/nlp"], state=JobState.RUNNING), gpus_of(node)[0])
    begin = minute_of(now()) - 20 * MINUTE
    Placement.objects.update(since=begin)
    type(placed.attempt).objects.update(started_at=begin)
    held = [np.array([amount * 60_000], np.int64) for amount in (1000, 500, 0)]
    jobs_write(60, {begin + 5 * MINUTE: JobSums(np.array([placed.job.pk], np.uint32), *held)})
    frame(gpus_of(node), at=begin + 10 * MINUTE, tensor=25, watts=345)
    keys = {"gpu": gpus_of(node)[0].public_id, "node": node.public_id, "cluster": node.cluster.name, "job": placed.job.public_id}
    client, asked = personas.client("superuser"), {"measure": "power", "range": "1h"}

    page = client.get(reverse(of, args=[keys[of]]), asked)
    html = page.content.decode()
    assert '<option value="power" selected>Power</option>' in html
    assert "measure=power&amp;format=csv" in html
    source = reverse(f"{of}-course", args=[keys[of]])
    told = client.get(source, asked).json()
    assert "Power per GPU (W)" in told["table"] and ">345<" in told["table"]
    lines = b"".join(client.get(source, asked | {"format": "csv"})).decode("utf-8-sig").splitlines()
    assert lines[0] == "Time,Power per GPU (W)"
    assert [float(value) for line in lines[1:] if (value := line.split(",")[1])] == [345]
    plain = client.get(source, {"range": "1h"}).json()["table"]
    assert ("Allocated (GPUs)" if of == "job" else "SM activity (%)") in plain and "Power" not in plain


def test_who_may_not_see_a_job_does_not_see_its_power(personas):
    placed = builders.placement(of=builders.job(on=personas.nodes["acme/research/vision"], state=JobState.RUNNING))
    source = reverse("job-course", args=[placed.job.public_id])

    assert personas.client("viewer").get(source, {"measure": "power"}).status_code == 404
    assert personas.client("stranger").get(source, {"measure": "power"}).status_code == 403
