"""What people do with jobs and with the scheduler: who may, and how it is written down."""

from dataclasses import dataclass
from datetime import datetime

from django.core.exceptions import ValidationError
from django.db import transaction

from gpufleet.core.audit import audit_record
from gpufleet.core.faults import NO_TEXT, Conflict
from gpufleet.core.live.news import News
from gpufleet.core.models import AuditEntry
from quotas.permissions import Access, Can
from scheduler.models import HOLDING, Job, JobState
from scheduler.models import Lease as LeaseRow
from scheduler.selectors.jobs import must_steer
from scheduler.services.jobs.jobs import job_hold, job_let_go, job_stop
from scheduler.services.loop.lease import TICK, lease_pause, lease_resume

REASON_LENGTH = 280


def reason_given(reason: str, otherwise: str) -> str:
    """What a person said, or what is written down in its place."""
    if "\0" in reason:
        raise ValidationError({"reason": NO_TEXT})
    reason = reason.strip()
    if len(reason) > REASON_LENGTH:
        raise ValidationError({"reason": f"Say it in at most {REASON_LENGTH} characters."})
    return reason or otherwise


def job_cancel(*, access: Access, job: Job, reason: str, now: datetime, revision: int | None = None) -> Job:
    """End a job for good. One that runs is told to save its work and has its grace first."""
    must_steer(access, job)
    cause = reason_given(reason, "Cancelled.")
    return job_stop(job=job, to=JobState.CANCELLED, outcome="cancelled", cause=cause, now=now, actor=access.actor, revision=revision)


def job_hold_back(*, access: Access, job: Job, reason: str, now: datetime, revision: int | None = None) -> Job:
    """Keep a job that waits from being started. One that has GPUs is not held; cancelling is what ends it."""
    must_steer(access, job)
    if job.state in HOLDING:
        raise Conflict(f"{job.public_id} has its GPUs already; what waits can be held back.")
    return job_hold(job=job, now=now, actor=access.actor, cause=reason_given(reason, "Held back."), revision=revision)


def job_release_hold(*, access: Access, job: Job, reason: str, now: datetime, revision: int | None = None, undoes: bool = False) -> Job:
    """Let a held job start, at once also where its next try is due later; the Undo of a hold (`undoes`) leaves that as it was."""
    must_steer(access, job)
    cause = reason_given(reason, "Released.")
    return job_let_go(job=job, now=now, actor=access.actor, cause=cause, revision=revision, undoes=undoes)


@dataclass(frozen=True, slots=True)
class Steered:
    """A pause or a resume: what an Undo names it by, and the reason that stood before."""

    step: str
    reason: str = ""


def scheduler_pause(*, access: Access, reason: str, now: datetime, undone: str = "") -> Steered:
    """Decide nothing new until somebody resumes; what runs goes on. The reason is shown to everybody who wonders. `undone` is the `step` that this
    takes back: a `Conflict` where it is not the newest."""
    access.must_everywhere(Can.OPERATE)
    cause = reason_given(reason, "")
    if not cause:
        raise ValidationError({"reason": "State a reason. Users see it while nothing starts."})
    with transaction.atomic():
        step = _written_down(access, "scheduler.pause", cause, undone)
        if LeaseRow.objects.select_for_update().filter(name=TICK, paused_at__isnull=False).exists():
            raise Conflict("It is paused already.")
        lease_pause(by=access.actor.name, reason=cause, now=now)
    return Steered(step)


def scheduler_resume(*, access: Access, reason: str, now: datetime, undone: str = "") -> Steered:
    access.must_everywhere(Can.OPERATE)
    cause = reason_given(reason, "")
    with transaction.atomic():
        step = _written_down(access, "scheduler.resume", cause, undone)
        paused = LeaseRow.objects.select_for_update().filter(name=TICK, paused_at__isnull=False).first()
        if paused is None:
            raise Conflict("It is not paused.")
        lease_resume()
    return Steered(step, paused.paused_reason)


def _written_down(access: Access, action: str, reason: str, undone: str) -> str:
    """Before the lease's row is locked: the feed comes first everywhere, so nobody waits for each other in a ring."""
    entry = audit_record(actor=access.actor, action=action, kind="scheduler", object_id=TICK, reason=reason)
    news = News()
    news.add("plans", 0)
    news.add("pause", 0)
    news.publish()
    others = AuditEntry.objects.filter(object_kind="scheduler", object_id=TICK).exclude(pk=entry.pk).order_by("-pk")
    if undone and str(others.values_list("pk", flat=True).first()) != undone:
        raise Conflict("It has been paused or resumed since. Look again, then decide.")
    return str(entry.pk)
