"""Jobs: made, placed, moved from state to state, and released. Every write of a job, an attempt or a placement goes through here.

What holds afterwards, whoever calls and whenever they are killed: a job that holds GPUs has exactly one open attempt with its whole gang, any other
job has nothing open, no GPU is promised twice, and every transition has its event. A job that somebody else moved meanwhile is a `Conflict`, and
nothing is written.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db import IntegrityError, transaction

from gpufleet.core.audit import SYSTEM, Actor, audit_entry, audit_record, audit_write
from gpufleet.core.bulk import row_made
from gpufleet.core.faults import Conflict
from gpufleet.core.ids import public_id
from gpufleet.core.live.news import News
from gpufleet.core.models import AuditEntry, User
from gpufleet.core.times import whole_millis
from quotas.models import QuotaNode
from scheduler.jobs.transitions import FIRST, OUTCOMES, gives_back, may_become, takes_gpus
from scheduler.models import ENDED, HOLDING, Attempt, Job, JobEvent, JobState, Placement
from scheduler.services.jobs.marks import marks_write
from scheduler.services.jobs.revisions import unchanged_or_stale
from scheduler.services.jobs.waits import left_waiting, waits_close
from scheduler.services.loop.holds import WHOLE_MILLI, Seat, placements_insert, seats_faults
from scheduler.services.loop.lease import lease_want
from scheduler.services.loop.runs import Clusters, Stop, attempt_ended, attempt_running, stop_ask
from scheduler.services.loop.steps import CAUSE_LENGTH, IllegalTransition, Steps, jobs_locked, open_attempts
from scheduler.services.loop.story import Event
from scheduler.services.loop.usage import usage_follow, usage_moment
from scheduler.services.notify.outbox import happenings_write

__all__ = [
    "WHOLE_MILLI",
    "IllegalTransition",
    "Seat",
    "attempt_ended",
    "attempt_running",
    "job_create",
    "job_hold",
    "job_let_go",
    "job_release",
    "job_start",
    "job_stop",
    "job_transition",
]

# What the note of holding a job back, or of letting it go, says for programs.
HELD: dict[str, Any] = {"held": True}
LET_GO: dict[str, Any] = {"held": False}


def job_create(
    *,
    name: str,
    quota: QuotaNode,
    owner: User | None,
    job_class: str,
    spec: Mapping[str, Any],
    gpus_milli: int,
    now: datetime,
    actor: Actor,
    priority: int = 50,
    preemptible: str = "yes",
    labels: Mapping[str, Any] | None = None,
    cost_centre: str = "",
    estimate_seconds: int | None = None,
    limit_seconds: int | None = None,
    launch: Mapping[str, Any] | None = None,
    template: str | None = None,
    template_version: int | None = None,
    state: str = JobState.QUEUED,
    cause: str = "Submitted.",
    news: News | None = None,
) -> Job:
    """A new job, waiting or as a draft. A person's submission is in the audit log, the system's own is told by the job's events alone."""
    if state not in FIRST:
        raise IllegalTransition(f"A job begins as a draft or queued, not {state}.")
    with transaction.atomic():
        job = row_made(
            Job(
                public_id=public_id("j"),
                name=name,
                quota=quota,
                owner=owner,
                job_class=job_class,
                priority=priority,
                preemptible=preemptible,
                state=state,
                state_since=whole_millis(now),
                submitted_at=whole_millis(now),
                spec=dict(spec),
                gpus_milli=gpus_milli,
                labels=dict(labels or {}),
                cost_centre=cost_centre,
                estimate_seconds=estimate_seconds,
                limit_seconds=limit_seconds,
                launch=dict(launch or {}),
                template=template,
                template_version=template_version,
            )
        )
        marks_write([job])
        row_made(JobEvent(job=job, at=now, to_state=state, cause=cause[:CAUSE_LENGTH], actor_name=actor.name))
        happenings_write(events=[Event(job, None, now, "", state, cause[:CAUSE_LENGTH], actor.name, {}, job.revision)], actor=actor)
        if actor.user is not None:
            after = {"name": name, "class": job_class, "gpus_milli": gpus_milli, "state": state}
            audit_record(actor=actor, action="job.create", kind="job", object_id=job.public_id, quota=quota, after=after)
        _tell(news, job, ())
        if state == JobState.QUEUED:
            lease_want()
    return job


def job_transition(
    *, job: Job, to: str, now: datetime, cause: str, actor: Actor = SYSTEM, detail: Mapping[str, Any] | None = None, news: News | None = None
) -> Job:
    """A step that neither takes GPUs nor gives any back."""
    if takes_gpus(job.state, to) or gives_back(job.state, to):
        raise IllegalTransition(f"From {job.state} to {to} GPUs change hands: job_start or job_release does that.")
    with transaction.atomic():
        now = usage_moment(now=now)
        attempt = Attempt.objects.filter(job=job, ended_at__isnull=True).first()
        if attempt and to == JobState.RUNNING and attempt.running_at is None:
            Attempt.objects.filter(pk=attempt.pk).update(running_at=now)
        _move(job, to, now, cause, actor, attempt, detail)
        if attempt:
            usage_follow(attempts=[attempt.pk], at=now)
        _tell(news, job, ())
    return job


def job_start(
    *, job: Job, seats: Sequence[Seat], now: datetime, cause: str, actor: Actor = SYSTEM, to: str | None = None, news: News | None = None
) -> Attempt:
    """Give a waiting job its whole gang: a new attempt, a placement a seat, and the step to starting (or resuming). All of it or nothing."""
    to = to or (JobState.RESUMING if job.state == JobState.PREEMPTED else JobState.STARTING)
    if not takes_gpus(job.state, to):
        raise IllegalTransition(f"From {job.state} to {to} no GPUs are taken.")
    if sum(seat.gpu_milli for seat in seats) < job.gpus_milli:
        raise IllegalTransition(f"{job.public_id} needs {job.gpus_milli} milli-GPU; half a gang is never started.")
    with transaction.atomic():
        now = usage_moment(now=now)
        attempt = attempt_open(job=job, now=now)
        placements_open(attempt=attempt, seats=seats, now=now)
        _move(job, to, now, cause, actor, attempt, None)
        usage_follow(attempts=[attempt.pk], at=now)
        _tell(news, job, [seat.gpu_id for seat in seats if seat.gpu_id is not None])
    return attempt


def job_release(*, job: Job, to: str, outcome: str, now: datetime, cause: str, actor: Actor = SYSTEM, news: News | None = None) -> Job:
    """Take a job off its GPUs: its placements and its attempt are closed, and it waits or has ended."""
    if not gives_back(job.state, to):
        raise IllegalTransition(f"From {job.state} to {to} no GPUs are given back.")
    if outcome not in OUTCOMES.get(to, ()):
        raise IllegalTransition(f"An attempt whose job becomes {to} did not end as {outcome}.")
    with transaction.atomic():
        now = usage_moment(now=now)
        attempt = Attempt.objects.get(job=job, ended_at__isnull=True)
        gpus = placements_close(attempt=attempt, now=now)
        attempt_close(attempt=attempt, outcome=outcome, cause=cause, now=now)
        _move(job, to, now, cause, actor, attempt, None)
        usage_follow(attempts=[attempt.pk], gpus=gpus, at=now)
        _tell(news, job, gpus)
    return job


def attempt_open(*, job: Job, now: datetime) -> Attempt:
    """The next attempt of a job that has none open; the database holds that there is never a second one."""
    number = (Attempt.objects.filter(job=job).order_by("-number").values_list("number", flat=True).first() or 0) + 1
    try:
        with transaction.atomic():
            return Attempt.objects.create(job=job, number=number, started_at=now)
    except IntegrityError as fault:
        raise Conflict(f"{job.public_id} has been started already.") from fault


def attempt_close(*, attempt: Attempt, outcome: str, cause: str, now: datetime) -> None:
    if not Attempt.objects.filter(pk=attempt.pk, ended_at__isnull=True).update(ended_at=now, outcome=outcome, cause=cause[:CAUSE_LENGTH]):
        raise Conflict(f"Attempt {attempt.number} has ended already.")


def placements_open(*, attempt: Attempt, seats: Sequence[Seat], now: datetime) -> None:
    """Take every seat, or none: each GPU exists, is in the mode that the seat needs, and has that much left."""
    with transaction.atomic():
        broken, busy = seats_faults(wanted={0: seats}, own={0: attempt.job_id}, serving_only=False)
        if fault := broken.get(0) or busy.get(0):
            raise Conflict(fault)
        try:
            with transaction.atomic():
                placements_insert([(attempt, attempt.job_id, seat, False) for seat in seats], now)
        except IntegrityError as error:
            raise Conflict("A GPU of the plan has been taken meanwhile.") from error


def placements_close(*, attempt: Attempt, now: datetime) -> list[int]:
    """Give back all that an attempt holds. Returns the GPUs."""
    held = Placement.objects.filter(attempt=attempt, until__isnull=True)
    gpus = [gpu for gpu in held.order_by("id").values_list("gpu_id", flat=True) if gpu is not None]
    held.update(until=now)
    return list(dict.fromkeys(gpus))


def job_stop(
    *,
    job: Job,
    to: str,
    outcome: str,
    cause: str,
    now: datetime,
    actor: Actor = SYSTEM,
    grace_seconds: float | None = None,
    news: News | None = None,
    revision: int | None = None,
    only_holding: bool = False,
) -> Job:
    """End a job, or take it off its GPUs: one that waits is `to` at once, one that runs is asked to leave and is `to` when it has.

    A job that has ended is a `Conflict`, with a revision also one that changed since (`Stale`), with `only_holding` one that waits.
    One that is leaving already only changes where it goes if `to` ends it for good.
    """
    own = news or News()
    with transaction.atomic():
        steps = Steps(now=now, actor=actor)
        fresh = jobs_locked([job.pk])[job.pk]
        if fresh.state in ENDED:
            raise Conflict(f"{fresh.public_id} has ended already.")
        unchanged_or_stale(fresh, revision)
        if only_holding and fresh.state not in HOLDING:
            raise Conflict(f"{fresh.public_id} holds nothing by now.")
        attempt = open_attempts([fresh.pk]).get(fresh.pk)
        if attempt is not None and fresh.state in HOLDING:
            asked = stop_ask(steps, fresh, attempt, Clusters([attempt]).of(attempt), Stop(fresh.pk, to, outcome, cause, grace_seconds))
            if asked and to in ENDED:
                steps.forget_promise(fresh)
        elif to in ENDED or fresh.state == JobState.RESERVED:
            steps.forget_promise(fresh)
            steps.move(fresh, to, cause)
        steps.write(own)
        if news is None:
            own.publish()
        lease_want()
    return fresh


def job_hold(*, job: Job, now: datetime, actor: Actor = SYSTEM, cause: str = "", revision: int | None = None) -> Job:
    """Hold a waiting job back: it keeps its place in the queue and is not started. What runs is not touched."""
    return _set_hold(job, now, now, actor, cause or "Held back.", revision)


def jobs_hold(*, jobs: Collection[int], now: datetime, actor: Actor = SYSTEM, cause: str, news: News) -> int:
    """The same for many jobs, of those that are not held yet; in the caller's transaction, who asks for a plan. Returns how many."""
    if not jobs:
        return 0
    steps = Steps(now=now, actor=actor)
    held = [job for job in jobs_locked(jobs).values() if job.state not in ENDED and job.held_at is None]
    for job in held:
        steps.note(job, cause, detail=HELD, held_at=now)
    steps.write(news)
    if actor.user is not None:
        audit_write(entries=[_hold_entry(job, actor, cause, holds=True) for job in held])
    return len(held)


def job_let_go(*, job: Job, now: datetime, actor: Actor = SYSTEM, cause: str = "", revision: int | None = None, undoes: bool = False) -> Job:
    return _set_hold(job, None, now, actor, cause or "Released.", revision, undoes=undoes)


def _set_hold(job: Job, held_at: datetime | None, now: datetime, actor: Actor, cause: str, revision: int | None, *, undoes: bool = False) -> Job:
    news = News()
    with transaction.atomic():
        steps = Steps(now=now, actor=actor)
        fresh = jobs_locked([job.pk])[job.pk]
        if fresh.state in ENDED:
            raise Conflict(f"{fresh.public_id} has ended already.")
        unchanged_or_stale(fresh, revision)
        if (fresh.held_at is None) == (held_at is None):
            return fresh
        if held_at is None:
            # A person says that it may start, unless a hold is only taken back.
            steps.note(fresh, cause, detail=LET_GO, held_at=None, retry_at=fresh.retry_at if undoes else None)
        else:
            steps.note(fresh, cause, detail=HELD, held_at=held_at)
        steps.write(news)
        if actor.user is not None:
            audit_write(entries=[_hold_entry(fresh, actor, cause, holds=held_at is not None)])
        news.publish()
        lease_want()
    return fresh


def _hold_entry(job: Job, actor: Actor, cause: str, *, holds: bool) -> AuditEntry:
    before, after = {"held": not holds}, {"held": holds}
    return audit_entry(actor=actor, action="job.hold", kind="job", object_id=job.public_id, quota=job.quota, before=before, after=after, reason=cause)


def _move(job: Job, to: str, now: datetime, cause: str, actor: Actor, attempt: Attempt | None, detail: Mapping[str, Any] | None) -> None:
    """The guarded step: only from the state and revision that the caller saw."""
    if not may_become(job.state, to):
        raise IllegalTransition(f"A job does not go from {job.state} to {to}.")
    ended = now if to in ENDED else None
    moved = Job.objects.filter(pk=job.pk, state=job.state, revision=job.revision).update(
        state=to, state_since=now, revision=job.revision + 1, ended_at=ended
    )
    if not moved:
        raise Conflict(f"{job.public_id} has moved on meanwhile.")
    if left_waiting(job.state, to):
        waits_close(since={job.pk: job.state_since}, at=now)
    JobEvent.objects.create(
        job=job, attempt=attempt, at=now, from_state=job.state, to_state=to, cause=cause[:CAUSE_LENGTH], actor_name=actor.name, detail=detail or {}
    )
    told = Event(job, attempt, now, job.state, to, cause[:CAUSE_LENGTH], actor.name, {}, job.revision + 1)
    happenings_write(events=[told], actor=actor)
    if actor.user is not None:
        before, after = {"state": job.state}, {"state": to}
        audit_record(actor=actor, action="job.state", kind="job", object_id=job.public_id, quota=job.quota, before=before, after=after, reason=cause)
    job.state, job.state_since, job.revision, job.ended_at = to, now, job.revision + 1, ended


def _tell(news: News | None, job: Job, gpus: Sequence[int]) -> None:
    own = news or News()
    own.add("jobs", job.pk)
    own.add("overview", 1)
    if gpus:
        own.add("gpus", *gpus)
        own.add("quotas", job.quota_id)
    if news is None:
        own.publish()
