"""Actions on jobs that begin later: planned by a person, begun with the rights that this person has by then, and called off until then."""

import hashlib
import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import connection, transaction

from gpufleet.core.audit import SYSTEM, Actor, audit_entry, audit_write
from gpufleet.core.faults import Conflict
from gpufleet.core.ids import public_id
from gpufleet.core.live.news import News
from gpufleet.core.models import User
from gpufleet.core.templatetags.shell import plural
from gpufleet.core.undo import named
from quotas.models import ServiceToken
from quotas.permissions import Access, Can, access_for_user
from quotas.selectors.people import token_of
from scheduler.models import ENDED, Job, PlannedJobChange
from scheduler.selectors.jobs import may_steer
from scheduler.selectors.planned_changes import is_author
from scheduler.services.beginnings import begins_checked
from scheduler.services.jobs.bulk import MOST, Action, Asked, Effect, Verdict, jobs_judged, jobs_steer, must_steer_something
from scheduler.services.jobs.repeats import KEY_LENGTH
from scheduler.services.jobs.steering import reason_given
from scheduler.services.notify.notices import Kind, Word, notice_say

MOST_PLANS = 200  # of one author
MOST_AT_A_TURN = 100
# What an author is told of. Where a job is as it was to be already, nothing is amiss.
AMISS = (Effect.REFUSED, Effect.STALE, Effect.NOT_ALLOWED, Effect.UNKNOWN)
GONE = "This planned change has begun or was called off since. Look again, then decide."
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Planned:
    """A change that is planned, and what it would do now to each job that was named; `repeated`: it had been planned under the key already."""

    plan: PlannedJobChange
    verdicts: tuple[Verdict, ...]
    repeated: bool = False


def may_be_planned(verdict: Verdict) -> bool:
    """Also where it can't be done now, or is so already: that may be otherwise by then."""
    known = verdict.job is not None and verdict.job.state not in ENDED
    return known and verdict.effect in (Effect.CHANGES, Effect.SAME, Effect.REFUSED)


def jobs_plan(*, access: Access, asked: Asked, begins_at: datetime, reason: str, now: datetime, key: str = "", said: Any = None) -> Planned:
    """Have an action on jobs begin later. Jobs that have ended, or that the caller may not change, are left out; a `Conflict` where no other is
    left. Under a key it is planned once: asked again, also after its moment, it is found as long as it is there. `said` is what the caller asked for
    in his own words."""
    must_steer_something(access)
    cause = reason_given(reason, "")
    if len(key) > KEY_LENGTH or not key.isprintable():
        raise ValidationError({"Idempotency-Key": f"At most {KEY_LENGTH} printable characters."})
    user = access.actor.user
    assert user is not None, "it may steer"
    begins = begins_at.astimezone(UTC)
    words = said if said is not None else [asked.action, asked.jobs, asked.priority, begins, cause]
    with transaction.atomic():
        # Locked, so that two at once do not both find room, and of two by one key the second finds the first.
        User.objects.select_for_update(no_key=True).get(pk=user.pk)
        verdicts = jobs_judged(access=access, asked=asked).verdicts
        known = plan_repeated(access=access, key=key, said=words)
        if known is not None:
            return Planned(known, verdicts, repeated=True)
        begins_checked(begins_at=begins_at, now=now)
        jobs = [verdict.job for verdict in verdicts if verdict.job is not None and may_be_planned(verdict)]
        if not jobs:
            raise Conflict("None of these jobs can be changed later: they have ended, or are not yours to change.")
        if PlannedJobChange.objects.filter(author=user).count() >= MOST_PLANS:
            raise ValidationError({"begins": [f"You have {MOST_PLANS} planned changes, which is the most. Call one off first."]})
        plan = PlannedJobChange.objects.create(
            public_id=public_id("pc"),
            author=user,
            written_with=token_of(access.actor),
            action=asked.action,
            priority=asked.priority,
            reason=cause,
            begins_at=begins,
            made_at=now,
            key=key,
            digest=_digest(words) if key else "",
        )
        plan.jobs.add(*jobs)
        _record(access.actor, plan, [(job, cause) for job in jobs], ends=False)
        _tell(jobs)
    return Planned(plan, verdicts)


def plan_repeated(*, access: Access, key: str, said: Any) -> PlannedJobChange | None:
    """What was planned under a key before anything else is looked at: what it matched then may not be there any more, and its moment have come."""
    known = PlannedJobChange.objects.filter(author=access.actor.user, key=key).first() if key else None
    if known is not None and known.digest != _digest(said):
        raise Conflict(f"The key {key} was used for something else. Take a fresh one.")
    return known


def _digest(said: Any) -> str:
    return hashlib.sha256(orjson.dumps(said, option=orjson.OPT_SORT_KEYS)).hexdigest()


@dataclass(frozen=True, slots=True)
class CalledOff:
    """The jobs that a planned change no longer concerns, and how many it still does."""

    jobs: tuple[Job, ...]
    left: int


def plan_call_off(*, access: Access, plan: str, jobs: Collection[str] | None = None, reason: str, now: datetime) -> CalledOff:
    """A planned change does not begin: for these of its jobs, or for all. Its author may call all of it off, others do so for jobs that they may
    steer. A `Conflict` where it has begun."""
    must_steer_something(access)
    cause = reason_given(reason, "Called off.")
    with transaction.atomic():
        row = PlannedJobChange.objects.select_for_update(of=("self",)).filter(public_id=plan).first()
        if row is None:
            raise Conflict(GONE)
        meant = row.jobs.select_related("quota").order_by("pk")
        there = list(meant.filter(public_id__in=[*jobs][:MOST]) if jobs is not None else meant)
        if not there:
            raise Conflict(GONE)
        off = there if is_author(access, row) else [job for job in there if access.can(Can.SEE, job.quota.path) and may_steer(access, job)]
        if not off:
            raise PermissionDenied("Only its author, the owners of its jobs and managers of the team's jobs can call it off.")
        row.jobs.remove(*off)
        _record(access.actor, row, [(job, cause) for job in off], ends=True)
        left = row.jobs.count()
        if not left:
            row.delete()
        _tell(off)
    return CalledOff(tuple(off), left)


def planned_changes_begin(*, now: datetime) -> int:
    """Begin the changes of jobs that are due, each by itself, so that none keeps another from it. Returns how many have begun: those that could not
    begin do not count towards the most at a turn."""
    due = PlannedJobChange.objects.filter(begins_at__lte=now).order_by("begins_at", "pk")
    begun = 0
    for key in list(due.values_list("pk", flat=True)):
        if begun == MOST_AT_A_TURN:
            break
        try:
            begun += _begin(key, now)
        except Exception:
            log.exception("The planned change of jobs %s could not begin. It is tried again.", key)
    return begun


def _begin(key: int, now: datetime) -> bool:
    """As its author would do it now. Jobs that have ended, can't be changed so or are not the author's to change any more are left alone."""
    skip_locked = connection.features.has_select_for_update_skip_locked
    with transaction.atomic():
        rows = PlannedJobChange.objects.select_for_update(of=("self",), skip_locked=skip_locked).select_related("author", "written_with")
        plan = rows.filter(pk=key, begins_at__lte=now).first()
        if plan is None:
            return False
        jobs = list(plan.jobs.select_related("quota").order_by("pk"))
        token, access = plan.written_with, access_for_user(plan.author, via="schedule")
        unfit = _unfit(token, now)
        try:
            if unfit:
                raise PermissionDenied(unfit)
            asked = Asked(Action(plan.action), tuple((job.public_id, None) for job in jobs), plan.priority)
            # With all its jobs, so that the feed's row is locked before the lease's also where none changes.
            batch = jobs_steer(access=access, asked=asked, reason=plan.reason, now=now, news=_news(jobs)).batch
        except PermissionDenied:
            why = unfit or f"{plan.author} may not change jobs any more."
            _record(SYSTEM, plan, [(job, f"Did not begin: {why}") for job in jobs], ends=True)
            _notify(plan, f"Planned change {plan.public_id} did not begin", why, now)
            _tell(jobs)
        else:
            by_name = {job.public_id: job for job in jobs}
            left = [verdict for verdict in batch.verdicts if verdict["effect"] in AMISS]
            _record(SYSTEM, plan, [(by_name[one["id"]], f"Left alone: {one['detail']}") for one in left], ends=True)
            if left:
                _notify(plan, _title(plan, len(left), len(jobs)), _left_said(left), now)
        plan.delete()
    return True


def _unfit(token: ServiceToken | None, now: datetime) -> str:
    """Why nothing begins by this token any more; empty where it may, or none was used."""
    if token is None or (token.revoked_at is None and now < token.expires_at):
        return ""
    return f"The token {token.name}, with which it was planned, is {'expired' if token.revoked_at is None else 'revoked'}."


def _title(plan: PlannedJobChange, left: int, count: int) -> str:
    return f"Planned change {plan.public_id} left {left} of {plural(count, 'job')} alone"


def _left_said(left: Sequence[dict[str, Any]]) -> str:
    """By reason, with the ids of the first; of jobs that the author may not see any more only these."""
    found: dict[str, list[str]] = {}
    for verdict in left:
        found.setdefault(verdict["detail"], []).append(verdict["id"])
    return " ".join(f"{detail.removesuffix('.')}{named(names, len(names))}." for detail, names in found.items())


def _notify(plan: PlannedJobChange, title: str, text: str, now: datetime) -> None:
    word = Word(plan.author_id, title, f"Due {plan.begins_at:%Y-%m-%d %H:%M} UTC. {text}", link="/jobs/planned/")
    notice_say(kind=Kind.SCHEDULE, word=word, now=now)


def _record(actor: Actor, plan: PlannedJobChange, jobs: Iterable[tuple[Job, str]], *, ends: bool) -> None:
    """An entry for each job in the audit log, with why."""
    facts: dict[str, Any] = {"plan": plan.public_id, "action": plan.action, "begins": plan.begins_at.isoformat(), "author": plan.author.username}
    facts |= {"priority": plan.priority} if plan.priority is not None else {}
    sides: dict[str, Any] = {"before": facts, "after": None} if ends else {"before": None, "after": facts}
    entries = [
        audit_entry(actor=actor, action="job.plan", kind="job", object_id=job.public_id, quota=job.quota, reason=cause, **sides)
        for job, cause in jobs
    ]
    audit_write(entries=entries)


def _tell(jobs: Iterable[Job]) -> None:
    """Pages that show them, in the transaction that changes it."""
    _news(jobs).publish()


def _news(jobs: Iterable[Job]) -> News:
    news = News()
    news.add("jobs", *(job.pk for job in jobs))
    return news
