"""How soon one plan follows another. Values in, values out: the loop says what time it is (`scheduler.tasks`)."""

from collections import deque

# So many wishes within a second are a flood. Who submits a job, or ten one after the other, is planned for at once.
MANY, WITHIN_SECONDS = 20, 1.0
# In a flood plans begin so far apart. One for 25 new jobs costs but twice as much as one for five, and the time is needed to let them in. How soon
# those are planned for then hangs on what the flood leaves of the machine.
APART_SECONDS = 0.4


class Pace:
    """What the plans of the last second have seen, and when the next may begin."""

    def __init__(self) -> None:
        self._plans: deque[tuple[float, int]] = deque()

    def planned(self, *, began: float, wishes: int) -> None:
        """A plan that began at that second has seen so many new wishes."""
        self._plans.append((began, wishes))

    def pause(self, *, now: float) -> float:
        """Seconds until the loop may look again: none, unless many wishes came within the last second and the last plan has only just begun."""
        while self._plans and not now - WITHIN_SECONDS <= self._plans[0][0] <= now:
            self._plans.popleft()
        if sum(wishes for _, wishes in self._plans) < MANY:
            return 0.0
        return max(0.0, self._plans[-1][0] + APART_SECONDS - now)
