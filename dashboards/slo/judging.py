"""When a service has broken its objective, and when it keeps it again. No clock and no database."""

from enum import StrEnum
from typing import NamedTuple

# Rounds of 15 seconds: one slow round is no breach, and one fast one does not end it.
ROUNDS = 3


class Step(StrEnum):
    NONE = ""
    OPENS = "opens"
    ENDS = "ends"


class Judged(NamedTuple):
    over: int
    calm: int
    step: Step = Step.NONE


def judged(*, over: int, calm: int, latency_ms: float | None, objective_ms: int, is_open: bool) -> Judged:
    """The next state, from the rounds in a row over the objective and within it. Without a reading nothing is known, and nothing changes."""
    if latency_ms is None:
        return Judged(over, calm)
    if latency_ms > objective_ms:
        over = min(over + 1, ROUNDS)
        return Judged(over, 0, Step.OPENS if over == ROUNDS and not is_open else Step.NONE)
    calm = min(calm + 1, ROUNDS)
    return Judged(0, calm, Step.ENDS if calm == ROUNDS and is_open else Step.NONE)
