"""Replacements of a service's replicas as pages and programs read them."""

from dataclasses import dataclass
from datetime import datetime

from scheduler.models import Job, Replacement, ReplacementEnd, ReplacementStep, StepEnd

SHOWN = 5


@dataclass(frozen=True, slots=True)
class ReplacementTold:
    """`steps` in their order by replica."""

    row: Replacement
    steps: tuple[ReplacementStep, ...]
    now: datetime

    @property
    def is_open(self) -> bool:
        return self.row.over_at is None

    @property
    def done(self) -> int:
        return sum(step.over_at is not None and step.end != StepEnd.FAILED for step in self.steps)

    @property
    def current(self) -> tuple[ReplacementStep, ...]:
        return tuple(step for step in self.steps if step.began_at is not None and step.over_at is None)

    @property
    def seconds(self) -> float:
        return max(0.0, ((self.row.over_at or self.now) - self.row.at).total_seconds())

    @property
    def end_told(self) -> str:
        return str(ReplacementEnd(self.row.end).label) if self.row.end else "Goes on"


def replacements_told(job: Job, *, now: datetime) -> tuple[ReplacementTold, ...]:
    """The newest, the latest first. In two queries."""
    rows = list(Replacement.objects.filter(job=job).prefetch_related("steps").order_by("-at", "-pk")[:SHOWN])
    return tuple(ReplacementTold(row, tuple(sorted(row.steps.all(), key=lambda step: step.worker)), now) for row in rows)
