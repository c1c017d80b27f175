"""Readings of this machine's own GPUs through the driver's library (NVML).

SM activity comes from the GPM counters that newer GPUs have. Where a GPU has none, the driver's own utilisation stands in and the reading says so: it
counts a GPU as busy while any kernel runs, however small. What can't be read is None, never zero.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import pynvml

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
        first = [_sample(handle) for handle in handles]
        second: list[object | None] = [None] * len(handles)
        try:
            if any(sample is not None for sample in first):
                time.sleep(interval_seconds)
                second = [_sample(handle) if before is not None else None for handle, before in zip(handles, first, strict=True)]
            return [_reading(handle, before, after) for handle, before, after in zip(handles, first, second, strict=True)]
        finally:
            for sample in (*first, *second):
                if sample is not None:
                    pynvml.nvmlGpmSampleFree(sample)


def _handles() -> list[object]:
    """GPUs that answer. One that fell off the bus is left out, and so counts as unread."""
    found = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = _tried(lambda index=index: pynvml.nvmlDeviceGetHandleByIndex(index))  # type: ignore[misc]
        if handle is not None:
            found.append(handle)
    return found


def _tried(ask: Callable[[], T]) -> T | None:
    """The answer, or None where this GPU or this driver does not know it."""
    try:
        return ask()
    except pynvml.NVMLError:
        return None


def _sample(handle: object) -> object | None:
    support = _tried(lambda: pynvml.nvmlGpmQueryDeviceSupport(handle))
    if support is None or not support.isSupportedDevice:
        return None
    sample = _tried(pynvml.nvmlGpmSampleAlloc)
    if sample is None:
        return None
    try:
        pynvml.nvmlGpmSampleGet(handle, sample)
    except pynvml.NVMLError:
        pynvml.nvmlGpmSampleFree(sample)
        return None
    return sample


def _reading(handle: object, before: object | None, after: object | None) -> Reading:
    counters = _counters(before, after) if before is not None and after is not None else dict.fromkeys(_GPM_METRICS)
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
        state=_state(handle),
        **counters,
    )


def _state(handle: object) -> dict[str, int]:
    """Throttling, error counters and the PCIe link. What this GPU or driver does not know is left out."""
    reasons = _tried(lambda: pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
    rows = _tried(lambda: pynvml.nvmlDeviceGetRemappedRows(handle))
    width, widest = _tried(lambda: pynvml.nvmlDeviceGetCurrPcieLinkWidth(handle)), _tried(lambda: pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle))
    found = {
        "thermal": None if reasons is None else int(bool(reasons & HOT)),
        "power_brake": None if reasons is None else int(bool(reasons & BRAKE)),
        "ecc_corrected": _ecc(handle, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        "ecc_uncorrected": _ecc(handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
        "row_remaps": None if rows is None else rows[0] + rows[1],
        "remap_failed": None if rows is None else int(bool(rows[3])),
        "nvlink_errors": _link_errors(handle),
        "pcie_replays": _tried(lambda: pynvml.nvmlDeviceGetPcieReplayCounter(handle)),
        # The generation falls while a GPU idles, to save power; the width does not.
        "pcie_lost": None if width is None or not widest else max(0, 100 - 100 * width // widest),
    }
    return {key: int(value) for key, value in found.items() if value is not None}


def _ecc(handle: object, kind: int) -> int | None:
    return _tried(lambda: pynvml.nvmlDeviceGetTotalEccErrors(handle, kind, pynvml.NVML_VOLATILE_ECC))


def _link_errors(handle: object) -> int | None:
    """CRC errors of all links together; None where no link tells."""
    counts = [
        _tried(lambda link=link: pynvml.nvmlDeviceGetNvLinkErrorCounter(handle, link, pynvml.NVML_NVLINK_ERROR_DL_CRC_FLIT))  # type: ignore[misc]
        for link in range(pynvml.NVML_NVLINK_MAX_LINKS)
    ]
    told = [count for count in counts if count is not None]
    return sum(told) if told else None


def _counters(before: object, after: object) -> dict[str, float | None]:
    asked = pynvml.c_nvmlGpmMetricsGet_t()
    asked.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    asked.numMetrics = len(_GPM_METRICS)
    asked.sample1, asked.sample2 = before, after
    for place, metric in enumerate(_GPM_METRICS.values()):
        asked.metrics[place].metricId = metric
    if _tried(lambda: pynvml.nvmlGpmMetricsGet(asked)) is None:
        return dict.fromkeys(_GPM_METRICS)
    return {
        name: min(max(asked.metrics[place].value, 0.0), 100.0) if asked.metrics[place].nvmlReturn == pynvml.NVML_SUCCESS else None
        for place, name in enumerate(_GPM_METRICS)
    }


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
