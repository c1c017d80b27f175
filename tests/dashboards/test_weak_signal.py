"""Where the driver's utilization stands in for SM activity, every page, file and answer that shows it says so."""

import csv
import io

import numpy as np
import pytest

from dashboards.models import TelemetryFrame
from dashboards.weak import weak_clusters, weak_told
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


def test_one_gpu_of_the_weaker_signal_marks_itself_alone(personas):
    """And its node, as its GPUs are shown together; the others of the node, and the rest of the fleet, are as good as they were."""
    node, other = builders.node("n1", gpus=2), builders.node("n2", gpus=1)
    gpus = gpus_of(node) + gpus_of(other)
    readings(dict.fromkeys(gpus, 80), at=now())
    TelemetryFrame.objects.update(source="nvml-driver", weak_ids=np.array([gpus[0].pk], "<u4").tobytes())
    client = personas.client("operator")
    pages = [client.get(f"/gpus/{gpu.public_id}/").content.decode() for gpu in gpus]
    nodes = [client.get(f"/nodes/{one.public_id}/").content.decode() for one in (node, other)]
    file = client.get("/fleet/?view=table&format=csv")
    rows = list(csv.DictReader(io.StringIO(b"".join(file.streaming_content).decode().lstrip("\ufeff"))))

    assert [MARK in page for page in pages] == [True, False, False]
    assert [MARK in page for page in nodes] == [True, False]
    assert [row["Signal"] for row in rows] == ["driver_utilization", "sm_activity", "sm_activity"]
    assert [client.get(f"/api/v1/gpus/{gpu.public_id}").json()["reading"]["signal"] for gpu in gpus] == [row["Signal"] for row in rows]
    assert "north (1 of 3 GPUs)" in client.get("/").content.decode()
    assert client.get("/api/v1/fleet/summary").json()["weak_clusters"] == ["north"]


def test_a_cluster_whose_gpus_are_gone_marks_nothing_any_more(personas):
    node, other = builders.node("n1", gpus=1), builders.node("n2", gpus=1, of=builders.cluster("south"))
    for one in (node, other):
        readings(dict.fromkeys(gpus_of(one), 80), at=now())
    TelemetryFrame.objects.update(source="nvml-driver")
    type(node).objects.filter(pk=node.pk).update(removed_at=now())

    assert personas.client("operator").get("/api/v1/fleet/summary").json()["weak_clusters"] == ["south"]
    assert (weak_told(), list(weak_clusters().values())) == (["south"], ["south"])
