"""Minutes of telemetry for tests of rules: what each GPU did, minute by minute."""

from collections.abc import Mapping, Sequence
from datetime import datetime

import numpy as np

from dashboards.models import NO_READING, TelemetryMinute
from dashboards.telemetry.frames import MINUTE, minute_of
from dashboards.telemetry.packing import ids_packed
from scheduler.models import Gpu
from tests.dashboards.worlds import readings

FRAMES = 30
FIGURES = ("frames", "gpu_ids", "sm_sum", "sm_read", "memory_sum", "memory_read")


def watched(percents: Mapping[Gpu, Sequence[int | None] | int | None], *, until: datetime, minutes: int = 30, memory: int = 40) -> None:
    """The minutes before `until`, and a fresh frame. One figure stands for all minutes; None is a minute without a reading."""
    clusters: dict[int, list[tuple[int, list[int | None]]]] = {}
    for gpu, told in percents.items():
        series = list(told) if isinstance(told, Sequence) else [told] * minutes
        clusters.setdefault(gpu.node.cluster_id, []).append((gpu.pk, series))
    end = minute_of(until)
    for cluster, rows in clusters.items():
        rows.sort()
        length = max(len(series) for _, series in rows)
        keys = ids_packed(np.array([key for key, _ in rows], np.uint32))
        rows_of_minutes = []
        for step in range(length):
            now = [series[step - length] if step - length >= -len(series) else None for _, series in rows]
            read = np.array([0 if value is None else FRAMES for value in now], np.uint8)
            sums = np.array([0 if value is None else value * FRAMES for value in now], "<u2")
            at = end - MINUTE * (length - step)
            figures = (FRAMES, keys, sums.tobytes(), read.tobytes(), (read.astype("<u2") * memory).tobytes(), read.tobytes())
            rows_of_minutes.append(TelemetryMinute(cluster_id=cluster, at=at, **dict(zip(FIGURES, figures, strict=True))))
        TelemetryMinute.objects.bulk_create(rows_of_minutes, update_conflicts=True, unique_fields=("cluster", "at"), update_fields=FIGURES)
    newest = {gpu: (told[-1] if isinstance(told, Sequence) else told) for gpu, told in percents.items()}
    assert NO_READING == 255
    readings(newest, at=until)
