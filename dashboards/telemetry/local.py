"""The console's own machine as a source of telemetry: its GPUs are read where the inventory knows them by their UUIDs.

In a cluster that Prometheus servers read, their round reads this machine, too (`dashboards.prometheus.collect`): a frame has one writer at a time.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from datetime import datetime
from time import monotonic

import numpy as np
from django.db import transaction
from numpy.typing import NDArray

from dashboards.health.links import Speeds, per_ten_thousand, speeds_lost
from dashboards.health.state import BASE, NIC_LOST, RETRANSMITS, Logged, RawState, state_write
from dashboards.health.state import UNREAD as NOT_READ
from dashboards.models import NO_READING, TelemetryFrame
from dashboards.selectors import FRESH
from dashboards.telemetry.frames import NO_POWER, Columns, frame_write
from dashboards.telemetry.kernel_log import KernelLog, kernel_log_read
from dashboards.telemetry.machine import machine_begun, machine_told
from dashboards.telemetry.nics import Retransmissions, nic_errors_read, nic_speeds_read
from dashboards.telemetry.nvml import DRIVER, NvmlUnavailable, Reading, machine_read, machine_uuids
from gpufleet.core.live.feed import feed_publish
from scheduler.models import Gpu
from scheduler.selectors.nodes import nominal_speeds

SOURCE, SERVERS, THREAD, LOG_THREAD = "nvml", "prometheus", "gpufleet-nvml-own", "gpufleet-kernel-log"
WEAK_SOURCE = "nvml-driver"  # SM activity is the driver's utilisation for at least one GPU


UNREAD = Reading("", "", None, None, None, None, None, None, None, None)


@dataclass(frozen=True, slots=True)
class Network:
    """What the kernel says of this machine's network ports: their errors (and how many counters that are), their speeds, and retransmissions."""

    errors: tuple[int, int] | None = None
    speeds: Speeds = field(default_factory=dict)
    retransmits: float | None = None


NO_NETWORK = Network()
_retransmissions = Retransmissions()


def uuids_told() -> list[str]:
    """UUIDs. Most consoles run on a machine without GPUs; `gpufleet doctor` says so to whoever asks."""
    with contextlib.suppress(NvmlUnavailable):
        return machine_uuids()
    return []


def readings_told() -> list[Reading] | None:
    with contextlib.suppress(NvmlUnavailable):
        return machine_read()
    return None


def local_collect(*, now: datetime, there: Callable[[], list[str]] = uuids_told, log_read: Callable[[], KernelLog | None] = kernel_log_read) -> int:
    """Read this machine and write a frame for each cluster that has GPUs of it. Returns how many GPUs were written.

    Of a driver that does not answer the kernel's log may still tell why.
    """
    begun: Future[list[str]] = machine_begun(THREAD, there, [])
    log = machine_told(machine_begun(LOG_THREAD, log_read, None), None)
    uuids = machine_told(begun, [])
    known = [*uuids, *(log.uuids if log else ())]
    if not known or not Gpu.objects.filter(uuid__in=known, removed_at__isnull=True).exists():
        return 0
    readings = machine_told(machine_begun(THREAD, readings_told, None), None) if uuids else None
    network = Network(nic_errors_read(), nic_speeds_read(), _retransmissions.read(at=monotonic()))
    return local_write(uuids=uuids, readings=readings, log=log, network=network, now=now)


def local_write(
    *,
    uuids: Sequence[str],
    readings: Sequence[Reading] | None,
    log: KernelLog | None = None,
    network: Network = NO_NETWORK,
    now: datetime,
) -> int:
    """One frame a cluster with what was read. A GPU that is there and gave no reading is in the frame as unread.

    Readings None: the driver did not answer. Then there is no frame, and what is known grows old.
    """
    by_uuid = {reading.uuid: reading for reading in readings or ()}
    own = _own_gpus([*uuids, *(log.uuids if log else ())], now)  # a GPU that fell off the bus is known by the log alone
    clusters = sorted({cluster for cluster, _, _, _ in own})
    if not clusters:
        return 0
    with transaction.atomic():
        for cluster in clusters if readings is not None else ():
            mine = [(key, by_uuid.get(uuid)) for owner, key, uuid, _ in own if owner == cluster]
            columns = _columns(mine)
            frame_write(cluster_id=cluster, at=now, source=WEAK_SOURCE if len(columns.weak) else SOURCE, columns=columns)
        if readings is not None:
            feed_publish(changes={"telemetry": [{"id": cluster} for cluster in clusters]})
    for cluster in clusters:
        read = [(key, node, by_uuid[uuid]) for owner, key, uuid, node in own if owner == cluster and uuid in by_uuid]
        keys = {uuid: key for owner, key, uuid, _ in own if owner == cluster}  # also of a GPU that gave no reading
        told = logged(log, keys)
        if read or (told is not None and told.xids):
            state_write(cluster_id=cluster, at=now, source=SOURCE, state=replace(_state(read, network), log=told))
    return 0 if readings is None else len(own)


def logged(log: KernelLog | None, gpus: Mapping[str, int]) -> Logged | None:
    """A kernel log by the keys of these GPUs."""
    if log is None:
        return None
    xids = [(gpus[one.uuid], one.code, one.number) for one in log.xids if one.uuid in gpus]
    return Logged(log.boot, log.booted, log.newest, [gpus[uuid] for uuid in log.uuids if uuid in gpus], xids)


def _state(rows: Sequence[tuple[int, int, Reading]], network: Network) -> RawState:
    """What health rules look at, of those GPUs that answered."""
    found = [dict(reading.state) | _rounded(temperature=reading.temperature_c, sm_occupancy=reading.sm_occupancy) for _, _, reading in rows]
    known = sorted({key for state in found for key in state})
    columns = {key: np.array([state.get(key, NOT_READ) for state in found], np.uint32) for key in known}
    nodes = sorted({node for _, node, _ in rows})
    if len(nodes) != 1:
        # Where the inventory makes several nodes of this machine, nobody knows whose network ports they are.
        return RawState(gpus=[key for key, _, _ in rows], columns=columns, nodes=nodes)
    nics: dict[str, Sequence[int]] = {}
    if network.errors is not None:
        nics |= {"nic_errors": network.errors[:1], "nic_errors" + BASE: network.errors[1:]}
    if network.retransmits is not None:
        nics[RETRANSMITS] = [per_ten_thousand(network.retransmits)]
    lost, slow = speeds_lost({nodes[0]: network.speeds}, nominal_speeds(nodes)) if network.speeds else ({}, {})
    if lost:
        nics[NIC_LOST] = [lost[nodes[0]]]
    return RawState(gpus=[key for key, _, _ in rows], columns=columns, nodes=nodes, node_columns=nics, slow_nics=slow)


def _rounded(**values: float | None) -> dict[str, int]:
    return {key: round(value) for key, value in values.items() if value is not None}


def _own_gpus(uuids: Sequence[str], now: datetime) -> list[tuple[int, int, str, int]]:
    rows = Gpu.objects.filter(uuid__in=uuids, removed_at__isnull=True, node__removed_at__isnull=True)
    rows = rows.exclude(node__cluster__in=TelemetryFrame.objects.filter(source__startswith=SERVERS, at__gte=now - FRESH).values("cluster"))
    return list(rows.order_by("node__name", "index").values_list("node__cluster_id", "id", "uuid", "node_id"))


def _columns(rows: Sequence[tuple[int, Reading | None]]) -> Columns:
    found = [reading or UNREAD for _, reading in rows]
    return Columns(
        gpus=np.array([key for key, _ in rows], np.uint32),
        sm_active=_bytes([reading.sm_active for reading in found]),
        memory_used=_bytes([reading.memory_used for reading in found]),
        power_watts=np.array([NO_POWER if reading.power_watts is None else min(reading.power_watts, NO_POWER - 1) for reading in found], np.uint16),
        temperature_c=_bytes([reading.temperature_c for reading in found]),
        tensor_active=_counted([reading.tensor_active for reading in found]),
        dram_active=_counted([reading.dram_active for reading in found]),
        weak=np.array([key for key, reading in rows if reading is not None and reading.source == DRIVER], np.uint32),
    )


def _counted(values: Sequence[float | None]) -> NDArray[np.uint8]:
    """A counter that not every chip has: nothing where none of these has it."""
    return _bytes(values) if any(value is not None for value in values) else np.zeros(0, np.uint8)


def _bytes(values: Sequence[float | int | None]) -> NDArray[np.uint8]:
    return np.array([NO_READING if value is None else min(max(round(value), 0), NO_READING - 1) for value in values], np.uint8)
