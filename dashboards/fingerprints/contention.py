"""How much jobs of two templates would slow each other down, by what their phases use. A function of the figures of phases.

The model: phases of the two are independent, so both are in two given phases for the product of their parts of the time. What two want of a resource
of one GPU above what it has is shared in proportion, so both go on slower by the sum of their wants, and the scarcest resource counts. Storage is
used by loads and checkpoints alone, each of which would use all of it: where both do, each has half.

It is a first estimate: caches, kernel lengths and the host are not in it. docs/jobs.md says how far off it is where others have measured.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import fsum

from dashboards.fingerprints.learning import LEAST_RUNS
from dashboards.fingerprints.phases import COUNTERS, Phase

# Parts of a GPU. Who uses less of a resource than this is not slowed down by its being scarce.
LEAST_USE = 0.05
STORES = (Phase.LOAD, Phase.CHECKPOINT)
SHARED = ("sm", "dram")
WHOLE = 1.0


class Resource(StrEnum):
    SM = "sm"
    DRAM = "dram"
    STORAGE = "storage"
    NONE = "none"  # nothing is scarce


@dataclass(frozen=True, slots=True)
class Use:
    """A phase: its part of the time, and what it uses of a GPU, as parts of one. A counter that was not read is missing."""

    phase: Phase
    share: float
    levels: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Usage:
    """What runs of a template use on average, phase by phase."""

    runs: int
    phases: tuple[Use, ...]

    @property
    def storing(self) -> float:
        """The part of the time in which it loads or saves."""
        return fsum(one.share for one in self.phases if one.phase in STORES)

    @property
    def memory(self) -> float | None:
        """The most memory that any phase uses; None where it was not read."""
        return max((one.levels["memory"] for one in self.phases if "memory" in one.levels), default=None)


@dataclass(frozen=True, slots=True)
class Beside:
    """One template beside another: by which factor each is slower on one GPU (`gpu`, `other_gpu`) and on one node, each on GPUs of its own (`node`).

    `scarce`: the resource of the GPU that is wanted most above what there is. `fits`: whether the memory of both fits into one GPU. None: not read.
    `unread`: counters that one of them lacks, and which therefore slow nothing down here.
    """

    gpu: float
    other_gpu: float
    node: float
    scarce: Resource
    fits: bool | None
    both_store: float
    unread: tuple[str, ...]


Sums = Mapping[str, Sequence[float | None]]


def usage_of(runs: Iterable[Sums]) -> Usage | None:
    """From the seconds and levels of each phase of each run (`RunLearned.sums`); None of too few. Every run counts alike."""
    known = [{Phase(phase): one for phase, one in run.items() if phase != Phase.UNKNOWN} for run in runs]
    known = [run for run in known if run]
    if len(known) < LEAST_RUNS:
        return None
    phases = []
    for phase in Phase:
        shares = [_seconds(run, phase) / fsum(_seconds(run, one) for one in run) for run in known]
        levels = {}
        for place, counter in enumerate(COUNTERS):
            read = [level / 100 for run in known if phase in run and (level := run[phase][1 + place]) is not None]
            if read:
                levels[counter] = fsum(sorted(read)) / len(read)
        if any(shares):
            phases.append(Use(phase, fsum(shares) / len(shares), levels))
    return Usage(len(known), tuple(phases))


def _seconds(run: Mapping[Phase, Sequence[float | None]], phase: Phase) -> float:
    return max(1.0, run[phase][0] or 0.0) if phase in run else 0.0


def beside(one: Usage, other: Usage) -> Beside:
    """The first beside the second."""
    both_store = one.storing * other.storing
    wanted = {Resource(counter): _excess(one, other, counter) for counter in SHARED} | {Resource.STORAGE: both_store}
    scarce = max(wanted, key=lambda resource: wanted[resource])
    memory = None if one.memory is None or other.memory is None else one.memory + other.memory <= WHOLE
    return Beside(
        gpu=round(_slower(one, other) + both_store, 3),
        other_gpu=round(_slower(other, one) + both_store, 3),
        node=round(1 + both_store, 3),
        scarce=scarce if wanted[scarce] > 0 else Resource.NONE,
        fits=memory,
        both_store=both_store,
        unread=tuple(counter for counter in (*SHARED, "memory") if not (_is_read(one, counter) and _is_read(other, counter))),
    )


def _slower(one: Usage, other: Usage) -> float:
    return fsum(mine.share * its.share * _stretch(mine, its) for mine in one.phases for its in other.phases)


def _stretch(mine: Use, its: Use) -> float:
    uses = [mine.levels[counter] + its.levels.get(counter, 0.0) for counter in SHARED if mine.levels.get(counter, 0.0) >= LEAST_USE]
    return max(WHOLE, *uses) if uses else WHOLE


def _excess(one: Usage, other: Usage, counter: str) -> float:
    """What is wanted above what there is, on average."""
    return fsum(
        mine.share * its.share * max(0.0, mine.levels.get(counter, 0.0) + its.levels.get(counter, 0.0) - WHOLE)
        for mine in one.phases
        for its in other.phases
    )


def _is_read(usage: Usage, counter: str) -> bool:
    return any(counter in one.levels for one in usage.phases)
