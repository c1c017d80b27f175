"""What GPUs did over the last minutes, as one matrix: the only way in which idle, health and straggler rules read telemetry.

A minute without a reading is NaN. A GPU that the newest look did not read, or whose source is stale, is not `fresh`, and no rule may act on it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from dashboards.health.models import HealthFrame
from dashboards.health.state import PAST_MINUTES, nvlink_by_minute
from dashboards.models import NO_READING, TelemetryFrame
from dashboards.selectors import FRESH
from dashboards.telemetry.frames import ACTIVITY, MINUTE, SETTLE, minute_of, minutes_between, sums_of

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Window:
    """Percent by GPU and minute, the oldest minute first. `gpus` are primary keys in ascending order."""

    gpus: Whole
    fresh: Mask
    sm: Floats
    memory: Floats

    @property
    def minutes(self) -> int:
        return int(self.sm.shape[1])

    def places(self, keys: Sequence[int] | Whole) -> Whole:
        """Rows of these GPUs; -1 for those that no source has read."""
        wanted = np.asarray(keys, np.int64)
        if not len(self.gpus):
            return np.full(len(wanted), -1, np.int64)
        found = np.minimum(np.searchsorted(self.gpus, wanted), len(self.gpus) - 1)
        return np.where(self.gpus[found] == wanted, found, -1)

    def last(self, minutes: int) -> "Window":
        """The newest part of it."""
        return Window(self.gpus, self.fresh, self.sm[:, -minutes:], self.memory[:, -minutes:])


def activity_window(*, minutes: int, now: datetime) -> Window:
    """The last whole minutes, at most two days of them, of every GPU that some source reads. Two queries."""
    end = minute_of(now - SETTLE)
    start = end - MINUTE * minutes
    rows = list(minutes_between(start, end))
    if not rows:
        empty = np.zeros((0, minutes))
        return Window(np.zeros(0, np.int64), np.zeros(0, np.bool_), empty, empty)
    parts = [(row, sums_of(row, ACTIVITY)) for row in rows]
    gpus = np.unique(np.concatenate([sums.gpus for _, sums in parts])).astype(np.int64)
    sm, memory = np.full((len(gpus), minutes), np.nan), np.full((len(gpus), minutes), np.nan)
    for row, sums in parts:
        place, column = np.searchsorted(gpus, sums.gpus), (row.at - start) // MINUTE
        sm[place, column] = _means(sums.sm_sum, sums.sm_read)
        memory[place, column] = _means(sums.memory_sum, sums.memory_read)
    return Window(gpus, np.isin(gpus, _read_now(now)), sm, memory)


def _read_now(now: datetime) -> Whole:
    """GPUs that the newest look at their cluster has read. One exporter may be dead while others of the cluster tell."""
    frames = TelemetryFrame.objects.filter(at__gte=now - FRESH, at__lte=now + FRESH).values_list("gpu_ids", "sm_active")
    read = [np.frombuffer(bytes(ids), "<u4")[np.frombuffer(bytes(sm), np.uint8) != NO_READING] for ids, sm in frames]
    return np.concatenate([np.zeros(0, np.int64), *read])


def nvlink_window(*, gpus: Whole, now: datetime) -> Floats:
    """MiB/s over NVLink of these GPUs, in ascending order, in the last whole minutes, the oldest first. One query."""
    found = np.full((PAST_MINUTES, len(gpus)), np.nan)
    for frame in HealthFrame.objects.filter(at__gte=now - FRESH, at__lte=now + FRESH):
        read, traffic = nvlink_by_minute(frame, now)
        _, mine, theirs = np.intersect1d(gpus, read, assume_unique=True, return_indices=True)
        found[:, mine] = traffic[:, theirs]
    return found


def _means(total: NDArray[np.uint32], count: NDArray[np.uint32]) -> Floats:
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
