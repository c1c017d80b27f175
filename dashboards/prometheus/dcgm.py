"""What a DCGM exporter says, by way of Prometheus, as readings of GPUs. What can't be true is counted and left out, never shown.

Queries are constants: no label's value is ever written into one.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dashboards.health.links import LEAST_SEGMENTS
from dashboards.prometheus.asking import PrometheusFault

# Labels that stay: a GPU, and on a GPU with MIG the instance.
BY = "UUID, GPU_I_ID, GPU_I_PROFILE"
STALE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Field:
    """A field of the exporter. Values outside of [least, most] are not believed."""

    metric: str
    key: str
    least: float
    most: float


FIELDS = (
    Field("DCGM_FI_PROF_SM_ACTIVE", "sm", 0, 1),
    Field("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "tensor", 0, 1),
    Field("DCGM_FI_PROF_DRAM_ACTIVE", "dram", 0, 1),
    Field("DCGM_FI_DEV_GPU_UTIL", "driver", 0, 100),
    Field("DCGM_FI_DEV_FB_USED", "used", 0, 1e7),
    Field("DCGM_FI_DEV_FB_FREE", "free", 0, 1e7),
    Field("DCGM_FI_DEV_POWER_USAGE", "power", 0, 5_000),
    Field("DCGM_FI_DEV_GPU_TEMP", "temperature", 0, 200),
    Field("DCGM_FI_DEV_SM_CLOCK", "sm_clock", 0, 10_000),
    Field("DCGM_FI_PROF_SM_OCCUPANCY", "occupancy", 0, 1),
    Field("DCGM_FI_PROF_PCIE_TX_BYTES", "pcie_mib_tx", 0, 1e12),
    Field("DCGM_FI_PROF_PCIE_RX_BYTES", "pcie_mib_rx", 0, 1e12),
    Field("DCGM_FI_PROF_NVLINK_TX_BYTES", "nvlink_mib_tx", 0, 1e13),
    Field("DCGM_FI_PROF_NVLINK_RX_BYTES", "nvlink_mib_rx", 0, 1e13),
    Field("DCGM_FI_DEV_XID_ERRORS", "xid", 0, 10_000),
    Field("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "ecc_corrected", 0, 2**31),
    Field("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "ecc_uncorrected", 0, 2**31),
    Field("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "pcie_replays", 0, 2**31),
    Field("DCGM_FI_DEV_ROW_REMAP_FAILURE", "remap_failed", 0, 1),
    Field("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "remaps_corrected", 0, 2**31),
    Field("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "remaps_uncorrected", 0, 2**31),
    Field("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "nvlink_errors", 0, 2**31),
    Field("DCGM_FI_DEV_PCIE_LINK_WIDTH", "pcie_width", 0, 64),
    Field("DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH", "pcie_widest", 1, 64),
    Field("DCGM_FI_DEV_PCIE_LINK_GEN", "pcie_generation", 0, 16),
    Field("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "reasons", 0, 2**32),
    Field("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "reasons", 0, 2**32),  # the same since DCGM 3.3
)
# Of each metric by itself: the timestamp of what an operator gives is that of the question.
AGE = "max by (UUID, GPU_I_ID) (timestamp(DCGM_FI_PROF_SM_ACTIVE) or timestamp(DCGM_FI_DEV_GPU_UTIL) or timestamp(DCGM_FI_DEV_FB_USED))"
# Of the node exporter, by the address at which a host is scraped. Devices without hardware of their own say nothing of it.
_HARDWARE = 'device!~"lo|(veth|docker|br|cni|cali|virbr|tap|tun).*"'
# Errors of all network ports of a host; and how many series that are, in the same answer: a sum with one of them missing is no reset.
_NICS = (
    '{__name__=~"node_network_(receive|transmit)_errs_total'
    '|node_infiniband_(symbol_error|link_error_recovery|link_downed|port_errors_received|local_link_integrity_errors)_total",'
    f"{_HARDWARE}}}"
)
NICS = f'sum by (instance) ({_NICS}) or label_replace(count by (instance) ({_NICS}), "figure", "count", "", "")'
# Speeds of network ports in bytes a second. Of a port that is down there is none, or it is negative: then it is nothing.
SPEEDS = (
    f'max by (instance, device) ({{__name__=~"node_network_speed_bytes|node_infiniband_rate_bytes_per_second",{_HARDWARE}}} >= 0)'
    f" or max by (instance, device) (node_network_up{{{_HARDWARE}}} == 0)"
)
# The part of TCP segments that a host has sent again, where it sends enough of them to tell.
RETRANSMITS = (
    f"sum by (instance) (rate(node_netstat_Tcp_RetransSegs[5m])) / (sum by (instance) (rate(node_netstat_Tcp_OutSegs[5m])) > {LEAST_SEGMENTS})"
)
OF_HOSTS = (NICS, SPEEDS, RETRANSMITS)
MOST_SPEED = 1e13
MOST_RETRANSMITS = 100
MOST_ERRORS = 2**31
ODDITIES = {
    "unknown_gpu": "Series of a GPU that is not in the inventory",
    "unknown_node": "Series of a host that no node is named after",
    "no_uuid": "Series without the label UUID",
    "not_a_number": "Values that are not a number (NaN, infinite, text)",
    "out_of_range": "Values that cannot be true",
    "stale": "Readings older than 60 s",
    "wrong_profile": "MIG instances with an unknown profile",
    "no_nics": "Figures of network ports that could not be read in a look",
    "missing": "GPUs without a field that others have",
    "older": "GPUs of which another server had a newer reading",
}
# `1g.10gb`, and the same with or without engines of the board: `1g.10gb+me`.
_PROFILE = re.compile(r"(\d)g\.\d+gb(?:[+-][a-z.]+)?", re.ASCII)
SLICES = 7  # compute slices of most boards that are split
SHARED = frozenset({"sm", "tensor", "dram", "occupancy"})  # of MIG instances: added up by their part of the GPU
OF_INSTANCES = SHARED | {"used", "free"}  # memory: added up as it is


def query_of(one: Field) -> str:
    return f"max by ({BY}) ({one.metric})"


@dataclass(slots=True)
class Look:
    """What one look at a server found: by UUID, the believed values by key; by node, the series of network ports' errors and their sum, the bytes
    a second of each port, and the part of segments that were sent again.
    """

    gpus: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    ages: dict[str, float] = field(default_factory=dict)  # seconds since a GPU was scraped, where that is told
    odd: Counter[str] = field(default_factory=Counter)
    nics: dict[str, tuple[int, int]] = field(default_factory=dict)
    speeds: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    retransmits: dict[str, float] = field(default_factory=dict)


def look(ask: Callable[[str], Iterable[Mapping[str, Any]]], *, known: Mapping[str, int], now: float, hosts: Container[str] = ()) -> Look:
    """Ask for every field. `known`: GPUs by UUID, with the compute slices of their boards. `now` is in seconds since 1970; `hosts` are the names of
    nodes."""
    found = Look()
    ages = _ages(ask(AGE), now)
    for (uuid, _), age in ages.items():
        found.ages[uuid] = min(age, found.ages.get(uuid, age))
    for one in FIELDS:
        _read(found, one, ask(query_of(one)), known, ages)
    for query, read in zip(OF_HOSTS, (_read_nics, _read_speeds, _read_retransmits), strict=True):
        try:
            series = list(ask(query))
        except PrometheusFault:
            found.odd["no_nics"] += 1
        else:
            read(found, series, hosts)
    sizes = Counter(key for values in found.gpus.values() for key in values)
    most = len(found.gpus)
    found.odd["missing"] += sum(most - count for count in sizes.values())
    return found


def _read_nics(found: Look, series: Sequence[Mapping[str, Any]], hosts: Container[str]) -> None:
    """A node is named as its host, with or without its domain. Where two exporters tell of one host, that of more adapters counts."""
    counts = {_labels(row).get("instance", ""): _number(row) for row in series if _labels(row).get("figure")}
    for row in series:
        if _labels(row).get("figure"):
            continue
        name, value, count = _node_of(row, hosts), _number(row), counts.get(_labels(row).get("instance", ""))
        if name is None:
            found.odd["unknown_node"] += 1
        elif value is None or count is None:
            found.odd["not_a_number"] += 1
        elif not 0 <= value <= MOST_ERRORS or not 0 < count <= MOST_ERRORS:
            found.odd["out_of_range"] += 1
        else:
            found.nics[name] = max((int(count), int(value)), found.nics.get(name, (0, 0)))


def _read_speeds(found: Look, series: Sequence[Mapping[str, Any]], hosts: Container[str]) -> None:
    for row in series:
        if (read := _of_node(found, row, hosts, MOST_SPEED)) is not None:
            node, value = read
            found.speeds[node][_labels(row).get("device", "")] = value


def _read_retransmits(found: Look, series: Sequence[Mapping[str, Any]], hosts: Container[str]) -> None:
    for row in series:
        if (read := _of_node(found, row, hosts, MOST_RETRANSMITS)) is not None:
            found.retransmits[read[0]] = read[1]


def _of_node(found: Look, row: Mapping[str, Any], hosts: Container[str], most: float) -> tuple[str, float] | None:
    """The node of a series and its value, where there is such a node and the value can be true; else it is counted."""
    name, value = _node_of(row, hosts), _number(row)
    if name is None:
        found.odd["unknown_node"] += 1
    elif value is None:
        found.odd["not_a_number"] += 1
    elif not 0 <= value <= most:
        found.odd["out_of_range"] += 1
    else:
        return name, value
    return None


def _node_of(row: Mapping[str, Any], hosts: Container[str]) -> str | None:
    host = _labels(row).get("instance", "").partition(":")[0]
    return next((one for one in (host, host.partition(".")[0]) if one in hosts), None)


def _ages(series: Iterable[Mapping[str, Any]], now: float) -> dict[tuple[str, str], float]:
    ages = {}
    for one in series:
        labels, value = _labels(one), _number(one)
        if value is not None:
            ages[labels.get("UUID", ""), labels.get("GPU_I_ID", "")] = now - value
    return ages


def _read(found: Look, one: Field, series: Iterable[Mapping[str, Any]], known: Mapping[str, int], ages: Mapping[tuple[str, str], float]) -> None:
    """A GPU of which an instance tells what can't be believed has no reading: the others alone would make it look idle."""
    parts: dict[str, list[float]] = defaultdict(list)
    broken: set[str] = set()
    whole: dict[str, float] = {}
    for row in series:
        labels = _labels(row)
        uuid, instance = labels.get("UUID", ""), labels.get("GPU_I_ID", "")
        if not uuid:
            found.odd["no_uuid"] += 1
            continue
        if uuid not in known:
            found.odd["unknown_gpu"] += 1
            continue
        value, is_part = _number(row), bool(instance) and one.key in OF_INSTANCES
        slices = _slices(labels, known[uuid]) if is_part and one.key in SHARED else 1
        if ages.get((uuid, instance), 0.0) > STALE_SECONDS:
            odd = "stale"
        elif value is None:
            odd = "not_a_number"
        elif not one.least <= value <= one.most:
            odd = "out_of_range"
        elif slices is None:
            odd = "wrong_profile"
        elif is_part:
            parts[uuid].append(slices * value)
            continue
        else:
            whole[uuid] = max(value, whole.get(uuid, value))
            continue
        found.odd[odd] += 1
        if is_part:
            broken.add(uuid)
    for uuid, values in parts.items():
        if uuid not in broken:
            whole.setdefault(uuid, min(1.0, sum(values) / known[uuid]) if one.key in SHARED else sum(values))
    for uuid, value in whole.items():
        found.gpus[uuid][one.key] = value


def _slices(labels: Mapping[str, str], most: int) -> int | None:
    """How many compute slices an instance has, by its profile; None where its board has no such profile."""
    profile = _PROFILE.fullmatch(labels.get("GPU_I_PROFILE", ""))
    return int(profile[1]) if profile is not None and 1 <= int(profile[1]) <= most else None


def _labels(row: Mapping[str, Any]) -> Mapping[str, str]:
    labels = row.get("metric")
    return labels if isinstance(labels, dict) else {}


def _number(row: Mapping[str, Any]) -> float | None:
    """The value of an instant series, where it is a finite number."""
    value = row.get("value")
    if not isinstance(value, list | tuple) or len(value) != 2:
        return None
    try:
        number = float(value[1])
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
