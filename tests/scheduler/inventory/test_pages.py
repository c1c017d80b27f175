"""The hardware's pages as three kinds of people see them, and what they cost in queries."""

import re

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from gpufleet.core.times import now
from scheduler.backends.registry import backends_all
from scheduler.models import Gpu, GpuMode, GpuSplit, Health, InventoryEvent, JobState, MigInstance, Node
from scheduler.selectors.nodes import NodeRow
from scheduler.services.loop.dispatch import orders_dispatch
from tests.builders import cluster, gpu, job, mig_gpu, nic, node, placement, pool

pytestmark = pytest.mark.django_db
FLEET = [("clusters", ()), ("nodes", ()), ("gpus", ()), ("mig_catalogue", ())]


@pytest.fixture
def fleet(personas):
    """Two nodes; the viewer's team holds a GPU on one, another team a slice on the other."""
    north = cluster(levels=("spine", "leaf"), title="North hall")
    one = node("alpha", of=north, gpus=2, at="s1/l1", pool=pool(of=north), labels={"rack": "a1"})
    two = node("beta", of=north, gpus=2, at="s1/l2", spare=True, health=Health.SUSPECT, health_reason="fell off the bus")
    nic(one)
    ours = job("our-training", state=JobState.RUNNING, on=personas.nodes["acme/research/nlp"])
    theirs = job("secret-training", state=JobState.RUNNING, on=personas.nodes["acme/research/vision"])
    placement(ours, gpu(one))
    split = mig_gpu(two)
    placement(theirs, split, mig=MigInstance.objects.filter(gpu=split).first(), gpu_milli=500)
    return one, two


def addresses(fleet):
    return [
        *(reverse(name, args=arguments) for name, arguments in FLEET),
        reverse("cluster", args=["north"]),
        *(reverse("node", args=[node.public_id]) for node in fleet),
        *(reverse("gpu", args=[gpu.public_id]) for gpu in Gpu.objects.all()),
    ]


def text(client, address):
    answer = client.get(address)
    assert answer.status_code == 200, address
    return answer.content.decode()


def test_every_page_answers_on_an_empty_fleet_and_says_what_to_do(personas):
    for name, arguments in FLEET:
        html = text(personas.client("operator"), reverse(name, args=arguments))
        assert "No hardware yet" in html or name == "mig_catalogue"
    assert 'class="btn btn-primary" href="/inventory/import/"' in text(personas.client("operator"), reverse("nodes"))
    assert "/inventory/import/" not in text(personas.client("viewer"), reverse("nodes"))


def test_the_catalogue_tells_what_an_instance_is_charged_and_how_fast_it_is(personas):
    rows = re.findall(
        r'<th role="rowheader" scope="row">([^<]+)</th>(.*?)</tr>', text(personas.client("viewer"), reverse("mig_catalogue")), re.DOTALL
    )
    cells = {name: [re.sub(r"<[^>]+>", "", cell).strip() for cell in re.findall(r"<td[^>]*>(.*?)</td>", rest, re.DOTALL)] for name, rest in rows}

    assert cells["3g.71gb"] == ["3", "4", "0.5", "60 (45%)", "4, 0", "2", "65\xa0GiB", "read off a device"]
    assert cells["2g.45gb"][3] == "–"


def test_the_list_of_clusters_groups_large_counts(personas):
    node("wide", of=cluster(), gpus=1024)

    assert ">1,024</td>" in text(personas.client("viewer"), reverse("clusters"))


def test_names_of_jobs_end_at_the_subtree(personas, fleet):
    for address in addresses(fleet):
        seen = text(personas.client("viewer"), address)
        assert "secret-training" not in seen
        assert "vision" not in seen
    one, two = fleet
    assert "our-training" in text(personas.client("viewer"), reverse("node", args=[one.public_id]))
    assert "another team" in text(personas.client("viewer"), reverse("node", args=[two.public_id]))
    assert "another team" in text(personas.client("viewer"), reverse("gpus"))
    assert "secret-training" in text(personas.client("operator"), reverse("node", args=[two.public_id]))
    file = b"".join(personas.client("viewer").get(reverse("gpus") + "?format=csv").streaming_content).decode()
    assert "secret" not in file
    assert "another team" in file


def test_a_node_says_which_jobs_a_drain_would_touch(personas, fleet):
    one, two = fleet
    mine = text(personas.client("operator"), reverse("node", args=[one.public_id]))
    assert "Jobs here" in mine and "acme/research/nlp" in mine

    theirs = text(personas.client("viewer"), reverse("node", args=[two.public_id]))
    assert "another team" in theirs and "0.5" in theirs
    assert "acme/research/vision" not in theirs


def test_a_node_of_many_jobs_shows_eight_and_folds_the_rest(personas):
    crowded = node("crowded", gpus=10)
    for number, device in enumerate(crowded.gpus.order_by("index")):
        placement(of=job(f"job-{number}", state=JobState.RUNNING), on=device)
    shown, folded = text(personas.client("operator"), reverse("node", args=[crowded.public_id])).split("Jobs here</h2>")[1].split("Show 2 more")
    assert [number for number in range(10) if f">job-{number}<" in folded] == [8, 9]
    assert "10 jobs" in shown and ">job-7<" in shown


def test_strangers_see_no_hardware_and_nobody_is_sent_to_sign_in(personas, fleet):
    for address in addresses(fleet):
        assert personas.client("stranger").get(address).status_code == 403
        assert personas.client("anonymous").get(address).status_code == 302


def test_what_is_not_there_is_404(personas):
    for address in ("/clusters/nowhere/", "/nodes/n-1/", "/gpus/g-1/", "/nodes/c-1%00/"):
        assert personas.client("viewer").get(address).status_code == 404


def test_a_node_that_was_removed_keeps_its_page_and_loses_its_buttons(personas, fleet):
    one, _ = fleet
    Node.objects.filter(pk=one.pk).update(removed_at=one.created_at)
    html = text(personas.client("operator"), reverse("node", args=[one.public_id]))
    assert "Removed" in html
    assert "Mark suspect" not in html
    assert "alpha" not in text(personas.client("operator"), reverse("nodes"))


def test_the_node_page_shows_what_there_is(personas, fleet):
    one, two = fleet
    html = text(personas.client("viewer"), reverse("node", args=[one.public_id]))
    for part in ("rack=a1", "mlx5_0", "s1/l1", "H100-SXM-80GB", "our-training"):
        assert part in html
    assert "Mark suspect" not in html
    html = text(personas.client("operator"), reverse("node", args=[two.public_id]))
    assert "<svg" in html
    assert "3g.40gb at slice 0 held by secret-training" in html
    assert "Mark healthy" in html
    assert "Give back to placement" in html


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("/nodes/?health=suspect", ["beta"]),
        ("/nodes/?busy=no", []),
        ("/nodes/?spare=yes", ["beta"]),
        ("/nodes/?pool=main", ["alpha"]),
        ("/nodes/?place=l2", ["beta"]),
        ("/nodes/?q=bus", ["beta"]),
        ("/nodes/?sort=-name", ["beta", "alpha"]),
        ("/gpus/?mode=mig", ["beta"]),
        ("/gpus/?taken=no&sort=-node", ["beta", "alpha"]),
        ("/gpus/?type=H100-SXM-80GB&cluster=north&taken=yes", ["alpha", "beta"]),
    ],
)
def test_lists_filter_and_sort(personas, fleet, address, expected):
    html = text(personas.client("viewer"), address)
    body = html.partition("<tbody")[2]
    found = [name for name in body.replace("<", ">").split(">") if name in ("alpha", "beta")]
    assert list(dict.fromkeys(found)) == expected


@pytest.mark.parametrize("name", ["clusters", "nodes", "gpus"])
@pytest.mark.parametrize("column", range(12))
def test_every_heading_sorts_both_ways(personas, fleet, name, column):
    from scheduler.hardware import lists

    table = getattr(lists, name.upper())
    keys = [item.key for item in table.columns if item.sort]
    if column >= len(keys):
        return
    for sort in (keys[column], f"-{keys[column]}"):
        answer = personas.client("viewer").get(reverse(name), {"sort": sort})
        assert answer.status_code == 200
        assert not answer.context["page"].problems


# The page of a node and of a GPU tells also what each GPU does now: its newest readings are two queries. The list of nodes reads one of them,
# and two for the jobs: gpufleet's and others.
BUDGETS = {"clusters": 10, "nodes": 18, "gpus": 17, "cluster": 17, "node": 18, "gpu": 17}


@pytest.mark.parametrize("name", BUDGETS)
def test_pages_cost_the_same_for_few_and_for_many(personas, fleet, name):
    one, _ = fleet
    place = {"cluster": ["north"], "node": [one.public_id], "gpu": [one.gpus.first().public_id]}.get(name, [])
    address = reverse(name, args=place)

    def queries():
        with CaptureQueriesContext(connection) as seen:
            text(personas.client("viewer"), address)
        return len(seen)

    queries()
    few = queries()
    north = one.cluster
    for number in range(20):
        made = node(of=north, gpus=2, at=f"s{number % 3}/l{number}")
        placement(on=gpu(made))
    placement(on=one.gpus.last())
    assert queries() == few
    assert few <= BUDGETS[name]


def test_health_is_changed_with_a_reason_and_told_everywhere(personas, fleet):
    one, _ = fleet
    client = personas.client("operator")
    address = reverse("node_health", args=[one.public_id])
    refused = client.post(address, {"to": "draining", "seen": "healthy", "reason": " "})
    assert refused.status_code == 422
    assert "A reason is required" in refused.content.decode()
    assert client.post(address, {"to": "draining", "seen": "healthy", "reason": "new fans"}).status_code == 302
    html = text(client, reverse("node", args=[one.public_id]))
    assert "new fans" in html
    assert "Draining" in html
    blocked = client.post(address, {"to": "drained", "seen": "draining", "reason": "done"})
    assert blocked.status_code == 422
    assert "1 job runs here" in blocked.content.decode()
    stale = client.post(address, {"to": "down", "seen": "healthy", "reason": "gone"})
    assert stale.status_code == 409
    assert "It is draining by now" in stale.content.decode()
    impossible = client.post(address, {"to": "burn_in", "seen": "draining", "reason": "x"})
    assert "From draining it can become" in impossible.content.decode()
    assert personas.client("team_lead").post(address, {"to": "down", "reason": "x"}).status_code == 403


def test_a_node_becomes_a_spare_and_back(personas, fleet):
    one, _ = fleet
    address = reverse("node_spare", args=[one.public_id])
    client = personas.client("operator")
    assert client.post(address, {"spare": "yes", "reason": "one per rack"}).status_code == 302
    assert Node.objects.get(pk=one.pk).spare
    again = client.post(address, {"spare": "yes", "reason": "one per rack"})
    assert again.status_code == 422
    assert "already a spare" in again.content.decode()
    assert client.post(address, {"spare": "perhaps", "reason": "x"}).status_code == 422


def test_one_gpu_leaves_service_alone(personas, fleet):
    one, _ = fleet
    second = one.gpus.get(index=1)
    address = reverse("gpu_health", args=[second.public_id])
    assert personas.client("operator").post(address, {"to": "suspect", "seen": "healthy", "reason": "ECC"}).status_code == 302
    assert Gpu.objects.get(pk=second.pk).health == Health.SUSPECT
    assert Node.objects.get(pk=one.pk).health == Health.HEALTHY
    assert InventoryEvent.objects.filter(gpu=second, kind="health", cause="ECC").count() == 1


def test_a_gpu_is_split_by_its_page(personas, fleet):
    one, two = fleet
    client = personas.client("operator")
    free = one.gpus.get(index=1)
    address = reverse("gpu_geometry", args=[free.public_id])
    html = text(client, address)
    assert "14 full layouts" in html or "19 full layouts" in html
    assert 'value="4g.40gb@0 3g.40gb@4"' in html or 'value="3g.40gb@4 4g.40gb@0"' in html
    impossible = client.post(address, {"mode": "mig", "layout": "4g.40gb@4", "seen": "", "reason": "x"})
    assert impossible.status_code == 422
    assert "4g.40gb can&#x27;t start at slice 4 on H100-80; it can at 0." in impossible.content.decode()
    nonsense = client.post(address, {"mode": "mig", "layout": "half", "seen": "", "reason": "x"})
    assert "is not an instance" in nonsense.content.decode()
    wanted = {"mode": "mig", "layout": "4g.40gb@0 3g.40gb@4", "seen": "", "reason": "small jobs"}
    preview = client.post(address, wanted).content.decode()
    assert "Nothing to wait for." in preview
    assert not GpuSplit.objects.exists(), "a preview writes nothing"
    assert client.post(address, wanted | {"step": "apply"}).status_code == 302
    assert Gpu.objects.get(pk=free.pk).mode == GpuMode.WHOLE, "the inventory changes when the back-end has confirmed it"
    assert "ordered; waits for the back-end to confirm" in text(client, reverse("gpu", args=[free.public_id]))
    confirm()
    assert Gpu.objects.get(pk=free.pk).mode == GpuMode.MIG
    stale = client.post(address, {"step": "apply", "mode": "mig", "layout": "7g.80gb@0", "seen": "", "reason": "x"})
    assert stale.status_code == 409
    taken = one.gpus.get(index=0)
    preview = client.post(reverse("gpu_geometry", args=[taken.public_id]), wanted).content.decode()
    assert "1 job must end first" in preview
    assert "our-training" in preview
    split = two.gpus.get(index=0)
    html = text(client, reverse("gpu_geometry", args=[split.public_id]))
    assert "3g.40gb at slice 0 (in use)" in html
    assert personas.client("viewer").get(address).status_code == 403


def confirm():
    orders_dispatch(backends=backends_all(), now=now())


def test_a_repartition_of_a_gpu_in_use_drains_it_and_can_be_cancelled(personas, fleet):
    taken = fleet[0].gpus.get(index=0)
    client, address = personas.client("operator"), reverse("gpu_geometry", args=[taken.public_id])
    client.post(address, {"step": "apply", "mode": "mig", "layout": "7g.80gb@0", "seen": "", "reason": "slices"})

    page = text(client, reverse("gpu", args=[taken.public_id]))
    assert "draining; no new jobs, running jobs finish" in page
    assert "Cancel the repartition" in page
    assert "Cancel the repartition" not in text(personas.client("viewer"), reverse("gpu", args=[taken.public_id]))
    assert client.post(address, {"step": "cancel"}).status_code == 302
    assert Gpu.objects.get(pk=taken.pk).health == Health.HEALTHY
    assert client.post(address, {"step": "cancel"}).status_code == 409


@pytest.mark.parametrize(
    ("healths", "told"),
    [
        (["healthy"] * 3, "All healthy"),
        (["healthy", "suspect", "down", "down"], "GPU 1 suspect, GPUs 2, 3 down"),
        ([], "All healthy"),
    ],
)
def test_which_gpus_of_a_node_are_not_healthy_is_told(healths, told):
    row = NodeRow(Node(), len(healths), tuple(enumerate(healths)), 0)

    assert row.health_told == told
    assert row.sick_gpus == sum(health != "healthy" for health in healths)
    assert [health for _, health in row.health_strip] == healths
