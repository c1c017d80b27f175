"""The map's data, its table and the API: every GPU once, names only for those who may know them."""

import base64
import json

import pytest
from django.urls import reverse

from dashboards.fleetmap import gpu_columns, map_snapshot, telemetry_frames
from dashboards.selectors import SEVERITY, places_all
from gpufleet.core.times import millis, now
from scheduler.models import Gpu, Health, JobState
from tests import builders
from tests.builders import NOON
from tests.dashboards.worlds import gpus_of, large_fleet, readings

pytestmark = pytest.mark.django_db


@pytest.fixture
def two_teams(personas):
    """Two nodes; nlp holds a GPU of the first, vision one of the second."""
    north = builders.cluster(levels=("spine", "leaf"))
    first = builders.node("node-2", gpus=2, at="spine-1/leaf-2", of=north)
    second = builders.node("node-10", gpus=2, at="spine-1/leaf-10", of=north)
    mine = builders.job("ours", state=JobState.RUNNING, on=personas.nodes["acme/research/nlp"])
    theirs = builders.job("top-secret", state=JobState.RUNNING, on=personas.nodes["acme/research/vision"])
    builders.placement(mine, on=gpus_of(first)[0])
    builders.placement(theirs, on=gpus_of(second)[1])
    readings(dict(zip([*gpus_of(first), *gpus_of(second)], (90, None, 5, 40), strict=True)), at=now())
    return personas


def snapshot(personas, name):
    return json.loads(personas.client(name).get("/live/gpus/snapshot").content)


def text_of(response):
    return (response.getvalue() if response.streaming else response.content).decode()


def test_every_gpu_is_there_once_in_the_order_of_the_topology(two_teams):
    found = snapshot(two_teams, "viewer")

    assert found["nodes"]["name"] == ["node-2", "node-10"]
    assert found["nodes"]["path"] == ["spine-1/leaf-2", "spine-1/leaf-10"]
    assert found["gpus"]["node"] == [0, 0, 1, 1]
    assert found["gpus"]["index"] == [0, 1, 0, 1]
    assert found["gpus"]["milli"] == [1000, 0, 0, 1000]
    assert {len(column) for column in found["gpus"].values()} == {4}


def test_readings_stand_where_their_gpus_do(two_teams):
    (reading,) = snapshot(two_teams, "viewer")["readings"]

    by_gpu = dict(zip(reading["ids"], base64.b64decode(reading["sm"]), strict=True))
    assert list(by_gpu.values()) == [90, 255, 5, 40]
    assert set(by_gpu) == set(Gpu.objects.values_list("pk", flat=True))


@pytest.mark.parametrize(("name", "sees"), [("operator", True), ("viewer", False), ("submitter", False)])
def test_who_holds_a_gpu_is_named_only_where_the_viewer_may_see(two_teams, name, sees):
    table, file = "/fleet/?view=table", "/fleet/?view=table&format=csv"
    paths = ("/live/gpus/snapshot", "/live/nodes/snapshot", "/fleet/", table, file, "/api/v1/fleet/map")
    pages = [text_of(two_teams.client(name).get(path)) for path in paths]

    assert ("vision" in pages[0]) is sees
    assert ("vision" in pages[3]) is sees
    assert ("another team" in pages[3]) is not sees
    assert all(("vision" in page) <= sees for page in pages)
    assert not any("top-secret" in page for page in pages)


def test_what_goes_over_the_socket_names_nobody(two_teams):
    sent = json.dumps([gpu_columns(gpu_ids=list(Gpu.objects.values_list("pk", flat=True))), telemetry_frames()])

    assert not any(word in sent for word in ("nlp", "vision", "ours", "secret"))


def test_a_change_of_a_node_is_a_change_of_its_gpus(two_teams):
    node = builders.node("sick", gpus=2, health=Health.DOWN)

    columns = gpu_columns(node_ids=[node.pk])

    assert columns["id"] == [gpu.pk for gpu in gpus_of(node)]
    assert columns["health"] == [SEVERITY.index(Health.DOWN)] * 2


def test_a_change_says_the_same_as_a_new_snapshot(two_teams):
    full = map_snapshot(two_teams.access("operator"), now=NOON)["gpus"]

    changed = gpu_columns(gpu_ids=full["id"])

    in_order = {pk: place for place, pk in enumerate(changed["id"])}
    for column in ("health", "mode", "milli", "owner", "since"):
        assert [changed[column][in_order[pk]] for pk in full["id"]] == full[column]


def test_a_gpu_that_is_removed_is_said_to_be_gone():
    kept, removed = gpus_of(builders.node(gpus=2))
    Gpu.objects.filter(pk=removed.pk).update(removed_at=NOON)

    columns = gpu_columns(gpu_ids=[kept.pk, removed.pk])

    assert (columns["id"], columns["gone"]) == ([kept.pk], [removed.pk])


def test_a_frame_of_other_gpus_has_another_order():
    first, second = gpus_of(builders.node(gpus=2))
    readings({first: 1, second: 2}, at=NOON)
    before = telemetry_frames()
    readings({first: 3, second: 4}, at=NOON)
    same = telemetry_frames()
    readings({second: 4, first: 3}, at=NOON)

    assert before[0]["order"] == same[0]["order"] != telemetry_frames()[0]["order"]
    assert before[0]["at"] == millis(NOON)


def test_leaf_ten_comes_after_leaf_two():
    north = builders.cluster(levels=("spine", "leaf"))
    for number in (10, 2, 1):
        builders.node(f"n{number}", of=north, at=f"spine-1/leaf-{number}")

    assert [place.name for place in places_all()] == ["n1", "n2", "n10"]


def test_the_table_says_what_the_cells_say(two_teams):
    text = two_teams.client("viewer").get(reverse("fleet"), {"view": "table"}).content.decode()
    rows = text_of(two_teams.client("viewer").get(reverse("fleet"), {"view": "table", "format": "csv"})).splitlines()

    assert "node-2" in text
    assert "nlp" in text
    assert 'title="No reading"' in text
    assert len(rows) == 5


def test_an_empty_map_says_what_comes_next(personas):
    assert "No hardware yet" in personas.client("operator").get(reverse("fleet")).content.decode()
    assert snapshot(personas, "viewer")["gpus"]["id"] == []


def test_the_summary_for_programs(two_teams):
    builders.rate("H100-SXM-80GB", since=NOON, micros=1_000_000)

    (seen,) = two_teams.client("finance").get("/api/v1/fleet/summary").json()["types"]
    (plain,) = two_teams.client("operator").get("/api/v1/fleet/summary").json()["types"]

    assert (seen["gpus"], seen["allocated_milli"], seen["gap_milli"], seen["without_reading"]) == (4, 2000, 700, 1)
    assert seen["gap_micros_per_hour"] == 700_000
    assert plain["gap_micros_per_hour"] is None
    assert two_teams.client("stranger").get("/api/v1/fleet/summary").status_code == 403


@pytest.mark.parametrize("nodes", [2, 40])
def test_the_map_costs_the_same_queries_at_any_size(personas, django_assert_max_num_queries, nodes):
    large_fleet(nodes, at=now())
    client = personas.client("team_lead")

    for path, most in (("/fleet/", 10), ("/live/gpus/snapshot", 13), ("/fleet/?view=table", 14), ("/api/v1/fleet/map", 13)):
        with django_assert_max_num_queries(most):
            assert client.get(path).status_code == 200


@pytest.mark.django_db
def test_an_empty_fleet_says_what_to_do_in_both_views(personas):
    for address in ("/fleet/", "/fleet/?view=table"):
        assert 'href="/inventory/import/"' in personas.client("operator").get(address).content.decode()
        assert "hardware" in personas.client("viewer").get(address).content.decode()
        assert "/inventory/import/" not in personas.client("viewer").get(address).content.decode()
