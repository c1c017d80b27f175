"""What a change of one job comes to before it is saved: for the job itself, and for others."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from quotas.permissions import Access
from scheduler.engine.model.values import QUEUED
from scheduler.engine.model.values import Job as Planned
from scheduler.jobs.schema import JobChange
from scheduler.models import HOLDING, Job, JobState
from scheduler.services.jobs.bulk import Action, Asked, Effect, Preview, Verdict, following_of, free_to_start, notified_of, planned_job
from scheduler.services.jobs.edits import job_as_edited
from scheduler.services.jobs.prices import price_of
from scheduler.snapshots.jobs import Kinds


def job_edit_preview(*, access: Access, job: Job, change: JobChange, detail: str = "", now: datetime) -> Preview:
    """As of an action on the one job, with `detail` said of it. A `ValidationError` names what is wrong with the change. Nothing is written."""
    edited = job_as_edited(access=access, job=job, change=change, now=now)
    has_place = job.state in HOLDING or job.state == JobState.RESERVED
    was_due, is_due = (has_place or (one.held_at is None and bool(free_to_start([one], now))) for one in (job, edited))
    is_read = True

    def instead(planned: Sequence[Planned], kinds: Kinds) -> Sequence[Planned]:
        nonlocal is_read
        known = next((one for one in planned if one.name == job.public_id), None)
        found = planned_job(edited, kinds) if is_due else None
        # A reading from before its start, or its submission, says nothing of what the change comes to.
        is_read = (known is not None and (known.run.state != QUEUED.state) == has_place) if was_due else True
        is_read = is_read and (found is not None or not is_due)
        if not is_read:
            return planned
        if known is None and found is None:
            return planned
        if known is not None and found is not None:
            # Where it stands, and what it has saved, no change touches.
            found = replace(found, run=known.run, checkpoint=known.checkpoint)
            if found == known:
                return planned
        others = [one for one in planned if one is not known]
        return others if found is None else sorted([*others, found], key=lambda one: (one.submitted, one.name))

    # What holds all that it wants is before nobody in the queue.
    waits = job.state not in HOLDING or job.state == JobState.DEGRADED
    following = following_of(access, instead, now, overtaking=[job.public_id] if waits else [])
    following = following if is_read else None
    # As a change of priority: it frees nothing by itself, and nobody ends along with it.
    asked = Asked(Action.PRIORITY, ((job.public_id, None),))
    notified = notified_of(access, [], set(), following)
    price = price_of(access, job, edited, now=now)
    return Preview(asked, (Verdict(job.public_id, edited, Effect.CHANGES, detail),), {}, 0, following, notified=notified, price=price)
