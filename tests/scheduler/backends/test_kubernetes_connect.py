"""Connecting a Kubernetes: by command, over the API and in the browser, with each step tried; importing its nodes, and following them."""

import json
from datetime import timedelta
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from gpufleet.core.models import AuditEntry
from gpufleet.core.times import now
from scheduler.backends.registry import backend_for, runs_images, shares
from scheduler.models import Cluster, Gpu, Health, KubernetesCluster, Node, OutsideJob, OutsideSeat
from scheduler.services.hardware.kubernetes_nodes import kubernetes_nodes_reconcile
from scheduler.services.hardware.slurm_imports import imports_turn
from tests import builders
from tests.scheduler.backends.kubernetes_site import NODES, connect, run

pytestmark = [pytest.mark.django_db]


def test_each_step_is_tried_and_the_nodes_are_imported(offered):
    told = connect()

    lines = {line[9:30].strip(): line.split()[0] for line in told.splitlines()[:-1] if not line.startswith(" ")}
    assert list(lines) == ["server", "credentials", "version", "permissions", "pods of others", "nodes", "levels", "image", "pod"]
    assert set(lines.values()) == {"ok"}, told
    assert "as console" in told
    assert "Connected." in told
    row = KubernetesCluster.objects.get()
    assert (row.context, row.namespace, len(row.tag)) == ("test", "gpufleet", 8)
    assert AuditEntry.objects.filter(action="kubernetes.connect").exists()

    run("kubernetes", "--cluster", "k8s", "--apply")

    assert list(Node.objects.order_by("name").values_list("name", flat=True)) == list(NODES)
    assert Gpu.objects.count() == 32
    assert {(gpu.gpu_type.name, gpu.gpu_type.memory_mib) for gpu in Gpu.objects.select_related("gpu_type")} == {("H100-80GB-HBM3", 81559)}
    assert "othing to change" in run("kubernetes", "--cluster", "k8s", "--apply")
    assert backend_for(Cluster.objects.get()).facts.runs_images


def test_what_is_not_stated_again_stays(offered):
    connect("--tolerates", "team")

    run("connect-kubernetes", "--cluster", "k8s", "--runtime-class", "nvidia") if offered.double else run("connect-kubernetes", "--cluster", "k8s")

    row = KubernetesCluster.objects.get()
    assert (row.tolerates, row.image) == ("team", "registry/any:1")


def test_a_context_that_the_machine_does_not_offer_is_refused(offered):
    with pytest.raises(CommandError, match="--context: This machine offers test"):
        connect("--context", "other")

    assert not Cluster.objects.exists()


def test_a_namespace_in_which_the_account_may_nothing_is_told(k8s_api, offered):
    if k8s_api.double is not None:
        k8s_api.double.denied = {("patch", "pods"), ("create", "pods")}
    try:
        with pytest.raises(CommandError, match="Nothing was changed"):
            run("connect-kubernetes", "--cluster", "k8s", "--namespace", "gpufleet" if k8s_api.double else "default")
    finally:
        if k8s_api.double is not None:
            k8s_api.double.denied = set()

    assert not Cluster.objects.exists()


def test_over_the_api_it_is_tried_and_connected_and_imported(offered, personas):
    client = personas.client("operator")

    tried = client.put("/api/v1/clusters/k8s/kubernetes?dry_run=true", json.dumps({"namespace": "gpufleet"}), content_type="application/json")
    assert tried.status_code == 200, tried.content
    assert tried.json()["passes"]
    assert not Cluster.objects.exists()
    made = client.put("/api/v1/clusters/k8s/kubernetes", json.dumps({"namespace": "gpufleet"}), content_type="application/json")
    assert made.status_code == 200, made.content
    assert client.get("/api/v1/clusters/k8s/kubernetes").json()["context"] == "test"
    preview = client.post("/api/v1/clusters/k8s/kubernetes/imports")
    applied = client.post(f"/api/v1/inventory/imports/{preview.json()['id']}/apply")

    assert applied.status_code == 200, applied.content
    assert Node.objects.count() == 4


def test_over_the_api_a_step_that_fails_is_told_at_its_field(offered, personas):
    body = {"namespace": "gpufleet", "claim": "none", "mount": "/checkpoints", "uid": 10001}

    answer = personas.client("operator").put("/api/v1/clusters/k8s/kubernetes", json.dumps(body), content_type="application/json")

    assert answer.status_code == 422
    assert "none" in json.dumps(answer.json()["fields"]["claim"] if "fields" in answer.json() else answer.json())


def test_in_the_browser_it_is_tried_connected_and_imported(offered, personas):
    client = personas.client("operator")
    sent = {"cluster": "k8s", "context": "test", "namespace": "gpufleet", "image": "registry/any:1"}

    assert b"No step failed" in client.post("/inventory/cluster/kubernetes/", sent).content
    answer = client.post("/inventory/cluster/kubernetes/", sent | {"keep": "1"})
    assert answer.headers["Location"] == "/inventory/kubernetes/k8s/"
    preview = client.post(answer.headers["Location"])
    assert preview.headers["Location"].startswith("/inventory/import/i-")
    changed = client.post("/inventory/cluster/kubernetes/?cluster=k8s", sent | {"image": "registry/other:2", "keep": "1"})
    assert changed.headers["Location"] == "/clusters/k8s/"
    assert KubernetesCluster.objects.get().image == "registry/other:2"
    again = client.post("/inventory/cluster/kubernetes/", sent | {"keep": "1"})
    assert b"connected already" in again.content


def test_the_doctor_tries_the_same_steps(offered):
    connect()
    run("kubernetes", "--cluster", "k8s", "--apply")
    out = StringIO()

    call_command("doctor", "--cluster", "k8s", stdout=out)

    assert out.getvalue() == "10 checks, no findings.\n"


def test_it_is_imported_by_itself_once_somebody_asks_for_it(offered, personas):
    connect()
    run("kubernetes", "--cluster", "k8s", "--apply")
    moment = now()
    assert imports_turn(now=moment) == 0
    assert "every 30 minutes" in run("kubernetes", "--cluster", "k8s", "--every", "30")
    Node.objects.filter(name="gpu001").update(cpus=4)

    assert imports_turn(now=moment + timedelta(minutes=1)) == 1
    assert Node.objects.get(name="gpu001").cpus == 16
    assert imports_turn(now=moment + timedelta(minutes=2)) == 0, "not due yet"

    product = {"metadata": {"labels": {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}}}
    offered.admin.patch("/api/v1/nodes/gpu001", product)
    assert imports_turn(now=moment + timedelta(minutes=40)) == 0
    row = KubernetesCluster.objects.get()
    assert row.import_waits is not None
    page = personas.client("operator").get("/inventory/kubernetes/k8s/")
    assert row.import_waits.public_id.encode() in page.content
    personas.client("operator").post("/inventory/kubernetes/k8s/every/", {"minutes": "0"})
    assert KubernetesCluster.objects.get().import_minutes == 0


def test_nodes_that_are_cordoned_or_not_ready_are_followed_both_ways(offered):
    connect()
    run("kubernetes", "--cluster", "k8s", "--apply")
    kubernetes_nodes_reconcile(now=now())
    Node.objects.filter(name="gpu004").update(health=Health.DRAINING, health_reason="fans")

    offered.admin.patch("/api/v1/nodes/gpu001", {"spec": {"unschedulable": True}})
    ready = {"type": "Ready", "reason": "KubeletNotReady", "message": "PLEG is not healthy", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    offered.admin.patch("/api/v1/nodes/gpu002/status", {"status": {"conditions": [{**ready, "status": "False"}]}})
    kubernetes_nodes_reconcile(now=now())
    health = dict(Node.objects.values_list("name", "health"))
    assert health == {"gpu001": Health.DRAINING, "gpu002": Health.DOWN, "gpu003": Health.HEALTHY, "gpu004": Health.DRAINING}
    assert Node.objects.get(name="gpu002").health_reason == "Kubernetes: PLEG is not healthy"

    offered.admin.patch("/api/v1/nodes/gpu001", {"spec": {"unschedulable": None}})
    offered.admin.patch("/api/v1/nodes/gpu002/status", {"status": {"conditions": [{**ready, "status": "True"}]}})
    kubernetes_nodes_reconcile(now=now())

    assert dict(Node.objects.values_list("name", "health")) == dict.fromkeys(NODES, Health.HEALTHY) | {"gpu004": Health.DRAINING}


def test_a_node_that_is_not_ready_for_a_moment_is_suspect_and_then_down(offered):
    connect()
    run("kubernetes", "--cluster", "k8s", "--apply")
    moment = now()
    silent = {
        "type": "Ready",
        "status": "Unknown",
        "message": "Kubelet stopped posting node status.",
        "lastTransitionTime": f"{moment:%Y-%m-%dT%H:%M:%SZ}",
    }
    offered.admin.patch("/api/v1/nodes/gpu003/status", {"status": {"conditions": [silent]}})

    kubernetes_nodes_reconcile(now=moment + timedelta(seconds=10))
    assert Node.objects.get(name="gpu003").health == Health.SUSPECT
    kubernetes_nodes_reconcile(now=moment + timedelta(seconds=70))
    assert Node.objects.get(name="gpu003").health == Health.DOWN
    offered.admin.patch("/api/v1/nodes/gpu003/status", {"status": {"conditions": [{**silent, "status": "True"}]}})
    kubernetes_nodes_reconcile(now=moment + timedelta(seconds=80))
    assert Node.objects.get(name="gpu003").health == Health.HEALTHY


def test_gpus_that_pods_of_others_hold_are_taken_for_as_long(offered, personas):
    connect()
    run("kubernetes", "--cluster", "k8s", "--apply")
    resources = {"limits": {"nvidia.com/gpu": "3"}, "requests": {"cpu": "1500m", "memory": "2Gi"}}
    container = {"name": "c", "image": "any", "command": ["sleep", "300"], "resources": resources}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "theirs"}, "spec": {"nodeName": "gpu002", "containers": [container]}}
    offered.admin.create("/api/v1/namespaces/gpufleet/pods", body)

    kubernetes_nodes_reconcile(now=now())

    job = OutsideJob.objects.get(until__isnull=True)
    assert (job.name, job.person) == ("theirs", "gpufleet")
    seats = OutsideSeat.objects.filter(job=job)
    assert sorted(seats.filter(gpu__isnull=False).values_list("gpu__node__name", "gpu__index")) == [("gpu002", index) for index in (5, 6, 7)]
    assert list(seats.filter(gpu__isnull=True).values_list("cpus", "memory_mib")) == [(2, 2048)]
    page = personas.client("operator").get("/clusters/k8s/")
    assert b"theirs" in page.content

    offered.clear()
    kubernetes_nodes_reconcile(now=now())
    assert not OutsideJob.objects.filter(until__isnull=True).exists()


def test_what_the_engine_plans_with():
    assert runs_images("kubernetes")
    assert not shares("kubernetes", "mps")
    assert not shares("kubernetes", "timeslice")


def test_without_a_kubeconfig_the_page_says_what_to_set(settings, db, personas):
    settings.KUBECONFIG = ""
    answer = personas.client("operator").get("/inventory/cluster/kubernetes/")

    assert b"GPUFLEET_KUBECONFIG" in answer.content


def test_a_console_that_lost_its_kubeconfig_is_silent_and_not_broken(settings, tmp_path):
    settings.KUBECONFIG = str(tmp_path / "none")
    settings.DATA_DIR = Path(tmp_path)
    found = builders.cluster("k8s", backend="kubernetes")
    KubernetesCluster.objects.create(cluster=found, context="test", namespace="gpufleet", tag="test")

    with pytest.raises(Exception, match="cannot be read: No such file"):
        backend_for(found).observe(now=now())
