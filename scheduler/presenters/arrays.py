"""An array as its page tells it."""

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.models import HOLDING, JobState
from scheduler.presenters.jobs import BAR, JobLine
from scheduler.selectors.arrays import ArrayState
from scheduler.selectors.jobs import WAITING

# The parts of the bar: what is over, what goes on, what is to come.
PARTS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("completed", "Completed", (JobState.COMPLETED,)),
    ("failed", "Failed", (JobState.FAILED,)),
    ("cancelled", "Cancelled", (JobState.CANCELLED,)),
    ("holding", "Running", HOLDING),
    ("waiting", "Waiting", WAITING),
    ("draft", "Draft", (JobState.DRAFT,)),
)


@dataclass(frozen=True, slots=True)
class Part:
    key: str
    label: str
    states: tuple[str, ...]
    count: int
    x: int
    width: int


@dataclass(frozen=True, slots=True)
class ArrayView:
    state: ArrayState
    rows: Sequence[JobLine]
    parts: tuple[Part, ...]
    may_steer: bool

    @property
    def shows_parameters(self) -> bool:
        return self.may_steer and any(row.job.parameters for row in self.rows)

    @property
    def said(self) -> str:
        return ", ".join(f"{part.label.lower()} {part.count:,}" for part in self.parts)


def array_view(state: ArrayState, rows: Sequence[JobLine], *, may_steer: bool) -> ArrayView:
    parts, before = [], 0
    for key, label, states in PARTS:
        count = sum(state.counts.get(one, 0) for one in states)
        if not count:
            continue
        x, end = BAR * before // state.size, BAR * (before + count) // state.size
        parts.append(Part(key, label, states, count, x, max(2, end - x)))  # one failure of ten thousand is still seen
        before += count
    return ArrayView(state, rows, tuple(parts), may_steer)
