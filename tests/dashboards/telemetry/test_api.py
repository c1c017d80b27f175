"""Readings and their course over the API: the same numbers as on the pages."""

from datetime import timedelta

import numpy as np
import pytest

from dashboards.courses import gpu_chart, job_chart, node_chart, team_chart
from dashboards.gap.causes import Cause, Part
from dashboards.gap.store import Gap, gaps_write
from dashboards.measures import HARDWARE_MEASURES
from dashboards.models import TelemetryFrame
from dashboards.telemetry.frames import MINUTE, minute_of
from dashboards.telemetry.spans import JobSums, jobs_write
from gpufleet.core.ranges import BY_KEY
from gpufleet.core.times import now
from scheduler.models import JobState, Placement
from tests import builders
from tests.dashboards.test_measures import frame
from tests.dashboards.worlds import gpus_of

pytestmark = pytest.mark.django_db
FIELDS = ("sm_percent", "memory_percent", "tensor_percent", "dram_percent", "power_watts")


def get(personas, address, name="viewer", status=200, **asked):
    answer = personas.client(name).get(f"/api/v1{address}", asked)
    assert answer.status_code == status, answer.content
    return answer.json()


def test_a_gpu_carries_its_reading_of_now(personas, django_assert_max_num_queries):
    one, two = gpus_of(builders.node("n1", gpus=2))
    at = now()
    frame([one, two], at=at, sm=[50, None], memory=[40, None], tensor=[0, None], dram=(), watts=[412, None])
    TelemetryFrame.objects.update(temperature_c=bytes([60, 255]), source="nvml-driver")

    expected = {"utilization_percent": 50, "memory_percent": 40, "tensor_percent": 0, "dram_percent": None, "power_watts": 412, "temperature_c": 60}
    told = get(personas, f"/gpus/{one.public_id}")["reading"]
    assert {name: told[name] for name in expected} == expected
    assert told["signal"] == "driver_utilization" and told["at"][:19] == at.isoformat()[:19]
    assert get(personas, f"/gpus/{two.public_id}")["reading"] is None
    with django_assert_max_num_queries(11):
        rows = {row["id"]: row["reading"] for row in get(personas, "/gpus")["items"]}
    assert rows == {one.public_id: told, two.public_id: None}
    TelemetryFrame.objects.update(at=at - timedelta(seconds=50))
    assert get(personas, f"/gpus/{one.public_id}")["reading"] is None, "it is old"


def test_the_page_of_a_cluster_says_who_reads_it_and_of_how_many_gpus(personas):
    """There an alert about stale telemetry leads."""
    gpus = gpus_of(builders.node("n1", gpus=3))
    at = now()
    address = f"/clusters/{gpus[0].node.cluster.name}/"
    assert 'data-part="read-by"' not in personas.client("viewer").get(address).content.decode(), "nobody has read it"
    frame(gpus[:2], at=at, sm=[50, None], memory=[40, None], tensor=(), dram=(), watts=[412, None])
    TelemetryFrame.objects.update(source="prometheus-driver")

    pages = [personas.client(name).get(address).content.decode() for name in ("operator", "viewer")]

    assert all("Read by Prometheus: 1 of 3 GPUs." in page for page in pages)
    assert ['<a href="/telemetry/">Telemetry</a>' in page for page in pages] == [True, False]
    TelemetryFrame.objects.update(at=at - timedelta(minutes=2))
    assert "<strong>Stale</strong>: last read by Prometheus at" in personas.client("viewer").get(address).content.decode()


def test_hardware_over_time_is_what_its_charts_show(personas, django_assert_max_num_queries):
    node = builders.node("n1", gpus=2)
    one, two = gpus_of(node)
    begin = minute_of(now()) - 10 * MINUTE
    frame([one, two], at=begin, sm=[20, 60], tensor=[10, None], dram=(), watts=[300, None])
    frame([one, two], at=begin + MINUTE, sm=None, memory=None, tensor=None, dram=0, watts=None)

    told = get(personas, f"/nodes/{node.public_id}/telemetry", range="1h")
    places = [number for number, value in enumerate(told["dram_percent"]) if value is not None]
    assert (told["range"], told["step_seconds"], told["signal"], len(told["at"])) == ("1h", 60, "sm_activity", 60)
    assert [[told[name][places[0] + step] for name in FIELDS] for step in (-1, 0)] == [[40, 40, 10, None, 300], [None, None, None, 0, None]]
    for address, drawn in (
        (f"/gpus/{one.public_id}", lambda measure: gpu_chart(one, chosen=BY_KEY["1h"], now=now(), measure=measure)),
        (f"/nodes/{node.public_id}", lambda measure: node_chart(node, chosen=BY_KEY["1h"], now=now(), measure=measure)),
    ):
        told = get(personas, f"{address}/telemetry", range="1h")
        for measure in HARDWARE_MEASURES:
            for number, line in enumerate(measure.lines):
                read = [value for value in told[line.field] if value is not None]
                assert read == [row[number + 1] for row in drawn(measure).rows if row[number + 1] is not None], (address, line.field)
    with django_assert_max_num_queries(12):
        assert len(get(personas, f"/clusters/{node.cluster.name}/telemetry", range="7d")["power_watts"]) == 672
    assert "range" in str(get(personas, f"/gpus/{one.public_id}/telemetry", status=422, range="2h"))


def test_a_team_over_time_is_in_whole_thousandths(personas):
    team = personas.nodes["acme/research"]
    at = minute_of(now()) - 5 * MINUTE
    parts = {
        Part(Cause.COMPUTING, "H100", "", "batch", personas.nodes["acme/research/nlp"].pk): 2500,
        Part(Cause.IDLE, "H100", "", "batch", team.pk): 500,
        Part(Cause.COMPUTING, "H100", "", "batch", personas.nodes["acme/product"].pk): 64_000,
    }
    gaps_write(60, {at: Gap(1, parts)})

    told = get(personas, f"/quotas/{team.public_id}/telemetry", name="quota_admin", range="1h")
    columns = ("computing_milli", "idle_milli", "without_reading_milli", "starting_milli", "failed_milli", "reserved_milli")
    assert [row for row in zip(*(told[name] for name in columns), strict=True) if row != (None,) * 6] == [(2500, 500, 0, 0, 0, 0)]
    chart = team_chart(team, access=personas.access("quota_admin"), chosen=BY_KEY["1h"], now=now())
    assert [row[1:] for row in chart.rows if row[1] is not None] == [(2.5, 0.5)]
    get(personas, f"/quotas/{personas.nodes['acme/product'].public_id}/telemetry", name="viewer", status=404)


def test_a_job_over_time_has_what_it_held_and_what_its_gpus_read(personas):
    job = builders.job(on=personas.nodes["acme/research/nlp"], state=JobState.RUNNING)
    gpu = gpus_of(builders.node("n1", gpus=1))[0]
    placed = builders.placement(job, gpu)
    begin = minute_of(now()) - 3 * MINUTE
    Placement.objects.update(since=begin)
    type(placed.attempt).objects.update(started_at=begin)
    jobs_write(60, {begin: JobSums(np.array([job.pk], np.uint32), *(np.array([milli * 60_000], np.int64) for milli in (1000, 400, 0)))})
    frame([gpu], at=begin, sm=40, tensor=12, watts=350)

    told = get(personas, f"/jobs/{job.public_id}/telemetry")
    assert (told["range"], told["step_seconds"]) == ("all", 60)
    first = [told[name][0] for name in ("allocated_milli", "computing_milli", *FIELDS)]
    assert first == [1000, 400, 40, 40, 12, None, 350]
    assert told["power_watts"][1:3] == [None, None]
    placed.attempt.refresh_from_db()
    assert job_chart(job, [placed.attempt], now=now()).rows[0][1:] == (1.0, 0.4)
    assert get(personas, f"/jobs/{job.public_id}/telemetry", range="90d")["range"] == "all", "it is shorter"
    other = builders.job(on=personas.nodes["acme/research/vision"])
    get(personas, f"/jobs/{other.public_id}/telemetry", status=404)
    told = get(personas, f"/jobs/{builders.job(on=job.quota).public_id}/telemetry")
    assert set(told["power_watts"]) == {None}, "it never ran"
