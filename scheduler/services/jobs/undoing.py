"""Taking back what a person did to many jobs at once: as new changes, and only for jobs that nobody has changed since."""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime

from django.db import transaction

from gpufleet.core.faults import Conflict
from gpufleet.core.models import AuditEntry
from quotas.permissions import Access
from scheduler.models import Job, JobBatch
from scheduler.selectors.jobs import jobs_named
from scheduler.services.jobs.bulk import Action, Effect, asked_checked, jobs_steer
from scheduler.services.loop.steps import jobs_locked
from scheduler.services.loop.usage import usage_moment

# What takes an action back. A job that was cancelled stays cancelled.
UNDOES = {Action.HOLD: Action.RELEASE, Action.RELEASE: Action.HOLD, Action.PRIORITY: Action.PRIORITY}


@dataclass(frozen=True, slots=True)
class Undone:
    """How many jobs are as they were, how many have changed since, and the names of those that the reader may see."""

    done: int
    left: int
    names: tuple[str, ...]


def may_undo(batch: JobBatch) -> bool:
    """Whether one of its jobs is still as it left it."""
    left = dict(_changed(batch)) if batch.action in UNDOES else {}
    return any(left[name] == revision for name, revision in Job.objects.filter(public_id__among=sorted(left)).values_list("public_id", "revision"))


def undone(access: Access, batch: JobBatch, back: Collection[str] = ()) -> Undone:
    """What an Undo of a batch came to: `back` are the ids of its jobs that are as they were."""
    left = [name for name, _ in _changed(batch) if name not in back]
    seen = jobs_named(access, left)
    return Undone(len(back), len(left), tuple(seen[name].name for name in left if name in seen))


def _changed(batch: JobBatch) -> list[tuple[str, int]]:
    return [(verdict["id"], verdict["revision"]) for verdict in batch.verdicts if verdict["effect"] == Effect.CHANGES]


def batch_undo(*, access: Access, batch: JobBatch, now: datetime) -> Undone:
    """Take a batch back. A `Conflict` where none of its jobs is as it left it."""
    changed = _changed(batch)
    if batch.action not in UNDOES or not changed:
        raise Conflict("This cannot be undone.")
    action = UNDOES[Action(batch.action)]
    before = _priorities(batch, [name for name, _ in changed]) if action == Action.PRIORITY else {}
    groups: dict[int | None, list[tuple[str, int | None]]] = defaultdict(list)
    for name, revision in changed:
        groups[before.get(name)].append((name, revision))
    with transaction.atomic():
        usage_moment(now=now)
        # All at once, before anything is told to the pages: each priority is a step of its own.
        jobs_locked(Job.objects.filter(public_id__among=sorted(name for name, _ in changed)).values_list("pk", flat=True))
        back: set[str] = set()
        for priority, jobs in groups.items():
            asked = replace(asked_checked(action=action, jobs=jobs, priority=priority), undoes=True)
            steered = jobs_steer(access=access, asked=asked, reason=f"Undo of {batch.public_id}.", now=now)
            back |= {name for name, _ in _changed(steered.batch)}
        if not back:
            raise Conflict("These jobs have changed since. Nothing was undone.")
    return undone(access, batch, back)


def _priorities(batch: JobBatch, names: list[str]) -> dict[str, int]:
    entries = AuditEntry.objects.filter(object_kind="job", object_id__in=names, action="job.edit", after__batch=batch.public_id)
    return {name: before["priority"] for name, before in entries.values_list("object_id", "before") if before is not None}
