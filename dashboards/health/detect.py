"""Which rank of a gang is slow, by robust statistics. Arrays in, ranks out: the same for reported step times, SM activity and NVLink
traffic.

A rank stands out when it is off the median of its gang by far more than ranks usually differ from each other, in nearly all of the last looks. One
outlier, a checkpoint or an evaluation of the whole gang, is none.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LOOKS = 6  # of the last looks
AGREE = 5  # so many must say the same
STAYS = 2  # and so many, of a rank that was named already
LEAST_RANKS = 4
READ = 0.8  # a look that reads fewer of the ranks is left out
# So far off the median, in the gang's own spread (median absolute deviation, as a standard deviation), and in percent.
SPREADS, LEAST_PERCENT = 6.0, 8.0
# Ranks of a quiet gang differ by less than can be told from noise.
FLOOR_PERCENT = 1.0
# Activity is read in whole percent: a gang that loads its data has a few of them, and a rank without any is none that slows it down.
LEAST_POINTS = 5.0
# Likewise MiB/s over NVLink: ranks that hardly talk differ by what their checkpoints and libraries say.
LEAST_MIB = 200.0


@dataclass(frozen=True, slots=True)
class Slow:
    """A rank, and how far it is off its gang's median, in percent."""

    rank: int
    percent: float


def slow_ranks(figures: Floats, *, higher_is_slow: bool = True, least: float = LEAST_POINTS, named: frozenset[int] = frozenset()) -> list[Slow]:
    """Rows are looks, the newest last; columns are ranks; NaN was not read. With step times higher is slow, with activity lower is,
    by `least` at least (in percent, or in what else it is read).

    `named` are ranks that were slow before: they stay so until nearly all looks say otherwise. At most a quarter are stragglers: beyond that
    it is the gang that is uneven.
    """
    recent = figures[-LOOKS:]
    ranks = recent.shape[1]
    if recent.shape[0] < LOOKS or ranks < LEAST_RANKS:
        return []
    off = _off(recent, None if higher_is_slow else least)
    votes = (off > 0).sum(axis=0)
    enough = np.full(ranks, AGREE)
    enough[[rank for rank in named if rank < ranks]] = STAYS
    found = [Slow(rank, float(np.median(off[off[:, rank] > 0, rank]))) for rank in np.flatnonzero(votes >= enough).tolist()]
    if len(found) > max(1, ranks // 4):
        return []
    return sorted(found, key=lambda one: (-one.percent, one.rank))


def looks_read(figures: Floats) -> int:
    """How many of some looks read so many ranks that they say who is slow."""
    return int(_is_read(figures).sum()) if figures.shape[1] >= LEAST_RANKS else 0


def _is_read(looks: Floats) -> NDArray[np.bool_]:
    return np.asarray((~np.isnan(looks)).sum(axis=1) >= max(LEAST_RANKS, READ * looks.shape[1]))


def _off(looks: Floats, below: float | None) -> Floats:
    """By look and rank the percent that it is above the look's median, or with `below` that much below it, where that is too far; else 0.
    Looks that read too few ranks are left out.

    The spread is that of all looks together: a single look at the eight GPUs of a node may show three times as much.
    """
    looks = looks[_is_read(looks)]
    medians = np.nanmedian(looks, axis=1, keepdims=True)
    looks, medians = looks[medians[:, 0] > 0], medians[medians[:, 0] > 0]
    if not len(looks):
        return looks
    above = looks / medians - 1
    spread = 1.4826 * float(np.nanmedian(np.abs(above)))
    limit = max(SPREADS * max(spread, FLOOR_PERCENT / 100), LEAST_PERCENT / 100)
    if below is None:
        return np.where(above > limit, 100 * above, 0.0)
    return np.where(-above > np.maximum(limit, below / medians), -100 * above, 0.0)
