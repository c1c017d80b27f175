"""By how much run times differ from estimates: the factor by which plans multiply the estimates of jobs without a time limit.

It is the median over jobs that completed, so that a few of them, however wrong, don't move it; of one person's jobs in one queue only so many count,
so that one sweep doesn't stand for the fleet. It stays within bounds, and is 1 as long as too few jobs are known.
"""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from statistics import median
from typing import NamedTuple

LOOKED_BACK = timedelta(weeks=4)
LEARNT_EVERY = timedelta(hours=1)
LEAST_JOBS = 30
MOST_OF_ONE = 100
MILLION = 1_000_000
LEAST, MOST = MILLION // 2, 3 * MILLION
# Plans are not made otherwise, hour by hour, for less.
STEP = MILLION // 100


class Ran(NamedTuple):
    """A job that completed: whose it was, its estimate and its run time in milliseconds, and when it ended."""

    whose: tuple[int | None, ...]
    estimate: int
    took: int
    ended_at: datetime


class Learned(NamedTuple):
    factor: int = MILLION  # in millionths
    median: int | None = None  # the same as it was measured; None: of no job
    jobs: int = 0
    since: datetime | None = None  # when the first of them ended


def learned(runs: Iterable[Ran]) -> Learned:
    """The newest runs first. Of one person in one queue the newest count."""
    had, counted = Counter[tuple[int | None, ...]](), list[Ran]()
    for run in runs:
        had[run.whose] += 1
        if had[run.whose] <= MOST_OF_ONE:
            counted.append(run)
    if not counted:
        return Learned()
    measured = round(median(MILLION * max(0, run.took) // run.estimate for run in counted))
    factor = min(MOST, max(LEAST, STEP * round(measured / STEP))) if len(counted) >= LEAST_JOBS else MILLION
    return Learned(factor, measured, len(counted), min(run.ended_at for run in counted))
