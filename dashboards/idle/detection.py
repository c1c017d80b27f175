"""Which GPUs are idle, out of their minutes. Arrays in, arrays out.

A GPU is idle when nearly all of its minutes lie below the threshold; then a short burst does not end it. Missing readings never make a GPU idle.
"""

from dataclasses import dataclass

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


def lying_clusters(window: Window, *, gpus: Whole, clusters: Whole, jobs: Whole) -> set[int]:
    """Clusters whose source reads zero on nearly every held GPU of several jobs. (GPU, cluster, job) of each hold."""
    places = window.places(gpus)
    found = set()
    for cluster in np.unique(clusters).tolist():
        mine = (clusters == cluster) & (places >= 0)
        if mine.sum() < LYING_GPUS or len(np.unique(jobs[mine])) < LYING_JOBS:
            continue
        newest = window.sm[places[mine]][:, -3:]
        zero = (np.nan_to_num(newest, nan=0.0) == 0).all(axis=1)
        if zero.mean() >= LYING_SHARE:
            found.add(cluster)
    return found
