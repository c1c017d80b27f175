"""What a change of one job comes to before it is saved: for the job itself, and for others."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from quotas.permissions import Access
from scheduler.engine.model.values import QUEUED
from scheduler.engine.model.values import Job as Planned
from scheduler.jobs.schema import JobChange
from scheduler.models import HOLDING, Job
from scheduler.services.jobs.bulk import Action, Asked, Effect, Preview, Verdict, following_of, free_to_start, notified_of, planned_job
from scheduler.services.jobs.edits import job_as_edited
from scheduler.snapshots.jobs import Kinds


def job_edit_preview(*, access: Access, job: Job, change: JobChange, detail: str, now: datetime) -> Preview:
    """As of an action on the one job, with `detail` said of it. A `ValidationError` names what is wrong with the change. Nothing is written."""
    edited = job_as_edited(access=access, job=job, change=change, now=now)
    holds = job.state in HOLDING
    was_free, is_free = (one.held_at is None and bool(free_to_start([one], now)) for one in (job, edited))
    is_read = True

    def instead(planned: Sequence[Planned], kinds: Kinds) -> Sequence[Planned]:
        nonlocal is_read
        known = next((one for one in planned if one.name == job.public_id), None)
        # A reading from before its start, or its submission, says nothing of what the change comes to.
        is_read = known is not None and (known.run != QUEUED) == holds if holds or was_free else True
        if not is_read:
            return planned
        others, found = [one for one in planned if one is not known], planned_job(edited, kinds) if holds or is_free else None
        if found is None:
            return others
        return sorted([*others, replace(found, run=known.run if known is not None else QUEUED)], key=lambda one: (one.submitted, one.name))

    following = following_of(access, instead, now, overtaking=[job.public_id])
    following = following if is_read else None
    # As a change of priority: it frees nothing by itself, and nobody ends along with it.
    asked = Asked(Action.PRIORITY, ((job.public_id, None),))
    notified = notified_of(access, [], set(), following)
    return Preview(asked, (Verdict(job.public_id, edited, Effect.CHANGES, detail),), {}, 0, following, notified=notified)
