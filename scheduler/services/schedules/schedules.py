"""Schedules: made, changed, paused, run by hand, removed; and the turn that submits what is due.

What holds whoever calls, however often, and whenever they are killed: of a schedule each due time is dealt with once. The row that says what came
of it and the jobs themselves are written in one transaction, and the database keeps a second row of the same time out.
"""

import copy
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.core.exceptions import PermissionDenied, ValidationError
from django.db import IntegrityError, connection, transaction
from django.db.models import QuerySet
from django.utils.text import Truncator

from gpufleet.core.audit import SYSTEM, audit_record
from gpufleet.core.faults import Conflict, TooMany
from gpufleet.core.ids import public_id
from gpufleet.core.live.news import News
from gpufleet.core.models import User
from gpufleet.core.zones import zone_fault
from quotas.models import QuotaNode
from quotas.permissions import Access, Can, access_for_user
from quotas.selectors.people import token_of
from scheduler.jobs.reading import Faults
from scheduler.jobs.schema import EARLIEST, LATEST, LONGEST_SECONDS
from scheduler.models import ENDED, HOLDING, CatchUp, Job, JobState, Overlap, RunOutcome, Schedule, ScheduleRun, SubmissionKey
from scheduler.schedules.recurrence import INSTANT, NoTimes, Rhythm, expression_fault
from scheduler.selectors.schedules import is_owner, must_steer_schedule
from scheduler.services.jobs.admission import refusals_counted
from scheduler.services.jobs.repeats import key_take, key_used
from scheduler.services.jobs.revisions import row_locked
from scheduler.services.jobs.steering import reason_given
from scheduler.services.jobs.submission import Checked, Due, submissions_check, submissions_write
from scheduler.services.loop.lease import lease_want
from scheduler.services.loop.runs import Clusters, Stop, stop_ask
from scheduler.services.loop.steps import Steps, jobs_locked, open_attempts
from scheduler.services.notify.notices import Kind, Word, notice_say

log = logging.getLogger(__name__)

NAME_LENGTH = 120
NOTE_LENGTH = 300
MOST_SCHEDULES = 200  # of one owner
MOST_A_TURN = 100  # times of one schedule
MOST_AT_A_TURN = 500  # schedules
# A turn comes every few seconds: what is later than this was missed.
ON_TIME = timedelta(minutes=5)
AGAIN = timedelta(seconds=10)  # after a limit had no room
MOST_REFUSALS = 5
FURTHEST_BACK = timedelta(days=400)
# A moment that never comes again is nothing for a job that does.
NOT_RECURRING = {
    "not_before": "A job that recurs has no fixed time; the schedule says when it is due.",
    "deadline": "A job that recurs has no fixed time; start_within_s of the schedule says how late it may be submitted.",
    "defer": "It needs a deadline, and a job that recurs has none.",
    "draft": "A draft would wait for somebody each time. Pause the schedule instead.",
}
COLUMNS = ("name", "cron", "zone", "overlap", "catch_up", "start_within_s", "starts_at", "ends_at")
TIMING = ("cron", "zone", "starts_at", "ends_at")


@dataclass(frozen=True, slots=True)
class Drawn:
    """A schedule that is not written down, with all that is wrong with it. `checked` is its job, where that may be submitted."""

    schedule: Schedule
    checked: Checked | None
    faults: Faults


def schedule_draw(*, access: Access, given: Mapping[str, Any], now: datetime) -> Drawn:
    """What a new schedule of the caller's would be. Faults of the job are told below `description`. Nothing is written."""
    user = access.actor.user
    if user is None or not access.can_somewhere(Can.SUBMIT):
        raise PermissionDenied("It needs a role that may submit, and a token with the scope submit.")
    schedule = Schedule(owner=user, written_with=token_of(access.actor), created_at=now, name="", cron="")
    own = _take(schedule, given, now)
    checked, of_job = _take_description(access, schedule, given.get("description"), now)
    if not own.keys() & set(TIMING):
        # One that begins in the past catches up by its rule.
        schedule.next_due = _rhythm(schedule).after(schedule.starts_at - INSTANT if schedule.starts_at is not None else now)
    return Drawn(schedule, checked, own | of_job)


def schedule_timed(*, access: Access, schedule: Schedule, given: Mapping[str, Any], now: datetime) -> Drawn:
    """When a schedule would be due by other times, also one that is paused. Nothing is written."""
    must_steer_schedule(access, schedule)
    drawn = copy.copy(schedule)
    drawn.paused_at = None
    faults = _take(drawn, {name: given[name] for name in TIMING if name in given}, now)
    if not faults.keys() & set(TIMING):
        drawn.next_due = _next_from_now(drawn, now)
    return Drawn(drawn, None, faults)


def schedule_create(*, access: Access, given: Mapping[str, Any], now: datetime) -> Schedule:
    """A schedule of the caller's own. Every fault is told at once, those of the job below `description`."""
    return schedule_keep(access=access, drawn=schedule_draw(access=access, given=given, now=now))


def schedule_keep(*, access: Access, drawn: Drawn) -> Schedule:
    """Write down what was drawn for the caller. What is wrong with it is refused."""
    if drawn.faults:
        raise ValidationError(drawn.faults)
    schedule, user = drawn.schedule, access.actor.user
    assert user is not None
    with transaction.atomic():
        # Locked, so that two at once do not both find room.
        User.objects.select_for_update(no_key=True).get(pk=user.pk)
        if Schedule.objects.filter(owner=user).count() >= MOST_SCHEDULES:
            raise ValidationError({"name": [f"You have {MOST_SCHEDULES} schedules, which is the most. Remove one first."]})
        schedule.public_id = public_id("s")
        schedule.save(force_insert=True)
        _tell(schedule)
        _record(access, "schedule.create", schedule, after=_facts(schedule))
    return schedule


def schedule_change(*, access: Access, schedule: Schedule, given: Mapping[str, Any], revision: int | None = None, now: datetime) -> Schedule:
    """Change what is given. The job itself only its owner changes, as it is submitted with his rights; `take_over` makes the caller its owner."""
    must_steer_schedule(access, schedule)
    cause = reason_given(str(given.get("reason") or ""), "")
    with transaction.atomic():
        schedule = _locked(schedule, revision)
        must_steer_schedule(access, schedule)
        before, times = _facts(schedule), [getattr(schedule, name) for name in TIMING]
        faults: Faults = {}
        if given.get("take_over"):
            faults |= _take_over(access, schedule)
        if "description" in given and not is_owner(access, schedule):
            raise PermissionDenied("The job is submitted with its owner's rights, so only its owner changes it. Take the schedule over first.")
        faults |= _take(schedule, given, now)
        if "description" in given or given.get("take_over"):
            said = given.get("description", schedule.description | {"quota": schedule.quota.path})
            faults |= _take_description(access, schedule, said, now)[1]
        if faults:
            raise ValidationError(faults)
        if times != [getattr(schedule, name) for name in TIMING]:
            schedule.next_due = _next_from_now(schedule, now)
        _vouch(access, schedule, whole="description" in given or bool(given.get("take_over")))
        _save(schedule)
        _record(access, "schedule.update", schedule, before=before, after=_facts(schedule), reason=cause)
    return schedule


def schedule_pause(*, access: Access, schedule: Schedule, reason: str, revision: int | None = None, now: datetime) -> Schedule:
    """Submit nothing until it is resumed. What runs goes on."""
    must_steer_schedule(access, schedule)
    cause = reason_given(reason, "")
    with transaction.atomic():
        schedule = _locked(schedule, revision)
        if schedule.paused_at is not None:
            raise Conflict(f"{schedule.name} is paused already.")
        schedule.paused_at, schedule.paused_by, schedule.paused_reason = now, access.actor.name, cause
        _save(schedule)
        _record(access, "schedule.pause", schedule, before={"paused": False}, after={"paused": True}, reason=cause)
    return schedule


def schedule_resume(*, access: Access, schedule: Schedule, reason: str, revision: int | None = None, now: datetime) -> Schedule:
    """Go on from now. Times that passed while it was paused are let go, whatever its rule."""
    must_steer_schedule(access, schedule)
    cause = reason_given(reason, "")
    with transaction.atomic():
        schedule = _locked(schedule, revision)
        if schedule.paused_at is None:
            raise Conflict(f"{schedule.name} is not paused.")
        if fault := zone_fault(schedule.zone):
            raise ValidationError({"zone": [fault]})
        schedule.paused_at, schedule.paused_by, schedule.paused_reason, schedule.refusals = None, "", "", 0
        schedule.next_due = _next_from_now(schedule, now)
        _vouch(access, schedule, whole=True)
        _save(schedule)
        _record(access, "schedule.resume", schedule, before={"paused": True}, after={"paused": False}, reason=cause)
    return schedule


def schedule_remove(*, access: Access, schedule: Schedule, reason: str, revision: int | None = None) -> None:
    """With what is known of its runs. Its jobs stay, and go on."""
    must_steer_schedule(access, schedule)
    cause = reason_given(reason, "")
    with transaction.atomic():
        schedule = _locked(schedule, revision)
        _record(access, "schedule.remove", schedule, before=_facts(schedule), reason=cause)
        _tell(schedule)
        schedule.delete()


@dataclass(frozen=True, slots=True)
class Ran:
    """A run by hand; `repeated`: the key had been used, so it is the run of the first request."""

    run: ScheduleRun
    repeated: bool = False


def schedule_run_now(*, access: Access, schedule: Schedule, reason: str, revision: int | None = None, key: str = "", now: datetime) -> Ran:
    """Submit it once more, due now, with its owner's rights. Its own times stay as they are, and it may be paused. Under a key it is done once."""
    must_steer_schedule(access, schedule)
    cause = reason_given(reason, "")
    due = now.replace(microsecond=0)
    user = access.actor.user
    assert user is not None, "it may steer"
    with refusals_counted(), transaction.atomic():
        # First of all, while nothing is locked: a second request by this key waits here for the end of the first one.
        taken = key_take(user=user, key=key, said={"run": schedule.public_id, "reason": cause}, now=now) if key else None
        if isinstance(taken, SubmissionKey):
            return Ran(_run_of(schedule, taken), repeated=True)
        schedule = _locked(schedule, revision)
        if ScheduleRun.objects.filter(schedule=schedule, due_at=due).exists():
            raise Conflict(f"{schedule.name} was run this second already.")
        earlier = _unended(schedule)
        if earlier and schedule.overlap == Overlap.SKIP:
            raise Conflict(f"{_named(earlier)} of an earlier run has not ended; {schedule.name} skips what would overlap.")
        _record(access, "schedule.run", schedule, after={"due_at": due.isoformat()}, reason=cause)
        rights = _access_of_owner(schedule)
        if fault := _right_fault(rights, schedule):
            raise ValidationError({"owner": [fault]})
        run = _submitted(schedule, rights, due, earlier, now, by=access.actor.name)
        if isinstance(run, dict):
            raise ValidationError(run)
        if taken is not None:
            key_used(taken, run.jobs)
        _tell(schedule)
    return Ran(run)


def _run_of(schedule: Schedule, row: SubmissionKey) -> ScheduleRun:
    """What was run under a key: due in the second at which the key was taken."""
    return ScheduleRun.objects.get(schedule=schedule, due_at=row.at.replace(microsecond=0))


# The turn


def schedules_turn(*, now: datetime) -> int:
    """Deal with all that is due. Returns how many times that were. Doubled, late or killed at any point it submits nothing twice."""
    _pause_revoked(now)
    due = Schedule.objects.filter(next_due__lte=now, paused_at__isnull=True).order_by("next_due", "pk")
    done = 0
    for key in list(due.values_list("pk", flat=True)[:MOST_AT_A_TURN]):
        try:
            for _ in range(MOST_A_TURN):
                if not schedule_step(key=key, now=now):
                    break
                done += 1
        except Exception:
            log.exception("What is due of schedule %s could not be submitted. It is tried again.", key)
    return done


def _pause_revoked(now: datetime) -> None:
    """A token that was revoked is trusted no more, nor is what it left behind, until somebody says so."""
    rows = Schedule.objects.filter(written_with__revoked_at__isnull=False, paused_at__isnull=True, next_due__isnull=False)
    for key in list(rows.values_list("pk", flat=True)[:MOST_AT_A_TURN]):
        with transaction.atomic():
            locked = Schedule.objects.select_for_update(of=("self",)).select_related("quota", "owner", "written_with")
            schedule = locked.filter(pk=key, paused_at__isnull=True).first()
            token = schedule.written_with if schedule is not None else None
            if schedule is not None and token is not None and token.revoked_at is not None:
                _pause(schedule, f"The token {token.name}, with which it was last written, is revoked. Resume it if it is to go on.", now)


def schedule_step(*, key: int, now: datetime) -> bool:
    """Deal with the first time that is due, or with the times that are let go together. False: there is none, or another process is at it."""
    skip_locked = connection.features.has_select_for_update_skip_locked
    with transaction.atomic():
        rows = Schedule.objects.select_for_update(of=("self",), skip_locked=skip_locked).select_related("quota", "owner")
        schedule = rows.filter(pk=key, paused_at__isnull=True, next_due__lte=now).first()
        if schedule is None or schedule.next_due is None:
            return False
        try:
            step = step_of(schedule, now)
        except NoTimes as fault:
            _pause(schedule, f"It has no times any more: {fault}", now)
            return True
        if not _dealt_with(schedule).filter(due_at=step.due).exists() and not _deal_with(schedule, step, now):
            return False  # it is tried again in the next turn, as long as its rules submit it then
        schedule.last_due, schedule.next_due = step.due, step.following
        schedule.save(update_fields=["last_due", "next_due", "refusals", "paused_at", "paused_by", "paused_reason", "revision"])
        _tell(schedule)
    return True


@dataclass(frozen=True, slots=True)
class Step:
    """A time to submit, or, where `first` is given, the times from there to `due` that are let go."""

    due: datetime
    following: datetime | None
    first: datetime | None = None
    times: int = 1


def step_of(schedule: Schedule, now: datetime) -> Step:
    """What its rules say of the times from `next_due` up to now. Pure."""
    first = schedule.next_due
    assert first is not None and first <= now
    rhythm = _rhythm(schedule)
    within = timedelta(seconds=schedule.start_within_s) if schedule.start_within_s is not None else None
    if within is None and schedule.catch_up == CatchUp.NONE:
        within = ON_TIME
    newest = rhythm.newest(first, now)
    last: datetime | None
    if within is not None and now - newest > within:
        last = newest  # all are too late
    elif schedule.catch_up != CatchUp.ALL:
        last = rhythm.newest(first, newest - INSTANT) if newest > first else None
    elif within is not None and now - first > within:
        last = rhythm.newest(first, now - within - INSTANT)
    else:
        last = None
    if last is not None:
        return Step(last, rhythm.after(last), first, rhythm.count(first, last))
    return Step(first, rhythm.after(first))


def _dealt_with(schedule: Schedule) -> QuerySet[ScheduleRun]:
    return ScheduleRun.objects.filter(schedule=schedule).exclude(outcome=RunOutcome.DELAYED)


def _deal_with(schedule: Schedule, step: Step, now: datetime) -> bool:
    """False: a limit has no room for it yet, which its run says."""
    delayed = ScheduleRun.objects.filter(schedule=schedule, outcome=RunOutcome.DELAYED, due_at__lte=step.due)
    last = delayed.order_by("-due_at").first()
    if step.first is not None:
        delayed.delete()
        note = last.note if last is not None else _missed(schedule, now)
        passed = {"first_due": step.first if step.times > 1 else None, "times": step.times, "note": note}
        ScheduleRun.objects.create(schedule=schedule, due_at=step.due, at=now, outcome=RunOutcome.MISSED, **passed)
        return True
    if last is not None and last.due_at == step.due and last.at > now - AGAIN:
        return False
    try:
        with transaction.atomic():
            delayed.delete()
            _submit_due(schedule, step, now)
    except TooMany as fault:
        told = {"at": now, "outcome": RunOutcome.DELAYED, "note": Truncator(" ".join(fault.messages)).chars(NOTE_LENGTH)}
        ScheduleRun.objects.update_or_create(schedule=schedule, due_at=step.due, defaults=told)
        _tell(schedule)
        return False
    return True


def _submit_due(schedule: Schedule, step: Step, now: datetime) -> None:
    access = _access_of_owner(schedule)
    if fault := _right_fault(access, schedule):
        # Trying again does not help: somebody must give him the role, or take the schedule over.
        _refuse(schedule, step.due, {"owner": [fault]}, now, pause=fault)
        return
    earlier = _unended(schedule)
    if earlier and schedule.overlap == Overlap.SKIP:
        note = f"{_named(earlier)} of an earlier run had not ended."
        ScheduleRun.objects.create(schedule=schedule, due_at=step.due, at=now, outcome=RunOutcome.SKIPPED, note=note)
        return
    run = _submitted(schedule, access, step.due, earlier, now)
    if isinstance(run, dict):
        _refuse(schedule, step.due, run, now)
    else:
        schedule.refusals = 0


def _missed(schedule: Schedule, now: datetime) -> str:
    if schedule.start_within_s is not None:
        return f"Nobody looked until {now:%Y-%m-%d %H:%M:%S} UTC; a run is submitted at most {schedule.start_within_s} s late."
    why = "missed runs are skipped" if schedule.catch_up == CatchUp.NONE else "a newer one was due"
    return f"Nobody looked until {now:%Y-%m-%d %H:%M:%S} UTC; {why}."


def _submitted(schedule: Schedule, access: Access, due: datetime, earlier: list[Job], now: datetime, by: str = "") -> ScheduleRun | Faults:
    """The run with its jobs, in the caller's transaction and by `access`, its owner's; or why it is refused, and nothing written.

    `TooMany` where there is no room for it yet.
    """
    try:
        checked = submissions_check(access=access, descriptions=[{**schedule.description, "quota": schedule.quota.path}], now=now)
    except ValidationError as fault:
        return dict(fault.message_dict)
    replacing = Steps(now=now, actor=access.actor)
    locked = jobs_locked(job.pk for job in earlier) if schedule.overlap == Overlap.REPLACE else {}
    try:
        jobs = submissions_write(checked=checked, access=access, now=now, actor=access.actor, due=Due(schedule.public_id, due))
    except TooMany:
        raise
    except ValidationError as fault:  # more than may ever wait there
        return dict(fault.message_dict)
    gone = _replace(replacing, list(locked.values()), f"Replaced by {jobs[0].public_id}, the next run of {schedule.public_id}.")
    ends = [job.public_id for job in (jobs if len(jobs) == 1 else (jobs[0], jobs[-1]))]
    note = f"It replaced {_named(gone)}." if gone else ""
    return ScheduleRun.objects.create(
        schedule=schedule, due_at=due, at=now, outcome=RunOutcome.SUBMITTED, jobs=ends, job_count=len(jobs), note=note, by=by
    )


def _access_of_owner(schedule: Schedule) -> Access:
    return access_for_user(schedule.owner, via="schedule") if schedule.owner is not None else Access(SYSTEM, ())


def _right_fault(access: Access, schedule: Schedule) -> str:
    """Why it may not be submitted with its owner's rights; nothing: it may."""
    path = schedule.quota.path
    return "" if access.can(Can.SUBMIT, path) else f"{schedule.owner or 'Nobody'} may not submit to {path} any more."


def _replace(steps: Steps, jobs: list[Job], cause: str) -> list[Job]:
    """Cancel what is left of earlier runs, which the caller has locked."""
    going = [job for job in jobs if job.state not in ENDED]
    if not going:
        return []
    attempts = open_attempts([job.pk for job in going if job.state in HOLDING])
    clusters = Clusters(attempts.values())
    for job in going:
        attempt = attempts.get(job.pk)
        if attempt is None:
            steps.forget_promise(job)
            steps.move(job, JobState.CANCELLED, cause)
        elif stop_ask(steps, job, attempt, clusters.of(attempt), Stop(job.pk, JobState.CANCELLED, "cancelled", cause)):
            steps.forget_promise(job)
    news = News()
    steps.write(news)
    news.publish()
    lease_want()
    return going


def _unended(schedule: Schedule) -> list[Job]:
    return list(Job.objects.filter(schedule=schedule.public_id, ended_at__isnull=True).order_by("pk").defer("spec", "launch"))


def _named(jobs: list[Job]) -> str:
    return jobs[0].public_id + (f" and {len(jobs) - 1:,} more" if len(jobs) > 1 else "")


def _refuse(schedule: Schedule, due: datetime, faults: Faults, now: datetime, *, pause: str = "") -> None:
    """Written down, and told to the owner: the first time, and when it is paused for it, at once with the reason `pause`."""
    said = "; ".join(f"{path}: {message}" for path, messages in faults.items() for message in messages)
    run = {"outcome": RunOutcome.REFUSED, "note": Truncator(said).chars(NOTE_LENGTH), "faults": faults}
    ScheduleRun.objects.create(schedule=schedule, due_at=due, at=now, **run)
    schedule.refusals += 1
    if pause or schedule.refusals >= MOST_REFUSALS:
        _pause(schedule, pause or f"{schedule.refusals} runs in a row were refused. {said}", now)
    elif schedule.refusals == 1:
        text = f"Due {due:%Y-%m-%d %H:%M} UTC, schedule {schedule.public_id}. {said}"
        _notify(schedule, f"A run of {schedule.name} was refused", text, now)


def _pause(schedule: Schedule, reason: str, now: datetime) -> None:
    """By the program itself."""
    schedule.paused_at, schedule.paused_by, schedule.paused_reason = now, SYSTEM.name, Truncator(reason).chars(NOTE_LENGTH)
    _save(schedule)
    after, cause = {"paused": True}, schedule.paused_reason
    facts: dict[str, Any] = {"before": {"paused": False}, "after": after, "reason": cause, "quota": schedule.quota}
    audit_record(actor=SYSTEM, action="schedule.pause", kind="schedule", object_id=schedule.public_id, **facts)
    _notify(schedule, f"{schedule.name} is paused", f"Schedule {schedule.public_id}. {reason}", now)


def _notify(schedule: Schedule, title: str, text: str, now: datetime) -> None:
    if schedule.owner_id is not None:
        notice_say(kind=Kind.SCHEDULE, word=Word(schedule.owner_id, title, text, link=f"/schedules/{schedule.public_id}/"), now=now)


# Reading what is given


def _take(schedule: Schedule, given: Mapping[str, Any], now: datetime) -> Faults:
    """Put what is given in its place, and say what is wrong with it."""
    fresh = schedule._state.adding
    faults: Faults = {}
    for name in COLUMNS:
        if name in given:
            value = given[name]
            setattr(schedule, name, " ".join(value.split()) if isinstance(value, str) else value)
    if (fresh or "name" in given) and not (schedule.name.isprintable() and 1 <= len(schedule.name) <= NAME_LENGTH):
        faults["name"] = [f"A name has 1 to {NAME_LENGTH} printable characters."]
    if (fresh or "cron" in given) and (fault := expression_fault(schedule.cron)):
        faults["cron"] = [fault]
    if fault := zone_fault(schedule.zone):
        faults["zone"] = [fault]
    for name, kinds in (("overlap", Overlap), ("catch_up", CatchUp)):
        if getattr(schedule, name) not in kinds.values:
            faults[name] = [f"It can be {', '.join(kinds.values)}."]
    if schedule.catch_up == CatchUp.ALL and schedule.overlap != Overlap.ALLOW and not faults:
        faults["catch_up"] = ["To catch up with all, overlap must be allow: otherwise they would skip or replace each other."]
    if schedule.start_within_s is not None and not 1 <= schedule.start_within_s <= LONGEST_SECONDS:
        faults["start_within_s"] = [f"From 1 to {LONGEST_SECONDS:,} seconds."]
    return faults | _moment_faults(schedule, given, now)


def _moment_faults(schedule: Schedule, given: Mapping[str, Any], now: datetime) -> Faults:
    faults: Faults = {}
    for name in ("starts_at", "ends_at"):
        moment = getattr(schedule, name)
        if name in given and moment is not None and (moment.tzinfo is None or not EARLIEST <= moment <= LATEST):
            faults[name] = ["A time with its zone is wanted, such as 2026-11-20T09:00:00Z."]
    if faults:
        return faults
    starts, ends = schedule.starts_at, schedule.ends_at
    if given.get("starts_at") is not None and starts is not None and starts < now - FURTHEST_BACK:
        faults["starts_at"] = [f"At most {FURTHEST_BACK.days} days back."]
    if starts is not None and ends is not None and ends <= starts:
        faults["ends_at"] = ["It must lie after the beginning."]
    elif given.get("ends_at") is not None and ends is not None and ends <= now:
        faults["ends_at"] = ["It lies in the past."]
    return faults


def _take_description(access: Access, schedule: Schedule, said: Any, now: datetime) -> tuple[Checked | None, Faults]:
    if not isinstance(said, Mapping):
        return None, {"description": ["Keys with values are wanted, as a job is submitted."]}
    faults: Faults = {f"description.{key}": [message] for key, message in NOT_RECURRING.items() if said.get(key)}
    try:
        (checked,) = submissions_check(access=access, descriptions=[{"name": schedule.name[:NAME_LENGTH] or "job", **said}], now=now)
    except ValidationError as fault:
        found = {"description" if path == "description" else f"description.{path}": messages for path, messages in fault.message_dict.items()}
        return None, found | faults
    schedule.quota = checked.quota
    schedule.description = {"name": schedule.name, **{key: value for key, value in said.items() if key != "quota"}}
    return checked, faults


def _vouch(access: Access, schedule: Schedule, *, whole: bool) -> None:
    """Keep the token by which it was changed. In the browser only who says all of the job, takes it over or resumes it answers for it himself."""
    token = token_of(access.actor)
    if token is not None or whole:
        schedule.written_with = token


def _take_over(access: Access, schedule: Schedule) -> Faults:
    if not access.can(Can.SUBMIT, schedule.quota.path):
        return {"take_over": [f"You may not submit to {schedule.quota.path}."]}
    schedule.owner = access.actor.user
    return {}


def _rhythm(schedule: Schedule) -> Rhythm:
    return Rhythm(schedule.cron, schedule.zone, schedule.ends_at)


def _next_from_now(schedule: Schedule, now: datetime) -> datetime | None:
    """Behind all that was dealt with, also if the clock was set back."""
    moments = [now, *([schedule.last_due] if schedule.last_due else []), *([schedule.starts_at - INSTANT] if schedule.starts_at else [])]
    return _rhythm(schedule).after(max(moments))


def _locked(schedule: Schedule, revision: int | None) -> Schedule:
    gone = Conflict(f"{schedule.name} was removed meanwhile.")
    return row_locked(Schedule.objects.select_related("quota", "owner"), schedule.pk, revision=revision, gone=gone)


def _save(schedule: Schedule) -> None:
    schedule.revision += 1
    try:
        with transaction.atomic():
            schedule.save()
    except IntegrityError as fault:  # its quota went meanwhile
        raise Conflict(f"{schedule.name} was changed meanwhile.") from fault
    _tell(schedule)


def _tell(schedule: Schedule) -> None:
    """Pages that show it, in the transaction that changes it."""
    news = News()
    news.add("schedules", schedule.pk)
    news.publish()


def _facts(schedule: Schedule) -> dict[str, Any]:
    """For the audit log; of the job what is audited of a submission, as more people read the log than may see what it starts."""
    found = {name: getattr(schedule, name) for name in COLUMNS}
    moments = {name: found[name].isoformat() if found[name] is not None else None for name in ("starts_at", "ends_at")}
    job = {key: value for key, value in schedule.description.items() if key != "launch"}
    return found | moments | {"quota": schedule.quota.path, "owner": schedule.owner.username if schedule.owner else None, "job": job}


def _record(access: Access, action: str, schedule: Schedule, *, before: Any = None, after: Any = None, reason: str = "") -> None:
    quota: QuotaNode = schedule.quota
    facts = {"before": before, "after": after, "reason": reason, "quota": quota}
    audit_record(actor=access.actor, action=action, kind="schedule", object_id=schedule.public_id, **facts)
