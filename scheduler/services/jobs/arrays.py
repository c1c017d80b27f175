"""One action on a whole array, slice by slice: what bulk takes in one transaction is a part of it, and each part stands by itself.

Who is interrupted goes on from where he was, or does all of it again: a job that is so already stays as it is.
"""

import secrets
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Max

from gpufleet.core.faults import Conflict
from quotas.permissions import Access
from scheduler.models import JobBatch, PlannedJobChange
from scheduler.selectors.arrays import array_for, elements_left
from scheduler.services.jobs.bulk import MOST, Asked, Preview, asked_checked, effects_counted, jobs_preview, jobs_steer, must_steer_something
from scheduler.services.jobs.planned_changes import Planned, jobs_plan
from scheduler.services.jobs.undoing import Undone, batch_undo, undone

MOST_ELEMENTS = 10_000
FIRST = -1


@dataclass(frozen=True, slots=True)
class Slice:
    """What came of one part: how many jobs had which effect, and behind which element the next part begins (None: it was the last)."""

    counts: Counter[str]
    batch: str | None
    after: int | None


@dataclass(frozen=True, slots=True)
class PlannedSlice:
    """What is planned for one part; the next begins behind `after`, unless that is None."""

    planned: Planned
    after: int | None


def array_preview(*, access: Access, array: str, action: str, priority: int | None, now: datetime) -> Preview:
    """What the action would come to for all jobs that have not ended. Nothing is written."""
    must_steer_something(access)
    array_for(access, array, now)
    names = [name for _, name in elements_left(access, array, after=FIRST, limit=MOST_ELEMENTS)]
    first = asked_checked(action=action, jobs=[(name, None) for name in names[:MOST] or [array]], priority=priority)
    return jobs_preview(access=access, asked=Asked(first.action, tuple((name, None) for name in names), first.priority), now=now)


def array_steer(
    *, access: Access, array: str, action: str, priority: int | None, reason: str, now: datetime, after: int = FIRST, size: int = MOST, run: str = ""
) -> Slice:
    """Do it to the jobs behind `after` that have not ended, `size` at most. `run` is common to the parts of one action (`batches_of_run`)."""
    must_steer_something(access)
    array_for(access, array, now)
    asked_checked(action=action, jobs=[(array, None)], priority=priority)
    if not 1 <= size <= MOST:
        raise ValidationError({"size": [f"From 1 to {MOST}."]})
    found = elements_left(access, array, after=after, limit=size + 1)
    some = found[:size]
    if not some:
        return Slice(Counter(), None, None)
    asked = asked_checked(action=action, jobs=[(name, None) for _, name in some], priority=priority)
    done = jobs_steer(access=access, asked=asked, reason=reason, now=now, key=f"{run}:{secrets.token_hex(6)}" if run else "")
    return Slice(effects_counted(done.batch.verdicts), done.batch.public_id, some[-1][0] if len(found) > size else None)


def array_plan(
    *,
    access: Access,
    array: str,
    action: str,
    priority: int | None,
    begins_at: datetime,
    reason: str,
    now: datetime,
    after: int = FIRST,
    size: int = MOST,
    key: str = "",
) -> PlannedSlice:
    """Have it begin later for the jobs behind `after` that have not ended, `size` at most. Under a key it is planned once."""
    must_steer_something(access)
    array_for(access, array, now)
    asked_checked(action=action, jobs=[(array, None)], priority=priority)
    if not 1 <= size <= MOST:
        raise ValidationError({"size": [f"From 1 to {MOST}."]})
    found = elements_left(access, array, after=after, limit=size + 1)
    some = found[:size]
    asked = asked_checked(action=action, jobs=[(name, None) for _, name in some] or [(array, None)], priority=priority)
    said = [array, action, priority, begins_at.astimezone(UTC), reason, after, size]
    planned = jobs_plan(access=access, asked=asked, begins_at=begins_at, reason=reason, now=now, key=key, said=said)
    if planned.repeated:  # of its jobs some may have ended since: it goes on behind the last that was planned then
        last = planned.plan.jobs.aggregate(Max("array_index"))["array_index__max"]
        more = last is not None and elements_left(access, array, after=last, limit=1)
        return PlannedSlice(planned, last if more else None)
    return PlannedSlice(planned, some[-1][0] if len(found) > size else None)


def array_plan_whole(
    *, access: Access, array: str, action: str, priority: int | None, begins_at: datetime, reason: str, now: datetime, run: str
) -> list[PlannedJobChange]:
    """The same for all of its jobs that have not ended, in as many planned changes as it takes: all or none, and once under a `run`."""
    plans: list[PlannedJobChange] = []
    after: int | None = FIRST
    with transaction.atomic():
        while after is not None:
            how: dict[str, Any] = {"action": action, "priority": priority, "begins_at": begins_at, "reason": reason, "now": now}
            part = array_plan(access=access, array=array, **how, after=after, size=MOST, key=f"{run}:{len(plans)}")
            plans.append(part.planned.plan)
            after = part.after
    return plans


def array_part_undo(*, access: Access, batch: JobBatch, now: datetime) -> Undone:
    """Take one part of an action back; where all of its jobs have changed since, nothing."""
    try:
        return batch_undo(access=access, batch=batch, now=now)
    except Conflict:
        return undone(access, batch)
