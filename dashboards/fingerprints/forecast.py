"""What a run does now, and when it is to change: the phases of its template carried on from where it stands.

Its own period counts before that of the template, as runs of one template save at different paces. Moments are seconds from the run's first minute.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import erf

from dashboards.fingerprints.learning import Fingerprint, Typical
from dashboards.fingerprints.phases import LONGEST_CHECKPOINT, OFF, Part, Phase, RunPhases

# A run whose own checkpoints recur is expected to go on so, this much of a period sooner or later.
SURE = OFF
# Minutes after the last one that is expected, from which on a checkpoint or the end of a load is late.
LATE = 2.0
# Standard deviations on each side of the mean between which a normal distribution lies eight times in ten.
EIGHT_IN_TEN = 1.2816


@dataclass(frozen=True, slots=True)
class Ahead:
    """`phase`: what it does now. `next`: what comes next, as far as something is expected, most likely at `expected`, eight times in ten between
    `earliest` and `latest`. `is_late`: it should have come by now.
    """

    phase: Phase
    next: Phase | None = None
    earliest: float = 0.0
    expected: float = 0.0
    latest: float = 0.0
    is_late: bool = False


def ahead(found: Fingerprint, run: RunPhases, *, lead: float = 0.0) -> Ahead:
    """From its phases up to now. `lead`: seconds by which it began before its first minute."""
    parts = [part for part in run.parts if part.phase != Phase.UNKNOWN]
    if not parts or run.parts[-1].phase == Phase.UNKNOWN:
        return Ahead(Phase.UNKNOWN)
    now, last = 60.0 * run.minutes, _named(found, run, parts)
    if last.phase == Phase.LOAD:
        load = found.phase(Phase.LOAD)
        return Ahead(Phase.LOAD) if load is None else _told(Ahead(Phase.LOAD, Phase.COMPUTE), load.seconds, -lead, 1.0, now)
    period = found.period
    if run.period is not None:
        period = Typical(run.period, (1 - SURE) * run.period, (1 + SURE) * run.period)
    if period is None:
        return Ahead(last.phase)
    if last.phase == Phase.CHECKPOINT:
        save = found.phase(Phase.CHECKPOINT)
        return Ahead(Phase.CHECKPOINT) if save is None else _told(Ahead(Phase.CHECKPOINT, Phase.COMPUTE), save.seconds, 60.0 * last.first, 1.0, now)
    return _next_save(Ahead(last.phase, Phase.CHECKPOINT), period, _anchor(parts), now)


def _named(found: Fingerprint, run: RunPhases, parts: list[Part]) -> Part:
    """The last part. A dip of a run whose template saves checkpoints is one, though the run itself is too young for it to recur."""
    last = parts[-1]
    if last.phase != Phase.IDLE:
        return last
    begins = len(parts) == 1 and last.first == 0
    if begins and found.phase(Phase.LOAD) is not None:
        return replace(last, phase=Phase.LOAD)
    fits = found.period is not None and last.first - _anchor(parts[:-1]) / 60 >= found.period.low / 2
    return replace(last, phase=Phase.CHECKPOINT) if fits and last.minutes <= LONGEST_CHECKPOINT else last


def _anchor(parts: list[Part]) -> float:
    """The middle of its last checkpoint, or where it began to compute."""
    for part in reversed(parts):
        if part.phase == Phase.CHECKPOINT:
            return 60.0 * part.first + 30.0 * part.minutes
        if part.phase == Phase.LOAD:
            return 60.0 * (part.first + part.minutes)
    return 60.0 * parts[0].first if parts else 0.0


def _next_save(told: Ahead, period: Typical, anchor: float, now: float) -> Ahead:
    """The first one that is not over. One that was not seen may have been too short: then the one behind it is expected."""
    times = 1.0
    while anchor + 60 * times * period.high + 60 * LATE < now:
        times += 1
    return _told(told, Typical(60 * period.median, 60 * period.low, 60 * period.high), anchor, times, now)


def _told(told: Ahead, seconds: Typical, since: float, times: float, now: float) -> Ahead:
    earliest, expected, latest = (since + times * part for part in (seconds.low, seconds.median, seconds.high))
    is_late = now > latest + 60 * LATE
    return replace(told, earliest=max(now, earliest), expected=max(now, expected), latest=max(now, latest), is_late=is_late)


# ---- Many runs at once ----


@dataclass(frozen=True, slots=True)
class Going:
    """A run that goes on, in seconds from now: `gpus` it holds, when it began, how long its load takes, and the SM activity of it and of the rest.

    `anchor`: the middle of its last checkpoint, or where it began to compute; None where it saves none that recur, as its `period`. `spread`: how
    far SM activity at work differs from run to run, as a standard deviation.
    """

    gpus: float
    began: float
    load: float
    loading: float
    working: float
    period: float | None = None
    anchor: float = 0.0
    spread: float = 0.0


@dataclass(frozen=True, slots=True)
class Step:
    """Expected on average over a step: GPUs that compute (SM activity), and GPUs whose runs begin to save a checkpoint or end their load in it.

    Eight times in ten GPUs that compute lie between `low` and `high`.
    """

    computing: float
    saving: float
    loaded: float
    low: float = 0.0
    high: float = 0.0


def load_ahead(runs: Iterable[Going], *, step: float, count: int) -> list[Step]:
    """The sum over runs in each step from now on, if all of them go on and no others begin.

    What is known of a checkpoint's moment fades: each period adds a tenth of it to the spread, as independent errors add. So do the levels of runs,
    which differ from one to the next, whoever else runs: the more run, the narrower is the range beside the sum.
    """
    computing, saving, loaded, variance = [0.0] * count, [0.0] * count, [0.0] * count, [0.0] * count
    whole = 0.0
    for run in runs:
        ends = run.began + run.load
        whole += run.gpus
        for place in range(count):
            begin, end = place * step, (place + 1) * step
            loads = min(max(0.0, ends - begin), step) / step
            computing[place] += run.gpus * (loads * run.loading + (1 - loads) * run.working)
            variance[place] += (run.gpus * (1 - loads) * run.spread) ** 2
            loaded[place] += run.gpus if begin <= ends < end else 0.0
            if run.period is not None:
                saving[place] += run.gpus * _expected_saves(run.anchor, run.period, max(begin, ends), end)
    off = [EIGHT_IN_TEN * one**0.5 for one in variance]
    low = [max(0.0, one - less) for one, less in zip(computing, off, strict=True)]
    high = [min(whole, one + more) for one, more in zip(computing, off, strict=True)]
    return [Step(*one) for one in zip(computing, saving, loaded, low, high, strict=True)]


def _expected_saves(anchor: float, period: float, begin: float, end: float) -> float:
    """How many of its checkpoints come between these moments."""
    if end <= begin:
        return 0.0
    first, last = (begin - anchor) / period, (end - anchor) / period
    if first > 1 / SURE:
        return last - first
    found = 0.0
    for times in range(max(1, int(first * (1 - 4 * SURE)) - 1), int(last * (1 + 4 * SURE)) + 4):
        spread = SURE * times**0.5
        found += _below((last - times) / spread) - _below((first - times) / spread)
    return found


def _below(deviations: float) -> float:
    """The part of a normal distribution that lies below so many standard deviations."""
    return 0.5 * (1 + erf(deviations / 2**0.5))
