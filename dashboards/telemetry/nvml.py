"""Readings of this machine's own GPUs through the driver's library (NVML).

SM activity comes from the GPM counters that newer GPUs have. Where a GPU has none, the driver's own utilisation stands in and the reading says so: it
counts a GPU as busy while any kernel runs, however small. A GPU that is split into MIG instances has counters of each instance only: they count by
their part of it. What can't be read is None, never zero.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import pynvml

from dashboards.health.links import is_saturated

GPM, DRIVER = "gpm", "driver"
# Counters are differences between two looks; NVIDIA asks for at least a tenth of a second between them.
INTERVAL_SECONDS = 0.2

HOT = pynvml.nvmlClocksThrottleReasonHwThermalSlowdown | pynvml.nvmlClocksThrottleReasonSwThermalSlowdown
BRAKE = pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown

T = TypeVar("T")


class NvmlUnavailable(Exception):
    """There is no usable NVIDIA driver here. The message is for a person."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One GPU. `source` says where the SM activity comes from: `gpm`, the weaker `driver`, or None where there is none."""

    uuid: str
    name: str
    sm_active: float | None
    sm_occupancy: float | None
    tensor_active: float | None
    dram_active: float | None
    source: str | None
    memory_used: float | None
    power_watts: int | None
    temperature_c: int | None
    state: Mapping[str, int] = field(default_factory=dict)  # raw hardware state by signal (`dashboards.health.state`), as far as it is known


_GPM_METRICS = {
    "sm_active": pynvml.NVML_GPM_METRIC_SM_UTIL,
    "sm_occupancy": pynvml.NVML_GPM_METRIC_SM_OCCUPANCY,
    "tensor_active": pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
    "dram_active": pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
}


PCIE = "pcie_mib"
_PCIE_COUNTERS = {"tx": pynvml.NVML_PCIE_UTIL_TX_BYTES, "rx": pynvml.NVML_PCIE_UTIL_RX_BYTES}
_GPM_TRAFFIC = {
    "pcie_mib_tx": pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC,
    "pcie_mib_rx": pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC,
    "nvlink_mib_tx": pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC,
    "nvlink_mib_rx": pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC,
}


@contextlib.contextmanager
def driver() -> Iterator[None]:
    """NVML, initialised for the block; `NvmlUnavailable` says in a sentence what is missing."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound as fault:
        raise NvmlUnavailable("There is no NVIDIA driver on this machine (libnvidia-ml.so.1 was not found).") from fault
    except pynvml.NVMLError_DriverNotLoaded as fault:
        raise NvmlUnavailable("The NVIDIA library is here, but its kernel driver is not loaded.") from fault
    except pynvml.NVMLError as fault:
        raise NvmlUnavailable(f"The NVIDIA driver does not answer: {fault}.") from fault
    try:
        yield
    except pynvml.NVMLError as fault:
        raise NvmlUnavailable(f"The NVIDIA driver does not answer: {fault}.") from fault
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def machine_uuids() -> list[str]:
    """The UUIDs of this machine's GPUs, in the driver's order."""
    with driver():
        return [_text(pynvml.nvmlDeviceGetUUID(handle)) for handle in _handles()]


def machine_read(*, interval_seconds: float = INTERVAL_SECONDS) -> list[Reading]:
    """Every GPU of this machine, now. Takes a little longer than the interval."""
    with driver():
        handles = _handles()
        shares = [_shares(handle) for handle in handles]
        first = [[_sample(handle, instance) for instance, _ in own] for handle, own in zip(handles, shares, strict=True)]
        second: list[list[object | None]] = [[None] * len(own) for own in shares]
        try:
            if any(sample is not None for own in first for sample in own):
                time.sleep(interval_seconds)
                for place, (handle, own) in enumerate(zip(handles, shares, strict=True)):
                    pairs = zip(own, first[place], strict=True)
                    second[place] = [_sample(handle, instance) if before is not None else None for (instance, _), before in pairs]
            return [
                _reading(handle, [(part, before, after) for (_, part), before, after in zip(own, *samples, strict=True)])
                for handle, own, *samples in zip(handles, shares, first, second, strict=True)
            ]
        finally:
            for sample in chain(*first, *second):
                if sample is not None:
                    pynvml.nvmlGpmSampleFree(sample)


def _shares(handle: object) -> list[tuple[int | None, float]]:
    """What counters are read of, with its part of the GPU: all of it, or on a GPU with MIG each GPU instance."""
    mode = _tried(lambda: pynvml.nvmlDeviceGetMigMode(handle))
    if mode is None or mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
        return [(None, 1.0)]
    most = _tried(lambda: pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)) or 0
    slices: dict[int, int] = {}
    for index in range(most):
        device = _tried(partial(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index))
        if device is not None:
            # Devices may be compute instances of the same GPU instance, of which there are counters.
            instance, facts = _instance(device)
            if instance is not None and facts is not None:
                slices[instance] = facts.gpuInstanceSliceCount
    return [(instance, count / most) for instance, count in sorted(slices.items())]


def _instance(device: object) -> tuple[int | None, Any]:
    return _tried(lambda: pynvml.nvmlDeviceGetGpuInstanceId(device)), _tried(lambda: pynvml.nvmlDeviceGetAttributes(device))


def _handles() -> list[object]:
    """GPUs that answer. One that fell off the bus is left out, and so counts as unread."""
    found = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = _tried(partial(pynvml.nvmlDeviceGetHandleByIndex, index))
        if handle is not None:
            found.append(handle)
    return found


def _tried(ask: Callable[[], T]) -> T | None:
    """The answer, or None where this GPU or this driver does not know it."""
    try:
        return ask()
    except pynvml.NVMLError:
        return None


def _sample(handle: object, instance: int | None) -> object | None:
    support = _tried(lambda: pynvml.nvmlGpmQueryDeviceSupport(handle))
    if support is None or not support.isSupportedDevice:
        return None
    sample = _tried(pynvml.nvmlGpmSampleAlloc)
    if sample is None:
        return None
    try:
        if instance is None:
            pynvml.nvmlGpmSampleGet(handle, sample)
        else:
            pynvml.nvmlGpmMigSampleGet(handle, instance, sample)
    except pynvml.NVMLError:
        pynvml.nvmlGpmSampleFree(sample)
        return None
    return sample


def _reading(handle: object, looks: Sequence[tuple[float, object | None, object | None]]) -> Reading:
    counters = _added(looks)
    source = GPM if counters["sm_active"] is not None else None
    if source is None:
        rates = _tried(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle))
        if rates is not None:
            counters["sm_active"], source = float(rates.gpu), DRIVER
    memory = _tried(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle))
    milliwatts = _tried(lambda: pynvml.nvmlDeviceGetPowerUsage(handle))
    return Reading(
        uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
        name=_text(pynvml.nvmlDeviceGetName(handle)),
        source=source,
        memory_used=100 * memory.used / memory.total if memory is not None and memory.total else None,
        power_watts=None if milliwatts is None else round(milliwatts / 1000),
        temperature_c=_tried(lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)),
        state=_state(handle) | _traffic(handle, looks),
        **counters,
    )


def _state(handle: object) -> dict[str, int]:
    """Processes, the SM clock, throttling, error counters and the PCIe link. What this GPU or driver does not know is left out."""
    reasons = _tried(lambda: pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
    rows = _tried(lambda: pynvml.nvmlDeviceGetRemappedRows(handle))
    width, widest = _tried(lambda: pynvml.nvmlDeviceGetCurrPcieLinkWidth(handle)), _tried(lambda: pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle))
    running = _tried(lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(handle))
    errors, links = _link_errors(handle)
    found = {
        "processes": None if running is None else len(running),
        "sm_clock": _tried(lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)),
        "thermal": None if reasons is None else int(bool(reasons & HOT)),
        "power_brake": None if reasons is None else int(bool(reasons & BRAKE)),
        "ecc_corrected": _ecc(handle, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        "ecc_uncorrected": _ecc(handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
        "row_remaps": None if rows is None else rows[0] + rows[1],
        "remap_failed": None if rows is None else int(bool(rows[3])),
        "nvlink_errors": errors,
        "nvlink_errors_base": links,
        "pcie_replays": _tried(lambda: pynvml.nvmlDeviceGetPcieReplayCounter(handle)),
        # The generation falls while a GPU idles, to save power; the width does not.
        "pcie_lost": None if width is None or not widest else max(0, 100 - 100 * width // widest),
    }
    return {key: int(value) for key, value in found.items() if value is not None}


def _ecc(handle: object, kind: int) -> int | None:
    return _tried(lambda: pynvml.nvmlDeviceGetTotalEccErrors(handle, kind, pynvml.NVML_VOLATILE_ECC))


def _link_errors(handle: object) -> tuple[int, int] | tuple[None, None]:
    """CRC errors of all links together, and how many links that are; None where no link tells."""
    counts = [
        _tried(partial(pynvml.nvmlDeviceGetNvLinkErrorCounter, handle, link, pynvml.NVML_NVLINK_ERROR_DL_CRC_FLIT))
        for link in range(pynvml.NVML_NVLINK_MAX_LINKS)
    ]
    told = [count for count in counts if count is not None]
    return (sum(told), len(told)) if told else (None, None)


def _added(looks: Sequence[tuple[float, object | None, object | None]]) -> dict[str, float | None]:
    """The counters of the whole GPU from two looks at each of its parts. One part without a reading leaves the GPU without one."""
    read = [(part, _counters(before, after)) for part, before, after in looks if before is not None and after is not None]
    if not read or len(read) < len(looks):
        return dict.fromkeys(_GPM_METRICS)
    found: dict[str, float | None] = {}
    for name in _GPM_METRICS:
        values = [(part, value) for part, counters in read if (value := counters[name]) is not None]
        found[name] = min(100.0, sum(part * value for part, value in values)) if len(values) == len(read) else None
    return found


def _traffic(handle: object, looks: Sequence[tuple[float, object | None, object | None]]) -> dict[str, int]:
    """MiB/s over PCIe and NVLink, both ways together, of a GPU that is not split; and whether the PCIe link carries all that it can."""
    if len(looks) != 1 or looks[0][0] != 1.0:
        return {}
    if looks[0][1] is not None and looks[0][2] is not None:
        read = _metrics(looks[0][1], looks[0][2], _GPM_TRAFFIC)
    else:
        read = {f"{PCIE}_{way}": _throughput(handle, counter) for way, counter in _PCIE_COUNTERS.items()}
    ways = {key: (read.get(f"{key}_tx"), read.get(f"{key}_rx")) for key in (PCIE, "nvlink_mib")}
    found = {key: round(tx + rx) for key, (tx, rx) in ways.items() if tx is not None and rx is not None}
    tx, rx = (None if mib is None else mib * (1 << 20) for mib in ways[PCIE])
    generation = _tried(lambda: pynvml.nvmlDeviceGetCurrPcieLinkGeneration(handle))
    saturated = is_saturated(generation=generation, width=_tried(lambda: pynvml.nvmlDeviceGetCurrPcieLinkWidth(handle)), tx=tx, rx=rx)
    return found if saturated is None else found | {"pcie_saturated": saturated}


def _throughput(handle: object, counter: int) -> float | None:
    """MiB/s over the last 20 ms, of GPUs that have no counters of traffic."""
    kilobytes = _tried(lambda: pynvml.nvmlDeviceGetPcieThroughput(handle, counter))
    return None if kilobytes is None else kilobytes / 1024


def _counters(before: object, after: object) -> dict[str, float | None]:
    return {name: None if value is None else min(value, 100.0) for name, value in _metrics(before, after, _GPM_METRICS).items()}


def _metrics(before: object, after: object, wanted: Mapping[str, int]) -> dict[str, float | None]:
    asked = pynvml.c_nvmlGpmMetricsGet_t()
    asked.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    asked.numMetrics = len(wanted)
    asked.sample1, asked.sample2 = before, after
    for place, metric in enumerate(wanted.values()):
        asked.metrics[place].metricId = metric
    if _tried(lambda: pynvml.nvmlGpmMetricsGet(asked)) is None:
        return dict.fromkeys(wanted)
    return {
        name: max(asked.metrics[place].value, 0.0) if asked.metrics[place].nvmlReturn == pynvml.NVML_SUCCESS else None
        for place, name in enumerate(wanted)
    }


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
