"""What is free, and what keeps a part of it from starting something: spares and reservations, hardware under suspicion, and how it lies."""

from collections import defaultdict
from datetime import datetime

from dashboards.figures import Figures, figures_by_type
from dashboards.fragmentation.store import fragmentation_newest
from dashboards.gap.snapshot import reserved_now
from dashboards.selectors import Fleet

# An older measure says nothing about now; it is taken each minute.
LATEST_SECONDS = 180


def figures_with_free(fleet: Fleet, *, now: datetime) -> dict[str, Figures]:
    """The figures of each type, with what is free told apart."""
    reserved: dict[str, int] = defaultdict(int)
    for kept in reserved_now(now):
        reserved[kept.gpu_type] += kept.milli
    return figures_by_type(fleet, reserved=reserved, scattered=_scattered(now))


def _scattered(now: datetime) -> dict[str, int]:
    """What no job of the queue can use as it lies, by type: the last minute's measure, for it takes a snapshot of the scheduler."""
    newest = fragmentation_newest()
    found: dict[str, int] = defaultdict(int)
    if newest is None or (now - newest[0]).total_seconds() > LATEST_SECONDS:
        return found
    for pile in newest[1].piles:
        found[pile.gpu_type] += pile.waiting.milli
    return found
