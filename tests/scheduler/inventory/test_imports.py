"""Importing hardware: what a file says is what there is afterwards, a second time changes nothing, and nothing is half done."""

import json
from pathlib import Path

import pytest
from django.core.exceptions import PermissionDenied

from gpufleet.core.faults import Conflict
from gpufleet.core.models import AuditEntry, Change
from scheduler.imports.documents import format_of
from scheduler.models import Cluster, Domain, Gpu, GpuMode, GpuType, InventoryEvent, InventoryImport, MigInstance, Nic, Node, Pool, TopologyLevel
from scheduler.services.hardware.imports import import_apply, import_plan, import_preview
from tests.builders import NOON, gpu, placement

pytestmark = pytest.mark.django_db
SAMPLES = Path(__file__).parents[3] / "docs/operate/samples"
NAMES = ["inventory.yaml", "inventory.json", "inventory.csv"]


@pytest.fixture
def operator(personas):
    return personas.access("operator")


def previewed(operator, text, form="yaml", **more):
    return import_preview(access=operator, text=text, form=form, source="test", remove_missing=more.pop("remove_missing", False), now=NOON)


def imported(operator, text, form="yaml", **more):
    preview = previewed(operator, text, form, **more)
    assert [str(fault) for fault in preview.faults] == []
    assert preview.upload is not None, "there is nothing to apply"
    return import_apply(access=operator, upload=preview.upload, now=NOON)


def lines(plan):
    return [f"{change.kind} {change.what} {change.name}" for change in plan.changes]


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_of_the_documentation_becomes_hardware(operator, name):
    imported(operator, (SAMPLES / name).read_text(), format_of(name))
    assert Cluster.objects.get().name == "north"
    assert sorted(Pool.objects.values_list("name", flat=True)) == ["slices", "training"]
    assert sorted(Domain.objects.values_list("path", flat=True)) == ["spine-1", "spine-1/leaf-1", "spine-1/leaf-2"]
    assert Domain.objects.get(path="spine-1/leaf-2").parent.path == "spine-1"
    one, two = Node.objects.order_by("name")
    assert (one.domain.path, one.pool.name, one.cpus, one.host_memory_mib, one.labels, one.spare) == (
        "spine-1/leaf-1",
        "training",
        192,
        2_097_152,
        {"rack": "a1"},
        False,
    )
    assert (one.gpus.count(), one.nics.count(), two.spare) == (8, 2, True)
    assert list(Nic.objects.order_by("name").values_list("name", "rail", "speed_gbps")) == [("mlx5_0", 0, 400), ("mlx5_1", 1, 400)]
    first, second = two.gpus.order_by("index")
    assert (first.mode, first.island, first.uuid, first.memory_mib) == (GpuMode.MIG, "island-0", "GPU-3c1f6f2a-0000", 81_559)
    assert second.mode == GpuMode.WHOLE
    assert list(first.mig_instances.values_list("profile", "start", "size")) == [("4g.40gb", 0, 4), ("3g.40gb", 4, 4)]
    assert GpuType.objects.get().board == "H100-80"
    assert InventoryEvent.objects.filter(kind="added").count() == 2
    assert AuditEntry.objects.get(action="inventory.import").after["added"] == 11
    assert {change.topic for change in Change.objects.all()} == {"nodes", "gpus", "overview"}


def test_the_preview_says_what_new_rows_are_given():
    plan = import_plan(text=(SAMPLES / "inventory.yaml").read_text(), form="yaml", remove_missing=False)
    given = {(change.what, change.name): {part.field: part.after for part in change.differences} for change in plan.changes}

    assert given["cluster", "north"]["title"] == "North hall"
    assert given["level", "north spine"] == {"bandwidth_gbps": 1600, "oversubscription_centi": 200}
    assert given["domain", "north spine-1/leaf-2"] == {"bandwidth_gbps": 1600}
    assert (given["node", "north/n1"]["cpus"], given["node", "north/n1"]["labels"], given["node", "north/n1"]["gpus"]) == (192, {"rack": "a1"}, 8)


@pytest.mark.parametrize("first", NAMES)
@pytest.mark.parametrize("second", NAMES)
def test_importing_the_same_again_changes_nothing(operator, first, second):
    imported(operator, (SAMPLES / first).read_text(), format_of(first))
    again = previewed(operator, (SAMPLES / second).read_text(), format_of(second))
    assert again.faults == []
    if {first, second} == {"inventory.csv", "inventory.yaml"} or {first, second} == {"inventory.csv", "inventory.json"}:
        # What the spreadsheet has no column for is all that differs, and nothing that a node is or holds.
        assert all(change.what in ("GPU type", "cluster", "level", "domain", "GPU") for change in again.plan.changes)
    else:
        assert (again.plan.changes, again.upload) == ([], None)


def test_the_preview_names_each_field_and_leaves_everything_as_it_is(operator):
    text = (SAMPLES / "inventory.yaml").read_text()
    imported(operator, text)
    before = list(Node.objects.values()), list(Gpu.objects.values())
    text = text.replace("cpus: 192", "cpus: 224").replace("spine-1, leaf: leaf-1", "spine-1, leaf: leaf-2").replace("{rack: a1}", "{rack: a2}")
    text = text.replace("profile: 3g.40gb, start: 4", "profile: 2g.20gb, start: 4").replace("numa_node: 0", "numa_node: 1", 1)
    preview = previewed(operator, text)
    told = {change.name: [(part.field, part.before, part.after) for part in change.differences] for change in preview.plan.changes}
    assert told == {
        "north/n1": [("cpus", 192, 224), ("labels", {"rack": "a1"}, {"rack": "a2"}), ("path", "spine-1/leaf-1", "spine-1/leaf-2")],
        "north/n2 GPU 0": [("numa_node", 0, 1), ("split", "4g.40gb@0 3g.40gb@4", "4g.40gb@0 2g.20gb@4")],
    }
    assert (list(Node.objects.values()), list(Gpu.objects.values())) == before
    import_apply(access=operator, upload=preview.upload, now=NOON)
    assert Node.objects.get(name="n1").cpus == 224
    live = MigInstance.objects.filter(removed_at__isnull=True).order_by("start").values_list("profile", flat=True)
    assert list(live) == ["4g.40gb", "2g.20gb"]
    assert InventoryEvent.objects.filter(gpu__isnull=False, kind="geometry").count() == 1
    assert previewed(operator, text).upload is None


def test_keys_that_are_left_out_keep_their_values_and_null_takes_them_away(operator):
    imported(operator, (SAMPLES / "inventory.yaml").read_text())
    plan = imported(operator, "nodes: [{name: n1, cluster: north, pool: null, labels: null, path: null}, {name: n2, cluster: north}]")
    assert lines(plan) == ["changed node north/n1"]
    one = Node.objects.get(name="n1")
    assert (one.pool, one.labels, one.domain, one.cpus, one.gpus.count()) == (None, {}, None, 192, 8)


def test_what_the_file_does_not_name_is_kept_unless_asked(operator):
    imported(operator, (SAMPLES / "inventory.yaml").read_text())
    text = "nodes: [{name: n2, cluster: north, gpus: 1, nics: []}]"
    preview = previewed(operator, text)
    assert lines(preview.plan) == ["kept GPU north/n2 GPU 1", "kept node north/n1"]
    assert preview.upload is None
    plan = imported(operator, text, remove_missing=True)
    assert lines(plan) == ["removed GPU north/n2 GPU 1", "removed node north/n1"]
    assert Node.objects.get(name="n1").removed_at == NOON
    assert Gpu.objects.filter(removed_at__isnull=True).count() == 1
    imported(operator, (SAMPLES / "inventory.yaml").read_text())
    assert Node.objects.filter(name="n1").count() == 2, "a node that comes back is a new one; the old one's history stays"


def test_health_in_a_file_is_for_new_hardware_and_otherwise_only_remarked_on(operator):
    text = "clusters: [{name: c}]\nnodes: [{name: n, cluster: c, gpu_type: H100-SXM-80GB, gpus: 2, unhealthy_gpus: [1], health: suspect}]"
    imported(operator, text)
    assert Node.objects.get().health == "suspect"
    assert list(Gpu.objects.order_by("index").values_list("health", flat=True)) == ["healthy", "down"]
    assert previewed(operator, text).plan.changes == []
    preview = previewed(operator, text.replace("suspect", "healthy").replace("[1]", "[0]"))
    assert preview.upload is None
    assert [(change.name, change.notes[0].split(":")[0]) for change in preview.plan.changes] == [
        ("c/n", "stays suspect"),
        ("c/n GPU 0", "stays healthy"),
    ]


def test_hardware_in_use_is_never_removed_or_split_anew(operator):
    imported(operator, (SAMPLES / "inventory.yaml").read_text())
    one, two = Node.objects.order_by("name")
    placement(on=gpu(one))
    split = gpu(two)
    placement(on=split, mig=MigInstance.objects.get(gpu=split, start=4), gpu_milli=500)
    preview = previewed(operator, "nodes: [{name: n2, cluster: north, spare: false}]", remove_missing=True)
    notes = {change.name: change.notes for change in preview.plan.changes}
    assert notes == {"north/n1": ("1 running job; drain it first",), "north/n2": ("1 running job, which this does not move",)}
    text = "nodes: [{name: n2, cluster: north, gpus: 2, mig: [{gpu: 0, instances: [{profile: 4g.40gb, start: 0}]}]}]"
    assert "3g.40gb at slice 4 is in use" in str(previewed(operator, text).faults[0])
    text = "nodes: [{name: n2, cluster: north, gpus: [{index: 0, mode: whole}, {index: 1}]}]"
    assert "GPU 0 is in use; its mode" in " ".join(str(fault) for fault in previewed(operator, text).faults)


def test_only_what_was_previewed_is_applied_and_only_once(operator):
    text = (SAMPLES / "inventory.yaml").read_text()
    imported(operator, text)
    changed = text.replace("cpus: 192", "cpus: 224")
    stale = previewed(operator, changed).upload
    fresh = previewed(operator, text.replace("cpus: 192", "cpus: 256")).upload
    import_apply(access=operator, upload=fresh, now=NOON)
    with pytest.raises(Conflict, match="has changed since this preview"):
        import_apply(access=operator, upload=stale, now=NOON)
    with pytest.raises(Conflict, match="was applied already"):
        import_apply(access=operator, upload=fresh, now=NOON)
    assert Node.objects.get(name="n1").cpus == 256


def test_boards_that_change_places_keep_their_ids(operator):
    imported(operator, (SAMPLES / "inventory.yaml").read_text())
    swap = {"0000": "0001", "0001": "0000"}
    gpus = ", ".join(f"{{index: {index}, uuid: GPU-3c1f6f2a-{swap[f'000{index}']}}}" for index in range(2))
    imported(operator, f"nodes: [{{name: n2, cluster: north, gpus: [{gpus}]}}]")
    assert list(Gpu.objects.filter(node__name="n2").order_by("index").values_list("uuid", flat=True)) == ["GPU-3c1f6f2a-0001", "GPU-3c1f6f2a-0000"]


def test_only_who_operates_the_fleet_may_look_or_apply(personas, operator):
    text = (SAMPLES / "inventory.yaml").read_text()
    with pytest.raises(PermissionDenied):
        previewed(personas.access("team_lead"), text)
    upload = previewed(operator, text).upload
    with pytest.raises(PermissionDenied):
        import_apply(access=personas.access("quota_admin"), upload=upload, now=NOON)
    assert not Node.objects.exists()


def test_a_fault_while_applying_leaves_nothing_behind(operator, monkeypatch):
    upload = previewed(operator, (SAMPLES / "inventory.yaml").read_text()).upload

    def fail(self):
        raise OSError("disk full")

    monkeypatch.setattr("scheduler.imports.applying.Applying._history", fail)
    with pytest.raises(OSError, match="disk full"):
        import_apply(access=operator, upload=upload, now=NOON)
    assert not Node.objects.exists()
    assert not Cluster.objects.exists()
    assert InventoryImport.objects.get().applied_at is None


def test_rows_are_written_many_a_statement(operator, django_assert_max_num_queries):
    nodes = [
        {
            "name": f"n{number:03}",
            "cluster": "big",
            "path": f"s{number // 64}/l{number // 8}",
            "gpu_type": "H100-SXM-80GB",
            "gpus": [{"index": index, "uuid": f"GPU-{number}-{index}", "numa_node": index // 4} for index in range(8)],
            "nics": [{"name": f"mlx5_{index}", "speed_gbps": 400, "rail": index} for index in range(8)],
        }
        for number in range(500)
    ]
    text = json.dumps({"clusters": [{"name": "big", "levels": ["spine", "leaf"]}], "nodes": nodes})
    with django_assert_max_num_queries(300):  # 8,500 rows; SQLite takes some fifty of them in a statement
        preview = previewed(operator, text, "json")
        import_apply(access=operator, upload=preview.upload, now=NOON)
        assert import_plan(text=text, form="json", remove_missing=True).changes == []
    assert Gpu.objects.count() == 4000


def test_a_later_file_adds_narrower_levels_and_nothing_else(operator):
    def file(levels, path):
        return json.dumps({"clusters": [{"name": "big", "levels": levels}], "nodes": [{"name": "n1", "cluster": "big", "path": path}]})

    imported(operator, file([{"name": "spine", "bandwidth_gbps": 800}], "s1"), "json")

    plan = imported(operator, file(["spine", "leaf"], "s1/l1"), "json")

    assert lines(plan) == ["added level big leaf", "added domain big s1/l1", "changed node big/n1"]
    levels = TopologyLevel.objects.order_by("depth").values_list("name", "depth", "bandwidth_gbps")
    assert list(levels) == [("spine", 0, 800), ("leaf", 1, None)]
    for other in (["leaf"], ["hall", "spine", "leaf"], ["spine"]):
        told = [str(fault) for fault in previewed(operator, file(other, "s1"), "json").faults]
        assert "the levels of big are spine, leaf; an import changes their bandwidth and adds narrower ones" in told[0]
