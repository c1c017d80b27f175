"""Where the driver's utilization stands in for SM activity, every page, file and answer that shows it says so."""

import csv
import io

import pytest

from dashboards.models import TelemetryFrame
from gpufleet.core.times import now
from scheduler.models import JobState
from tests import builders
from tests.dashboards.worlds import gpus_of, readings

pytestmark = pytest.mark.django_db
MARK = "Driver utilization"


@pytest.fixture(params=["nvml-driver", "nvml"])
def shown(request, personas):
    """Everything that shows how busy GPUs are, with one source of readings or the other; and whether it is the weaker one."""
    node = builders.node("n1", gpus=2)
    first, _ = gpus_of(node)
    job = builders.job(state=JobState.RUNNING, on=personas.nodes["acme/research/nlp"])
    builders.placement(job, on=first, since=now())
    readings(dict.fromkeys(gpus_of(node), 80), at=now())
    TelemetryFrame.objects.update(source=request.param)
    client = personas.client("operator")

    def told(address):
        answer = client.get(address)
        assert answer.status_code == 200, address
        return b"".join(answer.streaming_content).decode() if answer.streaming else answer.content.decode()

    return told, client, first, job, request.param == "nvml-driver"


def test_pages_mark_it(shown):
    told, _, gpu, job, weak = shown

    for address in ("/", "/fleet/", f"/gpus/{gpu.public_id}/", f"/jobs/{job.public_id}/"):
        assert (MARK in told(address)) == weak, address
    assert ("Driver utilization, not SM activity" in told("/fleet/?view=table")) == weak


def test_answers_and_files_mark_it(shown):
    told, client, _, job, weak = shown

    for address in ("/api/v1/fleet/summary", "/api/v1/fleet/history", "/api/v1/fleet/map"):
        assert client.get(address).json()["weak_clusters"] == (["north"] if weak else []), address
    signal = "driver_utilization" if weak else "sm_activity"
    assert client.get(f"/api/v1/jobs/{job.public_id}/usage").json()["signal"] == signal
    rows = list(csv.DictReader(io.StringIO(told("/fleet/?view=table&format=csv").lstrip("\ufeff"))))
    assert [row["Signal"] for row in rows] == [signal, signal]
