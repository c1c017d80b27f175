"""Deferring jobs to hours in which their energy costs less or stands for less CO2 (SCH-15).

A job is judged once: as it is submitted, or when nothing else holds it back any more. Until its hour has come it is judged anew whenever rates,
forecasts or its description change; from then on it waits as any other job. The choice itself is `scheduler.power.deferring`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Q

from gpufleet.core.audit import audit_record
from gpufleet.core.faults import Conflict
from gpufleet.core.live.news import News
from gpufleet.core.prepared import Prepared
from gpufleet.core.times import millis
from quotas.permissions import Access
from scheduler.jobs.speeds import seconds_at, slowest_on
from scheduler.jobs.waiting import DEFERRED_FOR
from scheduler.models import HOLDING, Attempt, Job, JobClass, JobState
from scheduler.power.deferring import FURTHEST_MS, MARGIN_PERCENT, Wish, best_start
from scheduler.selectors.energy import Tariffs
from scheduler.selectors.jobs import must_steer
from scheduler.services.jobs.revisions import unchanged_or_stale
from scheduler.services.jobs.steering import reason_given
from scheduler.services.loop.lease import lease_want
from scheduler.services.loop.steps import Steps, jobs_locked
from scheduler.snapshots.jobs import unmet_dependencies

# What a change of a job may be about so that it is judged anew, by the keys of its description.
JUDGED_BY = frozenset({"defer", "deadline", "not_before", "estimate_s", "limit_s", "workers"})
MOST = 500
WAITING = (JobState.QUEUED, JobState.PREEMPTED)
NO_LONGER = "No longer deferred: by the rates of energy a start now is as good, or too little time is left."

# Waiting, free of people and other jobs, and not judged since it was submitted or since a rate changed. Nearly always there is none.
TO_BE_JUDGED: Prepared[int] = Prepared(
    lambda now: (
        Job.objects.filter(
            Q(deferred_to__isnull=True) | Q(deferred_to__gt=now),
            ~Q(unmet_dependencies()),
            ended_at__isnull=True,
            defer__isnull=False,
            deferral__isnull=True,
            held_at__isnull=True,
        )
        # Not by the states of those that wait: a database would go through all that do, and not by the index of these few.
        .exclude(state__in=(JobState.DRAFT, JobState.RESERVED, *HOLDING))
        .order_by("id")
        .values_list("id", flat=True)[:MOST]
    )
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a deferrable job says that counts for its hour."""

    by: str
    spec: Mapping[str, Any]
    gpus_milli: int
    estimate_seconds: int
    limit_seconds: int | None
    not_before: datetime | None
    deadline: datetime

    @classmethod
    def of(cls, job: Job) -> "Wanted | None":
        """None of a job that is not deferrable."""
        if job.defer is None or job.deadline is None or job.estimate_seconds is None:
            return None
        return cls(job.defer, job.spec, job.gpus_milli, job.estimate_seconds, job.limit_seconds, job.not_before, job.deadline)


@dataclass(frozen=True, slots=True)
class Deferral:
    """The hour to which a job is deferred, and by which figures; without an hour it is not deferred. Rates are of a kWh, in micro-units or grams."""

    by: str
    judged_at: datetime
    why: str = ""  # it is not deferred: no_rate, no_time or no_gain
    to: datetime | None = None
    latest: datetime | None = None  # by when it starts and still ends in time
    pool: str = ""
    rate: int = 0
    rate_now: int = 0
    watt_hours: int = 0
    saved: int = 0

    def as_json(self) -> dict[str, Any]:
        """What the row of the job keeps."""
        found: dict[str, Any] = {"by": self.by, "judged_at": self.judged_at.isoformat()}
        if self.to is None or self.latest is None:
            return found | {"why": self.why}
        times = {"to": self.to.isoformat(), "latest": self.latest.isoformat()}
        figures = {"rate": self.rate, "rate_now": self.rate_now, "watt_hours": self.watt_hours, "saved": self.saved}
        return found | times | figures | {"pool": self.pool}

    @classmethod
    def kept(cls, said: Mapping[str, Any]) -> "Deferral":
        """Of what a row keeps."""
        times = {key: datetime.fromisoformat(said[key]) for key in ("judged_at", "to", "latest") if said.get(key)}
        plain: dict[str, Any] = {key: said[key] for key in ("by", "why", "pool", "rate", "rate_now", "watt_hours", "saved") if key in said}
        return cls(**plain | times)

    @property
    def told(self) -> str:
        """In the history of the job. It says no price: not everybody who reads it may see one."""
        return "" if self.to is None else f"Deferred to {self.to:%Y-%m-%d %H:%M:%S} UTC for {DEFERRED_FOR[self.by]}."


def deferring_faults(by: str | None, job_class: str, deadline: datetime | None, estimate_s: int | None) -> dict[str, str]:
    """What a description lacks that says that it may be deferred, by field."""
    if by is None:
        return {}
    if job_class != JobClass.BATCH:
        return {"defer": "Only batch jobs can be deferred."}
    needs = {"deadline": deadline, "estimate_s": estimate_s}
    words = {"deadline": "A job that can be deferred needs a deadline.", "estimate_s": "A job that can be deferred needs an estimated run time."}
    return {key: words[key] for key, value in needs.items() if value is None}


def deferral_judge(wanted: Wanted, tariffs: Tariffs, *, now: datetime) -> Deferral:
    """Nothing is written."""
    earliest = max(now, wanted.not_before or now)
    types = tariffs.types_for(wanted.spec)
    speed = slowest_on(wanted.spec, types)
    seconds = seconds_at(speed, wanted.estimate_seconds, wanted.limit_seconds) or 0
    longer = -(-wanted.estimate_seconds * (100 + MARGIN_PERCENT) // 100)
    length = 1000 * (seconds_at(speed, longer, wanted.limit_seconds) or 0)
    wish = Wish(millis(earliest), length, millis(wanted.deadline))
    if wish.latest <= wish.earliest:
        return Deferral(wanted.by, now, "no_time")
    until = _moment(min(wish.latest, wish.earliest + FURTHEST_MS) + length)
    courses = {pool: tariffs.course(wanted.by, pool, earliest, until) for pool in tariffs.pools_for(wanted.by, wanted.spec)}
    if all(course.value(wish.earliest) is None for course in courses.values()):
        return Deferral(wanted.by, now, "no_rate")
    choice = best_start(courses, wish, settings.SCHEDULER["DEFER_LEAST_PERCENT"])
    if choice is None:
        return Deferral(wanted.by, now, "no_gain")
    watts = tariffs.watts(types[0]) if types else 0
    watt_hours = round(wanted.gpus_milli * watts * seconds / 3_600_000)
    return Deferral(
        wanted.by,
        now,
        to=_moment(choice.start),
        latest=_moment(wish.latest),
        pool=choice.pool,
        rate=choice.mean,
        rate_now=choice.mean_now,
        watt_hours=watt_hours,
        saved=choice.saved(watt_hours),
    )


def _moment(milli: int) -> datetime:
    return datetime.fromtimestamp(milli / 1000, UTC)


def may_be_deferred(job: Job, now: datetime) -> bool:
    """Whether its hour is still to be chosen: it waits for its first run, and has not been let go."""
    waits = job.state == JobState.QUEUED and job.defer is not None and (job.deferred_to is None or job.deferred_to > now)
    return waits and not Attempt.objects.filter(job=job).exists()


def is_deferred(job: Job, now: datetime) -> bool:
    return job.deferred_to is not None and job.deferred_to > now and job.state == JobState.QUEUED


def deferral_take(steps: Steps, job: Job, tariffs: Tariffs, *, now: datetime) -> None:
    """Judge a job that is locked, and write down what is new."""
    wanted = Wanted.of(job)
    found = None if wanted is None else deferral_judge(wanted, tariffs, now=now)
    to = found.to if found is not None else None
    said = found.told if found is not None and to != job.deferred_to else ""
    if to is None and is_deferred(job, now):
        said = NO_LONGER
    deferral_set(steps, job, to, None if found is None else found.as_json(), said)


def deferral_set(steps: Steps, job: Job, to: datetime | None, figures: Mapping[str, Any] | None, said: str = "") -> None:
    """The figures are a document, which `Steps` does not write."""
    if said:
        steps.note(job, said, deferred_to=to)
    else:
        steps.change(job, deferred_to=to)
    if job.deferral != figures:
        job.deferral = figures
        Job.objects.filter(pk=job.pk).update(deferral=figures)


def deferrals_settle(*, now: datetime, news: News) -> int:
    """Judge those that are to be judged."""
    keys = TO_BE_JUDGED(now)
    if not keys:
        return 0
    tariffs = Tariffs(now)
    with transaction.atomic():
        steps = Steps(now=now)
        ran = set(Attempt.objects.filter(job__in=keys).values_list("job_id", flat=True))
        judged = 0
        for job in jobs_locked(keys).values():
            if job.deferral is not None or job.state not in WAITING:
                continue
            judged += 1
            if job.pk in ran:
                deferral_set(steps, job, None, {"by": job.defer, "judged_at": now.isoformat(), "why": "ran"})
            else:
                deferral_take(steps, job, tariffs, now=now)
        steps.write(news)
        lease_want(hint=False)
    return judged


def deferrals_doubt(*, now: datetime) -> None:
    """Rates or forecasts have changed: those that are deferred are judged anew by the next look. Meanwhile they stay where they are."""
    Job.objects.filter(ended_at__isnull=True, deferred_to__gt=now, state=JobState.QUEUED).update(deferral=None)


def job_start_now(*, access: Access, job: Job, reason: str, now: datetime, revision: int | None = None) -> Job:
    """End its deferral: it waits as any other job, from now on."""
    must_steer(access, job)
    cause = reason_given(reason, "Not deferred any longer.")
    news = News()
    with transaction.atomic():
        steps = Steps(now=now, actor=access.actor)
        fresh = jobs_locked([job.pk])[job.pk]
        unchanged_or_stale(fresh, revision)
        if not is_deferred(fresh, now):
            raise Conflict(f"{fresh.public_id} is not deferred.")
        before = {"deferred_to": fresh.deferred_to.isoformat() if fresh.deferred_to else None}
        deferral_set(steps, fresh, steps.now, {**(fresh.deferral or {"by": fresh.defer}), "ended": True}, cause)
        audit_record(
            actor=access.actor,
            action="job.start_now",
            kind="job",
            object_id=fresh.public_id,
            quota=job.quota,
            before=before,
            after={"deferred_to": None},
            reason=cause,
        )
        steps.write(news)
        news.publish()
        lease_want()
    return fresh
