"""Replicas of a service are started anew, a few at a time, each in its place: begun by those who may steer it, and moved on by the timers.

All that is known of a replacement stands in its rows, so whoever leads next goes on with it. A replica is taken down only if enough of the others can
serve, and a new one that cannot serve within its bound stops the rest.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.core.exceptions import ValidationError
from django.db import transaction

from gpufleet.core.faults import Conflict
from gpufleet.core.live.news import News
from gpufleet.core.prepared import Prepared
from gpufleet.core.templatetags.shell import duration, plural
from quotas.permissions import Access
from scheduler.backends.registry import replaces
from scheduler.jobs.stored import name_of
from scheduler.models import (
    ENDED,
    Attempt,
    Job,
    JobState,
    Node,
    OrderKind,
    Placement,
    Replacement,
    ReplacementEnd,
    ReplacementStep,
    StepEnd,
    WorkerState,
)
from scheduler.notify.happenings import Happened
from scheduler.selectors.jobs import must_steer
from scheduler.services.jobs.revisions import unchanged_or_stale
from scheduler.services.jobs.scaling import service_role
from scheduler.services.jobs.steering import reason_given
from scheduler.services.loop.lease import lease_want
from scheduler.services.loop.runs import grace_of
from scheduler.services.loop.steps import Steps, jobs_locked, open_attempts

MOST_UNAVAILABLE = 100
WITHIN, SHORTEST_WITHIN, LONGEST_WITHIN = 600, 10, 86_400
MOST = 1000
# Asked in every tick, and nearly always there is none.
REPLACING: Prepared[int] = Prepared(
    lambda: Replacement.objects.filter(over_at__isnull=True).order_by("job_id").values_list("job_id", flat=True)[:MOST]
)


@dataclass(frozen=True, slots=True)
class Held:
    """A replica in its place, since when."""

    since: datetime
    node: int
    joining: bool


@dataclass(frozen=True, slots=True)
class Foreseen:
    """What a replacement would do now: the replicas in their order, with how many at a time."""

    role: str
    workers: tuple[int, ...]
    at_once: int
    grace: int
    within: int
    asks: bool  # whether a new replica is asked whether it can serve

    @property
    def sentences(self) -> list[str]:
        count, left = len(self.workers), len(self.workers) - self.at_once
        how = "all at once" if left <= 0 else "one at a time" if self.at_once == 1 else f"{self.at_once} at a time"
        state = "is ready" if self.asks else "runs; the job has no ready probe"
        leaves = f"is signalled, is killed after {_said(self.grace)} if it has not left, and starts again."
        late = f"If a new one takes longer than {_said(self.within)}, the replacement stops."
        if count == 1:
            return [f"The one replica of {self.role} starts anew on its own GPUs. It {leaves}", "No replica serves meanwhile."]
        return [
            f"{count} replicas of {self.role} start anew on their own GPUs, {how}.",
            f"Each {leaves}",
            late if left <= 0 else f"The next one follows once a new one {state}. {late}",
            "No replica serves meanwhile." if left <= 0 else f"At least {left} of {count} serve meanwhile, if all do now.",
        ]


def replacement_foreseen(*, access: Access, job: Job, role: str = "", max_unavailable: int = 1, within_seconds: int = WITHIN) -> Foreseen:
    """Nothing is written; what is wrong is told as `job_replace` tells it."""
    must_steer(access, job)
    chosen, _, held = _checked(job, role, max_unavailable, within_seconds)
    return Foreseen(chosen, tuple(sorted(held)), max_unavailable, round(grace_of(job)), within_seconds, bool(job.launch.get("ready")))


def job_replace(
    *,
    access: Access,
    job: Job,
    role: str = "",
    max_unavailable: int = 1,
    within_seconds: int = WITHIN,
    reason: str = "",
    now: datetime,
    revision: int | None = None,
) -> Replacement:
    """Begin to start the replicas of a running service anew, in their places."""
    must_steer(access, job)
    cause, news = reason_given(reason, ""), News()
    with transaction.atomic():
        steps = Steps(now=now, actor=access.actor)
        fresh = jobs_locked([job.pk])[job.pk]
        unchanged_or_stale(fresh, revision)
        name, attempt, held = _checked(fresh, role, max_unavailable, within_seconds)
        row = Replacement.objects.create(
            job=fresh,
            attempt=attempt,
            role=name,
            at=steps.now,
            max_unavailable=max_unavailable,
            within_seconds=within_seconds,
            actor_name=access.actor.name,
            reason=cause,
        )
        ReplacementStep.objects.bulk_create([ReplacementStep(replacement=row, worker=worker) for worker in sorted(held)])
        said = f"{plural(len(held), 'replica')} of {name} are to start anew, {max_unavailable} at a time."
        steps.note(fresh, f"{said} {cause}".strip(), attempt=attempt, detail={"replacement": row.pk})
        steps.record(fresh, "job.replace", None, {"role": name, "replicas": len(held), "max_unavailable": max_unavailable}, cause or said)
        _advance(row, fresh, attempt, steps)
        steps.write(news)
        news.publish()
        lease_want()
    return row


def job_replace_stop(*, access: Access, job: Job, reason: str = "", now: datetime, revision: int | None = None) -> Replacement:
    """Take no further replica down. Those that are being replaced start again all the same."""
    must_steer(access, job)
    cause, news = reason_given(reason, ""), News()
    with transaction.atomic():
        steps = Steps(now=now, actor=access.actor)
        fresh = jobs_locked([job.pk])[job.pk]
        unchanged_or_stale(fresh, revision)
        row = Replacement.objects.filter(job=fresh, over_at__isnull=True).first()
        if row is None:
            raise Conflict(f"No replicas of {fresh.public_id} are being replaced.")
        _over(row, ReplacementEnd.STOPPED, cause, steps.now)
        said = "No further replica is replaced."
        steps.note(fresh, f"{said} {cause}".strip(), attempt=row.attempt, detail={"replacement": row.pk}, told=Happened.REPLACE_STOPPED)
        steps.record(fresh, "job.replace_stop", None, {"role": row.role}, cause or said)
        steps.write(news)
        news.publish()
    return row


def replace_refused(job: Job, kinds: Iterable[str]) -> str:
    """Why the replicas of a service that runs on such back-ends cannot be replaced one by one; empty: they can."""
    if not all(replaces(kind, in_place=bool(job.launch.get("in_place"))) for kind in kinds):
        return "its back-end starts no single replica anew unless the job states launch.in_place. Restart the job instead."
    return ""


def _checked(job: Job, role: str, max_unavailable: int, within_seconds: int) -> tuple[str, Attempt, dict[int, Held]]:
    name = name_of(service_role(job, role))
    if not 1 <= max_unavailable <= MOST_UNAVAILABLE:
        raise ValidationError({"max_unavailable": f"From 1 to {MOST_UNAVAILABLE}."})
    if not SHORTEST_WITHIN <= within_seconds <= LONGEST_WITHIN:
        raise ValidationError({"within_s": f"From {SHORTEST_WITHIN} to {LONGEST_WITHIN:,} seconds."})
    attempt: Attempt | None = open_attempts([job.pk]).get(job.pk)
    if attempt is None or attempt.stop_to or job.state not in (JobState.RUNNING, JobState.DEGRADED):
        raise Conflict(f"{job.public_id} does not run; its replicas start with it.")
    if Replacement.objects.filter(job=job, over_at__isnull=True).exists():
        raise Conflict(f"Replicas of {job.public_id} are being replaced already. Stop that first.")
    held = _held(attempt, name)
    if not held:
        raise Conflict(f"{job.public_id} has no replica of {name} in its place.")
    kinds = Node.objects.filter(pk__in={one.node for one in held.values()}).values_list("cluster__backend", flat=True).distinct()
    if refused := replace_refused(job, kinds):
        raise Conflict(f"{job.public_id}: {refused}")
    return name, attempt, held


def _held(attempt: Attempt, role: str) -> dict[int, Held]:
    """Replicas that have their place and do not leave it."""
    found: dict[int, Held] = {}
    rows = Placement.objects.filter(attempt=attempt, role=role, until__isnull=True, leaving_since__isnull=True).order_by("since", "pk")
    for worker, since, node, joining in rows.values_list("worker", "since", "node_id", "joining"):
        found[worker] = Held(since, node, joining)
    return found


# Moving on


def replacements_advance(*, now: datetime, news: News) -> int:
    """Take the next step of each replacement. Returns how many have moved."""
    moved = 0
    for key in REPLACING():
        with transaction.atomic():
            steps = Steps(now=now)
            job = jobs_locked([key])[key]
            row = Replacement.objects.filter(job=job, over_at__isnull=True).select_related("attempt").first()
            if row is None:
                continue
            if _advance(row, job, open_attempts([key]).get(key), steps):
                moved += 1
                news.add("jobs", key)
            steps.write(news)
    return moved


def replacement_refused(*, job: int, fault: str, now: datetime) -> None:
    """A back-end will never replace a worker, in its own words. In the caller's transaction."""
    news, steps = News(), Steps(now=now)
    locked = jobs_locked([job])[job]
    row = Replacement.objects.filter(job=job, over_at__isnull=True).select_related("attempt").first()
    if row is not None:
        _fail(row, locked, steps, fault)
        steps.write(news)
        news.publish()


def _advance(row: Replacement, job: Job, attempt: Attempt | None, steps: Steps) -> bool:
    if job.state in ENDED or attempt is None or attempt.pk != row.attempt_id:
        _over(row, ReplacementEnd.ENDED if job.state in ENDED else ReplacementEnd.RESTARTED, "", steps.now)
        return True
    if attempt.stop_to:
        return False  # it begins anew, or ends, and this with it
    all_steps = list(ReplacementStep.objects.filter(replacement=row).order_by("worker"))
    held = _held(attempt, row.role)
    states = {one.worker: one for one in WorkerState.objects.filter(attempt=attempt, role=row.role)}
    asks = bool(job.launch.get("ready"))
    moved = False
    for step in all_steps:
        if step.over_at is None and (step.began_at is not None or _is_new(step, row, held)):
            said = _settled(step, row, held.get(step.worker), states.get(step.worker), attempt, steps.now, asks=asks)
            if said:
                _fail(row, job, steps, said)
                return True
            moved = moved or step.over_at is not None
    begun = [step for step in all_steps if step.began_at is not None and step.over_at is None]
    left = [step for step in all_steps if step.began_at is None and step.over_at is None]
    if not begun and not left:
        count = sum(step.end == StepEnd.READY for step in all_steps)
        _over(row, ReplacementEnd.DONE, "", steps.now)
        steps.note(job, f"{plural(count, 'replica')} of {row.role} have been replaced.", attempt=attempt, detail={"replacement": row.pk})
        return True
    chosen = _next(row, left, len(begun), _unready(held, states, {step.worker for step in begun}, asks=asks)) if job.state == JobState.RUNNING else []
    if chosen:
        _begin(row, job, attempt, chosen, held, len(all_steps), len(left), steps)
        return True
    since = max([row.at, *(step.over_at for step in all_steps if step.over_at is not None)])
    if left and not begun and steps.now > since + timedelta(seconds=row.within_seconds):
        _fail(row, job, steps, "Other replicas cannot serve, so no further one is taken down.")
        return True
    return moved


def _is_new(step: ReplacementStep, row: Replacement, held: Mapping[int, Held]) -> bool:
    """Whether a replica that was not its turn yet needs none any more: it has left, or came anew to its place."""
    one = held.get(step.worker)
    return one is None or one.since > row.at


def _settled(
    step: ReplacementStep, row: Replacement, held: Held | None, state: WorkerState | None, attempt: Attempt, now: datetime, *, asks: bool
) -> str:
    """Whether a replica has come to the end of its turn is noted; why the replacement stops, if it does."""
    name = f"{row.role.capitalize()} {step.worker}"
    if step.began_at is None:
        return _close(step, StepEnd.LEFT if held is None else StepEnd.NEW, now)
    if held is None:
        if _was_released(step, row, attempt):
            return _close(step, StepEnd.LEFT, now)
        _close(step, StepEnd.FAILED, now)
        return f"{name} ended before it could serve."
    came_again = held.since > step.began_at  # lost meanwhile, and put in its place anew
    is_up = not held.joining if came_again else state is not None and state.began >= step.sequence and state.up
    if is_up and (not asks or (state is not None and state.ready and (not came_again or state.since >= held.since))):
        return _close(step, StepEnd.READY, now)
    if now <= step.began_at + timedelta(seconds=row.within_seconds):
        return ""
    _close(step, StepEnd.FAILED, now)
    why = f" {state.why}" if asks and state is not None and state.why else ""
    return f"{name} was not {'ready' if asks else 'running'} {_said(row.within_seconds)} after it was taken down.{why}"


def _close(step: ReplacementStep, end: StepEnd, now: datetime) -> str:
    step.over_at, step.end = now, end
    step.save(update_fields=["over_at", "end"])
    return ""


def _was_released(step: ReplacementStep, row: Replacement, attempt: Attempt) -> bool:
    """Whether somebody wanted fewer replicas, and not that it was lost."""
    seats = Placement.objects.filter(attempt=attempt, role=row.role, worker=step.worker).order_by("-since", "-pk")
    return seats.values_list("leaving_since", flat=True).first() is not None


def _unready(held: Mapping[int, Held], states: Mapping[int, WorkerState], begun: set[int], *, asks: bool) -> set[int]:
    """Replicas beside those that are being replaced that cannot serve now."""
    missing = {worker for worker, one in held.items() if one.joining}
    if asks:
        missing |= {worker for worker in held if (state := states.get(worker)) is not None and state.ready is False}
    return missing - begun


def _next(row: Replacement, left: Sequence[ReplacementStep], begun: int, unready: set[int]) -> list[ReplacementStep]:
    """Those that cannot serve anyhow go first: nobody is worse for that. Of the others so many that enough can serve."""
    room = row.max_unavailable - begun
    first = [step for step in left if step.worker in unready][: max(0, room)]
    room -= len(unready)
    return first + [step for step in left if step.worker not in unready][: max(0, room)]


def _begin(
    row: Replacement, job: Job, attempt: Attempt, chosen: Sequence[ReplacementStep], held: Mapping[int, Held], count: int, left: int, steps: Steps
) -> None:
    clusters = dict(Node.objects.filter(pk__in={held[step.worker].node for step in chosen}).values_list("pk", "cluster_id"))
    by_cluster: dict[int, list[ReplacementStep]] = {}
    for step in chosen:
        by_cluster.setdefault(clusters[held[step.worker].node], []).append(step)
    for cluster, some in sorted(by_cluster.items()):
        steps.order(attempt, OrderKind.REPLACE, cluster, {"workers": [[row.role, step.worker] for step in some]})
        for step in some:
            step.began_at, step.sequence = steps.now, attempt.sequence
            step.save(update_fields=["began_at", "sequence"])
    names = ", ".join(str(step.worker) for step in chosen)
    first = count - left + 1
    places = f"{first} of {count}" if len(chosen) == 1 else f"{first} to {first + len(chosen) - 1} of {count}"
    steps.note(job, f"{row.role.capitalize()} {names} starts anew ({places}).", attempt=attempt, detail={"replacement": row.pk})
    lease_want()


def _said(seconds: float) -> str:
    return duration(seconds).replace("\N{NO-BREAK SPACE}", " ")


def _fail(row: Replacement, job: Job, steps: Steps, why: str) -> None:
    _over(row, ReplacementEnd.FAILED, why, steps.now)
    ends = list(ReplacementStep.objects.filter(replacement=row).values_list("over_at", "end"))
    done = sum(over_at is not None and end != StepEnd.FAILED for over_at, end in ends)
    said = f"The replacement of its replicas stopped after {done} of {len(ends)}. {why}"
    steps.note(job, said, attempt=row.attempt, detail={"replacement": row.pk}, told=Happened.REPLACE_STOPPED)


def _over(row: Replacement, end: ReplacementEnd, why: str, now: datetime) -> None:
    row.over_at, row.end, row.why = now, end, why[:300]
    row.save(update_fields=["over_at", "end", "why"])
