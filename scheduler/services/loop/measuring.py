"""Counting what the scheduler does. A process gathers, and adds what it has gathered to the common rows now and then.

Several processes add to the same rows, so any of them can tell the whole. One that is killed takes with it what it had not yet added: some seconds.
"""

import json
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime

from django.db import connection, transaction

from gpufleet.core.models import Progress
from scheduler.loop.measures import TICK_FINISHED, Counted, Timed

ALL = "count"
SUM = "sum"
BEYOND = "+Inf"
ROWS = 200
Grown = Mapping[tuple[str, str, str], int]


class Tally:
    """What was counted since it was last added to the rows. Any thread may count."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._grown: Counter[tuple[str, str, str]] = Counter()

    def count(self, measure: Counted, *labels: object, n: int = 1) -> None:
        if n:
            with self._lock:
                self._grown[measure.name, _spelt(labels), ALL] += n

    def time(self, measure: Timed, *labels: object, seconds: float) -> None:
        place = bisect_left(measure.bounds, seconds)
        bound = repr(measure.bounds[place]) if place < len(measure.bounds) else BEYOND
        spelt = _spelt(labels)
        with self._lock:
            self._grown[measure.name, spelt, bound] += 1
            self._grown[measure.name, spelt, SUM] += max(0, round(1_000_000 * seconds))

    @contextmanager
    def timing(self, measure: Timed, *labels: object, before: float = 0.0) -> Iterator[None]:
        """`before`: seconds that it has taken already."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.time(measure, *labels, seconds=before + time.perf_counter() - began)

    def take(self) -> Grown:
        """All of it; it begins anew at nothing."""
        with self._lock:
            grown, self._grown = self._grown, Counter()
        return grown

    def give_back(self, grown: Grown) -> None:
        with self._lock:
            self._grown.update(grown)


def _spelt(labels: tuple[object, ...]) -> str:
    return json.dumps([str(label) for label in labels])


tally = Tally()


def measures_write(*, counted: Tally = tally) -> int:
    """Add what was counted to the rows. Returns how many of them grew."""
    grown = counted.take()
    if not grown:
        return 0
    # In one order everywhere, so that two processes never wait for each other.
    rows = [(*key, value) for key, value in sorted(grown.items())]
    try:
        with transaction.atomic():
            for first in range(0, len(rows), ROWS):
                _add(rows[first : first + ROWS])
    except Exception:
        counted.give_back(grown)
        raise
    return len(rows)


def tick_finished(*, now: datetime) -> None:
    Progress.objects.update_or_create(name=TICK_FINISHED, defaults={"reached_at": now})


def _add(rows: list[tuple[str, str, str, int]]) -> None:
    values = ", ".join(["(%s, %s, %s, %s)"] * len(rows))
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO measure (name, labels, part, value) VALUES {values}"  # noqa: S608 - as many placeholders as rows
            " ON CONFLICT (name, labels, part) DO UPDATE SET value = measure.value + excluded.value",
            [cell for row in rows for cell in row],
        )
