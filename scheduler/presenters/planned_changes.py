"""Planned changes of jobs in words."""

from collections.abc import Sequence
from dataclasses import dataclass

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
    """A planned change as a page lists it: the first of its jobs, and how many more there are that the reader may see (`more`), or not (`others`)."""

    plan: PlannedJobChange
    title: str
    jobs: Sequence[Job]
    more: int
    others: int
    may_call_off: bool


def planned_line(found: PlannedSeen) -> PlannedLine:
    title = plan_title(found.plan, found.seen + found.others)
    return PlannedLine(found.plan, title, found.jobs, max(0, found.seen - len(found.jobs)), found.others, found.may_call_off)


def plan_title(plan: PlannedJobChange, count: int) -> str:
    return WORDS[Action(plan.action)][count != 1].format(plural(count, "job"), plan.priority)
