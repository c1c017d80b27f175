"""What would start a job sooner that waits already: tried on the fleet of a moment, with the job at its place in the queue (UI-4, SCH-20).

Some changes can be made to the job as it stands; others need it submitted again, behind all others, and this one cancelled: each is tried as that.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from quotas.permissions import Access
from quotas.selectors.budgets import stopped_above, stops_now
from scheduler.engine.model.values import Job as Planned
from scheduler.engine.trial import Trial
from scheduler.models import Job, JobState, Outlook
from scheduler.selectors.foreseen import ForeseenStart, foreseen_start
from scheduler.selectors.jobs import must_steer
from scheduler.selectors.loop import pause_now
from scheduler.services.forecasts.fitting import job_of
from scheduler.services.forecasts.grounds import GROUNDS, PAUSED, Side
from scheduler.services.forecasts.proposals import Change, changes_found, moment_of
from scheduler.services.jobs.deferring import is_deferred
from scheduler.services.jobs.submission import Checked, submissions_judge
from scheduler.snapshots.jobs import unmet_dependencies

WAITING = (JobState.QUEUED, JobState.PREEMPTED)
# Paths of a description that a waiting job may still be given other values of.
IN_PLACE = ("limit_s", "workers", "roles[0].min")


@dataclass(frozen=True, slots=True)
class Sooner:
    """Up to three changes. `at` is when it starts as it is (None: unknown); `idle`: why none was looked for."""

    as_of: datetime
    at: datetime | None
    changes: tuple[Change, ...]
    idle: str = ""


# Who would start less than that sooner might as well wait.
A_MINUTE = timedelta(minutes=1)
PROMISED = "It has been promised its GPUs already, and starts as soon as they are free."
HELD = "Nothing was tried: the job is on hold and starts only after it is released."
NOT_DUE = "Nothing was tried: it is not due yet."
DEFERRED = "Nothing was tried: it is deferred. Start now ends that."
BACKS_OFF = "Nothing was tried: it backs off before it is started again."
DEPENDS = "Nothing was tried: it waits for other jobs to end."
NO_BUDGET = "Nothing was tried: a budget of its team is used up."
NOT_ASKED = "Nothing was tried: the next plan starts it."
OVER = "Nothing was tried: it does not wait."
NOT_YOURS = "Nothing was tried: you may not submit it like this."
STARTS = "It starts as it is."


def in_place(path: str) -> bool:
    """Whether the job itself can be changed so; else it has to be submitted again."""
    return path in IN_PLACE


def job_sooner(*, access: Access, job: Job, description: Mapping[str, Any], now: datetime) -> Sooner | None:
    """For those who may steer it. `description` is the job as it could be submitted again. None: the fleet is being read."""
    must_steer(access, job)
    if job.state not in WAITING:
        return Sooner(now, None, (), PROMISED if job.state == JobState.RESERVED else OVER)
    if pause_now():
        return Sooner(now, None, (), PAUSED)
    answer = GROUNDS.again(job.public_id, lambda _, waiting: waiting, now, dated=True)
    if answer is None:
        return None
    found, as_of = answer
    if found is None:
        idle = _idle(job, now)
        # A fleet that was read before it began to wait can't have it yet, and is being read again.
        return None if idle == NOT_ASKED and as_of < job.state_since else Sooner(as_of, None, (), idle)
    key = (job.pk, job.revision, as_of, access.actor.name)
    tried = GROUNDS.remembered(key, lambda: _found(access, job, description, found, as_of, now))
    return _as_foreseen(tried, foreseen_start(job, Outlook.objects.filter(job=job).first()), now)


def _as_foreseen(tried: Sooner, foreseen: ForeseenStart | None, now: datetime) -> Sooner:
    """With the start as it is stored and told everywhere; a change that is not sooner than that is none."""
    if foreseen is None:
        return tried
    sooner = tuple(change for change in tried.changes if change.now or foreseen.is_late(now) or change.at + A_MINUTE < foreseen.at)
    return replace(tried, at=foreseen.moment, changes=sooner)


def _idle(job: Job, now: datetime) -> str:
    """Why a job that waits is not asked by the scheduler."""
    if job.held_at is not None:
        return HELD
    if job.not_before is not None and job.not_before > now:
        return NOT_DUE
    if is_deferred(job, now):
        return DEFERRED
    if job.retry_at is not None and job.retry_at > now:
        return BACKS_OFF
    if Job.objects.filter(unmet_dependencies(), pk=job.pk).exists():
        return DEPENDS
    return NOT_ASKED if stopped_above(job.quota.path, stops_now()) is None else NO_BUDGET


def _found(access: Access, job: Job, description: Mapping[str, Any], found: Trial, as_of: datetime, now: datetime) -> Sooner:
    at = moment_of(found, as_of, now)
    if found.stands:
        return Sooner(as_of, at, (), STARTS)
    if at is not None and at <= now:
        at = None  # there would be room for it, and something else than room keeps it: its back-off, say
    (checked,) = submissions_judge(access=access, descriptions=[description], now=now)
    if not isinstance(checked, Checked):
        return Sooner(as_of, at, (), NOT_YOURS)

    def tried_as(path: str, other: Checked, dated: bool) -> tuple[Trial, datetime] | None:
        answer = GROUNDS.again(job.public_id, lambda side, waiting: _changed(side, waiting, path, other), now, dated=dated)
        return (answer[0], answer[1]) if answer is not None and answer[0] is not None else None

    return Sooner(as_of, at, changes_found(access, checked, description, found, tried_as, now))


def _changed(side: Side, waiting: Planned, path: str, other: Checked) -> Planned:
    """The job with a change: as it stands in the queue, or submitted again."""
    fresh = job_of(other, side)
    if not in_place(path):
        return fresh
    return replace(waiting, kind=fresh.kind, limit_ms=fresh.limit_ms, estimate_ms=fresh.estimate_ms)
