"""What this machine really has, asked of its driver through NVML, as a document that the import understands.

Only what every driver answers is required. What one does not know (NUMA, where MIG instances lie without the rights to ask) is left out of the
document, and what a document leaves out keeps its value.
"""

import importlib.metadata
import os
import platform
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pynvml
import yaml

from scheduler.engine.model.mig import Board, board_of
from scheduler.hardware.pcie import link_gbps
from scheduler.hardware.ports import Port, ports_of
from scheduler.imports.documents import FORMAT

INSTALL = (
    "Install NVIDIA's driver (Debian: nvidia-driver, Ubuntu: nvidia-driver-580-server; both bring libnvidia-ml.so.1) and check it with nvidia-smi.",
    "In a container, start it with the GPUs: docker run --gpus all …, with the NVIDIA Container Toolkit on the host.",
    "To describe another machine, run “gpufleet inventory discover --print” there and import what it prints here.",
)

VIRTUAL, VIRTUAL_MIB = "virtual", 1024


class NothingFound(Exception):
    """There is no GPU that could be asked. `tried` says what was tried and what came of it, `advice` what may help."""

    def __init__(self, tried: Sequence[str], advice: Sequence[str] = INSTALL) -> None:
        super().__init__(tried[-1])
        self.tried, self.advice = list(tried), list(advice)


@dataclass(frozen=True, slots=True)
class Slice:
    """A MIG instance; `start` is None where only an administrator may ask for it."""

    profile: str
    start: int | None
    uuid: str


@dataclass(slots=True)
class Device:
    index: int
    name: str
    uuid: str
    memory_mib: int
    memory_gbps: int | None = None
    numa_node: int | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    mig: bool = False
    slices: list[Slice] = field(default_factory=list)


@dataclass(slots=True)
class Machine:
    name: str
    driver: str
    cpus: int
    memory_mib: int
    devices: list[Device]
    islands: list[list[int]]
    notes: list[str] = field(default_factory=list)
    ports: list[Port] = field(default_factory=list)


def machine_read(*, virtual: int = 0) -> Machine:
    """Ask the driver of this machine. Without one it has `virtual` GPUs that compute nothing. Raises `NothingFound` where there is no GPU at all."""
    try:
        machine = _machine_read()
    except NothingFound:
        if not virtual:
            raise
        name = machine_name()
        devices = [Device(index, VIRTUAL, f"GPU-virtual-{name}-{index}", VIRTUAL_MIB) for index in range(virtual)]
        which = "this GPU is virtual and computes" if virtual == 1 else f"these {virtual} GPUs are virtual and compute"
        notes = [f"No driver found; {which} nothing (GPUFLEET_VIRTUAL_GPUS)."]
        machine = Machine(name, "", os.cpu_count() or 0, _memory_mib(), devices, [list(range(virtual))], notes)
    machine.ports = ports_of()
    if silent := [port.name for port in machine.ports if port.speed_gbps is None]:
        machine.notes.append(f"Network ports that are down or do not tell their speed are left out: {', '.join(silent)}.")
    return machine


def machine_name() -> str:
    return platform.node().split(".")[0] or "localhost"


def _memory_mib() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // (1024 * 1024)


def _machine_read() -> Machine:
    library = f"libnvidia-ml.so.1, the driver's library, through nvidia-ml-py {importlib.metadata.version('nvidia-ml-py')}"
    with _nvml(library):
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        driver = str(_maybe(pynvml.nvmlSystemGetDriverVersion) or "")
        if not handles:
            raise NothingFound([f"{library}: it answered (driver {driver})", "The driver reports no GPUs"])
        notes: list[str] = []
        devices = [_device(index, handle, notes) for index, handle in enumerate(handles)]
        islands = _islands(handles)
    return Machine(machine_name(), driver, os.cpu_count() or 0, _memory_mib(), devices, islands, notes)


@contextmanager
def _nvml(library: str) -> Iterator[None]:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as fault:
        name = type(fault).__name__.removeprefix("NVMLError_")
        raise NothingFound([f"{library}: {str(fault).rstrip('.')} ({name})"]) from fault
    try:
        yield
    finally:
        pynvml.nvmlShutdown()


def _maybe(ask: Callable[..., Any], *arguments: Any) -> Any:
    """The answer, or None where this device or driver has none."""
    try:
        return ask(*arguments)
    except pynvml.NVMLError:
        return None


def _device(index: int, handle: Any, notes: list[str]) -> Device:
    device = Device(
        index,
        str(pynvml.nvmlDeviceGetName(handle)),
        str(pynvml.nvmlDeviceGetUUID(handle)),
        pynvml.nvmlDeviceGetMemoryInfo(handle).total // (1024 * 1024),
        memory_gbps=_memory_gbps(handle),
        numa_node=_numa_node(handle),
        pcie_generation=_maybe(pynvml.nvmlDeviceGetMaxPcieLinkGeneration, handle),
        pcie_width=_maybe(pynvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
    )
    modes = _maybe(pynvml.nvmlDeviceGetMigMode, handle)
    device.mig = bool(modes and modes[0])
    if device.mig:
        device.slices = list(_slices(handle, board_of(device.name)))
        if any(part.start is None for part in device.slices):
            notes.append(
                f"GPU {index} is split, but only an administrator may ask where its instances lie; its split is left as the inventory has it."
            )
    return device


def _memory_gbps(handle: Any) -> int | None:
    """Of its memory, at the highest clock; two bits go over each line of the bus in one turn of that."""
    width, clock = _maybe(pynvml.nvmlDeviceGetMemoryBusWidth, handle), _maybe(pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_MEM)
    return 2 * width * clock // 8000 or None if width and clock else None


def _numa_node(handle: Any) -> int | None:
    node = _maybe(pynvml.nvmlDeviceGetNumaNodeId, handle)
    if node is None and (pci := _maybe(pynvml.nvmlDeviceGetPciInfo, handle)) is not None:
        bus = pci.busId.decode() if isinstance(pci.busId, bytes) else str(pci.busId)
        path = Path("/sys/bus/pci/devices") / bus.lower()[-12:] / "numa_node"
        node = int(path.read_text()) if path.exists() else None
    return node if node is not None and node >= 0 else None


def _slices(handle: Any, board: Board | None) -> Iterator[Slice]:
    for number in range(_maybe(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        part = _maybe(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number)
        if part is None:
            continue
        instance = _maybe(pynvml.nvmlDeviceGetGpuInstanceById, handle, pynvml.nvmlDeviceGetGpuInstanceId(part))
        info = None if instance is None else _maybe(pynvml.nvmlGpuInstanceGetInfo, instance)
        known = {profile.nvml_id: profile.name for profile in board.profiles} if board else {}
        name = known.get(info.profileId, "") if info is not None else ""
        # The driver calls the device "… MIG 3g.40gb", which also tells profiles that the catalogue has under another number.
        profile = str(pynvml.nvmlDeviceGetName(part)).rpartition("MIG ")[2] or name
        yield Slice(profile, None if info is None else info.placement.start, str(pynvml.nvmlDeviceGetUUID(part)))


def _islands(handles: Sequence[Any]) -> list[list[int]]:
    """Groups of GPUs that NVLink joins, directly or through switches."""
    group = list(range(len(handles)))
    for left in range(len(handles)):
        for right in range(left + 1, len(handles)):
            if _maybe(pynvml.nvmlDeviceGetP2PStatus, handles[left], handles[right], pynvml.NVML_P2P_CAPS_INDEX_NVLINK) == pynvml.NVML_P2P_STATUS_OK:
                old, new = group[right], group[left]
                group = [new if number == old else number for number in group]
    return [[index for index, number in enumerate(group) if number == island] for island in dict.fromkeys(group)]


def document_of(
    machine: Machine,
    *,
    cluster: str,
    new_cluster: bool,
    known_types: dict[str, str],
    backend: str = "",
    stated_of_types: Collection[str] = (),
    stated_of_links: bool = False,
    stated_ports: bool = False,
    labels: Mapping[str, object] | None = None,
) -> str:
    """The machine as an import file. `known_types` maps boards to the names under which the inventory has them; a new cluster gets `backend`.

    Bandwidths that somebody has stated, of the memory of some types or of the node's PCIe links, stay as they are, and so do its network ports: no
    machine knows its rails. `labels`: the node's, where they are to change.
    """
    gpus, splits, types, speeds = [], [], {}, dict[str, int]()
    for device in machine.devices:
        board = board_of(device.name)
        kind = known_types.get(board.name, "") if board else ""
        kind = kind or device.name.removeprefix("NVIDIA ").replace(" ", "-")
        types[kind] = {"name": kind, **({"board": board.name} if board else {}), "memory_mib": device.memory_mib}
        if device.memory_gbps is not None and kind not in stated_of_types:
            types[kind]["hbm_gbps"] = speeds[kind] = min(device.memory_gbps, speeds.get(kind, device.memory_gbps))
        facts = {"numa_node": device.numa_node, "pcie_generation": device.pcie_generation, "pcie_width": device.pcie_width}
        gpu = {
            "index": device.index,
            "uuid": device.uuid,
            "gpu_type": kind,
            "memory_mib": device.memory_mib,
            "mode": "mig" if device.mig else "whole",
        }
        gpus.append(gpu | {name: value for name, value in facts.items() if value is not None})
        placed = [part for part in device.slices if part.start is not None]
        if device.mig and len(placed) == len(device.slices):
            splits.append({"gpu": device.index, "instances": [{"profile": part.profile, "start": part.start, "uuid": part.uuid} for part in placed]})
    node: dict[str, Any] = {"name": machine.name, "cluster": cluster, "gpu_type": gpus[0]["gpu_type"] if gpus else None, "cpus": machine.cpus}
    node |= {"host_memory_mib": machine.memory_mib, "gpus": gpus}
    links = [link_gbps(device.pcie_generation, device.pcie_width) for device in machine.devices]
    if not stated_of_links and links and all(links):
        node["pcie_gbps"] = min(link for link in links if link)
    ports = [{"name": port.name, "speed_gbps": port.speed_gbps} for port in machine.ports if port.speed_gbps is not None]
    if ports and not stated_ports:
        node["nics"] = ports
    if labels is not None:
        node["labels"] = dict(labels)
    if len(machine.islands) > 1:
        node["islands"] = machine.islands
    if splits:
        node["mig"] = splits
    document: dict[str, Any] = {"format": FORMAT}
    inventory = {*known_types.values()}
    told = [
        {"name": name, "hbm_gbps": facts["hbm_gbps"]} if name in inventory else facts
        for name, facts in types.items()
        if name not in inventory or "hbm_gbps" in facts
    ]
    if told:
        document["gpu_types"] = told
    if new_cluster:
        document["clusters"] = [{"name": cluster, "backend": backend} if backend else {"name": cluster}]
    document["nodes"] = [node]
    text: str = yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=150)
    return text
