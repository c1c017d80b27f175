"""One action on many jobs: what it would come to, job by job, and doing it.

The same rules judge a job for the preview and, on its locked row, when it is done. Each job has a verdict of its own, so that one that may not be
touched, or that has changed since it was looked at, keeps none of the others back, and nothing is done to it. All that is done is one transaction
with an audit entry for each job, which names the batch.
"""

import hashlib
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

import orjson
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import connection, transaction
from django.db.models import Sum

from gpufleet.core.faults import Conflict
from gpufleet.core.live.news import News
from gpufleet.core.templatetags.shell import plural
from gpufleet.core.times import millis
from quotas.permissions import Access, Can
from quotas.selectors.rates import rates_now
from scheduler.backends.base import Signal
from scheduler.engine.model.values import QUEUED, Kind
from scheduler.engine.model.values import Job as Planned
from scheduler.hardware.draining import lost_seconds
from scheduler.models import ENDED, HOLDING, Attempt, Dependency, Job, JobBatch, JobState, OrderKind, Placement
from scheduler.selectors.batches import NOT_THERE
from scheduler.selectors.discretion import Discretion
from scheduler.selectors.jobs import job_checkpoints, jobs_named, may_steer
from scheduler.selectors.nodes import job_guests
from scheduler.services.forecasts.differences import Effect as Difference
from scheduler.services.forecasts.grounds import sequel_of
from scheduler.services.jobs.edits import save_refused
from scheduler.services.jobs.jobs import HELD, LET_GO
from scheduler.services.jobs.prices import Price, Repeated, repeated_work
from scheduler.services.jobs.repeats import KEY_LENGTH
from scheduler.services.jobs.steering import reason_given
from scheduler.services.loop.lease import lease_want
from scheduler.services.loop.runs import Clusters, Stop, grace_of, stop_ask
from scheduler.services.loop.steps import Steps, jobs_locked, open_attempts
from scheduler.services.loop.timers import NOT_STARTED
from scheduler.snapshots.jobs import Kinds, unmet_dependencies

MOST = 500
ID_LENGTH = 24
LEAST_PRIORITY, MOST_PRIORITY = -1000, 1000
_QUOTA = Job._meta.get_field("quota")
log = logging.getLogger(__name__)


class Action(StrEnum):
    CANCEL = "cancel"
    HOLD = "hold"
    RELEASE = "release"
    PRIORITY = "priority"
    CHECKPOINT = "checkpoint"


CAUSES = {
    Action.CANCEL: "Cancelled.",
    Action.HOLD: "Held back.",
    Action.RELEASE: "Released.",
    Action.PRIORITY: "Changed.",
    Action.CHECKPOINT: "Asked to save its work now.",
}


class Effect(StrEnum):
    CHANGES = "changes"
    SAME = "same"  # it is so already
    REFUSED = "refused"  # it can't be done to a job in its state
    STALE = "stale"  # it has changed since it was looked at
    NOT_ALLOWED = "not_allowed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Asked:
    """An action and the jobs that are meant, each with the revision that was seen of it, if one was."""

    action: Action
    jobs: tuple[tuple[str, int | None], ...]
    priority: int | None = None
    undoes: bool = False  # a job that is let go waits on for its next try, as it did before the hold


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of one job. `job` is None where there is none that the reader may see."""

    name: str
    job: Job | None
    effect: Effect
    detail: str


@dataclass(frozen=True, slots=True)
class Preview:
    """What would happen. `freed` is in milli-GPU by type; `along` is how many other jobs end too, as they need one of these completed.

    `following` says who would start then; None: nobody can work it out now. `freed_micros` is what the freed GPUs cost in an hour at the
    guaranteed rate, None where the reader may not know it. `notified` is how many jobs have an owner who hears of it. `saved_step`: of the
    one running job that is cancelled, the step of its newest complete checkpoint. `price`: of the one job that is edited, where the reader may know.
    """

    asked: Asked
    verdicts: tuple[Verdict, ...]
    freed: Mapping[str, int]
    along: int
    following: "Following | None"
    freed_micros: int | None = None
    notified: int = 0
    saved_step: int | None = None
    price: Price | None = None

    @property
    def changing(self) -> list[Job]:
        return [verdict.job for verdict in self.verdicts if verdict.job is not None and verdict.effect == Effect.CHANGES]

    @property
    def loses_work(self) -> bool:
        """Whether it is about a single job, which runs."""
        return len(self.asked.jobs) == 1 and any(job.state in HOLDING for job in self.changing)


@dataclass(frozen=True, slots=True)
class Consequence:
    """What the change does to a job: an effect of the plan, or `later`. `lost_seconds` is the work that a preempted job repeats."""

    job: Job
    effect: str
    detail: str
    lost_seconds: int = 0


LATER = "later"  # it waits on, and more jobs are before it


@dataclass(frozen=True, slots=True)
class Following:
    """Who would start at once, in the order of the plan: jobs that the reader may see, and how many besides them.

    `effects` are on jobs that the reader may see, those who start included; `unseen` counts the effects on others.
    `cut` counts those beyond `MOST`, whoever they are about. `repeated` is the work that preempted jobs do again, but for those that are changed.
    """

    as_of: datetime
    jobs: tuple[Job, ...]
    others: int
    effects: tuple[Consequence, ...] = ()
    unseen: int = 0
    cut: int = 0
    repeated: Repeated = field(default_factory=Repeated)


@dataclass(frozen=True, slots=True)
class Steered:
    batch: JobBatch
    repeated: bool = False


def asked_checked(*, action: str, jobs: Iterable[tuple[str, int | None]], priority: int | None = None) -> Asked:
    """What is asked, each job once; a `ValidationError` where it makes no sense."""
    faults: dict[str, list[str]] = {}
    if action not in set(Action):
        faults["action"] = [f"It can be {', '.join(Action)}."]
    meant = dict(reversed([*jobs]))  # of one that is named twice the first counts
    named = tuple((name, meant[name]) for name in reversed(meant))
    if not named:
        faults["jobs"] = ["It names no job."]
    elif len(named) > MOST:
        faults["jobs"] = [f"At most {MOST} jobs at once; these are {len(named):,}."]
    elif any(len(name) > ID_LENGTH or not name.isprintable() for name in meant):
        faults["jobs"] = [f"An id has at most {ID_LENGTH} printable characters."]
    if action == Action.PRIORITY and (priority is None or not LEAST_PRIORITY <= priority <= MOST_PRIORITY):
        faults["priority"] = [f"Enter a whole number from {LEAST_PRIORITY} to {MOST_PRIORITY}."]
    elif action != Action.PRIORITY and priority is not None:
        faults["priority"] = ["Only the action priority takes one."]
    if faults:
        raise ValidationError(faults)
    return Asked(Action(action), named, priority)


# Judging


def _verdict(asked: Asked, name: str, revision: int | None, job: Job | None, steers: bool, attempt: Attempt | None) -> Verdict:
    if job is None:
        return Verdict(name, None, Effect.UNKNOWN, NOT_THERE)
    if not steers:
        return Verdict(name, job, Effect.NOT_ALLOWED, "Only the owner and managers of the team's jobs can do this.")
    if revision is not None and job.revision != revision:
        return Verdict(name, job, Effect.STALE, f"It has changed since it was looked at: {job.state} at revision {job.revision}, not {revision}.")
    if job.state in ENDED:
        return Verdict(name, job, Effect.REFUSED, "It has ended already.")
    effect, detail = RULES[asked.action](job, attempt, asked.priority)
    return Verdict(name, job, effect, detail)


Rule = Callable[[Job, Attempt | None, int | None], tuple[Effect, str]]


def _cancelling(job: Job, attempt: Attempt | None, _: int | None) -> tuple[Effect, str]:
    if attempt is None or job.state not in HOLDING:
        return Effect.CHANGES, "It leaves the queue at once."
    if attempt.stop_to in ENDED:
        return Effect.SAME, "It is leaving for good already."
    if attempt.stop_to:
        return Effect.CHANGES, "It is leaving its GPUs already, and won't come back."
    grace = round(grace_of(job))
    return (
        Effect.CHANGES,
        f"It is signalled to save its work, with a grace period of {plural(grace, 'second')} for it." if grace else "It is stopped by force at once.",
    )


def _holding(job: Job, _attempt: Attempt | None, _: int | None) -> tuple[Effect, str]:
    if job.state in HOLDING:
        return Effect.REFUSED, "It has its GPUs already; what waits can be held back."
    if job.held_at is not None:
        return Effect.SAME, "It is held back already."
    return Effect.CHANGES, "It keeps its place in the queue and is not started."


def _releasing(job: Job, _attempt: Attempt | None, _: int | None) -> tuple[Effect, str]:
    if job.held_at is None:
        return Effect.SAME, "It is not held back."
    return Effect.CHANGES, "It may start again."


def _ranking(job: Job, _attempt: Attempt | None, priority: int | None) -> tuple[Effect, str]:
    if job.priority == priority:
        return Effect.SAME, f"Its priority is {priority} already."
    return Effect.CHANGES, f"Priority {job.priority} becomes {priority}."


def _saving(job: Job, attempt: Attempt | None, _: int | None) -> tuple[Effect, str]:
    if refused := save_refused(job, attempt):
        return Effect.REFUSED, refused
    return Effect.CHANGES, "It saves its work now, and goes on."


RULES: dict[Action, Rule] = {
    Action.CANCEL: _cancelling,
    Action.HOLD: _holding,
    Action.RELEASE: _releasing,
    Action.PRIORITY: _ranking,
    Action.CHECKPOINT: _saving,
}


# Looking


def jobs_preview(*, access: Access, asked: Asked, now: datetime) -> Preview:
    """What the action would come to now. Nothing is written."""
    preview = jobs_judged(access=access, asked=asked)
    jobs = preview.changing
    cancels = asked.action == Action.CANCEL
    freed = freed_of(jobs) if cancels else {}
    following = _following(access, asked, jobs, now)
    along = _along(jobs) if cancels else set()
    return replace(
        preview,
        freed=freed,
        along=len(along),
        following=following,
        freed_micros=freed_micros(access, jobs, freed, now),
        notified=notified_of(access, jobs if cancels else [], along, following),
        saved_step=saved_step(jobs[0]) if cancels and preview.loses_work else None,
    )


def jobs_judged(*, access: Access, asked: Asked) -> Preview:
    """The verdict of each job and nothing that follows from them. Nothing is written."""
    must_steer_something(access)
    seen = jobs_named(access, [name for name, _ in asked.jobs])
    attempts = open_attempts([job.pk for job in seen.values() if job.state in HOLDING])
    verdicts = []
    for name, revision in asked.jobs:
        job = seen.get(name)
        steers, attempt = (may_steer(access, job), attempts.get(job.pk)) if job is not None else (False, None)
        verdicts.append(_verdict(asked, name, revision, job, steers, attempt))
    return Preview(asked, tuple(verdicts), {}, 0, None)


def must_steer_something(access: Access) -> None:
    if access.actor.user is None or not (access.can_somewhere(Can.SUBMIT) or access.can_somewhere(Can.MANAGE_JOBS)):
        raise PermissionDenied("It needs a role that may submit or manage jobs, and a token with the scope submit or operate.")


def freed_of(jobs: Sequence[Job]) -> dict[str, int]:
    """What they hold, in milli-GPU by type."""
    held = Placement.objects.filter(job__among=[job.pk for job in jobs if job.state in HOLDING], until__isnull=True, gpu__isnull=False)
    return dict(held.order_by("gpu__gpu_type_id").values_list("gpu__gpu_type_id").annotate(milli=Sum("gpu_milli")))


def freed_micros(access: Access, jobs: Sequence[Job], freed: Mapping[str, int], now: datetime) -> int | None:
    if not freed or not all(access.can(Can.SEE_COSTS, job.quota.path) for job in jobs):
        return None
    rates = rates_now(now=now)
    return sum(milli * rates[gpu_type] // 1000 for gpu_type, milli in freed.items()) if all(name in rates for name in freed) else None


def saved_step(job: Job) -> int | None:
    return next((row.checkpoint.step for row in job_checkpoints(job) if row.state == "complete"), None)


def notified_of(access: Access, cancelled: Sequence[Job], along: set[int], following: Following | None) -> int:
    """How many of the jobs that are cancelled, also along with others, or preempted then, have an owner other than the reader."""
    preempted = [one.job for one in following.effects if one.effect == "preempted"] if following else []
    me = access.actor.user.pk if access.actor.user is not None else None
    owners = {job.pk: job.owner_id for job in (*cancelled, *preempted)}
    if along:
        owners |= dict(Job.objects.filter(pk__among=sorted(along)).values_list("pk", "owner_id"))
    return sum(owner is not None and owner != me for owner in owners.values())


def _along(jobs: Sequence[Job]) -> set[int]:
    """Which others end along, also those behind others, as far as they have not started: what `dependencies_settle` comes to, in one question."""
    keys = {job.pk for job in jobs}
    states = [state.value for state in NOT_STARTED]
    if not keys:
        return set()
    direct = Dependency.objects.filter(on__among=sorted(keys), if_completed=True, job__state__in=states).order_by().values("job_id")
    sql, given = direct.query.sql_with_params()
    marks = ", ".join(["%s"] * len(states))
    with connection.cursor() as cursor:
        cursor.execute(
            f"WITH RECURSIVE behind (job_id) AS ({sql} UNION SELECT later.job_id FROM behind"  # noqa: S608 - made by the ORM
            f" JOIN job_dependency AS later ON later.on_id = behind.job_id JOIN job ON job.id = later.job_id"
            f" WHERE later.if_completed AND job.state IN ({marks})) SELECT job_id FROM behind",
            (*given, *states),
        )
        return {key for (key,) in cursor.fetchall()} - keys


def _following(access: Access, asked: Asked, jobs: Sequence[Job], now: datetime) -> Following | None:
    """Who would start at once by what the engine makes of it. People must be able to steer also where that can't be said."""
    if not jobs or asked.action == Action.CHECKPOINT:
        return None
    free = free_to_start(jobs, now, released=True) if asked.action == Action.RELEASE else []
    named = {job.public_id for job in jobs}
    overtaking = named if asked.action in (Action.PRIORITY, Action.RELEASE) else ()
    gone = named if asked.action in (Action.CANCEL, Action.HOLD) else ()
    return following_of(access, lambda planned, kinds: _instead(asked, jobs, free, planned, kinds), now, overtaking=overtaking, gone=gone)


def following_of(
    access: Access,
    change: Callable[[Sequence[Planned], Kinds], Sequence[Planned]],
    now: datetime,
    *,
    overtaking: Collection[str] = (),
    gone: Collection[str] = (),
) -> Following | None:
    """What the engine would decide at once if the fleet's jobs were what `change` makes of them; of jobs that are `gone` nothing is said."""
    try:
        found = sequel_of(change, now, overtaking=overtaking)
    except Exception:
        log.exception("What follows from a change could not be computed")
        return None
    if found is None:
        return None
    effects = [one for one in found.effects if one.job not in gone]
    later = [Difference(name, LATER, f"{plural(by, 'more job')} before it in the queue.") for name, by in found.later.items()]
    shown = [*effects[:MOST], *later[: max(0, MOST - len(effects))]]
    seen = jobs_named(access, [one.job for one in shown])
    starts = [one.job for one in shown if one.effect == "starts"]
    preempted = [seen[one.job] for one in shown if one.effect == "preempted" and one.job in seen]
    lost = seconds_lost(access, preempted, now)
    others = {job.pk: job for job in preempted if job.public_id not in overtaking}
    repeated = repeated_work(access, {key: lost[key] for key in others if key in lost}, others, now=now)
    told = Discretion(access, [one.detail for one in shown])
    consequences = tuple(
        Consequence(seen[one.job], one.effect, told.text(one.detail), lost.get(seen[one.job].pk, 0)) for one in shown if one.job in seen
    )
    own = tuple(seen[name] for name in starts if name in seen)
    unseen, cut = len(shown) - len(consequences), len(effects) + len(later) - len(shown)
    return Following(found.as_of, own, len(starts) - len(own), consequences, unseen, cut, repeated)


def seconds_lost(access: Access, jobs: Sequence[Job], now: datetime) -> dict[int, int]:
    """The work since the last checkpoint of each, in seconds."""
    return {guest.job.pk: lost_seconds(guest.run, now) for guest in job_guests(access, [job.pk for job in jobs], now=now)} if jobs else {}


def free_to_start(jobs: Sequence[Job], now: datetime, *, released: bool = False) -> list[Job]:
    """Those of held jobs that nothing else holds. Who releases a job has its next try at once."""
    waits_until = [(job, (job.not_before, job.deferred_to, None if released else job.retry_at)) for job in jobs]
    due = [job for job, moments in waits_until if all(moment is None or moment <= now for moment in moments)]
    waits = set(Job.objects.filter(unmet_dependencies(), pk__among=[job.pk for job in due]).values_list("pk", flat=True))
    return [job for job in due if job.pk not in waits and job.state in (JobState.QUEUED, JobState.PREEMPTED)]


def _instead(asked: Asked, jobs: Sequence[Job], free: Sequence[Job], planned: Sequence[Planned], kinds: Kinds) -> list[Planned]:
    """The fleet's jobs as they would be."""
    named = {job.public_id for job in jobs}
    if asked.action in (Action.CANCEL, Action.HOLD):
        return [one for one in planned if one.name not in named]
    if asked.action == Action.PRIORITY:
        assert asked.priority is not None
        again: dict[int, Kind] = {}
        return [
            replace(one, kind=again.setdefault(id(one.kind), replace(one.kind, priority=asked.priority))) if one.name in named else one
            for one in planned
        ]
    there = {one.name for one in planned}
    more = [found for job in free if job.public_id not in there and (found := planned_job(job, kinds)) is not None]
    return sorted([*planned, *more], key=lambda one: (one.submitted, one.name))


def planned_job(job: Job, kinds: Kinds) -> Planned | None:
    """A waiting job as the engine has it; None where it can't be read, which its own page says."""
    asks = kinds.asks(job.spec, job.job_class, job.priority, job.preemptible)
    if isinstance(asks, str):
        return None
    return Planned(
        name=job.public_id,
        quota=job.quota.path,
        kind=asks.kind,
        submitted=millis(job.submitted_at),
        estimate_ms=None if job.estimate_seconds is None else 1000 * job.estimate_seconds,
        limit_ms=None if job.limit_seconds is None else 1000 * job.limit_seconds,
        deadline=None if job.deadline is None else millis(job.deadline),
        checkpoint=asks.saving,
        movable=asks.movable,
        run=QUEUED,
    )


# Doing


def jobs_steer(*, access: Access, asked: Asked, reason: str, now: datetime, key: str = "", said: Any = None, news: News | None = None) -> Steered:
    """Do it to each job that it can be done to, and say of every one what became of it.

    Under a key it is done once: asked again, the first answer is given again. `said` is what the caller asked for in his own words, by which a key
    that is used twice by mistake is noticed. What `news` has already is published too, before the lease's row is locked.
    """
    must_steer_something(access)
    cause = reason_given(reason, CAUSES[asked.action])
    if len(key) > KEY_LENGTH or not key.isprintable():
        raise ValidationError({"Idempotency-Key": f"At most {KEY_LENGTH} printable characters."})
    user = access.actor.user
    assert user is not None
    digest = _digest(said if said is not None else [asked.action, asked.jobs, asked.priority, cause]) if key else ""
    public = f"b-{secrets.token_hex(6)}"
    fresh = JobBatch(public_id=public, user=user, action=asked.action, priority=asked.priority, reason=cause, at=now, key=key, digest=digest)
    with transaction.atomic():
        # First of all, while nothing is locked: a second request by this key waits here for the end of the first one.
        JobBatch.objects.bulk_create([fresh], ignore_conflicts=True)
        batch = JobBatch.objects.get(user=user, key=key) if key else JobBatch.objects.get(public_id=public)
        if batch.public_id != public:
            if batch.digest != digest:
                raise Conflict(_taken(key))
            return Steered(batch, repeated=True)
        verdicts = _steer(access, asked, cause, now, batch.public_id, news or News())
        batch.verdicts = [verdict_told(verdict) for verdict in verdicts]
        batch.save(update_fields=["verdicts"])
    return Steered(batch)


def batch_repeated(*, access: Access, key: str, said: Any) -> JobBatch | None:
    """What was done under a key before anything else is looked at: what it matched then may not be there any more."""
    known = JobBatch.objects.filter(user=access.actor.user, key=key).first() if key else None
    if known is not None and known.digest != _digest(said):
        raise Conflict(_taken(key))
    return known


def _digest(said: Any) -> str:
    return hashlib.sha256(orjson.dumps(said, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _taken(key: str) -> str:
    return f"The key {key} was used for something else. Take a fresh one."


def _steer(access: Access, asked: Asked, cause: str, now: datetime, batch: str, news: News) -> list[Verdict]:
    steps = Steps(now=now, actor=access.actor, batch=batch)
    seen = jobs_named(access, [name for name, _ in asked.jobs])
    steered = {job.pk: job for job in seen.values() if may_steer(access, job)}
    locked = jobs_locked(steered)
    attempts = open_attempts([key for key, job in locked.items() if job.state in HOLDING])
    clusters = Clusters(attempts.values())
    verdicts = []
    for name, revision in asked.jobs:
        known = seen.get(name)
        job = locked.get(known.pk, known) if known is not None else None
        if known is not None and job is not None:
            _QUOTA.set_cached_value(job, known.quota)
        attempt = attempts.get(job.pk) if job is not None else None
        verdict = _verdict(asked, name, revision, job, known is not None and known.pk in steered, attempt)
        if verdict.effect == Effect.CHANGES and job is not None:
            DOERS[asked.action](steps, job, attempt, clusters, cause, asked)
        verdicts.append(verdict)
    steps.write(news)
    news.publish()
    lease_want()
    return verdicts


Doer = Callable[[Steps, Job, Attempt | None, Clusters, str, Asked], None]


def _cancel(steps: Steps, job: Job, attempt: Attempt | None, clusters: Clusters, cause: str, _: Asked) -> None:
    if attempt is None or job.state not in HOLDING:
        steps.forget_promise(job)
        steps.move(job, JobState.CANCELLED, cause)
        return
    if stop_ask(steps, job, attempt, clusters.of(attempt), Stop(job.pk, JobState.CANCELLED, "cancelled", cause)):
        steps.forget_promise(job)


def _hold(steps: Steps, job: Job, _attempt: Attempt | None, _clusters: Clusters, cause: str, _: Asked) -> None:
    steps.note(job, cause, detail=HELD, held_at=steps.now)
    steps.record(job, "job.hold", {"held": False}, {"held": True}, cause)


def _release(steps: Steps, job: Job, _attempt: Attempt | None, _clusters: Clusters, cause: str, asked: Asked) -> None:
    steps.note(job, cause, detail=LET_GO, held_at=None, retry_at=job.retry_at if asked.undoes else None)
    steps.record(job, "job.hold", {"held": True}, {"held": False}, cause)


def _rank(steps: Steps, job: Job, _attempt: Attempt | None, _clusters: Clusters, cause: str, asked: Asked) -> None:
    before = job.priority
    steps.note(job, cause, detail={"changed": ["priority"]}, priority=asked.priority)
    steps.record(job, "job.edit", {"priority": before}, {"priority": asked.priority}, cause)


def _save(steps: Steps, job: Job, attempt: Attempt | None, clusters: Clusters, cause: str, _: Asked) -> None:
    assert attempt is not None, "it runs"
    steps.note(job, cause, attempt=attempt)
    for cluster in clusters.of(attempt):
        steps.order(attempt, OrderKind.SIGNAL, cluster, {"signal": Signal.CHECKPOINT.value})
    steps.record(job, "job.checkpoint", None, None, cause)


DOERS: dict[Action, Doer] = {
    Action.CANCEL: _cancel,
    Action.HOLD: _hold,
    Action.RELEASE: _release,
    Action.PRIORITY: _rank,
    Action.CHECKPOINT: _save,
}


def verdict_told(verdict: Verdict) -> dict[str, Any]:
    """As it is kept, and as programs are told it."""
    job = verdict.job
    known = {"name": job.name, "state": str(job.state), "revision": job.revision} if job is not None else {"name": "", "state": "", "revision": None}
    return {"id": verdict.name, **known, "effect": str(verdict.effect), "detail": verdict.detail}


def effects_counted(verdicts: Iterable[Mapping[str, Any]]) -> Counter[str]:
    return Counter(str(verdict["effect"]) for verdict in verdicts)
