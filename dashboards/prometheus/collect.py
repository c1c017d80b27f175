"""A round over all Prometheus servers: ask them at once, put their answers together, and write a frame and the raw state of each cluster.

A server that fails, is slow or answers with nothing gives no reading. Its GPUs are without one: they are not idle, and nothing is drained for it.

One source speaks for a GPU: the server that scraped it last, then, in clusters that servers read, this machine's driver (NVML), in the same frame.
Two writers of one cluster would take each other's readings for missing. Counters of all of them go on to the raw state, which follows one of each.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from operator import methodcaller
from time import monotonic
from types import MappingProxyType

import numpy as np
from django.db import transaction
from numpy.typing import NDArray

from dashboards.health.counting import OWN, Counts
from dashboards.health.links import Speeds, is_saturated, per_ten_thousand, speeds_lost
from dashboards.health.state import (
    BASE,
    COUNTED,
    MOMENTARY,
    NIC_LOST,
    NVLINK,
    OCCUPANCY,
    PCIE,
    PCIE_SATURATED,
    PROCESSES,
    RETRANSMITS,
    SM_CLOCK,
    UNREAD,
    RawState,
    device_of_gpu,
    device_of_node,
    state_write,
)
from dashboards.models import NO_READING
from dashboards.prometheus.asking import PrometheusFault, Server
from dashboards.prometheus.credentials import headers_of, secret_of
from dashboards.prometheus.dcgm import SLICES, STALE_SECONDS, Look, look
from dashboards.prometheus.models import PrometheusServer
from dashboards.telemetry.frames import NO_POWER, Columns, frame_write
from dashboards.telemetry.kernel_log import KernelLog, kernel_log_read
from dashboards.telemetry.local import logged
from dashboards.telemetry.machine import machine_begun, machine_told
from dashboards.telemetry.nvml import DRIVER, NvmlUnavailable, Reading, machine_read, machine_uuids
from gpufleet.core.live.feed import feed_publish
from gpufleet.core.progress import turn_take
from scheduler.engine.model.mig import board_of
from scheduler.models import Gpu, Node
from scheduler.notify.outgoing import Rules
from scheduler.selectors.nodes import nominal_speeds

logger = logging.getLogger(__name__)

TURN = "prometheus"
PACE = timedelta(seconds=10)
SOURCE, WEAK_SOURCE = "prometheus", "prometheus-driver"
AT_ONCE = 8
MACHINE_THREAD = "gpufleet-nvml"
Machine = Callable[[Container[str]], tuple[Sequence[Reading], KernelLog | None]]
THERMAL, BRAKE = 0x20 | 0x40, 0x80


@dataclass(frozen=True, slots=True)
class Known:
    """A GPU of the inventory."""

    key: int
    cluster: int
    node: int
    pcie_generation: int | None = None
    pcie_width: int | None = None
    slices: int = SLICES


@dataclass(slots=True)
class Answer:
    """How a look at one server went."""

    server: PrometheusServer
    look: Look = field(default_factory=Look)
    fault: str = ""
    duration_ms: int = 0


def prometheus_turn(*, now: datetime) -> int | None:
    """One round. None: another process just did it. Returns how many GPUs were read."""
    if not PrometheusServer.objects.filter(enabled=True, removed_at__isnull=True).exists():
        return 0
    with transaction.atomic():
        if turn_take(name=TURN, now=now, at_least=PACE) is None:
            return None
    return prometheus_collect(now=now)


def prometheus_collect(*, now: datetime, rules: Rules | None = None, machine: Machine | None = None) -> int:
    """One round. `machine` reads this machine's GPUs, in place of `machine_known`."""
    servers = list(PrometheusServer.objects.filter(enabled=True, removed_at__isnull=True).order_by("pk"))
    known = gpus_known()
    hosts = nodes_named()
    allowed = rules or Rules.of_settings()
    silent: tuple[Sequence[Reading], KernelLog | None] = (), None
    begun, local = monotonic(), machine_begun(MACHINE_THREAD, partial(machine or machine_known, known), silent)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(lambda server: answer_of(server, known, allowed, now, hosts), servers))
    values = newest_read(answers)
    speeds, retransmits = hosts_read(answers, hosts)
    nominal = nominal_speeds(speeds) if speeds else {}
    counts = [counts_of(answer.server.pk, answer.look.gpus, answer.look.nics, known, hosts) for answer in answers]
    readings, log = machine_told(local, silent)
    _fill_in(values, readings, known)
    clusters: dict[int, list[tuple[Known, Mapping[str, float]]]] = defaultdict(list)
    for uuid, read in values.items():
        clusters[known[uuid].cluster].append((known[uuid], read))
    counts.append(counts_of(OWN, {reading.uuid: _as_dcgm(reading) for reading in readings}, {}, known, hosts))
    # Dated when the answers are in: while a server was slow, this machine's driver may have written on.
    at = now + timedelta(seconds=monotonic() - begun)
    with transaction.atomic():
        for cluster, rows in sorted(clusters.items()):
            rows.sort(key=lambda row: row[0].key)
            columns = columns_of(rows)
            frame_write(cluster_id=cluster, at=at, now=at, source=WEAK_SOURCE if len(columns.weak) else SOURCE, columns=columns)
            own = {uuid: one.key for uuid, one in known.items() if one.cluster == cluster}
            state = replace(state_of(rows, speeds, nominal, retransmits), counts=counts, log=logged(log, own))
            state_write(cluster_id=cluster, at=at, source=SOURCE, state=state)
        for answer in answers:
            _note(answer, now)
        feed_publish(changes={"telemetry": [{"id": cluster} for cluster in sorted(clusters)], "sources": [{"id": 1}]})
    return len(values)


def newest_read(answers: Sequence[Answer]) -> dict[str, dict[str, float]]:
    """What servers read of each GPU: by the one that scraped it last, of several the first; others fill in what that one does not have.

    A reading that another server has a newer one of is counted with the server that gave it.
    """
    told: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for place, answer in enumerate(answers):
        for uuid in answer.look.gpus:
            told[uuid].append((answer.look.ages.get(uuid, STALE_SECONDS), place))
    values: dict[str, dict[str, float]] = {}
    for uuid, offers in told.items():
        offers.sort()
        for age, place in reversed(offers):
            look = answers[place].look
            values[uuid] = values.get(uuid, {}) | look.gpus[uuid]
            look.odd["older"] += age > offers[0][0]
    return values


def hosts_read(answers: Sequence[Answer], hosts: Mapping[str, int]) -> tuple[dict[int, dict[str, float]], dict[int, float]]:
    """Of each node the speeds of its network ports, and the part of segments that it sends again; of several servers that tell, by the first."""
    speeds: dict[int, dict[str, float]] = {}
    retransmits: dict[int, float] = {}
    for answer in answers:
        for name, ports in answer.look.speeds.items():
            speeds[hosts[name]] = ports | speeds.get(hosts[name], {})
        for name, part in answer.look.retransmits.items():
            retransmits.setdefault(hosts[name], part)
    return speeds, retransmits


def machine_known(known: Container[str]) -> tuple[list[Reading], KernelLog | None]:
    """This machine's own GPUs, where it has any of the inventory. It reads no table, as it runs in a thread of its own."""
    log = kernel_log_read()
    if log is not None and not any(uuid in known for uuid in log.uuids):
        log = None
    try:
        return (machine_read() if any(uuid in known for uuid in machine_uuids()) else []), log
    except NvmlUnavailable:
        return [], log  # as on most consoles, which have no such log either


def _fill_in(values: dict[str, dict[str, float]], readings: Sequence[Reading], known: Mapping[str, Known]) -> None:
    """What this machine's driver reads of clusters that servers read: GPUs that no server knows, and of others what servers have no counter of."""
    clusters = {known[uuid].cluster for uuid in values}
    for reading in readings:
        if reading.uuid not in known or known[reading.uuid].cluster not in clusters:
            continue
        read = _as_dcgm(reading)
        if reading.uuid in values:
            read = {key: read[key] for key in ("sm", "tensor", "dram", "occupancy", *MOMENTARY) if key in read}
        values[reading.uuid] = read | values.get(reading.uuid, {})


def _as_dcgm(reading: Reading) -> dict[str, float]:
    """A reading of NVML by the keys and units of the exporter's fields."""
    state = dict(reading.state)
    found: dict[str, float | None] = {
        "sm": None if reading.sm_active is None or reading.source == DRIVER else reading.sm_active / 100,
        "driver": reading.sm_active if reading.source == DRIVER else None,
        "tensor": None if reading.tensor_active is None else reading.tensor_active / 100,
        "occupancy": None if reading.sm_occupancy is None else reading.sm_occupancy / 100,
        "dram": None if reading.dram_active is None else reading.dram_active / 100,
        "used": reading.memory_used,
        "free": None if reading.memory_used is None else 100 - reading.memory_used,
        "power": reading.power_watts,
        "temperature": reading.temperature_c,
    }
    if "thermal" in state and "power_brake" in state:
        found["reasons"] = THERMAL * state.pop("thermal") | BRAKE * state.pop("power_brake")
    if "row_remaps" in state:
        found |= {"remaps_corrected": state.pop("row_remaps"), "remaps_uncorrected": 0}
    if "pcie_lost" in state:
        found |= {"pcie_width": 100 - state.pop("pcie_lost"), "pcie_widest": 100}
    return {key: float(value) for key, value in (found | state).items() if value is not None}


def gpus_known() -> dict[str, Known]:
    rows = Gpu.objects.filter(removed_at__isnull=True, node__removed_at__isnull=True).exclude(uuid="").order_by("pk")
    facts = rows.values_list("uuid", "pk", "node__cluster_id", "node_id", "pcie_generation", "pcie_width", "gpu_type_id")
    return {uuid: Known(key, cluster, node, generation, width, _slices(kind)) for uuid, key, cluster, node, generation, width, kind in facts}


def _slices(gpu_type: str) -> int:
    board = board_of(gpu_type)
    return board.compute_slices if board else SLICES


def nodes_named() -> dict[str, int]:
    """Nodes by name. Of two with the same name in different clusters, nobody knows which one a host is."""
    rows = list(Node.objects.filter(removed_at__isnull=True).order_by("pk").values_list("name", "pk"))
    twice = Counter(name for name, _ in rows)
    return {name: key for name, key in rows if twice[name] == 1}


def answer_of(server: PrometheusServer, known: Mapping[str, Known], rules: Rules, now: datetime, hosts: Container[str] = ()) -> Answer:
    """Ask one server; what goes wrong is in the answer. It reads no table, as it runs in a thread of its own."""
    begun, answer = monotonic(), Answer(server)
    try:
        slices = {uuid: one.slices for uuid, one in known.items()}
        secret = secret_of(server)
        if secret is None:
            raise PrometheusFault("Its password or token cannot be read: the key of this console was changed. Enter it again.")
        answer.look = look(Server(server.url, rules, headers_of(server, secret)).ask, known=slices, now=now.timestamp(), hosts=hosts)
    except PrometheusFault as fault:
        answer.fault = str(fault)
    except Exception:
        # Whatever it says, other servers are read on.
        logger.exception("The answers of %s could not be read.", server.name)
        answer.fault = "Its answer is not one of a Prometheus."
    else:
        if not answer.look.gpus:
            answer.fault = "It answered without a reading of any GPU in the inventory."
    answer.duration_ms = round((monotonic() - begun) * 1000)
    return answer


def _note(answer: Answer, now: datetime) -> None:
    """Write down how it went. Oddities are added up; of a server that was changed meanwhile nothing is written."""
    server = answer.server
    odd = Counter(server.oddities)
    odd.update({key: count for key, count in answer.look.odd.items() if count})
    facts = {
        "looked_at": now,
        "fault": answer.fault[:300],
        "gpus": len(answer.look.gpus),
        "duration_ms": answer.duration_ms,
        "oddities": dict(odd),
    }
    if answer.look.gpus:
        facts["read_at"] = now
    PrometheusServer.objects.filter(pk=server.pk, revision=server.revision).update(**facts)


def columns_of(rows: Sequence[tuple[Known, Mapping[str, float]]]) -> Columns:
    """Readings as a frame. Without SM activity the driver's utilization stands in, and the frame says so."""
    reads = [read for _, read in rows]

    def percent(values: Sequence[float | None]) -> NDArray[np.uint8]:
        return np.array([NO_READING if value is None else min(100, max(0, round(value))) for value in values], np.uint8)

    def ratio(key: str) -> NDArray[np.uint8]:
        return percent([None if key not in read else 100 * read[key] for read in reads])

    sm = [100 * read["sm"] if "sm" in read else read.get("driver") for read in reads]
    return Columns(
        gpus=np.array([one.key for one, _ in rows], np.uint32),
        sm_active=percent(sm),
        memory_used=percent([_memory(read) for read in reads]),
        power_watts=np.array([NO_POWER if "power" not in read else min(round(read["power"]), NO_POWER - 1) for read in reads], np.uint16),
        temperature_c=np.array([NO_READING if "temperature" not in read else round(read["temperature"]) for read in reads], np.uint8),
        tensor_active=ratio("tensor") if any("tensor" in read for read in reads) else np.zeros(0, np.uint8),
        dram_active=ratio("dram") if any("dram" in read for read in reads) else np.zeros(0, np.uint8),
        weak=np.array([one.key for one, read in rows if "sm" not in read and "driver" in read], np.uint32),
    )


def _memory(read: Mapping[str, float]) -> float | None:
    whole = read.get("used", 0.0) + read.get("free", 0.0)
    return 100 * read["used"] / whole if "used" in read and "free" in read and whole else None


def _remaps(read: Mapping[str, float]) -> float | None:
    """Both together, or nothing: one that comes back after it was missing would look like growth."""
    told = [read[key] for key in ("remaps_corrected", "remaps_uncorrected") if key in read]
    return sum(told) if len(told) == 2 else None


def _pcie_lost(read: Mapping[str, float]) -> float | None:
    return max(0.0, 100 - 100 * read["pcie_width"] // read["pcie_widest"]) if "pcie_width" in read and "pcie_widest" in read else None


def _occupancy(read: Mapping[str, float]) -> float | None:
    return round(100 * read["occupancy"]) if "occupancy" in read else None


def _traffic(key: str, read: Mapping[str, float]) -> float | None:
    """Both ways together, in MiB/s."""
    told = [read[way] for way in (f"{key}_tx", f"{key}_rx") if way in read]
    return sum(told) / (1 << 20) if len(told) == 2 else read.get(key)


def counts_of(
    source: int, gpus: Mapping[str, Mapping[str, float]], nics: Mapping[str, tuple[int, int]], known: Mapping[str, Known], hosts: Mapping[str, int]
) -> Counts:
    """What one source counts. Resets of counters are the raw state's to see."""
    figures: dict[str, dict[int, int]] = {key: {} for key in (*COUNTED, "xid")}
    parts: dict[str, dict[int, int]] = {key: {} for key in COUNTED}
    devices = []
    for uuid, read in gpus.items():
        if uuid not in known:
            continue
        device = device_of_gpu(known[uuid].key)
        devices.append(device)
        remaps = _remaps(read)
        told = read if remaps is None else {**read, "row_remaps": remaps}
        for key, values in figures.items():
            if key in told:
                values[device] = int(told[key])
            if key + BASE in told:
                parts[key][device] = int(told[key + BASE])
    for name, (count, errors) in nics.items():
        device = device_of_node(hosts[name])
        figures["nic_errors"][device], parts["nic_errors"][device] = errors, count
    return Counts(source, figures, devices, parts)


def state_of(
    rows: Sequence[tuple[Known, Mapping[str, float]]],
    speeds: Mapping[int, Speeds] = MappingProxyType({}),
    nominal: Mapping[int, Mapping[str, int]] = MappingProxyType({}),
    retransmits: Mapping[int, float] = MappingProxyType({}),
) -> RawState:
    """The raw state of the hardware for health rules, but for what is counted. The others are by node: figures of its network ports."""
    reads = [read for _, read in rows]

    def column(value: Callable[[Mapping[str, float]], float | None]) -> NDArray[np.uint32]:
        return np.array([UNREAD if (number := value(read)) is None else int(number) for read in reads], np.uint32)

    def flag(mask: int) -> Callable[[Mapping[str, float]], float | None]:
        return lambda read: None if "reasons" not in read else float(bool(int(read["reasons"]) & mask))

    keys = ("temperature", "remap_failed", PROCESSES, SM_CLOCK)
    columns = {key: column(methodcaller("get", key)) for key in keys}
    columns |= {"thermal": column(flag(THERMAL)), "power_brake": column(flag(BRAKE)), "pcie_lost": column(_pcie_lost)}
    columns |= {OCCUPANCY: column(_occupancy), PCIE: column(partial(_traffic, PCIE)), NVLINK: column(partial(_traffic, NVLINK))}
    columns[PCIE_SATURATED] = np.array([UNREAD if (told := _saturated(*row)) is None else told for row in rows], np.uint32)
    nodes = sorted({one.node for one, _ in rows})
    lost, slow = speeds_lost({node: speeds[node] for node in nodes if node in speeds}, nominal)
    again = {node: per_ten_thousand(retransmits[node]) for node in nodes if node in retransmits}
    figures = {NIC_LOST: lost, RETRANSMITS: again}
    node_columns = {key: np.array([told.get(node, UNREAD) for node in nodes], np.uint32) for key, told in figures.items()}
    return RawState(gpus=[one.key for one, _ in rows], columns=columns, nodes=nodes, node_columns=node_columns, slow_nics=slow)


def _saturated(gpu: Known, read: Mapping[str, float]) -> int | None:
    """By the link as it runs; where that is not told, as the inventory has it."""
    if PCIE_SATURATED in read:
        return int(read[PCIE_SATURATED])
    generation, width = read.get("pcie_generation") or gpu.pcie_generation, read.get("pcie_width") or gpu.pcie_width
    return is_saturated(generation=generation, width=width, tx=read.get("pcie_mib_tx"), rx=read.get("pcie_mib_rx"))
