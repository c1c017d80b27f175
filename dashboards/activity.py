"""SM activity over some time, out of five-minute samples, as a small drawing."""

from dataclasses import dataclass
from datetime import timedelta

STEP = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Activity:
    """Percent for each step, the oldest first; None where nothing was read."""

    percents: tuple[int | None, ...]

    @property
    def readings(self) -> list[int]:
        return [percent for percent in self.percents if percent is not None]

    @property
    def lowest(self) -> int:
        return min(self.readings)

    @property
    def highest(self) -> int:
        return max(self.readings)

    @property
    def path(self) -> str:
        """An SVG path in a box as wide as there are readings and 100 high: a filled run for every unbroken stretch of readings."""
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
