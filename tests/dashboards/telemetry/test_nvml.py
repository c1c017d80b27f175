"""Reading this machine, against a stand-in for the driver's library that nvidia-ml-py really loads, and against real hardware."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dashboards.health.models import HealthBucket
from dashboards.models import TelemetryFrame
from dashboards.readings import hardware_now, network_now
from dashboards.telemetry import machine
from dashboards.telemetry.kernel_log import KernelLog, Xid, kernel_log_read
from dashboards.telemetry.local import Network, local_collect, local_write
from dashboards.telemetry.nics import Retransmissions, nic_errors_read, nic_speeds_read
from dashboards.telemetry.nvml import GPM, NvmlUnavailable, Reading, machine_read, machine_uuids
from scheduler.models import Gpu
from tests import builders
from tests.builders import NOON

STUB = Path(__file__).with_name("nvml_stub.c")
LOOK = """
import json
from dataclasses import asdict
from dashboards.telemetry.nvml import NvmlUnavailable, machine_read, machine_uuids
try:
    print(json.dumps({"uuids": machine_uuids(), "readings": [asdict(reading) for reading in machine_read(interval_seconds=0.01)]}))
except NvmlUnavailable as fault:
    print(json.dumps({"fault": str(fault)}))
"""


@pytest.fixture(scope="session")
def stub_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is missing (Debian package gcc): the stand-in for the driver can't be built")
    folder = tmp_path_factory.mktemp("nvml")
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-o", folder / "libnvidia-ml.so.1", STUB], check=True)
    return folder


def look(folder: Path, **settings: str) -> dict[str, Any]:
    environment = os.environ | {"LD_LIBRARY_PATH": str(folder)} | settings
    done = subprocess.run([sys.executable, "-c", LOOK], env=environment, capture_output=True, text=True, check=True, cwd=STUB.parents[3])
    return json.loads(done.stdout)


def test_counters_are_read_where_the_gpu_has_them(stub_driver: Path) -> None:
    first, second = (Reading(**reading) for reading in look(stub_driver)["readings"])

    assert (first.source, first.sm_active, second.sm_active, first.sm_occupancy) == (GPM, 42.5, 43.5, 31.0)
    assert first.tensor_active is None  # the stand-in does not know it: missing, not zero
    assert (first.memory_used, first.power_watts, first.temperature_c) == (25.0, 401, 61)


@pytest.mark.parametrize(("split", "sm"), [("1", (3 * 45.5 + 2 * 47.5) / 7), ("2", None), ("3", None)])
def test_mig_instances_count_by_their_part_of_the_gpu(stub_driver: Path, split: str, sm: float | None) -> None:
    """Also where an instance has two devices. A GPU without instances, or of which one can't be read, has no reading: it is not idle."""
    first, second = look(stub_driver, STUB_MIG=split)["readings"]

    assert first["sm_active"] == (sm if sm is None else pytest.approx(sm))
    assert first["source"] == (GPM if sm is not None else None)
    assert first["tensor_active"] is None
    assert (second["source"], second["sm_active"], first["memory_used"]) == (GPM, 43.5, 25.0)


def test_processes_throttling_errors_and_the_pcie_link_are_read(stub_driver: Path) -> None:
    first, second = (reading["state"] for reading in look(stub_driver)["readings"])

    counted = {
        "ecc_corrected": 17,
        "ecc_uncorrected": 0,
        "row_remaps": 3,
        "nvlink_errors": 6,
        "nvlink_errors_base": 2,
        "pcie_replays": 5,
        "sm_clock": 1980,
        "pcie_mib": 25,
        "nvlink_mib": 25,
        "pcie_saturated": 0,
    }
    assert first == counted | {"processes": 2, "thermal": 0, "power_brake": 1, "remap_failed": 0, "pcie_lost": 0}
    assert second == counted | {"processes": 0, "thermal": 1, "power_brake": 0, "remap_failed": 1, "pcie_lost": 50}


def test_without_counters_the_weaker_signal_is_marked(stub_driver: Path) -> None:
    (first, _) = look(stub_driver, STUB_GPM="0")["readings"]

    assert (first["source"], first["sm_active"], first["sm_occupancy"]) == ("driver", 100.0, None)


@pytest.mark.parametrize(("generation", "first", "second"), [("1", 1, 1), ("2", 0, 1), ("5", 0, 0), ("9", None, None)])
def test_a_pcie_link_is_saturated_by_what_it_could_carry(stub_driver: Path, generation: str, first: int | None, second: int | None) -> None:
    """3.1 GiB/s one way, over 16 lanes and over 8. Without counters of traffic the driver's own figure tells."""
    states = [reading["state"] for reading in look(stub_driver, STUB_GPM="0", STUB_PCIE=generation)["readings"]]

    assert [state.get("pcie_saturated") for state in states] == [first, second]
    assert states[0]["pcie_mib"] == 3125 + 2


def test_what_can_not_be_read_is_missing_and_never_zero(stub_driver: Path) -> None:
    (first, _) = look(stub_driver, STUB_BARE="1")["readings"]

    assert {first[name] for name in ("source", "sm_active", "memory_used", "power_watts", "temperature_c")} == {None}
    assert first["state"] == {}


def test_a_gpu_that_is_lost_is_left_out_and_the_others_are_read(stub_driver: Path) -> None:
    found = look(stub_driver, STUB_GPUS="3", STUB_LOST="1")

    assert [reading["uuid"] for reading in found["readings"]] == ["GPU-stub-0", "GPU-stub-2"]


@pytest.mark.parametrize(("code", "says"), [("9", "kernel driver is not loaded"), ("999", "does not answer")])
def test_a_driver_that_does_not_start_is_said_in_a_sentence(stub_driver: Path, code: str, says: str) -> None:
    assert says in look(stub_driver, STUB_INIT=code)["fault"]


def test_a_machine_without_a_driver_says_so(tmp_path: Path) -> None:
    if shutil.which("nvidia-smi"):
        pytest.skip("this machine has a driver")
    assert "no NVIDIA driver" in look(tmp_path)["fault"]


@pytest.mark.django_db
def test_only_gpus_that_the_inventory_knows_make_a_frame(stub_driver: Path) -> None:
    found = look(stub_driver, STUB_GPUS="3", STUB_LOST="1")
    node = builders.node(gpus=3)
    for index in (0, 1):
        Gpu.objects.filter(node=node, index=index).update(uuid=f"GPU-stub-{index}")
    readings = [Reading(**reading) for reading in found["readings"]]

    assert local_write(uuids=["GPU-stub-0", "GPU-stub-1", "GPU-stub-2"], readings=readings, now=NOON) == 2
    frame = TelemetryFrame.objects.get()
    assert (frame.source, list(bytes(frame.sm_active)), list(bytes(frame.temperature_c))) == ("nvml", [42, 255], [61, 255])
    node.refresh_from_db()
    assert node.heartbeat_at == NOON
    local_write(uuids=found["uuids"], readings=readings, now=NOON + timedelta(seconds=5))
    assert hardware_now(now=NOON + timedelta(seconds=5)).figures == {
        key: {node.gpus.get(index=0).pk: value}
        for key, value in (("processes", 2), ("sm_clock", 1980), ("sm_occupancy", 31), ("pcie_mib", 25), ("nvlink_mib", 25))
    }
    assert list(bytes(frame.dram_active)) == [12, 255], "and counters that not every chip has"
    assert {(row.signal, row.value, row.gpu_id) for row in HealthBucket.objects.all()} == {("power_brake", 5, node.gpus.get(index=0).pk)}


def test_xids_are_read_from_the_kernels_log_with_the_numbers_of_their_records(tmp_path: Path) -> None:
    """Also of a GPU that has fallen off the bus; other lines, other devices and lines that go on below are passed over."""
    for place, uuid in (("0000:3b:00.0", "GPU-0a"), ("0001:CA:00.0", "GPU-1b")):
        (tmp_path / place).mkdir()
        (tmp_path / place / "information").write_text(f"Model: \t\t NVIDIA H100\nGPU UUID: \t {uuid}\nVideo BIOS: \t 96\n")
    (tmp_path / "boot_id").write_text("6c29\n")
    log = tmp_path / "kmsg"
    log.write_text(
        "6,1040,8123,-;NVRM: Xid (PCI:0000:3b:00): 31, pid=77, name=python\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n"
        "6,1041,8124,-;usb 1-1: NVRM: Xid (PCI:0000:3b:00): 13\n6,1042,17,-;NVRM: loading NVIDIA UNIX x86_64\n"
        "3,1043,8125,-,caller=T77;NVRM: Xid (PCI:0001:ca:00): 79, GPU has fallen off the bus.\n"
        "3,1044,8125,-;NVRM: Xid (PCI:0000:3b:00 GPU-I:05 GPU-CI:00): 43, pid=78, name=python\n"
        "3,1045,8126,-;NVRM: Xid (PCI:0000:ff:00): 79, GPU has fallen off the bus.\n"
    )

    found = kernel_log_read(log=log, gpus=tmp_path, boot=tmp_path / "boot_id")
    assert found is not None
    assert [(one.number, one.uuid, one.code) for one in found.xids] == [(1040, "GPU-0a", 31), (1043, "GPU-1b", 79), (1044, "GPU-0a", 43)]
    assert (found.boot, found.newest) == ("6c29", 1045)
    assert abs((found.booted - datetime.now(UTC)).total_seconds() + float(Path("/proc/uptime").read_text().split()[0])) < 5
    for missing in ({"log": log.with_name("nothing")}, {"gpus": log.with_name("nothing")}, {"boot": log.with_name("nothing")}):
        assert kernel_log_read(**({"log": log, "gpus": tmp_path, "boot": tmp_path / "boot_id"} | missing)) is None


@pytest.mark.django_db
def test_errors_of_network_adapters_are_those_of_hardware_and_reach_the_node(tmp_path: Path) -> None:
    for device, counts in (("eth0", (3, 4)), ("docker0", (50, 60))):
        statistics = tmp_path / "net" / device / "statistics"
        statistics.mkdir(parents=True)
        for name, count in zip(("rx_errors", "tx_errors"), counts, strict=True):
            (statistics / name).write_text(f"{count}\n")
    (tmp_path / "net/eth0/device").mkdir()
    port = tmp_path / "infiniband/mlx5_0/ports/1/counters"
    port.mkdir(parents=True)
    (port / "symbol_error").write_text("5\n")

    assert nic_errors_read(net=tmp_path / "net", infiniband=tmp_path / "infiniband") == (12, 3)
    assert nic_errors_read(net=tmp_path / "nothing", infiniband=tmp_path / "nothing") is None
    node = builders.node(gpus=1)
    Gpu.objects.filter(node=node).update(uuid="GPU-0")
    reading = Reading("GPU-0", "H100", 10.0, None, None, None, GPM, 25.0, 400, 61, {"processes": 1})
    for seconds, count in ((0, (12, 3)), (5, None), (10, (15, 3)), (15, (9, 2)), (20, (15, 3))):  # one counter of the three can't be read for once
        local_write(uuids=["GPU-0"], readings=[reading], network=Network(errors=count), now=NOON + timedelta(seconds=seconds))
    assert list(HealthBucket.objects.values_list("node", "gpu", "signal", "value")) == [(node.pk, None, "nic_errors", 3)]


@pytest.mark.django_db
def test_network_ports_below_their_nominal_speed_are_told_of_the_node(tmp_path: Path) -> None:
    """Each port against its own speed in the inventory. One that is not there, or was not read, says nothing."""
    for device, speed, state in (("eth0", "25000", "up"), ("eth1", "-1", "down"), ("eth2", "-1", "unknown"), ("docker0", "10000", "up")):
        (tmp_path / "net" / device).mkdir(parents=True)
        (tmp_path / "net" / device / "speed").write_text(f"{speed}\n")
        (tmp_path / "net" / device / "operstate").write_text(f"{state}\n")
        if device != "docker0":
            (tmp_path / "net" / device / "device").mkdir()
    port = tmp_path / "infiniband/mlx5_0/ports/1"
    port.mkdir(parents=True)
    (port / "rate").write_text("200 Gb/sec (4X HDR)\n")

    speeds = nic_speeds_read(net=tmp_path / "net", infiniband=tmp_path / "infiniband")
    assert speeds == {"eth0": 3.125e9, "eth1": 0, "mlx5_0": 25e9}
    assert nic_speeds_read(net=tmp_path / "nothing", infiniband=tmp_path / "nothing") == {}
    node = builders.node(gpus=1)
    Gpu.objects.filter(node=node).update(uuid="GPU-0")
    for name, gbps in (("eth0", 25), ("mlx5_0", 400), ("mlx5_9", 400)):
        builders.nic(node, name=name, speed_gbps=gbps)
    reading = Reading("GPU-0", "H100", 10.0, None, None, None, GPM, 25.0, 400, 61, {"processes": 1})
    local_write(uuids=["GPU-0"], readings=[reading], network=Network(speeds=speeds), now=NOON)
    assert list(HealthBucket.objects.values_list("node", "gpu", "signal", "value")) == [(node.pk, None, "nic_lost", 50)]
    assert network_now(node, now=NOON).slow == {"mlx5_0": 200.0}

    builders.nic(node, name="eth1", speed_gbps=25)
    local_write(uuids=["GPU-0"], readings=[reading], network=Network(speeds=speeds), now=NOON + timedelta(seconds=5))
    assert HealthBucket.objects.get().value == 100
    assert network_now(node, now=NOON).slow == {"eth1": 0.0, "mlx5_0": 200.0}
    local_write(uuids=["GPU-0"], readings=[reading], now=NOON + timedelta(seconds=10))
    assert network_now(node, now=NOON).slow == {}


@pytest.mark.django_db
def test_retransmissions_are_a_part_of_what_is_sent_over_minutes(tmp_path: Path) -> None:
    """Not told at first, of a machine that sends little, or across a restart of the counters."""
    file = tmp_path / "snmp"
    found, read = Retransmissions(file), []
    for at, again, sent in ((0, 0, 0), (5, 9, 10_000), (60, 600, 30_000), (120, 600, 60_000), (400, 700, 200_000), (405, 5, 9), (500, 5, 500)):
        head, figures = "Tcp: RtoAlgorithm InSegs OutSegs RetransSegs", f"Tcp: 1 7 {sent} {again}"
        file.write_text(f"Ip: Forwarding\nIp: 1\n{head}\n{figures}\nUdp: InDatagrams\nUdp: 3\n")
        read.append(found.read(at=at))
    assert read == [None, None, 600 / 30_000, 600 / 60_000, 100 / 140_000, None, None]
    file.write_text("Tcp: OutSegs\n")
    assert found.read(at=600) is None
    assert Retransmissions(tmp_path / "nothing").read(at=0) is None

    node = builders.node(gpus=1)
    Gpu.objects.filter(node=node).update(uuid="GPU-0")
    reading = Reading("GPU-0", "H100", 10.0, None, None, None, GPM, 25.0, 400, 61, {"processes": 1})
    local_write(uuids=["GPU-0"], readings=[reading], network=Network(retransmits=0.021), now=NOON)
    assert (HealthBucket.objects.get().value, network_now(node, now=NOON).retransmits) == (210, 2.1)


@pytest.mark.django_db
def test_an_xid_of_the_log_counts_once_whoever_reads_it() -> None:
    """The log keeps it for days: it counts in the look after it, and one from before the first look is no news."""
    node = builders.node(gpus=2)
    for index in (0, 1):
        Gpu.objects.filter(node=node, index=index).update(uuid=f"GPU-{index}")
    reading = Reading("GPU-0", "H100", 10.0, None, None, None, GPM, 25.0, 400, 61, {"processes": 1})

    def read(seconds: int, *xids: Xid, boot: str = "b-1", booted: int = -9000, answers: bool = True) -> None:
        newest = max((one.number for one in xids), default=100)
        log = KernelLog(boot, NOON + timedelta(seconds=booted), newest, frozenset({"GPU-0", "GPU-1"}), xids)
        local_write(uuids=["GPU-0"] * answers, readings=[reading] * answers, log=log, now=NOON + timedelta(seconds=seconds))

    old, page = Xid(90, "GPU-0", 79), Xid(101, "GPU-0", 31)
    bus, other, late = Xid(102, "GPU-1", 79), Xid(103, "GPU-x", 1), Xid(104, "GPU-0", 95)
    read(0, old)
    read(5, old, page)
    for seconds in (10, 15):
        read(seconds, old, page, bus, other)
    read(18, old, page, bus)  # a look that began earlier and comes late
    read(20, old, page, bus, other, late, answers=False)  # none of its GPUs answers any more
    read(300, Xid(3, "GPU-1", 48), boot="b-2", booted=250)  # the machine was started again, and numbers its records anew
    read(305, Xid(3, "GPU-1", 48), boot="b-2", booted=251)
    read(310, Xid(70, "GPU-1", 62), boot="b-3")  # and a console on another machine, that has run for long
    read(315, old, page, bus, other, late)

    found = HealthBucket.objects.order_by("code").values_list("gpu__index", "signal", "code", "value")
    assert list(found) == [(0, "xid", 31, 1), (1, "xid", 48, 1), (1, "xid", 79, 1), (0, "xid", 95, 1)]


@pytest.mark.django_db
def test_the_weaker_signal_is_marked_on_the_frame_too(stub_driver: Path) -> None:
    Gpu.objects.filter(node=builders.node(gpus=1)).update(uuid="GPU-stub-0")
    found = look(stub_driver, STUB_GPM="0")
    local_write(uuids=found["uuids"], readings=[Reading(**reading) for reading in found["readings"]], now=NOON)

    stored = TelemetryFrame.objects.get()
    assert (stored.source, stored.weak_ids) == ("nvml-driver", stored.gpu_ids)


@pytest.mark.django_db
def test_collecting_where_there_is_nothing_writes_nothing() -> None:
    assert local_collect(now=NOON) == 0
    assert not TelemetryFrame.objects.exists()


@pytest.mark.django_db
def test_a_driver_that_hangs_holds_up_no_worker_is_asked_once_and_is_told_of_by_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beat asks every five seconds, and all else that the console does waits for the same few threads."""
    monkeypatch.setattr(machine, "MACHINE_SECONDS", 0.2)
    Gpu.objects.filter(node=builders.node(gpus=1)).update(uuid="GPU-0")
    go_on, asked, began = threading.Event(), [], time.monotonic()

    def hangs() -> list[str]:
        asked.append(time.monotonic())
        go_on.wait(60)
        return []

    def log_at(second: int) -> KernelLog:
        xids = (Xid(7, "GPU-0", 79),) if second else ()
        return KernelLog("b-1", NOON - timedelta(days=1), 7 if second else 6, frozenset({"GPU-0"}), xids)

    local_write(uuids=["GPU-0"], readings=[Reading("GPU-0", "H100", 10.0, None, None, None, GPM, 25.0, 400, 61, {})], log=log_at(0), now=NOON)
    try:
        for second in (5, 10, 15):
            assert local_collect(now=NOON + timedelta(seconds=second), there=hangs, log_read=partial(log_at, second)) == 0
        assert len(asked) == 1
        assert time.monotonic() - began < 10
    finally:
        go_on.set()
    assert TelemetryFrame.objects.get().at == NOON, "what is known grows old"
    assert list(HealthBucket.objects.values_list("signal", "code", "value")) == [("xid", 79, 1)]


@pytest.mark.gpu
def test_a_real_gpu_is_read() -> None:
    try:
        uuids = machine_uuids()
    except NvmlUnavailable as fault:
        pytest.skip(str(fault))
    readings = machine_read()

    assert [reading.uuid for reading in readings] == uuids
    for reading in readings:
        assert reading.source is not None
        assert reading.sm_active is not None
        assert 0 <= reading.sm_active <= 100
        assert reading.memory_used is not None
        assert 0 <= reading.memory_used <= 100
        assert "xid" not in reading.state  # told by Prometheus alone (docs/operate/telemetry.md)
