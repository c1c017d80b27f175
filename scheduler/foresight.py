"""How sure a foreseen start is, learnt from what became of earlier ones.

A forecast goes by estimates and knows nobody who has not come yet. How far starts come from what was told is kept as the ratio of the two waits, by
how far ahead was looked. The range around a start is the shortest that held most of the last ratios there (a split conformal interval over a sliding
window), and its middle is moved to their median. Where too little is known, neighbours help out, and before there is any history a rule does.

Values in, values out: the console hands over its own history, `gpufleet bench predictions` that of a simulated week.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from math import ceil, exp, log
from statistics import median
from typing import NamedTuple

MINUTE = 60_000
HOUR = 60 * MINUTE
# How far ahead: waits up to so long are of one kind.
HORIZONS = (10 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 4 * HOUR, 8 * HOUR, 16 * HOUR)
# So many of the newest ratios of a kind count, and from so few on they are believed.
WINDOW, LEAST = 400, 40
# What a range promises: four fifths of starts. It holds somewhat more of the past ones, and more or less of them as fewer or more than aimed at
# were inside lately: the next week is not the last one.
PROMISED, HELD, MOST_HELD = 0.8, 0.85, 0.98
LATELY, AIM, CORRECTED = 150, 0.83, 1.5
# Without history: so much sooner and later, in parts of the wait. Simulated weeks hold about four fifths of starts so.
SOONER, LATER = 0.75, 1.5
# Waits are compared as if all were this much longer: nobody minds whether it was one second or thirty.
FLOOR = MINUTE


class Outcome(NamedTuple):
    """A wait that was told and the wait that came of it, in milliseconds, and whether that was inside the range that was told with it."""

    told: int
    waited: int
    inside: bool


class Foreseen(NamedTuple):
    """A wait with its range, in milliseconds; `known` is on how many outcomes it rests, 0: on the rule alone."""

    earliest: int
    at: int
    latest: int
    known: int


class Band(NamedTuple):
    """Of the logarithm of observed over told: from, middle, to, and how many it was made from."""

    low: float
    middle: float
    high: float
    known: int


class Foresight:
    """What a history of outcomes, the oldest first, says about waits to come."""

    def __init__(self, history: Iterable[Outcome] = ()) -> None:
        kinds: list[list[float]] = [[] for _ in range(len(HORIZONS) + 1)]
        known = list(history)
        for outcome in known:
            kinds[horizon(outcome.told)].append(ratio(outcome))
        newest = [kind[-WINDOW:] for kind in kinds]
        held = _held([outcome.inside for outcome in known[-LATELY:]])
        self._bands = [_band(_with_neighbours(newest, place), held) for place in range(len(newest))]

    def foreseen(self, told: int) -> Foreseen:
        """The range around a wait that a forecast tells."""
        band = self._bands[horizon(told)]
        if band is None:
            return ruled(told)
        earliest, at, latest = (max(0, round((told + FLOOR) * exp(value) - FLOOR)) for value in band[:3])
        return Foreseen(earliest, at, latest, band.known)


def ruled(told: int) -> Foreseen:
    """The range where nothing is known yet; who starts at once does so."""
    if not told:
        return Foreseen(0, 0, 0, 0)
    return Foreseen(max(0, round(told - max(SOONER * told, MINUTE))), told, round(told + max(LATER * told, MINUTE)), 0)


def horizon(told: int) -> int:
    return bisect_right(HORIZONS, told)


def ratio(outcome: Outcome) -> float:
    return log((max(0, outcome.waited) + FLOOR) / (max(0, outcome.told) + FLOOR))


def _with_neighbours(kinds: Sequence[Sequence[float]], place: int) -> list[float]:
    """Those of a kind; where they are too few, of the kinds beside it as well, the nearest first."""
    found = list(kinds[place])
    for away in range(1, len(kinds)):
        if len(found) >= LEAST:
            break
        for other in (place - away, place + away):
            if 0 <= other < len(kinds):
                found.extend(kinds[other])
    return found


def _held(lately: Sequence[bool]) -> float:
    """The part of the past that ranges hold."""
    if len(lately) < LEAST:
        return HELD
    return min(MOST_HELD, max(PROMISED, HELD + CORRECTED * (AIM - sum(lately) / len(lately))))


def _band(ratios: Sequence[float], part: float) -> Band | None:
    """The shortest interval that holds enough of them, as lengths of waits and not as logarithms."""
    if len(ratios) < LEAST:
        return None
    ordered = sorted(ratios)
    held = min(len(ordered), ceil((len(ordered) + 1) * part))
    first = min(range(len(ordered) - held + 1), key=lambda place: exp(ordered[place + held - 1]) - exp(ordered[place]))
    low, high = ordered[first], ordered[first + held - 1]
    return Band(low, min(max(median(ordered), low), high), high, len(ordered))


class Score(NamedTuple):
    """How good ranges were: of how many starts, the part inside, and medians in milliseconds."""

    starts: int
    inside: float
    width: int
    wait: int
    error: int

    @property
    def inside_percent(self) -> float:
        return 100 * self.inside

    @property
    def width_seconds(self) -> int:
        return self.width // 1000

    @property
    def wait_seconds(self) -> int:
        return self.wait // 1000

    @property
    def error_seconds(self) -> int:
        return self.error // 1000


class Ranged(NamedTuple):
    """What was told about a wait with its range, and the wait that came of it."""

    earliest: int
    at: int
    latest: int
    waited: int


def score(starts: Sequence[Ranged]) -> Score | None:
    if not starts:
        return None
    inside = sum(one.earliest <= one.waited <= one.latest for one in starts)
    widths, waits = [one.latest - one.earliest for one in starts], [one.waited for one in starts]
    errors = [abs(one.waited - one.at) for one in starts]
    return Score(len(starts), inside / len(starts), *(round(median(values)) for values in (widths, waits, errors)))
