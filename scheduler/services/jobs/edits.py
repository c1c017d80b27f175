"""Changing a job, putting a draft in the queue, starting anew, and having work saved now: by those who may steer the job."""

import copy
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction

from gpufleet.core.audit import audit_record
from gpufleet.core.faults import Conflict
from gpufleet.core.live.news import News
from quotas.permissions import Access
from scheduler.backends.base import Signal
from scheduler.engine.model.values import Kind
from scheduler.jobs.schema import JobChange
from scheduler.jobs.storable import unstorable
from scheduler.jobs.stored import COLUMNS, Spec, least_of, name_of, roles_of, serves_in_replicas
from scheduler.jobs.writing import description_of
from scheduler.models import ENDED, HOLDING, Attempt, Job, JobState, OrderKind, Placement
from scheduler.selectors.energy import Tariffs
from scheduler.selectors.jobs import must_steer
from scheduler.selectors.templates import template_kept
from scheduler.services.jobs.admission import Wish, refusals_counted, submissions_admit
from scheduler.services.jobs.deferring import JUDGED_BY, deferral_set, deferral_take, deferring_faults, may_be_deferred
from scheduler.services.jobs.jobs import job_stop
from scheduler.services.jobs.marks import labels_renew
from scheduler.services.jobs.repeats import Submitted, submission_once
from scheduler.services.jobs.revisions import unchanged_or_stale
from scheduler.services.jobs.scaling import ranges_take
from scheduler.services.jobs.steering import reason_given
from scheduler.services.jobs.submission import submissions_check
from scheduler.services.loop.lease import lease_want
from scheduler.services.loop.runs import Clusters
from scheduler.services.loop.steps import Steps, jobs_locked, open_attempts
from scheduler.snapshots.fleet import topology_now
from scheduler.snapshots.jobs import Kinds, unmet_dependencies

# What no longer means anything once a job has its GPUs.
ONLY_WAITING = ("not_before", "deadline", "defer")


def job_edit(*, access: Access, job: Job, change: JobChange, now: datetime, revision: int | None = None) -> Job:
    """Change what is named, and nothing else. With a revision only if the job is still as it was read (`Stale` otherwise)."""
    must_steer(access, job)
    cause = reason_given(change.reason, "Changed.")
    given = _given(change)
    news = News()
    with transaction.atomic():
        steps = Steps(now=now, actor=access.actor)
        fresh = jobs_locked([job.pk])[job.pk]
        unchanged_or_stale(fresh, revision)
        if fresh.state in ENDED:
            raise Conflict(f"{fresh.public_id} has ended; a clone of it can be changed.")
        after = _changed(fresh, change, given, now)
        before = {column: getattr(fresh, column) for column in after}
        plain = {column: value for column, value in after.items() if column not in ("spec", "labels")}
        steps.note(fresh, cause, detail={"changed": sorted(given)}, **plain)
        if "limit_seconds" in after and after["limit_seconds"] != before["limit_seconds"]:
            _tell_limit(steps, fresh)
        if documents := {column: value for column, value in after.items() if column in ("spec", "labels")}:
            Job.objects.filter(pk=fresh.pk).update(**documents)
        if "spec" in documents:
            fresh.spec = documents["spec"]
            _serves_in_place(fresh, before["spec"])
            ranges_take(steps, fresh, before["spec"], actor=access.actor, reason=change.reason.strip())
        if "labels" in documents:
            fresh.labels = documents["labels"]
            labels_renew(fresh)
        if JUDGED_BY & given.keys():
            _judge_again(steps, fresh, now)
        audit_record(
            actor=access.actor,
            action="job.edit",
            kind="job",
            object_id=fresh.public_id,
            quota=job.quota,
            before=_told(before),
            after=_told(after),
            reason=cause,
        )
        steps.write(news)
        news.publish()
        lease_want()
    return fresh


def _serves_in_place(job: Job, before: Spec) -> None:
    """What becomes a service before its next start, and states nothing of that, is resized in place as any service."""
    becomes = serves_in_replicas(job.job_class, job.spec) and not serves_in_replicas(job.job_class, before)
    if becomes and job.state not in HOLDING and "in_place" not in job.launch:
        job.launch = {**job.launch, "in_place": True}
        Job.objects.filter(pk=job.pk).update(launch=job.launch)


def _judge_again(steps: Steps, job: Job, now: datetime) -> None:
    """To which hour it is deferred as it is now, if its hour has not come. What is not in the queue yet is judged when it is."""
    if job.defer is None:
        if job.deferred_to is not None or job.deferral is not None:
            deferral_set(steps, job, None, None)
    elif may_be_deferred(job, now):
        if job.held_at is not None or Job.objects.filter(unmet_dependencies(), pk=job.pk).exists():
            deferral_set(steps, job, None, None)
            return
        deferral_take(steps, job, Tariffs(now), now=now)


def _tell_limit(steps: Steps, job: Job) -> None:
    """A back-end may end by itself what is past its limit. And before the end of the new one there is a warning again."""
    attempt: Attempt | None = open_attempts([job.pk]).get(job.pk)
    if attempt is None or attempt.stop_to:
        return
    steps.attempt(attempt, warned_at=None)
    for cluster in Clusters([attempt]).of(attempt):
        steps.order(attempt, OrderKind.LIMIT, cluster, {"seconds": job.limit_seconds})


def job_as_edited(*, access: Access, job: Job, change: JobChange, now: datetime) -> Job:
    """The job as the change would make it. Nothing is written; a fault is told as `job_edit` tells it."""
    must_steer(access, job)
    reason_given(change.reason, "Changed.")
    if job.state in ENDED:
        raise Conflict(f"{job.public_id} has ended; a clone of it can be changed.")
    edited = copy.copy(job)
    for column, value in _changed(job, change, _given(change), now).items():
        setattr(edited, column, value)
    return edited


def _given(change: JobChange) -> dict[str, Any]:
    """What a change names."""
    given = change.model_dump(exclude_unset=True, exclude={"reason"})
    if not given:
        raise ValidationError({"description": "No changes given."})
    if wrong := unstorable({key: value for key, value in given.items() if key in ("name", "labels", "cost_centre")}):
        raise ValidationError(wrong)
    return given


def _changed(job: Job, change: JobChange, given: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """Columns of the job with their new values."""
    after = {COLUMNS[key]: value for key, value in given.items() if key in COLUMNS}
    _check_times(job, given, now)
    _check_deferring(job, after)
    if "workers" in given:
        after["spec"] = _resized(job, change)
        after["gpus_milli"] = _least_milli(job, after["spec"])
    _check_template(job, after, now)
    return after


def _check_deferring(job: Job, after: Mapping[str, Any]) -> None:
    changed = copy.copy(job)
    for column, value in after.items():
        setattr(changed, column, value)
    if job.state not in HOLDING and (faults := deferring_faults(changed.defer, changed.job_class, changed.deadline, changed.estimate_seconds)):
        raise ValidationError({path: [message] for path, message in faults.items()})


def _check_template(job: Job, after: Mapping[str, Any], now: datetime) -> None:
    """A change goes no further than the template of the job allows. What was beyond it before is not the change's fault."""
    template = template_kept(job)
    if template is None:
        return
    changed = copy.copy(job)
    for column, value in after.items():
        setattr(changed, column, value)
    was, found = template.faults(description_of(job, now)), template.faults(description_of(changed, now))
    if fresh := {path: messages for path, messages in found.items() if messages != was.get(path)}:
        raise ValidationError(fresh)


def _told(columns: Mapping[str, Any]) -> dict[str, Any]:
    return {column: value.isoformat() if isinstance(value, datetime) else value for column, value in columns.items()}


def _check_times(job: Job, given: Mapping[str, Any], now: datetime) -> None:
    faults: dict[str, list[str]] = {}
    for key in ONLY_WAITING:
        if given.get(key) is not None and job.state in HOLDING:
            faults[key] = [f"{job.public_id} has started already."]
    not_before, deadline = given.get("not_before", job.not_before), given.get("deadline", job.deadline)
    if given.get("deadline") is not None and given["deadline"] <= now:
        faults.setdefault("deadline", []).append("It lies in the past.")
    if not_before is not None and deadline is not None and deadline <= not_before:
        faults.setdefault("deadline" if "deadline" in given else "not_before", []).append("The deadline must lie after not_before.")
    if faults:
        raise ValidationError(faults)


def _resized(job: Job, change: JobChange) -> dict[str, Any]:
    """The spec with other numbers of workers; the whole must be a job that the engine takes, and a run must lie within its new range."""
    roles = [dict(role) for role in roles_of(job.spec)]
    named = {name_of(role): role for role in roles}
    faults: dict[str, list[str]] = {}
    held = _workers_held(job) if job.state in HOLDING else None
    for name, wanted in (change.workers or {}).items():
        role = named.get(name)
        if role is None:
            faults[f"workers.{name}"] = [f"The job has no such role; it has {', '.join(sorted(named))}."]
            continue
        least, most = wanted.min, wanted.max if wanted.max is not None else wanted.min
        role["min"] = least
        role.pop("max", None)
        role |= {"max": most} if most != least else {}
        if "desired" in role:
            wanted_now = max(least, min(most, role["desired"]))
            role["desired"] = wanted_now - (wanted_now - least) % int(role.get("step", 1))
            if least == most:
                del role["desired"]
        if held is not None and not least <= held.get(name, 0) <= most:
            faults[f"workers.{name}"] = [f"It runs with {held.get(name, 0)}, which must lie within the new range."]
    spec = {**job.spec, "roles": roles}
    if not faults:
        found = Kinds(topology_now()).judge(spec, job.job_class, job.priority, job.preemptible)
        if not isinstance(found, Kind):
            faults["workers"] = [f"{fault.message[:1].upper()}{fault.message[1:]}." for fault in found]
    if faults:
        raise ValidationError(faults)
    return spec


def _workers_held(job: Job) -> dict[str, int]:
    rows = Placement.objects.filter(job=job, until__isnull=True, leaving_since__isnull=True).values_list("role", "worker").distinct()
    found: dict[str, int] = {}
    for role, _ in rows.order_by():
        found[role] = found.get(role, 0) + 1
    return found


def _least_milli(job: Job, spec: Mapping[str, Any]) -> int:
    """What the minimum of the gang is charged now: each worker as much as it was charged before."""
    before, after = ({name_of(role): least_of(role) for role in roles_of(one)} for one in (job.spec, spec))
    each = {name_of(role): 1000 * int(role.get("gpus") or 0) for role in roles_of(spec)}
    if all(each.values()):
        return sum(each[name] * count for name, count in after.items())
    # Parts of GPUs: with one role the charge of a worker is known, with several it stays as it was.
    if len(before) == 1 and (least := next(iter(before.values()))):
        return job.gpus_milli // least * next(iter(after.values()))
    return job.gpus_milli


def job_enqueue(*, access: Access, job: Job, reason: str, now: datetime, revision: int | None = None) -> Job:
    """Put a draft in the queue, from now on and behind those who wait: what it says has to hold today as that of any submission."""
    must_steer(access, job)
    cause = reason_given(reason, "Submitted.")
    news = News()
    with refusals_counted(), transaction.atomic():
        steps = Steps(now=now, actor=access.actor)
        fresh = jobs_locked([job.pk])[job.pk]
        unchanged_or_stale(fresh, revision)
        if fresh.state != JobState.DRAFT:
            raise Conflict(f"{fresh.public_id} is not a draft: it has already been submitted.")
        if fresh.deadline is not None and fresh.deadline <= now:
            raise ValidationError({"deadline": "It lies in the past."})
        (checked,) = submissions_check(access=access, descriptions=[description_of(fresh, now)], now=now)
        if full := submissions_admit(wishes=[Wish(checked.quota, 1, counts=False)], user=access.actor.user, now=now):
            raise full
        steps.move(fresh, JobState.QUEUED, cause, submitted_at=steps.now, gpus_milli=checked.gpus_milli)
        if may_be_deferred(fresh, now) and fresh.held_at is None and not checked.after:
            deferral_take(steps, fresh, Tariffs(now), now=now)
        steps.write(news)
        news.publish()
        lease_want()
    return fresh


def save_refused(job: Job, attempt: Attempt | None) -> str:
    """Why it can't be saving its work now, given its open attempt; empty: it can."""
    if attempt is None or job.state not in (JobState.RUNNING, JobState.DEGRADED):
        return "It does not run; only what runs can save its work."
    if job.spec.get("checkpoint", {}) is None:
        return "It says of itself that it saves nothing."
    return ""


def restart_refused(job: Job, attempt: Attempt | None) -> str:
    """Why it can't be started anew, given its open attempt; empty: it can. Of what has ended the same is submitted, by who may submit."""
    if job.state in ENDED:
        return ""
    if job.state not in HOLDING:
        return "It waits already."
    if attempt is not None and attempt.stop_to in ENDED:
        return "It is leaving for good; once it has ended it can be submitted again."
    if attempt is not None and attempt.stop_to:
        return "It is leaving already, and waits for its next start then."
    return ""


def job_save_now(*, access: Access, job: Job, reason: str, now: datetime, revision: int | None = None) -> Job:
    """Ask a running job to save its work at once, and to go on."""
    must_steer(access, job)
    cause = reason_given(reason, "Asked to save its work now.")
    news = News()
    with transaction.atomic():
        steps = Steps(now=now, actor=access.actor)
        fresh = jobs_locked([job.pk])[job.pk]
        unchanged_or_stale(fresh, revision)
        attempt: Attempt | None = open_attempts([fresh.pk]).get(fresh.pk)
        if (refused := save_refused(fresh, attempt)) or attempt is None:
            raise Conflict(f"{fresh.public_id}: {refused}")
        steps.note(fresh, cause, attempt=attempt)
        for cluster in Clusters([attempt]).of(attempt):
            steps.order(attempt, OrderKind.SIGNAL, cluster, {"signal": Signal.CHECKPOINT.value})
        audit_record(actor=access.actor, action="job.checkpoint", kind="job", object_id=fresh.public_id, quota=job.quota, reason=cause)
        steps.write(news)
        news.publish()
        lease_want()
    return fresh


def job_restart(*, access: Access, job: Job, reason: str, now: datetime, key: str = "", revision: int | None = None) -> Job:
    """Begin anew: what runs is preempted and waits for its next start, from its last checkpoint; of what has ended a new job is submitted."""
    must_steer(access, job)
    cause = reason_given(reason, "Restarted.")
    unchanged_or_stale(job, revision)
    if job.state in ENDED:
        return job_clone(access=access, job=job, changes={}, key=key, now=now).jobs[0]
    if refused := restart_refused(job, open_attempts([job.pk]).get(job.pk)):
        raise Conflict(f"{job.public_id}: {refused}")
    return job_stop(
        job=job, to=JobState.PREEMPTED, outcome="preempted", cause=cause, now=now, actor=access.actor, revision=revision, only_holding=True
    )


def job_clone(*, access: Access, job: Job, changes: Mapping[str, Any], key: str, now: datetime) -> Submitted:
    """Submit the same again, with some keys of the description changed; null takes a key away."""
    must_steer(access, job)
    said = description_of(job, now)
    if "gpus" in changes:
        said.pop("roles", None)
    elif "roles" in changes:
        said.pop("gpus", None)
    said |= changes
    return submission_once(access=access, description={name: value for name, value in said.items() if value is not None}, key=key, now=now)
