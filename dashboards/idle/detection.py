"""Which GPUs are idle, out of their minutes. Arrays in, arrays out.

A GPU is idle when nearly all of its minutes lie below the threshold; then a short burst does not end it. Missing readings never make a GPU idle.
"""

from dataclasses import dataclass, replace

import numpy as np

from dashboards.signals import Floats, Mask, Whole, Window

# Of the minutes of a window so many must have a reading: fewer say nothing.
READ_SHARE = 0.8
# Of those so many must be low to open an episode, and as long as so many are it goes on.
OPEN_SHARE, STAY_SHARE = 0.9, 0.6
# A GPU that holds less memory than a driver context has no process.
EMPTY_MEMORY_PERCENT = 1.5
# A source that reads nothing but zeros from a cluster full of work is broken, however sure it is.
LYING_GPUS, LYING_JOBS, LYING_SHARE = 16, 3, 0.97


@dataclass(frozen=True, slots=True)
class Idleness:
    """Of each GPU of a window: whether it would open an episode, keep one open, whether it is known at all, and what it did."""

    opens: Mask
    stays: Mask
    known: Mask
    empty: Mask
    mean: Floats


def idleness(window: Window, *, threshold_percent: float) -> Idleness:
    read = ~np.isnan(window.sm)
    count = read.sum(axis=1)
    known = window.fresh & (count >= READ_SHARE * window.minutes) & (count > 0)
    low = np.where(read, window.sm, np.inf) < threshold_percent
    share = low.sum(axis=1) / np.maximum(count, 1)
    mean = _mean(window.sm, read)
    memory = _mean(window.memory, ~np.isnan(window.memory))
    # Only a reading of memory shows that there is no process.
    empty = known & (memory < EMPTY_MEMORY_PERCENT) & (~np.isnan(window.memory)).any(axis=1)
    return Idleness(opens=known & (share >= OPEN_SHARE), stays=known & (share >= STAY_SHARE), known=known, empty=empty, mean=mean)


def _mean(values: Floats, read: Mask) -> Floats:
    return np.where(read, values, 0.0).sum(axis=1) / np.maximum(read.sum(axis=1), 1)


@dataclass(frozen=True, slots=True)
class Holds:
    """Of each hold: the GPU, its cluster, the job, for how many minutes it has been held, and how much of it, in thousandths."""

    gpus: Whole
    clusters: Whole
    jobs: Whole
    minutes: Whole
    milli: Whole


def of_parts(window: Window, holds: Holds) -> Window:
    """The window with the activity of what is held: a seventh of a GPU that is busy all the time is a seventh of the GPU's activity."""
    places = window.places(holds.gpus)
    there, ages = places >= 0, np.arange(window.minutes, 0, -1)
    held = np.zeros(window.sm.shape, np.int64)
    np.add.at(held, places[there], holds.milli[there, None] * (holds.minutes[there, None] >= ages))
    is_part = (held > 0) & (held < 1000)
    return replace(window, sm=np.where(is_part, np.minimum(1000 * window.sm / np.maximum(held, 1), 100), window.sm)) if is_part.any() else window


def believed(window: Window, holds: Holds) -> tuple[Window, frozenset[int]]:
    """The window without the minutes of held GPUs in which their cluster's source lied, and the clusters that lie in the newest minute.

    A source lies in a minute when it reads zero on nearly every GPU that is at work, of several jobs.
    """
    places = window.places(holds.gpus)
    lying, sm, memory = set(), window.sm, window.memory
    for cluster in np.unique(holds.clusters[places >= 0]).tolist():
        mine = (holds.clusters == cluster) & (places >= 0)
        rows = places[mine]
        lied = _lied(window.sm[rows], holds.jobs[mine], holds.minutes[mine])
        if not lied.any():
            continue
        if sm is window.sm:
            sm, memory = sm.copy(), memory.copy()
        sm[np.ix_(rows, lied)] = memory[np.ix_(rows, lied)] = np.nan
        if lied[-1]:
            lying.add(cluster)
    return replace(window, sm=sm, memory=memory), frozenset(lying)


def _lied(sm: Floats, jobs: Whole, minutes: Whole) -> Mask:
    """Of each minute whether the source lied. A GPU counts for the minutes in which the job has held it."""
    ages = np.arange(sm.shape[1], 0, -1)
    held = minutes[:, None] >= ages
    longest = [minutes[jobs == job].max() for job in np.unique(jobs)]
    at_work = (np.array(longest)[:, None] >= ages).sum(axis=0)
    gpus = held.sum(axis=0)
    zero = (held & (np.nan_to_num(sm, nan=0.0) == 0)).sum(axis=0)
    return (gpus >= LYING_GPUS) & (at_work >= LYING_JOBS) & (zero >= LYING_SHARE * gpus)
