"""Hardware over HTTP: the same filters and the same silence about other teams as the pages, and writes that answer like forms."""

from pathlib import Path

import pytest

from gpufleet.core.models import AuditEntry
from gpufleet.core.times import now
from scheduler.backends.registry import backends_all
from scheduler.hardware.discovery import NothingFound
from scheduler.models import Gpu, GpuMode, GpuSplit, Health, JobState, MigInstance, Node
from scheduler.services.loop.dispatch import orders_dispatch
from tests.builders import cluster, gpu, job, mig_gpu, nic, node, placement
from tests.scheduler.inventory.test_import_faults import YAML

pytestmark = pytest.mark.django_db
SAMPLES = Path(__file__).parents[3] / "docs/operate/samples"
ROOT = "/api/v1"


@pytest.fixture
def api(personas):
    """Calls as a person: `api("viewer", "get", "/nodes", 200)`."""

    def call(who, method, path, status, body=None):
        client = personas.client(who)
        answer = (
            getattr(client, method)(ROOT + path, body, content_type="application/json") if body is not None else getattr(client, method)(ROOT + path)
        )
        assert answer.status_code == status, answer.content
        return answer.json()

    return call


@pytest.fixture
def fleet(personas):
    north = cluster(levels=("spine", "leaf"))
    one = node("alpha", of=north, gpus=2, at="s1/l1")
    two = node("beta", of=north, gpus=1, at="s1/l2", health=Health.SUSPECT)
    nic(one)
    placement(job("secret", state=JobState.RUNNING, on=personas.nodes["acme/research/vision"]), gpu(one))
    split = mig_gpu(two)
    placement(job("ours", state=JobState.RUNNING, on=personas.nodes["acme/research/nlp"]), split, mig=split.mig_instances.first(), gpu_milli=500)
    return one, two


def test_lists_are_walked_by_their_tokens_and_filtered_as_on_the_page(api, fleet):
    first = api("viewer", "get", "/gpus?size=2&sort=-node", 200)
    assert [(row["node_name"], row["index"]) for row in first["items"]] == [("beta", 0), ("alpha", 1)]
    assert first["previous"] is None
    second = api("viewer", "get", f"/gpus?size=2&sort=-node&after={first['next']}", 200)
    assert [row["index"] for row in second["items"]] == [0]
    assert second["next"] is None
    assert api("viewer", "get", f"/gpus?size=2&sort=-node&before={second['previous']}", 200)["items"] == first["items"]
    assert [row["name"] for row in api("viewer", "get", "/nodes?health=suspect&q=bet", 200)["items"]] == ["beta"]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("size=0", "can't have “0” rows; it can have 1 to 1000"),
        ("sort=colour", "can't be sorted by “colour”"),
        ("health=odd", "Health can't be “odd”"),
        ("healt=down", "Unknown parameter; health was perhaps meant."),
        ("after=x", "the place in the list can't be read"),
    ],
)
def test_a_query_that_makes_no_sense_is_refused(api, fleet, query, said):
    (error,) = api("viewer", "get", f"/nodes?{query}", 422)["errors"]
    assert said in error["message"]
    assert error["path"] == query.partition("=")[0]


def test_holders_are_named_only_where_the_caller_may_see(api, fleet, personas):
    one, two = fleet
    held = api("viewer", "get", f"/nodes/{one.public_id}", 200)["gpus"][0]["held_by"]
    assert held[0]["job"] is None
    assert held[0]["gpu_milli"] == 1000
    detail = api("viewer", "get", f"/nodes/{two.public_id}", 200)
    assert detail["gpus"][0]["held_by"][0]["job"]["name"] == "ours"
    assert [part["profile"] for part in detail["gpus"][0]["instances"]] == ["3g.40gb", "3g.40gb"]
    assert "secret" not in personas.client("viewer").get(f"{ROOT}/gpus").content.decode()
    assert api("operator", "get", f"/gpus/{gpu(one).public_id}", 200)["held_by"][0]["job"]["name"] == "secret"


def test_the_topology_comes_as_a_tree_with_sums(api, fleet):
    found = api("viewer", "get", "/clusters/north", 200)
    spine = found["topology"][0]
    assert (spine["path"], spine["nodes"], spine["gpus"], spine["allocated_milli"], spine["free_gpus"]) == ("s1", 2, 3, 1500, 1)
    assert [leaf["path"] for leaf in spine["domains"]] == ["s1/l1", "s1/l2"]
    assert api("viewer", "get", "/clusters", 200)["items"][0]["gpus"] == 3
    board = api("viewer", "get", "/mig/boards", 200)["items"][0]
    assert (board["name"], board["sms"]) == ("A100-40", 108)
    assert [(one["name"], one["charge_milli"], one["sms"]) for one in board["profiles"]][-2:] == [("4g.20gb", 500, 56), ("7g.40gb", 1000, 98)]


def test_writes_answer_like_forms_and_land_in_history_and_audit(api, fleet):
    one, two = fleet
    address = f"/nodes/{one.public_id}/health"
    assert api("operator", "post", address, 200, {"to": "draining", "reason": "fans", "seen": "healthy"})["health"] == "draining"
    assert {error["path"] for error in api("operator", "post", address, 422, {"to": "healthy-ish", "reason": ""})["errors"]} == {"to", "reason"}
    assert "by now" in api("operator", "post", address, 409, {"to": "down", "reason": "x", "seen": "healthy"})["detail"]
    assert api("operator", "get", f"/nodes/{one.public_id}/history", 200)["items"][0]["cause"] == "fans"
    assert AuditEntry.objects.get(action="node.health").reason == "fans"
    api("operator", "post", f"/nodes/{two.public_id}/spare", 200, {"spare": True, "reason": "one per rack"})
    assert Node.objects.get(pk=two.pk).spare


def test_geometry_is_checked_by_the_catalogue_and_by_what_runs(api, fleet):
    one, two = fleet
    free = one.gpus.get(index=1)
    address = f"/gpus/{free.public_id}/geometry"
    bad = {"mode": "mig", "instances": [{"profile": "3g.40gb", "start": 0}, {"profile": "4g.40gb", "start": 0}], "reason": "x"}
    assert "overlaps" in api("operator", "put", address, 422, bad)["errors"][0]["message"]
    good = {"mode": "mig", "instances": [{"profile": "1g.10gb", "start": 6}], "reason": "small", "seen": []}
    preview = api("operator", "put", f"{address}?dry_run=true", 200, good)["repartition"]
    assert (preview["state"], preview["opening"][0]) == ("preview", "No waiting job would start because of it.")
    assert not GpuSplit.objects.exists()
    told = api("operator", "put", address, 200, good)
    assert (told["instances"], told["repartition"]["state"], told["repartition"]["instances"][0]["start"]) == ([], "ordered", 6)
    assert "already" in api("operator", "put", address, 409, good)["detail"]
    confirm()
    told = api("operator", "get", f"/gpus/{free.public_id}", 200)
    assert ([part["start"] for part in told["instances"]], told["repartition"], told["health"]) == ([6], None, "healthy")
    assert "changed since" in api("operator", "put", address, 409, good)["detail"]
    assert "already" in api("operator", "put", address, 422, good | {"seen": None})["errors"][0]["message"]
    api("operator", "put", address, 200, {"mode": "whole", "reason": "back"})
    confirm()
    assert Gpu.objects.get(pk=free.pk).mode == GpuMode.WHOLE
    held = two.gpus.get()
    waits = api("operator", "put", f"/gpus/{held.public_id}/geometry", 200, {"mode": "mig", "instances": [], "reason": "x"})["repartition"]
    assert (waits["state"], waits["jobs_ahead"]) == ("draining", 1)
    assert MigInstance.objects.filter(gpu=held, removed_at__isnull=True).count() == 2
    assert api("operator", "delete", f"/gpus/{held.public_id}/geometry", 200)["repartition"] is None
    assert Gpu.objects.get(pk=held.pk).health == Health.HEALTHY


def confirm():
    orders_dispatch(backends=backends_all(), now=now())


def test_a_gpu_is_not_split_over_somebody_elses_change(api, fleet, personas):
    free = fleet[0].gpus.get(index=1)
    address, client = f"/api/v1/gpus/{free.public_id}", personas.client("operator")
    read = client.get(address)["ETag"]

    def put(instances, tag):
        body = {"mode": "mig", "instances": instances, "reason": "small"}
        return client.put(f"{address}/geometry", body, content_type="application/json", headers={"If-Match": tag})

    first = put([{"profile": "1g.10gb", "start": 6}], read)
    confirm()
    late = put([{"profile": "1g.10gb", "start": 5}], read)

    assert (first.status_code, late.status_code) == (200, 412)
    assert late["ETag"] == client.get(address)["ETag"] != read == first["ETag"]
    assert put([{"profile": "1g.10gb", "start": 5}], late["ETag"]).status_code == 200


def test_a_file_is_previewed_then_applied_once(api):
    text = (SAMPLES / "inventory.yaml").read_text()
    preview = api("operator", "post", "/inventory/imports", 200, {"format": "yaml", "text": text})
    assert preview["counts"] == {"added": 11}
    assert not Node.objects.exists()
    assert api("operator", "post", f"/inventory/imports/{preview['id']}/apply", 200, {}) == {"id": preview["id"], "changes": 11}
    assert api("operator", "get", f"/inventory/imports/{preview['id']}", 200)["applied_at"]
    assert "applied already" in api("operator", "post", f"/inventory/imports/{preview['id']}/apply", 409, {})["detail"]
    again = api("operator", "post", "/inventory/imports", 200, {"format": "yaml", "text": text})
    assert again == {"id": None, "changes": [], "counts": {}, "notes": []}


def test_a_bad_file_is_answered_with_every_fault_by_its_place(api):
    errors = api("operator", "post", "/inventory/imports", 422, {"format": "yaml", "text": YAML})["errors"]
    assert len(errors) == 21
    assert errors[0] == {"path": "1:9", "message": "format: “gpufleet-inventory/2” is none of gpufleet-inventory/1"}


def test_discovery_without_a_driver_is_409_with_advice(api, monkeypatch):
    def nothing(*, virtual):
        raise NothingFound(["libnvidia-ml.so.1: not found"])

    monkeypatch.setattr("scheduler.services.hardware.discovery.machine_read", nothing)
    found = api("operator", "post", "/inventory/discovery", 409, {})
    assert found["tried"] == ["libnvidia-ml.so.1: not found"]
    assert found["advice"]


@pytest.mark.parametrize("address", ["/nodes", "/gpus", "/clusters"])
def test_lists_cost_the_same_for_few_and_for_many(api, fleet, address, django_assert_max_num_queries):
    for number in range(30):
        placement(on=gpu(node(of=fleet[0].cluster, gpus=1, at=f"s1/x{number}")))
    api("viewer", "get", "/me", 200)  # signing in has queries of its own
    with django_assert_max_num_queries(11 if address == "/gpus" else 10):  # GPUs have their readings, too
        assert len(api("viewer", "get", address, 200)["items"]) == (1 if address == "/clusters" else 32 if address == "/nodes" else 33)
