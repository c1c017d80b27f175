"""The fleet's past day as programs read it."""

from datetime import datetime, timedelta

from dashboards.figures import Series, series_of
from dashboards.selectors import samples_between

# Hours that one can look back -> the length of a step in seconds.
RANGES = {1: 60, 6: 120, 24: 300}


def history(*, hours: int, gpu_type: str, now: datetime) -> Series:
    """The last `hours`, one of `RANGES`, up to and with the step that is under way; of one GPU type, or of all where it is empty."""
    step = RANGES[hours]
    end = datetime.fromtimestamp((int(now.timestamp()) // step + 1) * step, now.tzinfo)
    start = end - timedelta(hours=hours)
    return series_of(samples_between(start, end, gpu_type), start=start, steps=hours * 3600 // step, step_seconds=step)
