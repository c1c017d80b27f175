"""The fingerprint of a template: what the phases of its runs have in common. A function of the runs, in whatever order they are given."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import fsum

import numpy as np

from dashboards.fingerprints.phases import COUNTERS, Phase, RunPhases, phase_sums

# Minutes that must have been read of a run that counts.
LEAST_MINUTES = 10
# Of fewer runs nothing is told; the same holds for each phase.
LEAST_RUNS = 3
# From so many on, the runs being alike, it may be relied on.
GOOD_RUNS = 8
# How much the part of the time that runs compute may differ between them (standard deviation) for them to be alike.
ALIKE = 0.15
LEARNED = (Phase.LOAD, Phase.COMPUTE, Phase.CHECKPOINT, Phase.IDLE)


class Confidence(StrEnum):
    NOT_ENOUGH = "not_enough"
    LOW = "low"
    GOOD = "good"


@dataclass(frozen=True, slots=True)
class Typical:
    """The median of what was seen, its tenth and its ninetieth percentile."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class PhaseTold:
    """One phase over all runs: its mean part of the time, how long it takes, and the mean level of each counter in percent.

    `runs`: in how many it was seen. A counter that was read in none of them is not in `levels`.
    """

    phase: Phase
    share: float
    runs: int
    times: int
    seconds: Typical
    levels: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """`period`: minutes from one checkpoint to the next, from `period_runs` runs that say so. `left_out`: runs that were read too little."""

    runs: int
    minutes: int
    left_out: int
    confidence: Confidence
    phases: tuple[PhaseTold, ...] = ()
    period: Typical | None = None
    period_runs: int = 0

    def phase(self, phase: Phase) -> PhaseTold | None:
        return next((one for one in self.phases if one.phase == phase), None)

    @property
    def is_known(self) -> bool:
        return self.confidence != Confidence.NOT_ENOUGH


def fingerprint_of(runs: Iterable[RunPhases]) -> Fingerprint:
    given = list(runs)
    counted = [run for run in given if run.read >= LEAST_MINUTES]
    minutes, left_out = sum(run.read for run in counted), len(given) - len(counted)
    if len(counted) < LEAST_RUNS:
        return Fingerprint(len(counted), minutes, left_out, Confidence.NOT_ENOUGH)
    told = [_told(phase, counted) for phase in LEARNED]
    periods = [run.period for run in counted if run.period is not None]
    # Of runs most of which say nothing of a period, the others met theirs by chance.
    saving = [run for run in counted if any(part.phase == Phase.CHECKPOINT for part in run.parts)]
    recurs = len(periods) >= LEAST_RUNS and 2 * len(periods) >= len(saving)
    computing = [share_of(run, Phase.COMPUTE) for run in counted]
    is_alike = len(counted) >= GOOD_RUNS and float(np.std(np.sort(computing))) <= ALIKE
    return Fingerprint(
        runs=len(counted),
        minutes=minutes,
        left_out=left_out,
        confidence=Confidence.GOOD if is_alike else Confidence.LOW,
        phases=tuple(one for one in told if one is not None),
        period=typical(periods) if recurs else None,
        period_runs=len(periods),
    )


def share_of(run: RunPhases, phase: Phase) -> float:
    """Its part of the time of which something is known."""
    known = fsum(part.seconds for part in run.parts if part.phase != Phase.UNKNOWN)
    return fsum(part.seconds for part in run.parts if part.phase == phase) / known if known else 0.0


def typical(values: Sequence[float]) -> Typical:
    low, median, high = np.quantile(np.sort(np.array(values, np.float64)), (0.1, 0.5, 0.9))
    return Typical(round(float(median), 2), round(float(low), 2), round(float(high), 2))


def _told(phase: Phase, runs: Sequence[RunPhases]) -> PhaseTold | None:
    seen = [run for run in runs if any(part.phase == phase for part in run.parts)]
    if len(seen) < LEAST_RUNS:
        return None
    # The last part of a run is cut off by its end or by the window.
    lengths = [part.seconds for run in seen for part in run.parts if part.phase == phase and (part is not run.parts[-1] or len(run.parts) == 1)]
    lengths = lengths or [part.seconds for run in seen for part in run.parts if part.phase == phase]
    shares = [share_of(run, phase) for run in runs]
    levels = {}
    means = [levels for run in seen for one, _, levels in phase_sums(run) if one == phase]
    for place, counter in enumerate(COUNTERS):
        read = [mean for row in means if (mean := row[place]) is not None]
        if read:
            levels[counter] = round(fsum(read) / len(read), 1)
    return PhaseTold(phase, round(fsum(shares) / len(shares), 4), len(seen), len(lengths), typical(lengths), levels)
