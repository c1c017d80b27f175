"""How sure a foreseen start is: the spread of starts over futures, corrected by what became of earlier ones.

The queue is played forward over many futures (`scheduler.simulation.futures`), which tells a middle and a spread. What no future knows, such as
which node is lost, and what is played coarser than it will be planned, shows in how far starts came from that, counted in spreads: the range is the
shortest that held most of the last ones so (a split conformal interval over a sliding window), and its middle is moved to their median. Jobs of
one sweep miss alike, so hundreds of starts say less than they seem to: outcomes by a rule count beside them, fewer as more are known. Where
futures were too much to play, a forecast by estimates with a wide spread stands for them.

Values in, values out: the console hands over its own history, `gpufleet bench predictions` that of a simulated week.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from math import ceil
from statistics import NormalDist, median
from typing import NamedTuple

from scheduler.simulation.futures import Waits

MINUTE = 60_000
HOUR = 60 * MINUTE
# So many of the newest count, and from so few on they are believed.
WINDOW, LEAST = 1500, 40
# What a range promises: four fifths of starts. It holds somewhat more of the past ones, and more or less of them as fewer or more than aimed at
# were inside lately: the next week is not the last one.
PROMISED, LEAST_HELD, HELD, MOST_HELD = 0.8, 0.75, 0.855, 0.97
LATELY, AIM, CORRECTED = 400, 0.83, 0.6
# Without history: so many spreads sooner and later than the middle.
RULED = 0.3
# So many outcomes as the rule would have them count beside the first known ones: one less for so many known, but never fewer than the last number.
ASSUMED, ONE_LESS, LEAST_ASSUMED = 300, 5, 60
# Of what futures spread a part counts, as few of them tell it badly. Besides, under two hours do, of which a range has about half: nobody minds
# some minutes; and a part of the wait, which beyond some hours grows fast, up to four times the wait: futures know little of who will come then.
SHOWN, UNSURE, FAR, MOST_UNSURE, FLOOR = 0.52, 0.07, 15 * HOUR // 2, 4.0, 105 * MINUTE
BEYOND = 1.15  # medians of the last waits, which is some hours at least
POWER = 8  # with which the part of the wait grows
# Of a start that is told by estimates alone, in parts of the wait.
SOONER, LATER = 1.0, 6.0


class Outcome(NamedTuple):
    """What was foreseen and the wait that came of it, in milliseconds, and whether that was inside the range that was told."""

    foreseen: Waits
    waited: int
    inside: bool


class Foreseen(NamedTuple):
    """A wait with its range, in milliseconds; `known` is on how many outcomes it rests, 0: on the rule alone."""

    earliest: int
    at: int
    latest: int
    known: int


class Band(NamedTuple):
    """From, middle, to, in spreads from the middle that was foreseen, and how many outcomes it was made from."""

    low: float
    middle: float
    high: float
    known: int


RULE = Band(-RULED, 0, RULED, 0)


class Foresight:
    """What a history of outcomes, the oldest first, says about waits to come."""

    def __init__(self, history: Iterable[Outcome] = ()) -> None:
        known = list(history)
        lately = known[-LATELY:]
        self.far = _far([outcome.waited for outcome in lately])
        self.band = _band([missed(outcome, self.far) for outcome in known[-WINDOW:]], _held([outcome.inside for outcome in lately]))

    def foreseen(self, waits: Waits) -> Foreseen:
        """The range around what was foreseen. Who starts at once does so."""
        if not waits.high:
            return Foreseen(0, 0, 0, 0)
        one = spread(waits, self.far)
        earliest, at, latest = (max(0, round(waits.middle + one * value)) for value in self.band[:3])
        return Foreseen(earliest, at, latest, self.band.known)


def ruled(waits: Waits) -> Foreseen:
    """The range where nothing is known yet."""
    return Foresight().foreseen(waits)


def estimated(wait: int) -> Waits:
    """What stands for futures where only a forecast by estimates is known."""
    return Waits(round(wait * (1 - SOONER)), wait, round(wait * (1 + LATER)))


def spread(waits: Waits, far: float = FAR) -> float:
    part = min(MOST_UNSURE, UNSURE * (1 + (waits.middle / far) ** POWER))
    return SHOWN * (waits.high - waits.low) + part * waits.middle + FLOOR


def missed(outcome: Outcome, far: float = FAR) -> float:
    """By how many spreads a start came later than the middle."""
    return (max(0, outcome.waited) - outcome.foreseen.middle) / spread(outcome.foreseen, far)


def _far(waited: Sequence[int]) -> float:
    """From how long a wait on nobody can know: some hours, or more where most wait longer than that lately."""
    return max(FAR, BEYOND * median(waited)) if len(waited) >= LEAST else FAR


def _held(lately: Sequence[bool]) -> float:
    """The part of the past that ranges hold."""
    if len(lately) < LEAST:
        return HELD
    return min(MOST_HELD, max(LEAST_HELD, HELD + CORRECTED * (AIM - sum(lately) / len(lately))))


def _band(values: Sequence[float], part: float) -> Band:
    """The shortest interval that holds enough of them, and of what is assumed beside them."""
    if len(values) < LEAST:
        return RULE
    ordered = sorted([*values, *assumed(max(LEAST_ASSUMED, ASSUMED - len(values) // ONE_LESS))])
    held = min(len(ordered), ceil((len(ordered) + 1) * part))
    first = min(range(len(ordered) - held + 1), key=lambda place: ordered[place + held - 1] - ordered[place])
    low, high = ordered[first], ordered[first + held - 1]
    return Band(low, min(max(median(ordered), low), high), high, len(values))


@cache
def assumed(count: int) -> tuple[float, ...]:
    """Misses of which the rule holds what is promised, normally distributed."""
    rule = NormalDist(0, RULED / NormalDist().inv_cdf((1 + PROMISED) / 2))
    return tuple(rule.inv_cdf((place + 0.5) / count) for place in range(count))


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
