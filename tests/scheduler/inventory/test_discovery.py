"""Discovery against a stand-in for the driver's library that is really loaded by nvidia-ml-py, in a process of its own, and against real hardware."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from dashboards.telemetry.nics import nic_speeds_read
from scheduler.hardware import discovery
from scheduler.hardware.discovery import Device, Machine, NothingFound, Slice, document_of, machine_read
from scheduler.hardware.ports import Port, ports_of
from scheduler.models import Gpu, GpuMode, Node
from scheduler.services.hardware.discovery import machine_discover, machine_document
from scheduler.services.hardware.imports import import_apply, import_plan, import_preview
from tests.builders import NOON, cluster, gpu_type, node

STUB = Path(__file__).with_name("nvml_stub.c")
LOOK = """
import json, sys
from dataclasses import asdict
from scheduler.hardware.discovery import NothingFound, machine_read
try:
    print(json.dumps(asdict(machine_read())))
except NothingFound as fault:
    print(json.dumps({"tried": fault.tried, "advice": fault.advice}))
"""


@pytest.fixture(scope="session")
def driver(tmp_path_factory):
    if shutil.which("gcc") is None:
        pytest.skip("gcc is missing (Debian package gcc): the stand-in for the driver can't be built")
    folder = tmp_path_factory.mktemp("driver")
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-o", library, STUB], check=True)
    return folder


def look(folder, **settings):
    environment = os.environ | {"LD_LIBRARY_PATH": str(folder)} | settings
    found = subprocess.run([sys.executable, "-c", LOOK], env=environment, capture_output=True, text=True, check=True, cwd=STUB.parents[3])
    return json.loads(found.stdout)


def machine(found):
    devices = [Device(**{**device, "slices": [Slice(**part) for part in device["slices"]]}) for device in found.pop("devices")]
    return Machine(devices=devices, ports=[Port(*port) for port in found.pop("ports")], **found)


def text_of(found, **more):
    return document_of(found, **({"cluster": "local", "new_cluster": True, "known_types": {}} | more))


def test_whole_gpus_joined_by_switches_are_one_island(driver):
    found = look(driver, STUB_GPUS="8")
    assert (found["driver"], len(found["devices"]), found["islands"]) == ("580.65.06", 8, [list(range(8))])
    first = found["devices"][3]
    assert (first["uuid"], first["memory_mib"], first["numa_node"], first["pcie_generation"], first["pcie_width"]) == ("GPU-stub-3", 81_559, 1, 5, 16)


def test_bridged_pairs_become_islands(driver):
    assert look(driver, STUB_GPUS="4", STUB_PAIRS="1")["islands"] == [[0, 1], [2, 3]]


def test_mig_instances_are_found_with_their_places(driver):
    found = look(driver, STUB_MIG="1")
    assert found["devices"][0]["slices"] == [
        {"profile": "4g.40gb", "start": 0, "uuid": "MIG-stub-100"},
        {"profile": "3g.40gb", "start": 4, "uuid": "MIG-stub-101"},
    ]
    assert found["devices"][1]["mig"] is False


def test_a_split_that_may_not_be_asked_for_is_left_alone(driver):
    found = look(driver, STUB_MIG="1", STUB_NO_PLACEMENT="1")
    assert "only an administrator may ask" in found["notes"][0]
    document = yaml.safe_load(text_of(machine(found)))
    assert "mig" not in document["nodes"][0]
    assert document["nodes"][0]["gpus"][0]["mode"] == "mig"


def test_a_driver_that_does_not_work_is_told(driver):
    found = look(driver, STUB_BROKEN="1")
    assert "(Unknown)" in found["tried"][0]
    assert any("nvidia-smi" in line for line in found["advice"])


def test_a_driver_without_gpus_is_told(driver):
    assert look(driver, STUB_GPUS="0")["tried"][-1] == "The driver reports no GPUs"


@pytest.mark.django_db
def test_what_was_found_is_imported_and_found_again_changes_nothing(driver, personas):
    found = machine(look(driver, STUB_GPUS="4", STUB_PAIRS="1", STUB_MIG="1"))
    text = text_of(found)
    operator = personas.access("operator")
    preview = import_preview(access=operator, text=text, form="yaml", source="discovery", remove_missing=False, now=NOON)
    assert [str(fault) for fault in preview.faults] == []
    import_apply(access=operator, upload=preview.upload, now=NOON)
    here = Node.objects.get()
    assert (here.cluster.name, here.cpus, here.gpu_type.board) == ("local", found.cpus, "H100-80")
    first = here.gpus.get(index=0)
    assert first.mode == GpuMode.MIG
    assert list(first.mig_instances.values_list("profile", "start", "uuid")) == [("4g.40gb", 0, "MIG-stub-100"), ("3g.40gb", 4, "MIG-stub-101")]
    assert sorted(set(Gpu.objects.values_list("island", flat=True))) == ["island-0", "island-1"]
    assert import_plan(text=text, form="yaml", remove_missing=False).changes == []


def test_bandwidths_of_memory_and_of_the_slowest_link_are_found(driver):
    document = yaml.safe_load(text_of(machine(look(driver))))
    assert document["gpu_types"][0]["hbm_gbps"] == 3352
    assert document["nodes"][0]["pcie_gbps"] == 63

    narrow = machine(look(driver, STUB_OLD="1"))
    narrow.devices[1].pcie_width = 8
    document = yaml.safe_load(text_of(narrow))
    assert "hbm_gbps" not in document["gpu_types"][0]
    assert document["nodes"][0]["pcie_gbps"] == 31


@pytest.mark.django_db
def test_bandwidths_that_somebody_has_stated_stay(driver):
    found = machine(look(driver))
    own = gpu_type("H100-SXM-80GB", hbm_gbps=0)
    here = node(found.name, of=cluster("local"))

    told = yaml.safe_load(machine_document(found))
    assert told["gpu_types"] == [{"name": "H100-SXM-80GB", "hbm_gbps": 3352}]
    assert told["nodes"][0]["pcie_gbps"] == 63

    type(own).objects.update(hbm_gbps=3000)
    Node.objects.filter(pk=here.pk).update(pcie_gbps=50)
    told = yaml.safe_load(machine_document(found))
    assert "gpu_types" not in told
    assert "pcie_gbps" not in told["nodes"][0]


@pytest.mark.django_db
def test_a_type_that_the_inventory_knows_keeps_its_name_there(driver):
    gpu_type("H100-SXM-80GB")
    known = {"known_types": {"H100-80": "H100-SXM-80GB"}, "stated_of_types": {"H100-SXM-80GB"}}
    document = yaml.safe_load(text_of(machine(look(driver)), **known, new_cluster=False))
    assert document["nodes"][0]["gpu_type"] == "H100-SXM-80GB"
    assert "gpu_types" not in document
    assert "clusters" not in document


def _has_driver():
    try:
        machine_read()
    except NothingFound:
        return False
    return True


@pytest.mark.django_db
@pytest.mark.skipif(_has_driver(), reason="this machine has an NVIDIA driver; the answer without one can't be seen here")
def test_without_a_driver_the_answer_says_what_was_tried(personas):
    node("someone", of=cluster("local"))
    with pytest.raises(NothingFound) as caught:
        machine_discover(access=personas.access("operator"), cluster="", now=NOON)
    assert "libnvidia-ml.so.1" in caught.value.tried[0]
    assert "LibraryNotFound" in caught.value.tried[0]
    assert any("--gpus all" in line for line in caught.value.advice)


@pytest.mark.gpu
@pytest.mark.django_db
@pytest.mark.skipif(not _has_driver(), reason="no NVIDIA driver here: install one, or run on a machine that has a GPU")
def test_a_real_gpu_is_found_and_imported(personas):
    operator = personas.access("operator")
    found = machine_discover(access=operator, cluster="local", now=NOON)
    assert [str(fault) for fault in found.preview.faults] == []
    import_apply(access=operator, upload=found.preview.upload, now=NOON)
    assert Gpu.objects.count() == len(found.machine.devices)
    assert all(gpu.uuid.startswith("GPU-") and gpu.memory_mib > 1000 for gpu in Gpu.objects.all())
    assert machine_discover(access=operator, cluster="local", now=NOON).preview.upload is None


def test_without_a_driver_there_are_as_many_virtual_gpus_as_were_asked_for(monkeypatch):
    def nothing():
        raise discovery.NothingFound(["no driver"])

    monkeypatch.setattr(discovery, "_machine_read", nothing)
    with pytest.raises(discovery.NothingFound):
        discovery.machine_read()
    machine = discovery.machine_read(virtual=3)

    assert [device.index for device in machine.devices] == [0, 1, 2]
    assert len({device.uuid for device in machine.devices}) == 3
    assert "compute nothing" in machine.notes[0]


def sysfs(folder: Path, ports: dict[str, dict[str, str]]) -> Path:
    """A tree as the kernel shows it: folders by path, each with its files."""
    for place, files in ports.items():
        (folder / place).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / place / name).write_text(text + "\n")
    return folder


def test_network_ports_are_found_with_what_their_links_carry(tmp_path):
    tree = sysfs(
        tmp_path,
        {
            "class/infiniband/mlx5_0/ports/1": {"state": "4: ACTIVE", "rate": "400 Gb/sec (4X NDR)"},
            "class/infiniband/mlx5_1/ports/1": {"state": "1: DOWN", "rate": "10 Gb/sec (4X SDR)"},
            "class/infiniband/mlx4_0/ports/1": {"state": "4: ACTIVE", "rate": "56 Gb/sec (4X FDR)"},
            "class/infiniband/mlx4_0/ports/2": {"state": "4: ACTIVE", "rate": "2.5 Gb/sec (1X SDR)"},
            "class/net/ens1/device/infiniband/mlx5_0": {},
            "class/net/ens1": {"speed": "400000"},
            "class/net/eno1/device": {},
            "class/net/eno1": {"speed": "25000"},
            "class/net/eth0/device": {},
            "class/net/eth0": {"speed": "-1"},
            "class/net/lo": {"speed": "10"},
        },
    )

    assert ports_of(tree) == [("eno1", 25), ("eth0", None), ("mlx4_0", 56), ("mlx5_0", 400), ("mlx5_1", None)]
    assert ports_of(tmp_path / "nowhere") == []
    read = nic_speeds_read(net=tree / "class/net", infiniband=tree / "class/infiniband")
    assert {port.name for port in ports_of(tree) if port.speed_gbps} <= set(read), "telemetry finds each port by its name"


@pytest.mark.django_db
def test_ports_are_imported_once_and_keep_the_rails_that_somebody_states(personas):
    from scheduler.services.hardware.discovery import machine_document

    operator = personas.access("operator")
    machine = discovery.Machine("here", "", 2, 1024, [discovery.Device(0, "virtual", "GPU-virtual-0", 1024)], [[0]])
    machine.ports = [Port("eth0", None), Port("mlx5_0", 400), Port("mlx5_1", 400)]

    def apply(text):
        preview = import_preview(access=operator, text=text, form="yaml", source="discovery", remove_missing=False, now=NOON)
        assert [str(fault) for fault in preview.faults] == []
        import_apply(access=operator, upload=preview.upload, now=NOON)

    apply(machine_document(machine, "local"))
    here = Node.objects.get()
    assert list(here.nics.values_list("name", "speed_gbps", "rail")) == [("mlx5_0", 400, None), ("mlx5_1", 400, None)]
    here.nics.filter(name="mlx5_1").update(rail=1)
    machine.ports = [Port("mlx5_0", 200)]
    assert import_plan(text=machine_document(machine, "local"), form="yaml", remove_missing=False).changes == []


def test_a_port_that_tells_no_speed_is_named(monkeypatch):
    def nothing():
        raise discovery.NothingFound(["no driver"])

    monkeypatch.setattr(discovery, "_machine_read", nothing)
    monkeypatch.setattr(discovery, "ports_of", lambda: [Port("eth0", None), Port("mlx5_0", 400)])
    assert discovery.machine_read(virtual=1).notes[1:] == ["Network ports that are down or do not tell their speed are left out: eth0."]


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["virtual", "NVIDIA GeForce RTX 4090"])
def test_gpus_of_a_kind_that_can_not_be_split_are_imported_and_known_again(personas, name):
    operator = personas.access("operator")
    machine = discovery.Machine("here", "", 2, 1024, [discovery.Device(0, name, "GPU-0", 24_564)], [[0]])
    text = text_of(machine, new_cluster=True)
    preview = import_preview(access=operator, text=text, form="yaml", source="discovery", remove_missing=False, now=NOON)
    assert [str(fault) for fault in preview.faults] == []
    import_apply(access=operator, upload=preview.upload, now=NOON)
    assert Gpu.objects.get().gpu_type.board == ""
    assert import_plan(text=text_of(machine, new_cluster=False), form="yaml", remove_missing=False).changes == []


@pytest.mark.django_db
def test_where_jobs_may_run_here_the_new_cluster_has_the_local_back_end(monkeypatch, settings):
    from scheduler.services.hardware.discovery import machine_document

    machine = discovery.Machine("here", "", 2, 1024, [discovery.Device(0, "virtual", "GPU-virtual-0", 1024)], [[0]])
    assert "backend" not in machine_document(machine)
    settings.LOCAL = {**settings.LOCAL, "LOCAL": True}

    assert yaml.safe_load(machine_document(machine))["clusters"] == [{"name": "local", "backend": "local"}]
