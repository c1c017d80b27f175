"""Stating and removing the service level of a job: by those who may steer it. The description that the scheduler plans by stays as it is."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction

from dashboards.slo.models import QUERY_LENGTH, TITLE_LENGTH, BreachEnd, ServiceBreach, ServiceLevel
from dashboards.slo.telling import breach_ends
from dashboards.telling import events_tell
from gpufleet.core.audit import audit_record
from gpufleet.core.faults import Conflict, Missing, Stale, text_faults
from gpufleet.core.live.feed import feed_publish
from quotas.permissions import Access
from scheduler.models import ENDED, Job, JobClass
from scheduler.selectors.jobs import must_steer
from scheduler.services.jobs.scaling import replicas_unfollow
from scheduler.services.jobs.steering import reason_given
from scheduler.services.loop.lease import lease_want
from scheduler.services.loop.relief import reliefs_end

FIELDS = ("title", "latency", "objective_ms", "rate", "wanted")
QUERIES = ("latency", "rate", "wanted")
TITLE = "p99 latency"
MOST_MS = 3_600_000
UNREAD: Mapping[str, Any] = {"read_at": None, "latency_ms": None, "requests": None, "replicas_wanted": None, "faults": {}, "over": 0, "calm": 0}


def level_facts(level: ServiceLevel) -> dict[str, Any]:
    return {name: getattr(level, name) for name in FIELDS}


def must_serve(job: Job) -> None:
    """Only a job that serves, and still may, has a service level to be stated."""
    if job.job_class != JobClass.INFERENCE:
        raise Conflict(f"{job.public_id} is not of the class inference.")
    if job.state in ENDED:
        raise Conflict(f"{job.public_id} has ended.")


def service_level_set(
    *, access: Access, job: Job, values: Mapping[str, Any], now: datetime, reason: str = "", revision: int | None = None
) -> ServiceLevel:
    """State it, or change it. `revision`: the one that was read, 0 where there was none. What was read by other queries is read anew."""
    must_steer(access, job)
    told = reason_given(reason, "")
    with transaction.atomic():
        locked = _locked(job)
        must_serve(locked)
        level = ServiceLevel.objects.filter(job=locked).first()
        present = level.revision if level else 0
        if revision is not None and revision != present:
            raise Stale("The service level was changed meanwhile. Read it again, then decide.", present)
        before = level_facts(level) if level else None
        level = level or ServiceLevel(job=locked, revision=0)
        for name in FIELDS:
            value = values.get(name, "")
            setattr(level, name, value.strip() if isinstance(value, str) else value)
        level.title = level.title or TITLE
        if faults := _faults(level):
            raise ValidationError(faults)
        if before is not None and before == level_facts(level):
            return level
        level.revision, level.changed_at, level.changed_by = level.revision + 1, now, access.actor.name
        level.looked_at = None  # it is asked first
        for name, value in UNREAD.items():
            setattr(level, name, value)
        level.save()
        if not level.wanted:
            replicas_unfollow(job=locked, actor=access.actor, reason="Its service level states no query of replicas wanted.", now=now)
        wants_plan = _end_breach(access, job, now)
        _record(access, job, "job.service_level", before, level_facts(level), told)
        if wants_plan:
            lease_want()
    return level


def service_level_remove(*, access: Access, job: Job, now: datetime, reason: str = "") -> None:
    """It is not asked for any more. What was read stays as long as such history is kept."""
    must_steer(access, job)
    told = reason_given(reason, "")
    with transaction.atomic():
        level = ServiceLevel.objects.filter(job=_locked(job)).first()
        if level is None:
            raise Missing(f"{job.public_id} has no service level.")
        before = level_facts(level)
        level.delete()
        replicas_unfollow(job=job, actor=access.actor, reason="Its service level was removed.", now=now)
        wants_plan = _end_breach(access, job, now)
        _record(access, job, "job.service_level_remove", before, None, told)
        if wants_plan:
            lease_want()


def _record(access: Access, job: Job, action: str, before: dict[str, Any] | None, after: dict[str, Any] | None, reason: str) -> None:
    audit_record(actor=access.actor, action=action, kind="job", object_id=job.public_id, quota=job.quota, before=before, after=after, reason=reason)
    feed_publish(changes={"jobs": [{"id": job.pk}]})


def _locked(job: Job) -> Job:
    """Who changes its service level waits for others who do; a round that keeps what it read of the job does not wait for them."""
    return Job.objects.select_for_update(no_key=True).get(pk=job.pk)


def _end_breach(access: Access, job: Job, now: datetime) -> bool:
    """Who was told that it began is told that it ended, too. Whether a plan is wanted, as nobody gives way for it any more."""
    for breach in ServiceBreach.objects.select_for_update(of=("self",)).filter(job=job, until__isnull=True).select_related("job__quota"):
        breach.until, breach.end = max(breach.since, now), BreachEnd.REMOVED
        breach.save(update_fields=["until", "end"])
        events_tell([breach_ends(breach, by=access.actor.name)], now=now)
    return reliefs_end(jobs=[job.pk], now=now)


def _faults(level: ServiceLevel) -> dict[str, Any]:
    faults: dict[str, Any] = {}
    if len(level.title) > TITLE_LENGTH or not level.title.isprintable():
        faults["title"] = f"At most {TITLE_LENGTH} printable characters."
    for name in QUERIES:
        faults |= text_faults(getattr(level, name), QUERY_LENGTH, name)
    if not level.latency:
        faults["latency"] = "Latency is required."
    if not 1 <= level.objective_ms <= MOST_MS:
        faults["objective_ms"] = f"From 1 to {MOST_MS:,} ms."
    return faults
