"""What a change of one job, or its restart, comes to before it is done: for the job itself, and for others."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from gpufleet.core.templatetags.shell import plural
from quotas.permissions import Access
from scheduler.engine.model.values import QUEUED
from scheduler.engine.model.values import Job as Planned
from scheduler.jobs.schema import JobChange
from scheduler.models import HOLDING, Job, JobState
from scheduler.services.jobs.bulk import (
    Action,
    Asked,
    Effect,
    Preview,
    Verdict,
    following_of,
    free_to_start,
    freed_micros,
    freed_of,
    notified_of,
    planned_job,
    saved_step,
    seconds_lost,
)
from scheduler.services.jobs.edits import job_as_edited
from scheduler.services.jobs.prices import Repeated, price_of, repeated_work
from scheduler.services.jobs.scaling import job_as_scaled
from scheduler.services.loop.runs import grace_of
from scheduler.snapshots.jobs import Kinds


def job_edit_preview(*, access: Access, job: Job, change: JobChange, detail: str = "", now: datetime) -> Preview:
    """As of an action on the one job, with `detail` said of it. A `ValidationError` names what is wrong with the change. Nothing is written."""
    return _preview(access, job, job_as_edited(access=access, job=job, change=change, now=now), detail, now)


def job_scale_preview(*, access: Access, job: Job, replicas: int, role: str = "", detail: str = "", now: datetime) -> Preview:
    """The same of how many replicas are wanted."""
    return _preview(access, job, job_as_scaled(access=access, job=job, replicas=replicas, role=role), detail, now)


def _preview(access: Access, job: Job, edited: Job, detail: str, now: datetime) -> Preview:
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


@dataclass(frozen=True, slots=True)
class Restart:
    """As of a cancellation, but that the job waits for its next start. `repeated` is what it does again unless it saves its work now."""

    preview: Preview
    repeated: Repeated
    grace: int  # seconds until workers are killed
    saves: bool  # whether it is asked to save its work before


def job_restart_preview(*, access: Access, job: Job, now: datetime) -> Restart:
    """Of a job that holds GPUs. Nothing is written."""
    is_read = True

    def instead(planned: Sequence[Planned], kinds: Kinds) -> Sequence[Planned]:
        nonlocal is_read
        # A reading from before its start says nothing of what the restart comes to.
        is_read = any(one.name == job.public_id and one.run.workers for one in planned)
        return [one.with_run(one.run.as_it_waits()) if one.name == job.public_id else one for one in planned]

    found = following_of(access, instead, now)
    # It waits then as well; what becomes of it is told in its own row.
    following = replace(found, jobs=tuple(one for one in found.jobs if one.pk != job.pk)) if found is not None and is_read else None
    lost = seconds_lost(access, [job], now)
    asked = Asked(Action.CANCEL, ((job.public_id, job.revision),))
    freed = freed_of([job])
    grace = round(grace_of(job))
    saves = grace > 0 and job.spec.get("checkpoint", {}) is not None
    leaves = f"{'Saves its work' if saves else 'Ends'} within {plural(grace, 'second')}" if grace else "Is killed at once"
    detail = f"{leaves} and waits for its next start."
    preview = Preview(
        asked,
        (Verdict(job.public_id, job, Effect.CHANGES, detail),),
        freed,
        0,
        following,
        freed_micros=freed_micros(access, [job], freed, now),
        notified=notified_of(access, [job], set(), following),
        saved_step=saved_step(job),
    )
    return Restart(preview, repeated_work(access, lost, {job.pk: job}, now=now), grace, saves)
