"""Planned changes of jobs in words."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpufleet.core.templatetags.shell import plural
from scheduler.models import Job, PlannedJobChange
from scheduler.selectors.planned_changes import PlannedSeen
from scheduler.services.jobs.bulk import Action

# Of one job and of many.
WORDS = {
    Action.CANCEL: ("Cancel {}", "Cancel {}"),
    Action.HOLD: ("Hold {}", "Hold {}"),
    Action.RELEASE: ("Release {}", "Release {}"),
    Action.PRIORITY: ("Set the priority of {} to {}", "Set the priority of {} to {}"),
    Action.CHECKPOINT: ("Have {} save its work", "Have {} save their work"),
}
JOBS_SHOWN = 20


@dataclass(frozen=True, slots=True)
class PlannedLine:
    """A planned change as a page lists it: the first of its jobs, and how many more there are that the reader may see (`more`), or not (`others`).
    What was planned at once in several parts, such as a large array, is one; `ids` are theirs, apart by blanks."""

    plan: PlannedJobChange
    ids: str
    title: str
    jobs: Sequence[Job]
    more: int
    others: int
    may_call_off: bool


def planned_lines(found: Sequence[PlannedSeen]) -> list[PlannedLine]:
    parts: dict[Any, list[PlannedSeen]] = {}
    for one in found:
        plan = one.plan
        parts.setdefault((plan.begins_at, plan.author_id, plan.made_at, plan.action, plan.priority, plan.reason, one.may_call_off), []).append(one)
    return [_line(group) for group in parts.values()]


def _line(group: Sequence[PlannedSeen]) -> PlannedLine:
    seen, others = (sum(getattr(one, name) for one in group) for name in ("seen", "others"))
    jobs = [job for one in group for job in one.jobs][: len(group[0].jobs)]
    first, ids = group[0], " ".join(one.plan.public_id for one in group)
    return PlannedLine(first.plan, ids, plan_title(first.plan, seen + others), jobs, max(0, seen - len(jobs)), others, first.may_call_off)


def plan_title(plan: PlannedJobChange, count: int) -> str:
    return WORDS[Action(plan.action)][count != 1].format(plural(count, "job"), plan.priority)
