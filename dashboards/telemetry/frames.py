"""Frames: the newest reading of every GPU of a cluster, one row a cluster, written every few seconds by whatever source there is."""

from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
from django.db import transaction
from django.db.models import Q
from numpy.typing import NDArray

from dashboards.models import NO_READING, TelemetryFrame, TelemetryMinute
from gpufleet.core.times import whole_millis

NO_POWER = 65_535
SET_BACK = timedelta(minutes=2)
MOST_FRAMES = 255  # a minute's counters are bytes; a source faster than four a second gains nothing

Ids = NDArray[np.uint32]
Percent = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Columns:
    """One reading, as columns in the order of `gpus`. Percent and degrees are bytes with 255 for "no reading", watts have 65535."""

    gpus: Ids
    sm_active: Percent
    memory_used: Percent
    power_watts: NDArray[np.uint16]
    temperature_c: Percent

    def __post_init__(self) -> None:
        sizes = {len(column) for column in (self.gpus, self.sm_active, self.memory_used, self.power_watts, self.temperature_c)}
        assert len(sizes) == 1, "every column of a frame has one value a GPU"


@dataclass(frozen=True, slots=True)
class Sums:
    """What the frames of a period add up to, per GPU."""

    gpus: Ids
    frames: int
    sm_sum: NDArray[np.uint32]
    sm_read: NDArray[np.uint32]
    memory_sum: NDArray[np.uint32]
    memory_read: NDArray[np.uint32]


def minute_of(moment: datetime) -> datetime:
    return moment.replace(second=0, microsecond=0)


def frame_write(*, cluster_id: int, at: datetime, source: str, columns: Columns) -> bool:
    """Make this the newest frame of the cluster and add it to its minute. A frame that is not newer than the last changes nothing.

    A last frame from the far future is no reason to wait for it: its clock has been set right since.
    """
    at = whole_millis(at)
    values = {
        "at": at,
        "source": source,
        "gpu_ids": columns.gpus.astype("<u4").tobytes(),
        "sm_active": columns.sm_active.tobytes(),
        "memory_used": columns.memory_used.tobytes(),
        "power_watts": columns.power_watts.astype("<u2").tobytes(),
        "temperature_c": columns.temperature_c.tobytes(),
    }
    with transaction.atomic():
        # The frame's row is also the lock under which the minute is added to.
        if not TelemetryFrame.objects.filter(Q(at__lt=at) | Q(at__gt=at + SET_BACK), cluster_id=cluster_id).update(**values):
            if TelemetryFrame.objects.filter(cluster_id=cluster_id).exists():
                return False
            TelemetryFrame.objects.create(cluster_id=cluster_id, **values)
        _add_to_minute(cluster_id, at, columns)
    return True


def _add_to_minute(cluster_id: int, at: datetime, columns: Columns) -> None:
    sums = sums_of_frame(columns)
    row = TelemetryMinute.objects.filter(cluster_id=cluster_id, at=minute_of(at)).first()
    if row is None:
        TelemetryMinute.objects.create(cluster_id=cluster_id, at=minute_of(at), **_packed(sums))
    elif row.frames < MOST_FRAMES:
        TelemetryMinute.objects.filter(pk=row.pk).update(**_packed(added([sums_of(row), sums])))


def sums_of_frame(columns: Columns) -> Sums:
    """One frame as the sums of a period."""
    return Sums(
        gpus=columns.gpus,
        frames=1,
        sm_sum=_readings(columns.sm_active),
        sm_read=(columns.sm_active != NO_READING).astype(np.uint32),
        memory_sum=_readings(columns.memory_used),
        memory_read=(columns.memory_used != NO_READING).astype(np.uint32),
    )


def _readings(column: Percent) -> NDArray[np.uint32]:
    return np.where(column == NO_READING, 0, column).astype(np.uint32)


def _packed(sums: Sums) -> dict[str, object]:
    return {
        "frames": sums.frames,
        "gpu_ids": sums.gpus.astype("<u4").tobytes(),
        "sm_sum": sums.sm_sum.astype("<u2").tobytes(),
        "sm_read": sums.sm_read.astype(np.uint8).tobytes(),
        "memory_sum": sums.memory_sum.astype("<u2").tobytes(),
        "memory_read": sums.memory_read.astype(np.uint8).tobytes(),
    }


def sums_of(row: TelemetryMinute) -> Sums:
    return Sums(
        gpus=np.frombuffer(row.gpu_ids, "<u4"),
        frames=row.frames,
        sm_sum=np.frombuffer(row.sm_sum, "<u2").astype(np.uint32),
        sm_read=np.frombuffer(row.sm_read, np.uint8).astype(np.uint32),
        memory_sum=np.frombuffer(row.memory_sum, "<u2").astype(np.uint32),
        memory_read=np.frombuffer(row.memory_read, np.uint8).astype(np.uint32),
    )


def added(parts: list[Sums]) -> Sums:
    """Sums of several periods. GPUs that came or went in between keep what was read of them."""
    first = parts[0]
    if all(np.array_equal(first.gpus, part.gpus) for part in parts[1:]):
        gpus, places = first.gpus, [slice(None)] * len(parts)
    else:
        gpus = np.unique(np.concatenate([part.gpus for part in parts]))
        places = [np.searchsorted(gpus, part.gpus) for part in parts]  # type: ignore[misc]
    columns = {name: np.zeros(len(gpus), np.uint32) for name in ("sm_sum", "sm_read", "memory_sum", "memory_read")}
    for part, place in zip(parts, places, strict=True):
        for name, column in columns.items():
            column[place] += getattr(part, name)
    return Sums(gpus=gpus.astype(np.uint32), frames=sum(part.frames for part in parts), **columns)


def sums_between(start: datetime, end: datetime) -> list[Sums]:
    """The sums of every cluster over whole minutes in [start, end)."""
    assert minute_of(start) == start
    assert minute_of(end) == end
    by_cluster: dict[int, list[Sums]] = {}
    for row in TelemetryMinute.objects.filter(at__gte=start, at__lt=end).order_by("cluster_id", "at"):
        by_cluster.setdefault(row.cluster_id, []).append(sums_of(row))
    return [added(parts) for parts in by_cluster.values()]


MINUTE = timedelta(minutes=1)
