"""Faults that a back-end can be made to have, for storms and tests: which calls fail, and what it tells wrongly.

Whether a call is struck is drawn from the plan's seed and from what is called when, so the same plan strikes the same calls again.
"""

from dataclasses import dataclass
from datetime import datetime

from gpufleet.core.times import millis
from scheduler.simulation.progress import drawn


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """Probabilities by call, or by run and moment. Nothing is struck from `until` on."""

    seed: int = 0
    refuses: float = 0.0  # nothing is done, and the caller is told so
    times_out: float = 0.0  # it is done, and the caller hears nothing of it
    repeats: float = 0.0  # it arrives twice
    hides: float = 0.0  # a run is left out when asked what runs
    silent: float = 0.0  # asked what runs, it does not answer
    until: datetime | None = None

    def strikes(self, kind: str, chance: float, now: datetime, *what: object) -> bool:
        return chance > 0 and (self.until is None or now < self.until) and drawn(self.seed, kind, millis(now), *what) < chance


NO_FAULTS = FaultPlan()
