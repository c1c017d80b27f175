"""Connecting a real Slurm over HTTP, importing its nodes, and how often that is done by itself."""

import json

import pytest

from gpufleet.core.models import AuditEntry
from scheduler.models import Cluster, Gpu, SlurmCluster
from tests.scheduler.backends.test_slurm_end_to_end import shared  # noqa: F401 - a fixture
from tests.scheduler.backends.test_slurm_pages import connection  # noqa: F401 - a fixture

pytestmark = [pytest.mark.django_db, pytest.mark.slurm]
HPC = "/api/v1/clusters/hpc"


@pytest.fixture
def send(personas):
    client = personas.client("operator")

    def sent(method, path, body=None):
        answer = client.generic(method, path, "" if body is None else json.dumps(body), content_type="application/json")
        return answer.status_code, answer.json()

    return sent


@pytest.fixture
def wanted(connection):  # noqa: F811
    return {"user": connection["user"], "folder": connection["folder"]}


def paths(problem) -> list[str]:
    return [error["path"] for error in problem["errors"]]


def test_a_cluster_is_connected_and_imported_over_http(wanted, send):
    status, tried = send("PUT", f"{HPC}/slurm?dry_run=true", wanted)
    assert (status, tried["passes"]) == (200, True)
    assert [step["result"] for step in tried["steps"]] == ["ok"] * 10 + ["warning", "ok"], "no prolog"
    assert not Cluster.objects.exists()

    assert send("PUT", f"{HPC}/slurm", wanted)[0] == 200
    entry = AuditEntry.objects.get(action="slurm.connect")
    assert (entry.after["folder"], SlurmCluster.objects.get().cluster.backend) == (wanted["folder"], "slurm")
    assert send("GET", f"{HPC}/slurm")[1]["folder"] == wanted["folder"]

    assert send("GET", f"{HPC}/slurm/types")[1] == {"found": ["h100"], "unknown": ["h100"], "known_types": []}
    for types, path in (({}, "types.h100"), ({"h100": {"name": "H100-SXM-80GB"}}, "types.h100.memory_mib")):
        status, problem = send("POST", f"{HPC}/slurm/imports", {"types": types})
        assert (status, paths(problem)) == (422, [path])
    known = {"h100": {"name": "H100-SXM-80GB", "memory_mib": 81559}}
    status, problem = send("POST", f"{HPC}/slurm/imports", {"types": known | {"v100": {"name": "V100", "memory_mib": 1}}})
    assert (status, paths(problem)) == (422, ["types.v100"])
    status, preview = send("POST", f"{HPC}/slurm/imports", {"types": known})
    assert (status, Gpu.objects.exists()) == (200, False)
    assert send("POST", f"/api/v1/inventory/imports/{preview['id']}/apply")[0] == 200
    assert Gpu.objects.filter(node__cluster__name="hpc").count() == 32
    status, again = send("POST", f"{HPC}/slurm/imports", {"types": {}})
    assert (status, again["id"]) == (200, None)

    status, every = send("PUT", f"{HPC}/slurm/every", {"minutes": 60})
    assert (status, every["import_minutes"], SlurmCluster.objects.get().import_minutes) == (200, 60, 60)
    status, problem = send("PUT", f"{HPC}/slurm/every", {"minutes": 2})
    assert (status, paths(problem)) == (422, ["minutes"])


def test_what_is_left_out_of_a_change_keeps_its_value(wanted, send):
    send("PUT", f"{HPC}/slurm", wanted | {"node_logs": "/local/logs"})

    status, changed = send("PUT", f"{HPC}/slurm", {"partition": ""})

    assert (status, changed["warnings"]) == (200, [])
    row = SlurmCluster.objects.get()
    assert (row.folder, row.node_logs) == (wanted["folder"], "/local/logs")


@pytest.mark.parametrize(
    ("wrong", "path", "words"),
    [
        ({"partition": "none"}, "partition", "There is no partition none"),
        ({"folder": "/none"}, "folder", "/none"),
        ({"node_logs": "logs"}, "node_logs", "absolute path"),
        ({"user": "daemon"}, "user", "GPUFLEET_SLURM_USERS"),
        ({"rest_url": "http://127.0.0.1:1"}, "rest_url", "GPUFLEET_SLURM_REST_URLS"),
    ],
)
def test_what_fails_is_told_at_its_field_and_nothing_is_kept(wanted, send, wrong, path, words):
    status, problem = send("PUT", f"{HPC}/slurm", wanted | wrong)

    assert (status, paths(problem)) == (422, [path])
    assert words in problem["errors"][0]["message"]
    assert not Cluster.objects.exists()


def test_a_slurm_that_does_not_answer_is_a_conflict(wanted, send, monkeypatch):
    send("PUT", f"{HPC}/slurm", wanted)
    monkeypatch.setenv("SLURM_CONF", "/none/slurm.conf")

    for method, path, body in (("GET", "types", None), ("POST", "imports", {"types": {}})):
        status, problem = send(method, f"{HPC}/slurm/{path}", body)
        assert (status, problem["detail"].split(":")[0]) == (409, "Slurm does not answer")
    status, problem = send("PUT", f"{HPC}/slurm", wanted)
    assert (status, paths(problem)) == (422, [""])
    assert problem["errors"][0]["message"].startswith("controller: ")
