"""A world whose plans are some time apart: what is coarser is its clock, not the engine."""

from collections.abc import Callable
from heapq import heappop

from scheduler.engine.model.values import Scenario

from .world import Policy, World

STEPS = (0, 10_000, 30_000, 60_000, 120_000, 180_000, 300_000)  # between plans, in milliseconds; 0: whenever something happens
PART_OF_WORK = 10  # a step is at most such a part of what a job takes, or the shortest: half a step GPUs stay idle after it


def longest_step(mean: float) -> int:
    """From one plan to the next, of jobs that take so long in the mean: a longer one would hold back short jobs, and make a queue of its own."""
    return max(step for step in STEPS if step <= max(STEPS[1], mean // PART_OF_WORK))


class Paced(World):
    def __init__(self, scenario: Scenario, policy: Policy | None, works: dict[str, int], step: int) -> None:
        self.step = step
        self._planned: int | None = None
        self._owed: int | None = None  # since when a plan is due that had to wait for its step
        super().__init__(scenario, policy, works)

    def until(self, moment: int, on: Callable[[], bool]) -> bool:
        """Go on until a moment. False: `on` said no before a plan, and the moment was not reached."""
        while (time := self._next_moment() if self._owed is None else self._owed) is not None:
            at = time if self._planned is None else max(time, self._planned + self.step)
            if at > moment:
                # What happens until the moment is no longer to come then, but still to be planned.
                self._owed = time if time <= moment else None
                break
            if not on():
                return False
            self._happen_until(at)
            self._wake = self._owed = None
            self._plan()
            self._planned = at
        self._happen_until(moment)
        return True

    def _happen_until(self, moment: int) -> None:
        timers = self.timers
        while (time := self._next_timer()) is not None and time <= moment:
            self._pass_time(time)
            _, _, what, name, version = heappop(timers)
            self._happen(what, name, version)
        self._pass_time(moment)
