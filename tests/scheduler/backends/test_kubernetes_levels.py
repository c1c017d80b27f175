"""Labels of nodes as levels of the topology: by default, stated, missing, contradictory, changed; and a gang that stays inside one domain."""

import json
from datetime import timedelta

import pytest
from django.core.management import CommandError

from gpufleet.core.times import now
from scheduler.backends.registry import Backends
from scheduler.models import HOLDING, Domain, InventoryImport, Job, JobState, KubernetesCluster, Node, Placement, TopologyLevel
from scheduler.services.hardware.slurm_imports import imports_turn
from scheduler.services.loop.tick import Memory, tick_run
from tests import builders
from tests.invariants import fleet_faults
from tests.scheduler.backends.kubernetes_site import CLIQUE, NODES, RACK, REGION, ZONE, Site, connect, run
from tests.scheduler.loop.worlds import leaf, submit
from tests.servers import wait_until

pytestmark = [pytest.mark.django_db]
STATED = f"{ZONE}=zone, {RACK}=rack"
A, B = "eu-1a", "eu-1b"


def placed(api) -> None:
    """Two zones of two racks of one node each."""
    api.label(ZONE, gpu001=A, gpu002=A, gpu003=B, gpu004=B)
    api.label(RACK, gpu001="r1", gpu002="r2", gpu003="r3", gpu004="r4")


def imported(*more: str) -> str:
    return run("kubernetes", "--cluster", "k8s", "--apply", *more)


def levels() -> list[str]:
    return list(TopologyLevel.objects.order_by("depth").values_list("name", flat=True))


def places() -> list[str | None]:
    return list(Node.objects.filter(removed_at__isnull=True).order_by("name").values_list("domain__path", flat=True))


def test_by_default_region_and_zone_become_levels_where_nodes_have_them(offered):
    offered.label(REGION, **dict.fromkeys(NODES, "eu-1"))
    placed(offered)
    assert "region (1), zone (2)" in connect()

    told = imported()

    assert levels() == ["region", "zone"]
    assert places() == ["eu-1/eu-1a", "eu-1/eu-1a", "eu-1/eu-1b", "eu-1/eu-1b"]
    assert "level k8s zone" in told
    assert "path: – -> eu-1/eu-1a" in told
    assert "note" not in told
    assert "othing to change" in imported()


def test_without_such_labels_there_are_no_levels(offered):
    connect()

    imported()

    assert levels() == []
    assert places() == [None] * 4


def test_a_region_that_some_nodes_of_a_zone_lack_is_no_level_by_default(offered):
    placed(offered)
    offered.label(REGION, gpu001="eu-1")
    connect()

    imported()

    assert levels() == ["zone"]
    assert places() == [A, A, B, B]


def test_a_zone_that_some_nodes_lack_is_no_level_by_default(offered):
    offered.label(ZONE, gpu001=A, gpu002=A, gpu003=B)
    assert "zone" not in connect().partition("levels")[2].splitlines()[0]

    assert f"Label {ZONE} is missing on 1 of 4 nodes: gpu004. It becomes a level by itself only if every node has it." in imported()

    assert levels() == []


def test_levels_that_nodes_would_get_wait_for_an_operator(offered):
    connect()
    imported("--every", "30")
    placed(offered)

    assert imports_turn(now=now() + timedelta(minutes=1)) == 0

    assert (levels(), places()) == ([], [None] * 4)
    assert KubernetesCluster.objects.get().import_waits is not None


def test_the_first_import_by_itself_brings_levels_and_nodes(offered):
    placed(offered)
    builders.gpu_type()
    connect()
    KubernetesCluster.objects.update(import_minutes=30)

    assert imports_turn(now=now()) == 1

    assert (levels(), places()) == (["zone"], [A, A, B, B])


def test_a_label_of_a_wider_level_alone_takes_no_node_out_of_its_rack(offered):
    of = builders.cluster("k8s", backend="kubernetes", levels=("zone", "rack"))
    builders.node("gpu001", of=of, at="z1/r1")
    placed(offered)
    connect()

    assert "No labels are stated for the levels of k8s (zone, rack)" in imported()

    assert places() == ["z1/r1", None, None, None]


def test_what_is_stated_becomes_levels_and_a_narrower_one_can_be_added(offered):
    placed(offered)
    assert "zone (2)" in connect("--levels", f"{ZONE}=zone")
    imported()
    assert (levels(), places()) == (["zone"], [A, A, B, B])

    assert "zone (2), rack (4)" in connect("--levels", f" {ZONE} = zone,\n{RACK}=rack ")

    assert KubernetesCluster.objects.get().levels == STATED
    told = imported()
    assert (levels(), places()) == (["zone", "rack"], [f"{A}/r1", f"{A}/r2", f"{B}/r3", f"{B}/r4"])
    assert "path: eu-1a -> eu-1a/r1" in told
    assert Node.objects.get(name="gpu001").labels[RACK] == "r1"
    assert "othing to change" in imported()
    connect("--levels", f"{ZONE}=zone")
    imported()
    assert places() == [f"{A}/r1", f"{A}/r2", f"{B}/r3", f"{B}/r4"], "what is not stated stays"


def test_over_the_api_and_in_the_browser_they_are_stated_and_previewed(offered, personas):
    placed(offered)
    client = personas.client("operator")

    made = client.put("/api/v1/clusters/k8s/kubernetes", json.dumps({"levels": STATED}), content_type="application/json")

    assert made.status_code == 200, made.content
    step = next(step for step in made.json()["steps"] if step["name"] == "levels")
    assert (step["result"], step["seen"]) == ("ok", "zone (2), rack (4)")
    assert client.get("/api/v1/clusters/k8s/kubernetes").json()["levels"] == STATED
    preview = client.post("/api/v1/clusters/k8s/kubernetes/imports").json()
    assert [change["name"] for change in preview["changes"] if change["what"] == "level"] == ["k8s zone", "k8s rack"]
    assert next(change for change in preview["changes"] if change["name"] == "k8s/gpu003")["after"]["path"] == f"{B}/r3"
    assert preview["notes"] == []
    assert not Domain.objects.exists()

    form = client.get("/inventory/cluster/kubernetes/?cluster=k8s").content.decode()
    assert f"{ZONE}=zone\n{RACK}=rack" in form
    sent = {"cluster": "k8s", "context": "test", "namespace": "gpufleet", "levels": f"{ZONE}=zone\r\n{RACK}=place\r\n", "keep": "1"}
    answer = client.post("/inventory/cluster/kubernetes/?cluster=k8s", sent)
    assert answer.headers["Location"] == "/inventory/kubernetes/k8s/", "they hold once the nodes are imported"
    assert KubernetesCluster.objects.get().levels == f"{ZONE}=zone, {RACK}=place"
    assert b"levels come from <code>" in client.get(answer.headers["Location"]).content
    unchanged = client.post("/inventory/cluster/kubernetes/?cluster=k8s", sent)
    assert unchanged.headers["Location"] == "/clusters/k8s/"


@pytest.mark.parametrize(
    "text", ["zone", f"{ZONE}=", f"{ZONE}=a zone", f"{ZONE}=node", f"{ZONE}=zone, {ZONE}=other", f"{ZONE}=zone, {RACK}=zone", "-=zone"]
)
def test_what_is_no_label_and_level_is_told_at_its_field(offered, personas, text):
    answer = personas.client("operator").put("/api/v1/clusters/k8s/kubernetes", json.dumps({"levels": text}), content_type="application/json")

    assert answer.status_code == 422
    assert [fault["path"] for fault in answer.json()["errors"]] == ["levels"]
    with pytest.raises(CommandError, match="--levels: "):
        connect(f"--levels={text}")


def test_a_label_that_no_node_has_is_told_as_it_is_stated(offered):
    placed(offered)

    told = connect("--levels", f"{ZONE}=zone, example.org/rak=rack")

    assert "warning  levels" in told
    assert "No node has the label example.org/rak." in told


def test_nodes_without_a_label_are_told_and_stand_alone_there(offered, personas):
    placed(offered)
    offered.label(RACK, gpu002=None, gpu003=None)
    connect("--levels", STATED)

    preview = personas.client("operator").post("/api/v1/clusters/k8s/kubernetes/imports").json()
    missing = f"Label {RACK} is missing on 2 of 4 nodes: gpu002, gpu003. A node without it has no rack, and no neighbors there or by NVLink."
    assert preview["notes"] == [missing]
    page = personas.client("operator").get(f"/inventory/import/{preview['id']}/")
    assert missing in page.content.decode()
    assert f"note     {missing}" in imported()

    assert places() == [f"{A}/r1", A, B, f"{B}/r4"]
    again = imported()
    assert "othing to change" in again
    assert missing in again
    assert missing in personas.client("operator").post("/inventory/kubernetes/k8s/").content.decode()
    assert missing in personas.client("operator").get(f"/api/v1/inventory/imports/{preview['id']}").json()["notes"]


def test_a_node_that_loses_its_label_keeps_its_place_while_the_others_agree(offered):
    placed(offered)
    connect("--levels", STATED)
    imported()

    offered.label(RACK, gpu001=None, gpu003=None)
    offered.label(ZONE, gpu003=A)
    told = imported()

    assert places() == [f"{A}/r1", f"{A}/r2", A, f"{B}/r4"]
    assert f"Label {RACK} is missing on 1 of 4 nodes: gpu001. Such a node keeps its rack of the inventory." in told
    assert f"Label {RACK} is missing on 1 of 4 nodes: gpu003. A node without it" in told


def test_a_rack_in_two_zones_is_told_and_is_two_racks(offered):
    placed(offered)
    offered.label(RACK, gpu002="r1", gpu003="r1", gpu004="r1")
    offered.label(CLIQUE, gpu002="b1946ac9.7", gpu003="b1946ac9.7")
    connect("--levels", STATED)

    told = imported()

    assert places() == [f"{A}/r1", f"{A}/r1", f"{B}/r1", f"{B}/r1"]
    assert f"The rack r1 is in 2 places: {A} (gpu001, gpu002), {B} (gpu003, gpu004). Each counts as a separate rack." in told
    assert f"The NVLink domain b1946ac9.7 is in 2 places: {A}/r1 (gpu002), {B}/r1 (gpu003). Each counts as a separate NVLink domain." in told


def test_levels_of_other_names_are_kept_or_told(offered, personas):
    of = builders.cluster("k8s", backend="kubernetes", levels=("spine", "leaf"))
    builders.node("gpu001", of=of, at="s1/l1")
    placed(offered)
    other = "k8s already has the levels spine, leaf. Their names and order are fixed."

    with pytest.raises(CommandError, match=f"--levels: {other}"):
        connect("--levels", STATED)
    connect()
    told = imported()
    assert "No labels are stated for the levels of k8s (spine, leaf): nodes keep their places of the inventory." in told
    assert (levels(), places()) == (["spine", "leaf"], ["s1/l1", None, None, None])
    connect("--levels", "none")
    assert "note" not in imported()

    KubernetesCluster.objects.update(levels=STATED)  # as it was before a file brought levels
    with pytest.raises(CommandError, match=other):
        imported()
    page = personas.client("operator").post("/inventory/kubernetes/k8s/")
    assert page.status_code == 422
    assert other in page.content.decode()
    connect("--levels", f"{ZONE}=spine, {RACK}=leaf")
    imported()
    assert places() == [f"{A}/r1", f"{A}/r2", f"{B}/r3", f"{B}/r4"]


def test_a_node_that_moved_waits_for_an_operator(offered, personas):
    placed(offered)
    connect("--levels", STATED)
    imported("--every", "30")
    moment = now()
    held = builders.placement(builders.job(state=JobState.RUNNING), Node.objects.get(name="gpu003").gpus.first())
    offered.label(RACK, gpu003="r4")

    assert imports_turn(now=moment + timedelta(minutes=1)) == 0

    assert places() == [f"{A}/r1", f"{A}/r2", f"{B}/r3", f"{B}/r4"]
    waits = KubernetesCluster.objects.get().import_waits
    assert waits is not None
    shown = personas.client("operator").get(f"/inventory/import/{waits.public_id}/").content.decode()
    assert f"<del>{B}/r3</del> <ins>{B}/r4</ins>" in shown
    assert "1 running job, which this does not move" in shown
    assert imports_turn(now=moment + timedelta(minutes=40)) == 0
    assert InventoryImport.objects.filter(applied_at__isnull=True).count() == 1, "the same preview"
    personas.client("operator").post(f"/inventory/import/{waits.public_id}/")
    assert places() == [f"{A}/r1", f"{A}/r2", f"{B}/r4", f"{B}/r4"]
    held.refresh_from_db()
    assert held.until is None


def test_a_new_node_is_placed_by_a_periodic_import(offered):
    placed(offered)
    connect("--levels", STATED)
    imported("--every", "30")
    Node.objects.filter(name="gpu004").update(removed_at=now())

    assert imports_turn(now=now() + timedelta(minutes=1)) == 1

    assert places()[3] == f"{B}/r4"


def test_a_gang_that_requires_a_rack_stays_inside_one(offered, settings):
    settings.SCHEDULER = {**settings.SCHEDULER, "MIN_RUNTIME_S": 0, "HYSTERESIS_S": 0}
    builders.gpu_type()
    offered.label(RACK, gpu001="r1", gpu002="r2", gpu003="r1", gpu004="r2")
    connect("--levels", f"{RACK}=rack")
    imported()
    site = Site(offered)
    backends, memory = Backends({site.cluster.pk: site.backend}), Memory()
    team = leaf("team", 32)

    def gang(workers: int) -> Job:
        roles = [{"name": "worker", "min": workers, "gpus": 8, "cpus": 2}]
        spec = {"roles": roles, "topology": {"required": "rack"}}
        return submit(team, gpus=8, workers=workers, at=now(), spec=spec, launch={"shell": "exec sleep 300"}, name=f"gang-{workers}")

    def there(job: Job) -> Job | None:
        tick_run(holder="test", now=now(), backends=backends, memory=memory)
        return Job.objects.filter(pk=job.pk, state=JobState.RUNNING).first()

    try:
        three, two, more = gang(3), gang(2), gang(2)
        for job in (two, more):
            wait_until(lambda job=job: there(job), seconds=60, what=f"{job.name} to run: {site.mine()}")
        racks = [set(Placement.objects.filter(job=job).values_list("node__domain__path", flat=True)) for job in (two, more)]
        nodes = {pod["spec"]["nodeName"] for pod in offered.pods()}
    finally:
        site.backend.pods.stop()

    assert sorted(map(sorted, racks)) == [["r1"], ["r2"]]
    assert nodes == set(NODES)
    assert Job.objects.get(pk=three.pk).state not in HOLDING, "no rack has three nodes"
    assert not fleet_faults()


def test_each_round_closes_its_connections(offered, monkeypatch):
    from scheduler.services.hardware import kubernetes_nodes

    connect()
    imported()
    closed = []
    monkeypatch.setattr("scheduler.backends.kubernetes.client.KubernetesClient.close", lambda self: closed.append(self))

    kubernetes_nodes.kubernetes_nodes_reconcile(now=now())

    assert len(closed) == 1
