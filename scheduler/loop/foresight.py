"""How sure a foreseen start is: the spread of starts over futures, corrected by what became of earlier ones.

The queue is played forward over many futures (`scheduler.simulation.futures`), which tells a middle and a spread. What no future knows, such as
which node is lost, and what is played coarser than it will be planned, shows in how far starts came from that, counted in spreads: a range reaches
as far as held most of the last ones (a conformal interval over a sliding window). One promise for all would be of little use: what is nearly sure and
what nobody can know would share it. So the jobs are parted by their spread, where the fleet's own tellings lie: most have a range to plan by, which
holds three in four, and the two fifths that are least sure one that holds nearly all. How many were inside lately moves the former.

Jobs of one sweep miss alike, so hundreds of starts say less than they seem to: what was told at one moment counts by the root of how many were told
then, and outcomes by a rule count beside the known ones, always. Where futures were too much to play, a forecast by estimates with a wide spread
stands for them.

Values in, values out: the console hands over its own history, `gpufleet bench predictions` that of a simulated week.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import accumulate
from math import exp, sqrt
from statistics import NormalDist, median
from typing import NamedTuple

from scheduler.simulation.futures import Waits

MINUTE = 60_000
HOUR = 60 * MINUTE
# So many of the newest count; and so many of what was told last say alone what is unsure where that is more.
WINDOW, LATELY = 2000, 1000
# What ranges promise: four fifths of starts. They aim at somewhat more, as the next week is not the last one.
PROMISED, AIM = 0.8, 0.84
# Of what is told so much is least sure, and held nearly always; all else as often as is left of the aim, more or less of it by a multiple of
# how many fewer or more than aimed at were inside lately, within bounds. Unsure ones that are that many
# times fewer leave more of the aim to the others.
UNSURE, UNSURE_HELD, FEWER = 0.41, 0.95, 5
LEAST_HELD, MOST_HELD, WIDENED, NARROWED = 0.55, 0.95, 2, 3
# Where more than so much was called unsure by now, as a fleet filled up, a multiple of that is called so the less, but never less than the last but
# one of these; that is looked at after each so many tellings. A range that most can plan by would be wide for more than half of them otherwise.
MOST_UNSURE, CORRECTED, LEAST_UNSURE, LOOKED_AFTER = 0.43, 6, 0.05, 100
# A spread is half of what lies between the futures, a part of the wait, and a part of how long one usually waits: nobody minds minutes of hours.
SHOWN, FURTHER, FLOOR = 0.5, 0.1, 0.2
LEAST_REACH = 0.01  # of a unit, where all came exactly as foreseen
# Beyond the border spreads are unsure; from so many borders on fully so.
FULLY = 1.2
# What is assumed beside what is known, and how often: how long one waits, where the border is, and misses of which so many lie within so many units,
# one less for so many known, but never fewer than the last number.
ASSUMED, ONE_LESS, LEAST_ASSUMED = 300, 4, 60
USUAL, BORDER = 4 * HOUR, 3 * HOUR
SURE_MISSES, UNSURE_MISSES = (0.75, 0.4), (0.95, 2.7)
INSIDE_ASSUMED = 100
# Of a start that is told by estimates alone, in parts of the wait.
SOONER, LATER = 1.0, 1.8


class Outcome(NamedTuple):
    """What was foreseen and the wait that came of it, in milliseconds, and whether that was inside the range that was told; and when that was."""

    foreseen: Waits
    waited: int
    inside: bool
    told_at: int | None = None  # None: alone


class Foreseen(NamedTuple):
    """A wait with its range, in milliseconds; `known` is on how many outcomes it rests, 0: on the rule alone."""

    earliest: int
    at: int
    latest: int
    known: int


Miss = tuple[float, float]  # by how many units a start came later, and what that counts


class Measure(NamedTuple):
    """What misses are counted in: how long one usually waits, and from which spread on starts are unsure, in milliseconds."""

    usual: float = USUAL
    border: float = BORDER

    def spread(self, waits: Waits) -> float:
        return SHOWN * (waits.high - waits.low) + FURTHER * waits.middle + FLOOR * self.usual

    def unit(self, spread: float) -> float:
        """Of the surer ones ranges differ less than spreads do: what is narrower than the usual range is worth little."""
        return spread if spread > self.border else sqrt(spread * self.border)

    def unsure(self, spread: float) -> float:
        """From 0, sure, to 1."""
        return min(1.0, max(0.0, (spread / self.border - 1) / (FULLY - 1)))

    def missed(self, outcome: Outcome) -> float:
        """By how many units a start came later than the middle."""
        return (max(0, outcome.waited) - outcome.foreseen.middle) / self.unit(self.spread(outcome.foreseen))


class Foresight:
    """What a history of outcomes, the oldest first, says about waits to come.

    `told`: all that were told of lately, also those that still wait, the oldest first; by default those of the history.
    """

    def __init__(self, history: Iterable[Outcome] = (), told: Iterable[Waits] | None = None) -> None:
        known = list(history)[-WINDOW:]
        lately = [outcome.foreseen for outcome in known] if told is None else list(told)[-WINDOW:]
        self.known = len(known)
        usual = _usual([outcome.waited for outcome in known])
        self.measure = Measure(usual, _border([Measure(usual).spread(waits) for waits in lately]))
        together = Counter(outcome.told_at for outcome in known)
        sure: list[Miss] = []
        unsure: list[Miss] = []
        for outcome in known:
            kind = unsure if self.measure.spread(outcome.foreseen) > self.measure.border else sure
            alike = 1 if outcome.told_at is None else together[outcome.told_at]
            kind.append((self.measure.missed(outcome), alike**-0.5))
        held = _held([outcome.inside for outcome in known], len(unsure))
        for kind, rule in ((sure, SURE_MISSES), (unsure, UNSURE_MISSES)):
            kind += [(miss, 1.0) for miss in assumed(max(LEAST_ASSUMED, ASSUMED - len(kind) // ONE_LESS), *rule)]
        self.lean = _middle(sure + unsure)
        self.sure = _reach(sure, self.lean, held)
        self.unsure = max(self.sure, _reach(unsure, self.lean, UNSURE_HELD))

    def foreseen(self, waits: Waits) -> Foreseen:
        """The range around what was foreseen. Who starts at once does so."""
        if not waits.high:
            return Foreseen(0, 0, 0, 0)
        spread = self.measure.spread(waits)
        reach = self.sure * (self.unsure / self.sure) ** self.measure.unsure(spread)
        unit = self.measure.unit(spread)
        earliest, at, latest = (max(0, round(waits.middle + unit * off)) for off in (self.lean - reach, self.lean, self.lean + reach))
        return Foreseen(earliest, at, latest, self.known)


def ruled(waits: Waits) -> Foreseen:
    """The range where nothing is known yet."""
    return Foresight().foreseen(waits)


def estimated(wait: int) -> Waits:
    """What stands for futures where only a forecast by estimates is known."""
    return Waits(round(wait * (1 - SOONER)), wait, round(wait * (1 + LATER)))


def _usual(waited: Sequence[int]) -> float:
    """How long one waits."""
    return (len(waited) * median(waited) + ASSUMED * USUAL) / (len(waited) + ASSUMED) if waited else USUAL


def _border(spreads: Sequence[float]) -> float:
    """From which spread on those are that are least sure, of all or of the last ones: when a fleet fills up, most are less sure than before.

    What was told is gone through from the beginning: so it is known how much of it was called unsure then.
    """
    told, unsure = ASSUMED, ASSUMED * UNSURE
    for seen in range(0, len(spreads) + 1, LOOKED_AFTER):
        part = min(UNSURE, max(LEAST_UNSURE, UNSURE - CORRECTED * (unsure / told - MOST_UNSURE)))
        border = max(_border_of(known, part) for known in (spreads[:seen], spreads[max(0, seen - LATELY) : seen]))
        those = spreads[seen : seen + LOOKED_AFTER]
        told += len(those)
        unsure += sum(spread > border for spread in those)
    return border


def _border_of(spreads: Sequence[float], unsure: float) -> float:
    ordered = sorted([*spreads, *assumed_spreads()])
    return ordered[min(len(ordered) - 1, int((1 - unsure) * len(ordered)))]


def _held(lately: Sequence[bool], unsure: int) -> float:
    """The part of the surer starts that ranges hold: what the unsure ones leave of the aim, where there are some."""
    known = len(lately) + INSIDE_ASSUMED
    part = min(UNSURE, FEWER * (unsure + INSIDE_ASSUMED * UNSURE) / known)
    missing = AIM - (sum(lately) + INSIDE_ASSUMED * AIM) / known
    return min(MOST_HELD, max(LEAST_HELD, (AIM - part * UNSURE_HELD) / (1 - part) + missing * (WIDENED if missing > 0 else NARROWED)))


def _reach(misses: Sequence[Miss], lean: float, part: float) -> float:
    """How far from the middle, on both sides, a range holds such a part of them."""
    return max(LEAST_REACH, _reached([(abs(miss - lean), weight) for miss, weight in misses], part))


def _middle(misses: Sequence[Miss]) -> float:
    return (_reached(misses, 0.5) - _reached([(-miss, weight) for miss, weight in misses], 0.5)) / 2


def _reached(misses: Sequence[Miss], part: float) -> float:
    """Up to where such a part of them lies, by what each of them counts."""
    ordered = sorted(misses)
    sums = [*accumulate(weight for _, weight in ordered)]
    return ordered[min(len(ordered) - 1, bisect_left(sums, part * sums[-1]))][0]


@cache
def assumed(count: int, part: float, within: float) -> tuple[float, ...]:
    """Misses of which such a part lies within so many units, normally distributed."""
    rule = NormalDist(0, within / NormalDist().inv_cdf((1 + part) / 2))
    return tuple(rule.inv_cdf((place + 0.5) / count) for place in range(count))


@cache
def assumed_spreads() -> tuple[float, ...]:
    """Of which as many as are unsure lie above the border, lognormally distributed."""
    rule = NormalDist()
    return tuple(BORDER * exp(rule.inv_cdf((place + 0.5) / ASSUMED) - rule.inv_cdf(1 - UNSURE)) for place in range(ASSUMED))


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
