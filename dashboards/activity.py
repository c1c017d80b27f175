"""One GPU's SM activity over the last day, out of its node's five-minute samples."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from dashboards.models import NO_READING, NodeSample
from scheduler.models import Gpu

STEP = timedelta(minutes=5)
STEPS = 288


@dataclass(frozen=True, slots=True)
class Activity:
    """Percent for each five minutes of a day, the oldest first; None where nothing was read."""

    percents: tuple[int | None, ...]

    @property
    def readings(self) -> list[int]:
        return [percent for percent in self.percents if percent is not None]

    @property
    def mean(self) -> int | None:
        return round(sum(self.readings) / len(self.readings)) if self.readings else None

    @property
    def lowest(self) -> int:
        return min(self.readings)

    @property
    def highest(self) -> int:
        return max(self.readings)

    @property
    def unread(self) -> int:
        """How many minutes of the day nothing was read."""
        return (STEPS - len(self.readings)) * 5

    @property
    def path(self) -> str:
        """The day as an SVG path in a box of 288 by 100: a filled run for every unbroken stretch of readings."""
        parts, start = [], None
        for position, percent in enumerate((*self.percents, None)):
            if percent is None:
                if start is not None:
                    parts.append(f"V100H{start}Z")
                start = None
                continue
            parts.append(f"M{position} 100V{100 - percent}H{position + 1}" if start is None else f"V{100 - percent}H{position + 1}")
            start = position if start is None else start
        return "".join(parts)


def gpu_activity(gpu: Gpu, *, now: datetime) -> Activity:
    """The last 24 hours of a GPU. Two queries."""
    # A sample holds a byte for each GPU of the node, in the order of their indices.
    position = Gpu.objects.filter(node_id=gpu.node_id, removed_at__isnull=True, index__lt=gpu.index).count()
    start = now - STEP * STEPS
    percents: list[int | None] = [None] * STEPS
    for at, row in NodeSample.objects.filter(node_id=gpu.node_id, at__gt=start, at__lte=now).values_list("at", "sm_active"):
        values = bytes(row)
        step = int((at - start) / STEP)
        if position < len(values) and values[position] != NO_READING and 0 <= step < STEPS:
            percents[step] = values[position]
    return Activity(tuple(percents))
