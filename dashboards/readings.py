"""What telemetry says now of single GPUs, for lists: utilization, memory, temperature, and which of them throttle."""

import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from dashboards.health.models import HealthFrame
from dashboards.health.state import MOMENTARY, PCIE_SATURATED, PROCESSES, RETRANSMITS, STORED, UNREAD, unpacked
from dashboards.models import NO_READING, TelemetryFrame
from dashboards.selectors import FRESH
from dashboards.telemetry.frames import NO_POWER
from dashboards.weak import WEAK_ENDING, weak_of
from scheduler.models import Node

THERMAL, BRAKE, SATURATED, AGAIN = (STORED.index(key) for key in ("thermal", "power_brake", PCIE_SATURATED, RETRANSMITS))
HOT_C = 85


@dataclass(frozen=True, slots=True)
class Reading:
    """The newest readings of a GPU: percent, degrees, watts; None: not read."""

    sm: int | None
    memory: int | None
    celsius: int | None
    tensor: int | None = None
    dram: int | None = None
    watts: int | None = None
    at: datetime | None = None  # when its source read it
    is_weak: bool = False  # the driver's utilization stands in for SM activity

    @property
    def is_hot(self) -> bool:
        return self.celsius is not None and self.celsius >= HOT_C


NOT_READ = Reading(None, None, None)
COLUMNS = ("sm_active", "memory_used", "temperature_c", "tensor_active", "dram_active")


def readings_now(*, now: datetime) -> dict[int, Reading]:
    """By the keys of the GPUs. One query."""
    found: dict[int, Reading] = {}
    frames = TelemetryFrame.objects.values_list("at", "source", "gpu_ids", "weak_ids", "power_watts", *COLUMNS)
    for at, source, ids, weak_ids, power, *columns in frames:
        if now - at > FRESH:
            continue
        keys, weak = np.frombuffer(bytes(ids), dtype="<u4").tolist(), set(weak_of(source, ids, weak_ids).tolist())
        told = [_read(column, "u1", NO_READING, len(keys)) for column in columns]
        told.append(_read(power, "<u2", NO_POWER, len(keys)))
        for key, sm, memory, celsius, tensor, dram, watts in zip(keys, *told, strict=True):
            is_read = any(value is not None for value in (sm, memory, celsius, tensor, dram, watts))
            found[key] = Reading(sm, memory, celsius, tensor, dram, watts, at, key in weak) if is_read else NOT_READ
    return found


def _read(column: bytes, kind: str, nothing: int, count: int) -> list[int | None]:
    """A value a GPU; a source without such a counter has an empty column."""
    values = np.frombuffer(bytes(column), kind).tolist()
    return [None if value == nothing else value for value in values] if len(values) == count else [None] * count


@dataclass(frozen=True, slots=True)
class NetworkNow:
    """What the newest look says of a node's network: Gb/s of ports below their nominal speed, and percent of TCP segments that are sent again."""

    slow: Mapping[str, float]
    retransmits: float | None


@dataclass(frozen=True, slots=True)
class Hardware:
    """What the hardware says at this moment: the keys of the GPUs whose clocks are held down, by heat or by the power brake, and of those whose PCIe
    link carries all that it can; and other figures.
    """

    throttling: frozenset[int]
    saturating: frozenset[int]
    figures: Mapping[str, Mapping[int, int]]  # by name (`MOMENTARY`), and by those GPUs whose source has them
    slow_nics: Mapping[int, Mapping[str, float]]  # Gb/s by node and network port, of those below their nominal speed
    retransmits: Mapping[int, int]  # of 10,000 segments, by those nodes whose source tells

    @property
    def processes(self) -> Mapping[int, int]:
        return self.figures[PROCESSES]

    def of(self, gpu: int) -> Mapping[str, int]:
        return {key: values[gpu] for key, values in self.figures.items() if gpu in values}

    def network(self, node: int) -> NetworkNow:
        again = self.retransmits.get(node)
        return NetworkNow(self.slow_nics.get(node, {}), None if again is None else again / 100)


def hardware_now(*, now: datetime) -> Hardware:
    """One query."""
    throttling: set[int] = set()
    saturating: set[int] = set()
    figures: dict[str, dict[int, int]] = {key: {} for key in MOMENTARY}
    slow_nics: dict[int, Mapping[str, float]] = {}
    retransmits: dict[int, int] = {}
    for at, devices, last, slow in HealthFrame.objects.values_list("at", "devices", "last", "slow_nics"):
        if now - at > FRESH:
            continue
        keys = np.frombuffer(zlib.decompress(bytes(devices)), np.uint64)
        state = unpacked(last, len(keys), UNREAD)
        gpus = keys % 2 == 0
        for places, found in (([THERMAL, BRAKE], throttling), ([SATURATED], saturating)):
            held = np.any((state[places] != UNREAD) & (state[places] > 0), axis=0)
            found.update((keys[held & gpus] // 2).tolist())
        for key, values in figures.items():
            row = state[STORED.index(key)]
            told = gpus & (row != UNREAD)
            values.update(zip((keys[told] // 2).tolist(), row[told].tolist(), strict=True))
        again = state[AGAIN]
        told = ~gpus & (again != UNREAD)
        retransmits.update(zip((keys[told] // 2).tolist(), again[told].tolist(), strict=True))
        slow_nics.update({int(node): ports for node, ports in slow.items()})
    return Hardware(frozenset(throttling), frozenset(saturating), figures, slow_nics, retransmits)


def network_now(node: Node, *, now: datetime) -> NetworkNow:
    """One query."""
    return hardware_now(now=now).network(node.pk)


@dataclass(frozen=True, slots=True)
class GpuNow:
    """What telemetry says of one GPU at this moment."""

    reading: Reading
    throttles: bool
    saturates: bool
    figures: Mapping[str, int]  # of the hardware, by name: those that its source has

    @property
    def is_hot(self) -> bool:
        return self.reading.is_hot

    @property
    def is_read(self) -> bool:
        return self.reading != NOT_READ or bool(self.figures)


def gpus_read(gpus: Iterable[int], *, now: datetime, hardware: Hardware | None = None) -> dict[int, GpuNow]:
    """GPUs by their keys, each with its newest readings. Two queries, however many; one where the hardware's state is given."""
    readings, hardware = readings_now(now=now), hardware or hardware_now(now=now)
    return {gpu: GpuNow(readings.get(gpu, NOT_READ), gpu in hardware.throttling, gpu in hardware.saturating, hardware.of(gpu)) for gpu in gpus}


def gpus_throttling(*, now: datetime) -> frozenset[int]:
    """The keys of the GPUs whose clocks are held down at this moment. One query."""
    return hardware_now(now=now).throttling


def gpus_hot(*, now: datetime) -> set[int]:
    return {key for key, reading in readings_now(now=now).items() if reading.is_hot}


def reading_of_all(readings: Iterable[Reading]) -> Reading:
    """Several GPUs as one: mean utilization and memory over those that were read, and the hottest temperature."""
    found = list(readings)
    sm = [min(100, one.sm) for one in found if one.sm is not None]
    memory = [one.memory for one in found if one.memory is not None]
    return Reading(
        round(sum(sm) / len(sm)) if sm else None,
        round(sum(memory) / len(memory)) if memory else None,
        max((one.celsius for one in found if one.celsius is not None), default=None),
    )


def jobs_utilization(jobs: Mapping[int, Collection[int]], *, now: datetime) -> Mapping[int, int]:
    """Percent by job: the mean over the whole GPUs that it holds, as given, and that were read. One query; none where no job holds a whole GPU."""
    if not any(jobs.values()):
        return {}
    readings = readings_now(now=now)
    read = {job: [reading.sm for gpu in gpus if (reading := readings.get(gpu, NOT_READ)).sm is not None] for job, gpus in jobs.items()}
    return {job: round(sum(min(100, sm) for sm in values) / len(values)) for job, values in read.items() if values}


SOURCES = {"nvml": "NVML", "prometheus": "Prometheus", "simulated": "the simulation"}


@dataclass(frozen=True, slots=True)
class ReadBy:
    """Who reads a cluster: the source of its newest readings, and how many GPUs they are of."""

    source: str
    at: datetime
    read: int
    is_fresh: bool
    is_weak: bool  # at least one GPU has the driver's utilization alone


def read_by(cluster: int, *, now: datetime) -> ReadBy | None:
    """None: nobody has ever read it. One query."""
    row = TelemetryFrame.objects.filter(cluster=cluster).values_list("source", "at", "sm_active").first()
    if row is None:
        return None
    source, at, sm = row
    told = source.removesuffix(WEAK_ENDING)
    read = int(np.count_nonzero(np.frombuffer(bytes(sm), np.uint8) != NO_READING))
    return ReadBy(SOURCES.get(told, told), at, read, now - at <= FRESH, told != source)
