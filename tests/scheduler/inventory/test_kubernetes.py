"""Nodes of Kubernetes from a file, by page, API and command line: each previews the same and applying it twice changes nothing."""

import json
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.urls import reverse

from scheduler.models import Cluster, Gpu, KubernetesCluster, Node

pytestmark = pytest.mark.django_db


def node(name: str, *, ready: str = "True", **labels: str) -> dict:
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": {f"nvidia.com/{key.replace('__', '.')}": value for key, value in labels.items()} | {"other": "x"}},
        "status": {"capacity": {"cpu": "96", "memory": "1056270140Ki"}, "conditions": [{"type": "Ready", "status": ready}]},
    }


H100 = {"gpu__product": "NVIDIA-H100-80GB-HBM3", "gpu__count": "8", "gpu__memory": "81559"}
NODES = json.dumps(
    {
        "kind": "List",
        "items": [
            node("k8s-2", gpu__clique="b1946ac9.7", **H100),
            node("k8s-1", gpu__clique="b1946ac9.7", **H100),
            node("split", gpu__product="NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", gpu__count="56", mig__strategy="single"),
            node("away", ready="Unknown", **H100),
            node("plain"),
        ],
    }
)


def by_command(path) -> str:
    out = StringIO()
    call_command("inventory", "import", str(path), "--format", "kubernetes", "--cluster", "k8s", "--apply", stdout=out)
    return out.getvalue()


def test_labels_become_nodes_and_a_second_import_changes_nothing(tmp_path):
    path = tmp_path / "nodes.json"
    path.write_text(NODES)

    first, again = by_command(path), by_command(path)

    assert "Applied." in first
    assert "Applied." not in again, "nothing to change"
    assert Cluster.objects.get(name="k8s").backend == "kubernetes"
    found = {row.name: row for row in Node.objects.all()}
    assert {name: row.gpus.count() for name, row in found.items()} == {"k8s-1": 8, "k8s-2": 8, "split": 0, "away": 8, "plain": 0}
    assert found["k8s-1"].island == found["k8s-2"].island == "b1946ac9.7"
    assert (found["k8s-1"].cpus, found["k8s-1"].host_memory_mib) == (96, 1056270140 // 1024)
    assert found["split"].labels["nvidia.com/mig.strategy"] == "single"
    assert "other" not in found["plain"].labels
    assert found["away"].health == "down"
    assert set(Gpu.objects.values_list("memory_mib", flat=True)) == {81559}


def test_page_and_api_preview_it_without_writing(personas):
    operator = personas.client("operator")

    page = operator.post(reverse("inventory_import"), {"text": NODES, "form": "kubernetes", "cluster": "k8s"})
    body = {"format": "kubernetes", "text": NODES, "cluster": "k8s"}
    answer = operator.post("/api/v1/inventory/imports", body, content_type="application/json")

    assert page.status_code == 302
    previewed = answer.json()
    assert previewed["id"]
    assert sum("k8s-1" in change["name"] for change in previewed["changes"]) >= 1
    assert not Node.objects.exists()


ZONE = "topology.kubernetes.io/zone"


def in_zones(**zones: str) -> str:
    items = [node(name) for name in zones]
    for item, zone in zip(items, zones.values(), strict=True):
        item["metadata"]["labels"] |= {ZONE: zone, "example.org/rack": "r1"}
    return json.dumps({"items": items})


def test_zones_of_a_file_become_places_and_those_that_a_connection_states_hold_here_too(tmp_path):
    path = tmp_path / "nodes.json"
    path.write_text(in_zones(one="a", two="b"))

    by_command(path)
    assert list(Node.objects.order_by("name").values_list("name", "domain__path")) == [("one", "a"), ("two", "b")]
    assert "Applied." not in by_command(path)

    KubernetesCluster.objects.create(cluster=Cluster.objects.get(), context="test", namespace="x", levels=f"{ZONE}=zone, example.org/rack=rack")
    told = by_command(path)
    assert list(Node.objects.order_by("name").values_list("domain__path", flat=True)) == ["a/r1", "b/r1"]
    assert "note     The rack r1 is in 2 places: a (one), b (two). Each counts as a separate rack." in told


def test_the_page_of_a_file_with_nothing_to_change_has_the_notes(tmp_path, personas):
    path = tmp_path / "nodes.json"
    path.write_text(in_zones(one="a", two=""))
    by_command(path)

    page = personas.client("operator").post(reverse("inventory_import"), {"text": path.read_text(), "form": "kubernetes", "cluster": "k8s"})

    assert f"Label {ZONE} is missing on 1 of 2 nodes: two." in page.content.decode()


def with_capacity(**capacity: object) -> str:
    return json.dumps({"items": [node("plain") | {"status": {"capacity": capacity}}]})


ODD = {
    **{text[:30]: text for text in ("{", "[]", "{}", '{"items": [{}]}', '{"items": [{"kind": "Pod"}]}', '{"items": {"a": 1}}', "[" * 100_000)},
    "cpu of no digit": with_capacity(cpu="²"),  # a digit for str.isdigit, none for int()
    "cpu of 5000 digits": with_capacity(cpu="9" * 5000),
    "memory of 5000 digits": with_capacity(memory="9" * 5000 + "Ki"),
    "memory of 400 digits": with_capacity(memory="9" * 400 + "Ki"),
    "memory out of range": with_capacity(memory="9" * 18 + "Ti"),
    "true": with_capacity(cpu=True),
    "zone with a slash": in_zones(odd="a/b"),
    "zone of 64 letters": in_zones(odd="a" * 64),
    "count of no digit": json.dumps({"items": [node("odd", gpu__product="NVIDIA-H100-80GB-HBM3", gpu__count="²")]}),
    "GPU memory of 5000 digits": json.dumps({"items": [node("odd", **H100 | {"gpu__memory": "9" * 5000})]}),
}


@pytest.mark.parametrize("text", ODD.values(), ids=ODD)
def test_what_kubectl_did_not_write_is_refused(tmp_path, text):
    path = tmp_path / "nodes.json"
    path.write_text(text)

    with pytest.raises(CommandError, match="nothing was changed"):
        by_command(path)
    assert not Cluster.objects.exists()


def test_a_quantity_in_another_unit_is_left_out(tmp_path):
    path = tmp_path / "nodes.json"
    path.write_text(with_capacity(cpu="7910m", memory="128974848k"))

    by_command(path)

    assert Node.objects.values_list("cpus", "host_memory_mib").get() == (0, 0)
