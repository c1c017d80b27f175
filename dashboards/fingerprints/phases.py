"""Phases of one run: what its GPUs did minute by minute, cut where it changes, and each part named by stated rules. Arrays in, values out.

The cuts minimise squared error plus a price for each cut (optimal partitioning with PELT's pruning; Killick, Fearnhead and Eckley 2012). The price
is that of BIC, in units of the noise of each counter, so that there is nothing to tune by hand. A minute in which SM activity was not read is
unknown: it is neither idle nor anything else, and a counter that was not read has no level.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from math import fsum

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

SM, MEMORY = "sm", "memory"
COUNTERS = (SM, MEMORY, "tensor", "dram")
# Percent. No noise is taken to be smaller: counters are whole percents, and ranks differ.
LEAST_NOISE = 2.0
# Of the size of a normal deviate a quarter is less.
QUARTILE = 0.3186
# A run computes where SM activity is at least this part of its own level, which is reached for a tenth of the time at least.
COMPUTES = 0.75
LEVEL_AT = 0.9
# What lasts longer than a checkpoint is less work, and not idle, above this part of it; a load lies below it.
WORKS = 0.5
# Percent of SM activity. A run that never reaches it computes nothing.
LEAST_LEVEL = 5.0
# Longer stretches are no checkpoint, and nor are those in which the run frees half of its memory.
LONGEST_CHECKPOINT = 10
KEEPS_MEMORY = 0.5
# So many in a row say that something recurs, each at most three periods after the one before: a short one may have gone unseen.
LEAST_RECURRING = 4
MOST_MISSED = 3
FULL, COVERED = 0.6, 0.6
SHORTEST_PERIOD, LONGEST_PERIOD = 3.0, 360.0
OFF = 0.1
MOST_TRIED = 60
# Minutes between a dip and the checkpoint that the job reported, at most.
NEAR = 2.0


class Phase(StrEnum):
    LOAD = "load"  # from its start until it computes
    COMPUTE = "compute"
    CHECKPOINT = "checkpoint"  # short dips that recur, or that the job reported
    IDLE = "idle"  # all other time below its level
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a run in one phase, from minute `first` on. `seconds` is more exact than whole minutes for what begins or ends within one.

    `levels`: mean percent of each of `COUNTERS`; None where it was not read.
    """

    phase: Phase
    first: int
    minutes: int
    seconds: float
    levels: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class RunPhases:
    """A whole run. `level`: SM activity at which it computes, None where it never does. `period`: minutes from checkpoint to checkpoint."""

    parts: tuple[Part, ...]
    minutes: int
    read: int
    level: float | None = None
    period: float | None = None


def run_phases(counters: Mapping[str, Floats], *, lead: float | None = 0.0, reported: Sequence[float] = ()) -> RunPhases:
    """From a value a minute of each counter, NaN where it was not read.

    `lead`: seconds from the start of the run to the first minute; None: it began long before, so its load is not seen. `reported`: minutes at which
    the job said that it had saved a checkpoint.
    """
    table = np.array([counters[name] for name in COUNTERS], np.float64)
    sm, count = table[0], table.shape[1]
    known = ~np.isnan(sm)
    pieces = [piece for begin, end in _stretches(known) for piece in _cut(table[:, begin:end], begin)]
    level = _level(sm, pieces)
    if level is None:
        parts = [_part(Phase.IDLE, begin, end, table) for begin, end in _stretches(known)]
        return RunPhases(_with_gaps(parts, count, table), count, int(known.sum()))
    dips, computing = _apart(sm, pieces, level)
    loads = {dip for dip in dips[:1] if lead is not None and dip[0] == 0 and sm[slice(*dip)].mean() < WORKS * level}
    # What it does while it waits shows only in minutes of which nothing else is a part; without any the time below is told as what it is at least.
    whole = [sm[begin + 1 : end - 1] for begin, end in dips if end - begin > 2] + [sm[begin : begin + 1] for begin, _ in loads]
    floor = min((float(values.min()) for values in whole), default=0.0)
    weights = {dip: _below(sm, dip, computing, level, floor) for dip in dips}
    usual = _usual_memory(table[1], computing)
    short = [dip for dip in dips if dip not in loads and dip[1] - dip[0] <= LONGEST_CHECKPOINT and _keeps(table[1, slice(*dip)], usual)]
    middles = [float(np.average(np.arange(*dip) + 0.5, weights=np.maximum(weights[dip], 1e-9))) for dip in short]
    period, places = recurring(middles)
    saved = {short[place] for place in places}
    saved |= {dip for dip in short if any(dip[0] - NEAR <= at <= dip[1] + NEAR for at in reported)}
    parts = []
    for dip in dips:
        phase = Phase.LOAD if dip in loads else Phase.CHECKPOINT if dip in saved else Phase.IDLE
        parts.append(_part(phase, *dip, table, 60 * float(weights[dip].sum()) + ((lead or 0.0) if dip in loads else 0.0)))
    # What a dip does not take of the minutes in which it begins and ends was computing.
    spared = {dip[1]: 60 * float((1 - weights[dip]).sum()) for dip in dips}
    before = {dip[0]: spared[dip[1]] for dip in dips if dip[1] not in {begin for begin, _ in computing}}
    for begin, end in computing:
        parts.append(_part(Phase.COMPUTE, begin, end, table, 60 * (end - begin) + spared.get(begin, 0) + before.get(end, 0)))
    return RunPhases(_with_gaps(parts, count, table), count, int(known.sum()), round(level, 1), None if period is None else round(period, 2))


def phase_sums(run: RunPhases) -> list[tuple[Phase, float, tuple[float | None, ...]]]:
    """Of each phase the seconds, and the mean level of each counter over its minutes."""
    found = []
    for phase in Phase:
        parts = [part for part in run.parts if part.phase == phase]
        if parts:
            levels = tuple(_mean([(part.levels[place], part.minutes) for part in parts]) for place in range(len(COUNTERS)))
            found.append((phase, round(fsum(part.seconds for part in parts), 1), levels))
    return found


def _mean(levels: Iterable[tuple[float | None, int]]) -> float | None:
    read = [(level, minutes) for level, minutes in levels if level is not None]
    return round(fsum(level * minutes for level, minutes in read) / sum(minutes for _, minutes in read), 1) if read else None


# ---- Where it changes ----

Span = tuple[int, int]


def _stretches(flags: Flags) -> list[Span]:
    """Where they hold without a break."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    return [(int(begin), int(end)) for begin, end in zip(edges[::2], edges[1::2], strict=True)]


def _cut(table: Floats, offset: int) -> list[Span]:
    cuts = change_points(table)
    return [(offset + begin, offset + end) for begin, end in pairwise((*cuts, table.shape[1]))]


def change_points(table: Floats) -> list[int]:
    """Where parts begin, 0 among them; a row of `table` for each counter, of which those that were read half of the time count."""
    size = table.shape[1]
    rows = [row for row in table if np.count_nonzero(~np.isnan(row)) * 2 >= size]
    if not rows or size < 2:
        return [0]
    scaled = np.array([row / _noise(row) for row in rows])
    read = ~np.isnan(scaled)
    filled = np.where(read, scaled, 0.0)
    counts, sums, squares = (np.concatenate([np.zeros((len(rows), 1)), one.cumsum(axis=1)], axis=1) for one in (read, filled, filled**2))
    price = (len(rows) + 1) * np.log(max(size, 10))
    best, came = np.full(size + 1, np.inf), np.zeros(size + 1, np.int64)
    best[0] = -price
    starts = np.array([0])
    for end in range(1, size + 1):
        held = counts[:, end, None] - counts[:, starts]
        total = sums[:, end, None] - sums[:, starts]
        errors = (squares[:, end, None] - squares[:, starts] - total**2 / np.maximum(held, 1)).sum(axis=0)
        costs = best[starts] + errors
        chosen = int(np.argmin(costs))
        best[end], came[end] = costs[chosen] + price, starts[chosen]
        starts = np.append(starts[costs <= best[end]], end)
    found, end = [], size
    while end:
        end = int(came[end])
        found.append(end)
    return found[::-1]


def _noise(row: Floats) -> float:
    """The standard deviation from one minute to the next, told by the lower quartile, so that steps and dips do not count."""
    values = row[~np.isnan(row)]
    steps = np.abs(np.diff(values))
    return max(LEAST_NOISE, float(np.quantile(steps, 0.25)) / (QUARTILE * 2**0.5)) if len(steps) else LEAST_NOISE


def _level(sm: Floats, pieces: Sequence[Span]) -> float | None:
    """SM activity at which it computes: what pieces that are a tenth of its time reach. None: it is idle all the time."""
    if not pieces:
        return None
    means = np.array([sm[begin:end].mean() for begin, end in pieces])
    order = np.argsort(means, kind="stable")
    reached = np.cumsum([pieces[place][1] - pieces[place][0] for place in order])
    level = float(means[order[np.searchsorted(reached, LEVEL_AT * reached[-1])]])
    return level if level >= LEAST_LEVEL else None


def _apart(sm: Floats, pieces: Sequence[Span], level: float) -> tuple[list[Span], list[Span]]:
    """Stretches below and at its level, each of neighbouring pieces."""
    joined: list[tuple[bool, int, int]] = []
    for begin, end in pieces:
        is_below = bool(sm[begin:end].mean() < COMPUTES * level)
        if joined and joined[-1][0] == is_below and joined[-1][2] == begin:
            begin = joined.pop()[1]
        joined.append((is_below, begin, end))
    dips, computing = list[Span](), list[Span]()
    for is_below, begin, end in joined:
        works = not is_below or (end - begin > LONGEST_CHECKPOINT and sm[begin:end].mean() >= WORKS * level)
        found = computing if works else dips
        if found and found[-1][1] == begin:
            begin = found.pop()[0]
        found.append((begin, end))
    return dips, computing


def _below(sm: Floats, dip: Span, computing: Sequence[Span], level: float, floor: float) -> Floats:
    """Which part of each minute of a dip lies below. Only in its first and last minute may that be less than all."""
    beside = [sm[begin:end].mean() for begin, end in computing if dip[0] in (begin, end) or dip[1] in (begin, end)]
    top = float(np.mean(beside)) if beside else level
    values = sm[slice(*dip)]
    if len(values) > 2:
        floor = float(values[1:-1].mean())
    parts = np.clip((top - values) / max(top - floor, 1.0), 0.05, 1.0)
    parts[1:-1] = 1.0
    return parts


def _usual_memory(memory: Floats, computing: Sequence[Span]) -> float | None:
    read = np.concatenate([memory[begin:end] for begin, end in computing])
    read = read[~np.isnan(read)]
    return float(read.mean()) if len(read) else None


def _keeps(memory: Floats, usual: float | None) -> bool:
    """Whether it keeps its memory; where memory was not read nothing speaks against it."""
    read = memory[~np.isnan(memory)]
    return usual is None or not len(read) or float(read.mean()) >= KEEPS_MEMORY * usual


# ---- What recurs ----


def recurring(moments: Sequence[float]) -> tuple[float | None, list[int]]:
    """The period of which most of these moments, given in order, are a multiple apart, and which of them are. No period: None of them."""
    if len(moments) < LEAST_RECURRING:
        return None, []
    some = moments[:MOST_TRIED]
    apart = (later - one for place, one in enumerate(some) for later in some[place + 1 : place + 1 + MOST_MISSED])
    tried = sorted({round(2 * one) / 2 for one in apart if SHORTEST_PERIOD <= one <= LONGEST_PERIOD})
    found: tuple[float, float, list[int]] = (0.0, 0.0, [])
    for period in tried:
        period = _refined(some, period)
        chain = _chain(some, period)
        found = max(found, (_quality(some, chain, period), -period, chain))
    period = -found[1]
    if not found[2]:
        return None, []
    chain = _chain(moments, period)
    period = _refined(moments, period)
    if len(chain) < LEAST_RECURRING or _covered(moments, chain) < COVERED or _full(moments, chain, period) < FULL:
        return None, []
    return period, chain


def _chain(moments: Sequence[float], period: float) -> list[int]:
    """The longest row of moments that are whole periods apart, one, two or three."""
    longest, came, off = [1] * len(moments), [-1] * len(moments), max(0.75, OFF * period)
    for place, moment in enumerate(moments):
        for before in range(place - 1, -1, -1):
            gap = moment - moments[before]
            if gap > MOST_MISSED * period + off:
                break
            times = round(gap / period)
            if times >= 1 and abs(gap - times * period) <= off and longest[before] >= longest[place]:
                longest[place], came[place] = longest[before] + 1, before
    place = max(range(len(moments)), key=lambda one: longest[one])
    found = []
    while place >= 0:
        found.append(place)
        place = came[place]
    return found[::-1]


def _refined(moments: Sequence[float], period: float) -> float:
    gaps = [moments[later] - moments[one] for one, later in pairwise(_chain(moments, period))]
    return float(np.median([gap / max(1, round(gap / period)) for gap in gaps])) if gaps else period


def _covered(moments: Sequence[float], chain: Sequence[int]) -> float:
    return len(chain) / len(moments)


def _full(moments: Sequence[float], chain: Sequence[int], period: float) -> float:
    """How many of the moments that the period promises are there."""
    span = moments[chain[-1]] - moments[chain[0]]
    return (len(chain) - 1) * period / span if span else 0.0


def _quality(moments: Sequence[float], chain: Sequence[int], period: float) -> float:
    return _covered(moments, chain) * min(1.0, _full(moments, chain, period)) if len(chain) >= LEAST_RECURRING else 0.0


# ---- Parts ----


def _part(phase: Phase, begin: int, end: int, table: Floats, seconds: float | None = None) -> Part:
    return Part(phase, begin, end - begin, round(60.0 * (end - begin) if seconds is None else seconds, 1), _levels(table[:, begin:end]))


def _levels(table: Floats) -> tuple[float | None, ...]:
    read = [row[~np.isnan(row)] for row in table]
    return tuple(round(float(row.mean()), 1) if len(row) else None for row in read)


def _with_gaps(parts: Iterable[Part], count: int, table: Floats) -> tuple[Part, ...]:
    """In order of time, with what is not known in between."""
    found: list[Part] = []
    at = 0
    for part in sorted(parts, key=lambda one: one.first):
        if part.first > at:
            found.append(_part(Phase.UNKNOWN, at, part.first, table))
        found.append(part)
        at = part.first + part.minutes
    if at < count:
        found.append(_part(Phase.UNKNOWN, at, count, table))
    return tuple(found)
