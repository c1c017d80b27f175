"""Frames: the newest reading of every GPU of a cluster, one row a cluster, written every few seconds by whatever source there is."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import numpy as np
from django.db import transaction
from django.db.models import Q, QuerySet
from numpy.typing import NDArray

from dashboards.models import NO_READING, TelemetryFrame, TelemetryMinute
from dashboards.telemetry.packing import ids_packed, ids_read
from gpufleet.core.times import millis, whole_millis

NO_POWER = 65_535
SET_BACK = timedelta(minutes=2)
# A reading that comes later than this is not counted any more. It is less than what a round of roll-ups looks back on.
LATE = timedelta(minutes=10)
# The last frames of a minute may still be on their way when it ends.
SETTLE = timedelta(seconds=4)
MOST_FRAMES = 255  # a minute's counters are bytes; a source faster than four a second gains nothing

Ids = NDArray[np.uint32]
Percent = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Columns:
    """One reading, as columns in the order of `gpus`. Percent and degrees are bytes with 255 for "no reading", watts have 65535.

    `tensor_active` and `dram_active` are empty where the source has no such counters.
    """

    gpus: Ids
    sm_active: Percent
    memory_used: Percent
    power_watts: NDArray[np.uint16]
    temperature_c: Percent
    tensor_active: Percent = field(default_factory=lambda: np.zeros(0, np.uint8))
    dram_active: Percent = field(default_factory=lambda: np.zeros(0, np.uint8))
    weak: Ids = field(default_factory=lambda: np.zeros(0, np.uint32))  # GPUs whose SM activity is the driver's utilization

    def __post_init__(self) -> None:
        sizes = {len(column) for column in (self.gpus, self.sm_active, self.memory_used, self.power_watts, self.temperature_c)}
        assert len(sizes) == 1, "every column of a frame has one value a GPU"
        assert {len(self.tensor_active), len(self.dram_active)} <= {0, len(self.gpus)}, "a column that is not there is empty"


Sum = tuple[NDArray[np.uint32], NDArray[np.uint32]]

# The measures of a minute: how sums lie in its row. All but power are percent.
MEASURES: Mapping[str, str] = {"sm": "<u2", "memory": "<u2", "tensor": "<u2", "dram": "<u2", "power": "<u4"}


@dataclass(frozen=True, slots=True)
class Sums:
    """What the frames of a period add up to, per GPU: for each measure that was read, the sum and how many readings it has."""

    gpus: Ids
    frames: int
    measures: Mapping[str, Sum]

    @property
    def sm_sum(self) -> NDArray[np.uint32]:
        return self.measures["sm"][0]

    @property
    def sm_read(self) -> NDArray[np.uint32]:
        return self.measures["sm"][1]

    @property
    def memory_sum(self) -> NDArray[np.uint32]:
        return self.measures["memory"][0]

    @property
    def memory_read(self) -> NDArray[np.uint32]:
        return self.measures["memory"][1]


def minute_of(moment: datetime) -> datetime:
    return moment.replace(second=0, microsecond=0)


def frame_write(*, cluster_id: int, at: datetime, source: str, columns: Columns, now: datetime | None = None) -> bool:
    """Make this the newest frame of the cluster and add it to its minute. Returns whether it is the newest.

    A frame that comes late counts in its own minute, once however often it comes. A last frame from the far future of `now` (without it: of `at`)
    is no reason to wait for it: its clock has been set right since.
    """
    at = whole_millis(at)
    clock = whole_millis(now) if now is not None else at
    values = {
        "at": at,
        "source": source,
        "gpu_ids": columns.gpus.astype("<u4").tobytes(),
        "sm_active": columns.sm_active.tobytes(),
        "memory_used": columns.memory_used.tobytes(),
        "power_watts": columns.power_watts.astype("<u2").tobytes(),
        "temperature_c": columns.temperature_c.tobytes(),
        "tensor_active": columns.tensor_active.tobytes(),
        "dram_active": columns.dram_active.tobytes(),
        "weak_ids": columns.weak.astype("<u4").tobytes(),
    }
    with transaction.atomic():
        # The frame's row is also the lock under which the minute is added to.
        if not TelemetryFrame.objects.filter(Q(at__lt=at) | Q(at__gt=clock + SET_BACK), cluster_id=cluster_id).update(**values):
            newest = TelemetryFrame.objects.select_for_update().filter(cluster_id=cluster_id).values_list("at", flat=True).first()
            if newest is not None:
                if newest - at < LATE:
                    _add_to_minute(cluster_id, at, columns)
                return False
            TelemetryFrame.objects.create(cluster_id=cluster_id, **values)
        _add_to_minute(cluster_id, at, columns)
    return True


def _add_to_minute(cluster_id: int, at: datetime, columns: Columns) -> None:
    minute, sums = minute_of(at), sums_of_frame(columns)
    look = np.array([(millis(at) - millis(minute))], "<u2").tobytes()
    row = TelemetryMinute.objects.filter(cluster_id=cluster_id, at=minute).first()
    if row is None:
        TelemetryMinute.objects.create(cluster_id=cluster_id, at=minute, looks=look, **minute_values(sums))
        return
    looks = bytes(row.looks)
    if row.frames < MOST_FRAMES and look not in (looks[place : place + 2] for place in range(0, len(looks), 2)):
        values = minute_values(added([sums_of(row), sums]))
        TelemetryMinute.objects.filter(pk=row.pk).update(is_rolled=False, looks=looks + look, **values)


def sums_of_frame(columns: Columns) -> Sums:
    """One frame as the sums of a period."""
    read: dict[str, tuple[NDArray[np.uint8] | NDArray[np.uint16], int]] = {
        "sm": (columns.sm_active, NO_READING),
        "memory": (columns.memory_used, NO_READING),
        "tensor": (columns.tensor_active, NO_READING),
        "dram": (columns.dram_active, NO_READING),
        "power": (columns.power_watts, NO_POWER),
    }
    measures = {name: _readings(column, nothing) for name, (column, nothing) in read.items() if len(column) == len(columns.gpus)}
    return Sums(gpus=columns.gpus, frames=1, measures=measures)


def _readings(column: NDArray[np.uint8] | NDArray[np.uint16], nothing: int) -> Sum:
    return np.where(column == nothing, 0, column).astype(np.uint32), (column != nothing).astype(np.uint32)


def minute_values(sums: Sums) -> dict[str, object]:
    """The columns of a minute's row."""
    values: dict[str, object] = {"frames": sums.frames, "gpu_ids": ids_packed(sums.gpus)}
    for name, (total, count) in sums.measures.items():
        values |= {f"{name}_sum": total.astype(MEASURES[name]).tobytes(), f"{name}_read": count.astype(np.uint8).tobytes()}
    return values


def sums_of(row: TelemetryMinute, names: Iterable[str] = MEASURES) -> Sums:
    """A minute's row as sums, of these measures."""
    gpus = ids_read(row.gpu_ids)
    measures = {}
    for name in names:
        total = np.frombuffer(getattr(row, f"{name}_sum"), MEASURES[name]).astype(np.uint32)
        if len(total) == len(gpus):
            measures[name] = total, np.frombuffer(getattr(row, f"{name}_read"), np.uint8).astype(np.uint32)
    return Sums(gpus=gpus, frames=row.frames, measures=measures)


def added(parts: list[Sums]) -> Sums:
    """Sums of several periods. GPUs that came or went in between keep what was read of them."""
    first = parts[0]
    if all(np.array_equal(first.gpus, part.gpus) for part in parts[1:]):
        gpus, places = first.gpus, [slice(None)] * len(parts)
    else:
        gpus = np.unique(np.concatenate([part.gpus for part in parts]))
        places = [np.searchsorted(gpus, part.gpus) for part in parts]  # type: ignore[misc]
    names = [name for name in MEASURES if any(name in part.measures for part in parts)]
    measures = {name: (np.zeros(len(gpus), np.uint32), np.zeros(len(gpus), np.uint32)) for name in names}
    for part, place in zip(parts, places, strict=True):
        for name, (total, count) in part.measures.items():
            measures[name][0][place] += total
            measures[name][1][place] += count
    return Sums(gpus=gpus.astype(np.uint32), frames=sum(part.frames for part in parts), measures=measures)


ACTIVITY = ("sm", "memory")


def minutes_between(start: datetime, end: datetime) -> QuerySet[TelemetryMinute]:
    """The minutes of every cluster that begin in [start, end), with what rules over activity read of them."""
    columns = [f"{name}_{part}" for name in ACTIVITY for part in ("sum", "read")]
    rows = TelemetryMinute.objects.filter(at__gte=start, at__lt=end).only("cluster_id", "at", "frames", "gpu_ids", *columns)
    return rows.order_by("cluster_id", "at")


def sums_between(start: datetime, end: datetime) -> list[Sums]:
    """The sums of every cluster over whole minutes in [start, end)."""
    assert minute_of(start) == start
    assert minute_of(end) == end
    by_cluster: dict[int, list[Sums]] = {}
    for row in minutes_between(start, end):
        by_cluster.setdefault(row.cluster_id, []).append(sums_of(row, ACTIVITY))
    return [added(parts) for parts in by_cluster.values()]


MINUTE = timedelta(minutes=1)
