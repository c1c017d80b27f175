"""How fast jobs of a template run on each type of GPU: what a person states, what completed runs measure, and where the two disagree.

Speeds are relative: the fastest type of a template is 1, and the estimate of its jobs is for that. A run tells the time that it took for its work.
Only runs alike are compared: of one version of the template, with as many GPUs, and with the work known in the same way. Runs that are alike on
several types tell how those types differ, and all of them together one figure a type, by least squares over the logarithms of medians.
"""

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, isfinite, log
from statistics import median, quantiles

import numpy as np

# From so many runs on a measured speed can be adopted and disagrees with what is stated.
LEAST_RUNS = 3
# What is measured disagrees where it is off by so much and what is stated lies outside the middle half of its runs.
DISAGREES = 0.15
LEAST_SPEED = 0.001
# A speed of the engine is counted in millionths.
DIGITS, SMALLEST = 6, 1e-6
FASTEST = 1e6


@dataclass(frozen=True, slots=True)
class Ran:
    """A completed run: on which type, what it is compared with, and the seconds that it took for a unit of its work."""

    gpu_type: str
    alike: Hashable
    pace: float


@dataclass(frozen=True, slots=True)
class Measured:
    """The speed on one type, the middle half of its runs, and how many runs it rests on."""

    speed: float
    low: float
    high: float
    runs: int

    @property
    def is_enough(self) -> bool:
        return self.runs >= LEAST_RUNS

    def scaled(self, factor: float) -> "Measured":
        return Measured(self.speed * factor, self.low * factor, self.high * factor, self.runs)


def normalised(speeds: Mapping[str, float]) -> dict[str, float]:
    """The same with the fastest at 1. What is not 0 stays above it, as 0 forbids a type."""
    fastest = max(speeds.values(), default=0)
    if not fastest:
        return dict(speeds)
    return {name: _short(max(SMALLEST, speed / fastest) if speed else 0) for name, speed in sorted(speeds.items())}


def _short(speed: float) -> float:
    """A whole number without a point, as people write them."""
    rounded = round(speed, DIGITS)
    return int(rounded) if rounded == int(rounded) else rounded


def speeds_faults(speeds: Mapping[str, object], types: Collection[str]) -> dict[str, list[str]]:
    """What is wrong with stated speeds, by GPU type; what concerns all of them under the empty name."""
    found: dict[str, list[str]] = {}
    for name, speed in speeds.items():
        if name not in types:
            found[name] = [f"The fleet knows no {name}; it knows {', '.join(sorted(types)) or 'none yet'}."]
        elif isinstance(speed, bool) or not isinstance(speed, int | float) or not isfinite(speed) or not 0 <= speed <= FASTEST:
            found[name] = [f"Enter a number from 0 to {FASTEST:,.0f}."]
    if speeds and not found and not any(speeds.values()):
        found[""] = ["At least one type needs a speed above 0: jobs could run nowhere."]
    return found


def measured_speeds(runs: Iterable[Ran]) -> dict[str, Measured]:
    """By GPU type, the fastest at 1; empty where no runs alike stood on two types. Of types that no runs connect the best known ones are told."""
    cells: dict[Hashable, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        cells[run.alike][run.gpu_type].append(log(run.pace))
    groups = [by_type for by_type in cells.values() if len(by_type) > 1]
    types = _connected(groups)
    if not types:
        return {}
    groups = [by_type for by_type in groups if not types.isdisjoint(by_type)]
    slowness = _effects(groups, sorted(types))
    told: dict[str, list[float]] = defaultdict(list)
    for by_type in groups:
        weight = sum(map(len, by_type.values()))
        level = sum(len(logs) * (median(logs) - slowness[name]) for name, logs in by_type.items()) / weight
        for name, logs in by_type.items():
            told[name] += (exp(level - one) for one in logs)
    fastest = max(exp(-effect) for effect in slowness.values())
    return {name: _spread(exp(-slowness[name]) / fastest, [one / fastest for one in told[name]]) for name in sorted(types)}


def _connected(groups: Sequence[Mapping[str, Sequence[float]]]) -> set[str]:
    """Types that runs alike connect, of several such sets the one with the most runs."""
    sets: list[tuple[set[str], int]] = []
    for by_type in groups:
        names, runs = set(by_type), sum(map(len, by_type.values()))
        apart = []
        for others, count in sets:
            if names.isdisjoint(others):
                apart.append((others, count))
            else:
                names, runs = names | others, runs + count
        sets = [*apart, (names, runs)]
    return max(sets, key=lambda one: (one[1], sorted(one[0])), default=(set(), 0))[0]


def _effects(groups: Sequence[Mapping[str, Sequence[float]]], types: Sequence[str]) -> dict[str, float]:
    """By how much each type is slower, as a logarithm. The level of each group is eliminated: an equation a type is left."""
    place = {name: number for number, name in enumerate(types)}
    matrix, right = np.zeros((len(types), len(types))), np.zeros(len(types))
    for by_type in groups:
        weight = sum(map(len, by_type.values()))
        middle = sum(len(logs) * median(logs) for logs in by_type.values()) / weight
        for name, logs in by_type.items():
            right[place[name]] += len(logs) * (median(logs) - middle)
            matrix[place[name], place[name]] += len(logs)
            for other, others in by_type.items():
                matrix[place[name], place[other]] -= len(logs) * len(others) / weight
    found = np.linalg.lstsq(matrix, right, rcond=None)[0]
    return dict(zip(types, map(float, found), strict=True))


def _spread(speed: float, runs: Sequence[float]) -> Measured:
    low, _, high = quantiles(runs, n=4, method="inclusive") if len(runs) > 1 else (speed, speed, speed)
    return Measured(speed, low, high, len(runs))


def anchored(stated: Mapping[str, float], measured: Mapping[str, Measured]) -> tuple[dict[str, Measured], str]:
    """What is measured scaled to what is stated: equal on the type of both with the most runs, the faster of such. No such type: no name."""
    both = [name for name, speed in stated.items() if speed and name in measured and measured[name].is_enough]
    if not both:
        return dict(measured), ""
    anchor = min(both, key=lambda name: (-measured[name].runs, -stated[name], name))
    factor = stated[anchor] / measured[anchor].speed
    return {name: one.scaled(factor) for name, one in measured.items()}, anchor


def disagreeing(stated: Mapping[str, float], measured: Mapping[str, Measured]) -> set[str]:
    """Types whose stated speed what was measured contradicts. One that is not stated counts as 1, as it does in a job."""
    beside, anchor = anchored(stated, measured)
    if not anchor:
        return set()
    return {name for name, one in beside.items() if name != anchor and one.is_enough and _contradicts(stated.get(name, 1), one)}


def _contradicts(stated: float, measured: Measured) -> bool:
    return abs(measured.speed - stated) > DISAGREES * stated and not measured.low <= stated <= measured.high


def adopted(stated: Mapping[str, float], measured: Mapping[str, Measured]) -> tuple[dict[str, float], dict[str, int]]:
    """What is stated once the measured speeds are adopted, and on how many runs each of those rests.

    Types that are not measured keep their relation to the rest, and one that is never to be used stays so. Empty where fewer than two types have
    runs enough.
    """
    enough = {name: one for name, one in anchored(stated, measured)[0].items() if one.is_enough and stated.get(name) != 0}
    if len(enough) < 2:
        return {}, {}
    speeds = {**stated, **{name: max(LEAST_SPEED, float(f"{one.speed:.3g}")) for name, one in enough.items()}}
    return {name: _adopted(speed) for name, speed in normalised(speeds).items()}, {name: one.runs for name, one in sorted(enough.items())}


def _adopted(speed: float) -> float:
    return _short(round(speed, 4)) if speed >= LEAST_SPEED else speed
