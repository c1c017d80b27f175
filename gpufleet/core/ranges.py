"""The time ranges that charts offer, from an hour to a quarter. The choice is part of the address: `?range=7d`."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

MINUTE, QUARTER, HOUR = timedelta(minutes=1), timedelta(minutes=15), timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Range:
    """`step` is the interval of one point: the finest for which a chart stays below about 750 points. `over`: it ends with what it is of, not now."""

    key: str
    length: timedelta
    step: timedelta
    text: str
    over: bool = False
    name: str = "All"  # of one without a step: all of what the chart is of

    @property
    def label(self) -> str:
        return self.key if self.step else self.name

    @property
    def title(self) -> str:
        if not self.step:
            return self.text.capitalize()
        return f"Its last {self.text.removeprefix('1 ')}" if self.over else f"Last {self.text}"

    def begin(self, now: datetime) -> datetime:
        """The first whole step of the range, so that two requests within a step give the same points."""
        seconds = int(self.step.total_seconds())
        end = int(now.timestamp()) // seconds * seconds
        return datetime.fromtimestamp(end, tz=now.tzinfo) - self.length


RANGES = (
    Range("1h", timedelta(hours=1), MINUTE, "1 hour"),
    Range("6h", timedelta(hours=6), MINUTE, "6 hours"),
    Range("24h", timedelta(hours=24), 5 * MINUTE, "24 hours"),
    Range("7d", timedelta(days=7), QUARTER, "7 days"),
    Range("30d", timedelta(days=30), HOUR, "30 days"),
    Range("90d", timedelta(days=90), 3 * HOUR, "90 days"),
)
BY_KEY = {one.key: one for one in RANGES}


def range_of(query: Mapping[str, str], default: str = "24h") -> Range:
    """The range that a request asks for; the default where it names none or an unknown one."""
    return BY_KEY.get(query.get("range", ""), BY_KEY[default])
