"""What becomes of attempts: asked to stop, seen running, seen ended, short of a worker. All of it in bulk, one transaction a call.

Nobody takes GPUs from a run here. A run is asked to leave, and its GPUs are free when its back-end says that it has left.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from django.db import transaction
from django.db.models import F, Q

from gpufleet.core.audit import SYSTEM, Actor, audit_record
from gpufleet.core.live.news import News
from gpufleet.core.prepared import Prepared, together
from gpufleet.core.times import whole_millis
from scheduler.backends.base import Signal
from scheduler.loop.policy import DEFAULT_GRACE_SECONDS
from scheduler.models import ENDED, HOLDING, Attempt, Job, JobClass, JobState, Node, OrderKind, Placement, Promise
from scheduler.services.loop.holds import OPEN_OF
from scheduler.services.loop.lease import lease_want
from scheduler.services.loop.retries import LONGEST_AFTER_LOSS_SECONDS, retry_delay
from scheduler.services.loop.steps import LOCKED, OPEN_ATTEMPTS, Steps, grouped_update, jobs_locked, open_attempts
from scheduler.services.loop.usage import NOTHING, may_change_from, usage_changed, usage_follow

CLUSTERS_OF: Prepared[tuple[int, int]] = Prepared(
    lambda attempts: (
        Placement.objects.filter(attempt__among=attempts).order_by("node__cluster_id").values_list("attempt_id", "node__cluster_id").distinct()
    )
)
JOBS_OF: Prepared[int] = Prepared(lambda attempts: Attempt.objects.filter(pk__among=attempts, ended_at__isnull=True).values_list("job_id", flat=True))
PROMISED: Prepared[int] = Prepared(lambda jobs: Promise.objects.filter(job__among=jobs).values_list("job_id", flat=True))
# Slurm tells times in whole seconds: a start may seem to be so much before its order.
WHOLE_SECONDS = timedelta(seconds=1)
ANEW = "Its back-end started it again: the start that it told first did not hold, and is not charged."
# Numbers of attempts that were lost before all their workers were up, or given up by then.
UNSTARTED: Prepared[tuple[int, int]] = Prepared(
    lambda jobs: (
        Attempt.objects.filter(Q(running_at__isnull=True) | Q(stop_asked_at__lte=F("running_at")), job__among=jobs, outcome="lost")
        .order_by()
        .values_list("job_id", "number")
    )
)


@dataclass(frozen=True, slots=True)
class Stop:
    """An attempt is to leave; its job becomes `to` once it has. `grace_seconds` None: as the job states it."""

    job_id: int
    to: str
    outcome: str
    cause: str
    grace_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """A run that its back-end says is over."""

    attempt_id: int
    exit_code: int | None
    why: str = ""
    node_lost: bool = False
    started_at: datetime | None = None  # both as the back-end says, by its clock
    ended_at: datetime | None = None
    limit_over: bool = False  # its back-end ended it because its time was over
    waited_for: str = ""  # what kept it from starting
    end_is_told: bool = False  # its end is certain though it was lost
    is_last: bool = False  # should it fail, it is not tried again


class OfJob(Protocol):
    """An attempt, by its key and its job's."""

    @property
    def pk(self) -> int: ...

    @property
    def job_id(self) -> int: ...


def grace_of(job: Job) -> float:
    stated = job.spec.get("grace_s", DEFAULT_GRACE_SECONDS)
    return float(stated) if isinstance(stated, int | float) else DEFAULT_GRACE_SECONDS


def limit_told(limit_seconds: int) -> str:
    return f"Its time limit of {limit_seconds} s is over."


def by_attempt(placements: Iterable[Placement]) -> Mapping[int, list[Placement]]:
    found: dict[int, list[Placement]] = defaultdict(list)
    for placement in placements:
        found[placement.attempt_id].append(placement)
    return found


class Clusters:
    """Which back-ends an attempt's orders go to, looked up once for many attempts."""

    def __init__(self, attempts: Iterable[Attempt]) -> None:
        self._of: dict[int, list[int]] = defaultdict(list)
        for attempt, cluster in CLUSTERS_OF([attempt.pk for attempt in attempts]):
            self._of[attempt].append(cluster)

    def of(self, attempt: Attempt) -> Sequence[int]:
        return self._of.get(attempt.pk, ())


def stop_ask(steps: Steps, job: Job, attempt: Attempt, clusters: Sequence[int], stop: Stop, detail: Mapping[str, object] | None = None) -> bool:
    """Ask a run to save its work and leave. What ends a job for good overrides what would only pause it, never the other way round.

    False: it is leaving already for a reason that weighs as much, and nothing was changed.
    """
    now = steps.now
    grace = grace_of(job) if stop.grace_seconds is None else stop.grace_seconds
    until = now + timedelta(seconds=grace)
    if attempt.stop_to:
        if attempt.stop_to in ENDED or stop.to not in ENDED:
            return False
        until = min(until, attempt.stop_until or until)
        steps.record(job, "job.state", {"becomes": attempt.stop_to}, {"becomes": stop.to}, stop.cause)  # it stays in its state, so no step says so
        steps.attempt(attempt, stop_to=stop.to, stop_outcome=stop.outcome, stop_cause=stop.cause[:300], stop_until=until)
        steps.note(job, stop.cause, attempt=attempt, detail=detail)
        return True
    steps.attempt(attempt, stop_to=stop.to, stop_outcome=stop.outcome, stop_cause=stop.cause[:300], stop_asked_at=now, stop_until=until)
    steps.move(job, JobState.CHECKPOINTING, stop.cause, attempt=attempt, detail=detail)
    for cluster in clusters:
        if grace > 0:
            steps.order(attempt, OrderKind.SIGNAL, cluster, {"signal": Signal.TERMINATE.value})
        else:
            steps.order(attempt, OrderKind.STOP, cluster, {"force": True})
    return True


def attempts_stop(*, stops: Sequence[Stop], now: datetime, actor: Actor = SYSTEM, news: News | None = None, want: bool = True) -> int:
    """Ask many runs to leave. Jobs that hold nothing by now are passed over. Returns how many were asked."""
    own = news or News()
    with transaction.atomic():
        steps = Steps(now=now, actor=actor)
        keys = {stop.job_id for stop in stops}
        locked, opened = together(LOCKED.asking(keys), OPEN_ATTEMPTS.asking(keys))
        jobs: dict[int, Job] = {job.pk: job for job in locked}
        attempts: dict[int, Attempt] = {attempt.job_id: attempt for attempt in opened}
        clusters = Clusters(attempts.values())
        asked = 0
        for stop in stops:
            job, attempt = jobs.get(stop.job_id), attempts.get(stop.job_id)
            if job is None or attempt is None or job.state not in HOLDING:
                continue
            if stop_ask(steps, job, attempt, clusters.of(attempt), stop):
                asked += 1
                if stop.to in ENDED:
                    steps.forget_promise(job)
        steps.write(own)
        if news is None:
            own.publish()
        if asked and want:
            lease_want()
    return asked


def attempt_running(*, attempt: Attempt, now: datetime, news: News | None = None) -> bool:
    """Every worker is up."""
    return bool(attempts_running(attempts=[attempt.pk], now=now, news=news))


def attempts_running(*, attempts: Sequence[int], now: datetime, news: News | None = None) -> int:
    """The runs whose workers are all up, by key of their attempts. Said twice it changes nothing. Returns how many jobs it moved."""
    return attempts_seen(up=dict.fromkeys(attempts), ends=(), now=now, news=news)[0]


def attempt_ended(
    *, attempt: Attempt, exit_code: int | None, now: datetime, why: str = "", node_lost: bool = False, news: News | None = None
) -> bool:
    """One run is over."""
    return bool(attempts_ended(ends=[Ended(attempt.pk, exit_code, why, node_lost)], now=now, news=news))


def attempts_ended(
    *,
    ends: Sequence[Ended],
    now: datetime,
    unseen: Mapping[int, datetime] = NOTHING,
    news: News | None = None,
    want: bool = True,
    actor: Actor = SYSTEM,
) -> int:
    """Runs that are over: their GPUs are free, and their jobs completed, failed, wait again, or are what they were stopped for. Twice is once."""
    return attempts_seen(up={}, ends=ends, unseen=unseen, now=now, news=news, want=want, actor=actor)[1]


def attempts_seen(
    *,
    up: Mapping[int, datetime | None],
    ends: Sequence[Ended],
    now: datetime,
    anew: Collection[int] = (),
    unseen: Mapping[int, datetime] = NOTHING,
    news: News | None = None,
    want: bool = True,
    actor: Actor = SYSTEM,
) -> tuple[int, int]:
    """What a look has shown, all of it at once: whose workers are all up, and since when as their back-end says, and who is over.

    `anew`: those of `up` whose start that is written down did not hold. `unseen`: runs that nobody could look at until now, and since when.
    Returns how many jobs went on, and how many runs ended.
    """
    own = news or News()
    with transaction.atomic():
        steps = Steps(now=now, actor=actor)
        told = {*up, *(end.attempt_id for end in ends)}
        keys = set(JOBS_OF(told))
        # Jobs are locked first: what is asked behind that is true until the end of the transaction.
        locked, opened, held_rows, promised_rows = together(
            LOCKED.asking(keys), OPEN_ATTEMPTS.asking(keys), OPEN_OF.asking(told), PROMISED.asking(keys)
        )
        jobs: dict[int, Job] = {job.pk: job for job in locked}
        attempts: dict[int, Attempt] = {attempt.pk: attempt for attempt in opened}
        over = {end.attempt_id: end for end in reversed(ends) if end.attempt_id in attempts}
        held, promised = by_attempt(held_rows), set(promised_rows)
        here = {key: at for key, at in up.items() if key in attempts}
        _start_anew(steps, jobs, [attempts[key] for key in anew if key in attempts], held)
        up_at, steps.ended_at = _moments(here, over, attempts, held, steps.now, unseen)
        moved = sum(_came_up(steps, jobs[attempts[key].job_id], attempts[key], up_at, held.get(key, ())) for key in here)
        for key in over:
            if key in up_at and attempts[key].running_at is None:
                steps.up(attempts[key], up_at[key], held.get(key, ()))  # so short that nobody saw it run
        in_a_row = _lost_in_a_row([attempts[key] for key, end in over.items() if end.node_lost or attempts[key].stop_outcome == "lost"])
        for key, end in reversed(over.items()):
            attempt = attempts[key]
            _end(steps, jobs[attempt.job_id], attempt, end, held.get(key, []), attempt.job_id in promised, in_a_row.get(key, 0))
        steps.write(own)
        if changed := [at for of in (up_at, steps.ended_at) for key, at in of.items() if key in unseen]:
            usage_changed(since=min(changed), now=steps.now)
        if news is None:
            own.publish()
        if over and want:
            lease_want()
    return moved, len(over)


def _is_unstarted(attempt: Attempt) -> bool:
    """Whether it was not up, or not before it was given up: should it come up after all, it is no start that succeeded."""
    return attempt.running_at is None or (attempt.stop_asked_at is not None and attempt.stop_asked_at <= attempt.running_at)


def _start_anew(steps: Steps, jobs: Mapping[int, Job], attempts: Sequence[Attempt], held: Mapping[int, list[Placement]]) -> None:
    """Runs that their back-end has started again are starting since the start that did not hold, as far back as the ledger may change: it is not
    charged. One that shares a GPU with another run is charged as it was told first."""
    gpus = {attempt.pk: {seat.gpu_id for seat in held.get(attempt.pk, ()) if seat.gpu_id is not None} for attempt in attempts}
    alone = [attempt for attempt in attempts if attempt.running_at is not None and not _is_shared(attempt, gpus[attempt.pk])]
    if not alone:
        return
    since, _ = may_change_from(gpus={attempt.pk: gpus[attempt.pk] for attempt in alone}, at=steps.now)
    for attempt in alone:
        job, before = jobs[attempt.job_id], {f"start of attempt {attempt.number}": f"{attempt.running_at:%Y-%m-%d %H:%M:%S}"}
        audit_record(actor=steps.actor, action="usage.correct", kind="job", object_id=job.public_id, quota=job.quota, before=before, reason=ANEW)
        steps.note(job, ANEW, attempt=attempt)
        attempt.running_at = None
    grouped_update(Attempt, {attempt.pk: {"running_at": None} for attempt in alone})
    gpus_since = {gpu: since[attempt.pk] for attempt in alone for gpu in gpus[attempt.pk]}
    usage_follow(attempts=list(since), gpus=gpus_since, at=steps.now, since=since, gpus_since=gpus_since)


def _is_shared(attempt: Attempt, gpus: Collection[int]) -> bool:
    return Placement.objects.filter(gpu__in=gpus, until__isnull=True).exclude(attempt=attempt.pk).exists()


def _moments(
    up: Mapping[int, datetime | None],
    over: Mapping[int, Ended],
    attempts: Mapping[int, Attempt],
    held: Mapping[int, list[Placement]],
    now: datetime,
    unseen: Mapping[int, datetime],
) -> tuple[dict[int, datetime], dict[int, datetime]]:
    """When runs came up and when they ended before now, where that is certain. What those held that ended goes to others from now on.

    The end of a lost run is only certain where its back-end saw it: else it may have gone on unseen. Where nobody could see it, it is the last moment
    at which somebody did (`unseen`), as nobody knows that it went on. A back-end whose clock is behind ours tells of
    a start before its order, and neither its start nor its end is believed. Of several that share a GPU no entry of that GPU would tell one's change
    from the other's: they came up with the last of them.
    """
    began: dict[int, datetime] = {}
    ended: dict[int, datetime] = {}
    for key in (*up, *over):
        run, end = attempts[key], over.get(key)
        start = end.started_at if end is not None else up[key]
        if start is not None and start < run.started_at - WHOLE_SECONDS:
            continue
        if start is not None and run.running_at is None:
            began[key] = whole_millis(start)
        if end is not None and end.ended_at is not None and end.ended_at < now and (not end.node_lost or end.end_is_told):
            ended[key] = whole_millis(end.ended_at)
        elif end is not None and end.node_lost and key in unseen:
            ended[key] = min(now, unseen[key])
    if not began and not ended:
        return {}, {}
    gpus = {key: {seat.gpu_id for seat in held.get(key, ()) if seat.gpu_id is not None} for key in (*up, *over)}
    users = Counter(gpu for of_run in gpus.values() for gpu in of_run)
    alone = {key for key, of_run in gpus.items() if all(users[gpu] == 1 for gpu in of_run)}
    first, sums = may_change_from(gpus={key: gpus[key] for key in {*began, *(ended.keys() & alone)}}, at=now, unseen=unseen)
    for key, moment in began.items():  # one without a GPU is in no entry
        run = attempts[key]
        began[key] = min(now, max(moment, first[key], run.started_at, *(seat.since for seat in held.get(key, ()))))
    found = {}
    for key in ended.keys() & alone:
        run = attempts[key]
        known = (ended[key], first[key], None if key in unseen else sums, began.get(key, run.started_at), run.running_at, run.stop_asked_at)
        found[key] = min(now, max(moment for moment in (*known, *(seat.since for seat in held.get(key, ()))) if moment is not None))
    for sharers in _sharing({key: of_run for key, of_run in gpus.items() if key not in alone}):
        # One whose start is not believed comes up now.
        last = max((began.get(key, now) for key in sharers if key in began or (key in up and attempts[key].running_at is None)), default=now)
        began.update(dict.fromkeys(began.keys() & sharers, last))
    return began, found


def _sharing(gpus: Mapping[int, Collection[int]]) -> Iterable[set[int]]:
    """Runs in groups: those of one group share GPUs with each other, be it by way of a third, and with nobody else."""
    group_of: dict[int, set[int]] = {}
    for key, of_run in gpus.items():
        group = {key}.union(*(group_of[gpu] for gpu in of_run if gpu in group_of))
        group_of.update((gpu, group) for member in group for gpu in gpus[member])
    return {id(group): group for group in group_of.values()}.values()


def _came_up(steps: Steps, job: Job, attempt: Attempt, up_at: Mapping[int, datetime], held: Sequence[Placement]) -> bool:
    if attempt.running_at is None:
        steps.up(attempt, up_at.get(attempt.pk, steps.now), held)
    if job.state in (JobState.STARTING, JobState.RESUMING):
        steps.move(job, JobState.RUNNING, "All workers are up.", attempt=attempt)
        if job.degraded_since is not None:
            steps.move(job, JobState.DEGRADED, "It lost workers while it started.", attempt=attempt)
        return True
    if job.state == JobState.DEGRADED and job.degraded_since is None:
        steps.move(job, JobState.RUNNING, "The gang is whole again.", attempt=attempt)
        return True
    return False


def _lost_in_a_row(attempts: Sequence[Attempt]) -> dict[int, int]:
    """Of attempts that are lost before they ran: how many in a row that makes of their job."""
    unstarted = [attempt for attempt in attempts if _is_unstarted(attempt)]
    before: dict[int, set[int]] = defaultdict(set)
    for job, number in UNSTARTED({attempt.job_id for attempt in unstarted}) if unstarted else ():
        before[job].add(number)
    found = {}
    for attempt in unstarted:
        number = attempt.number - 1
        while number in before[attempt.job_id]:
            number -= 1
        found[attempt.pk] = attempt.number - number
    return found


def _end(steps: Steps, job: Job, attempt: Attempt, end: Ended, held: Sequence[Placement], promised: bool, in_a_row: int) -> None:
    """What a job becomes when its run is over, whatever it was doing. `in_a_row`: so many starts of it were lost."""
    steps.attempt(attempt, exit_code=end.exit_code)
    if end.exit_code == 0 and not end.node_lost and not _only_obeyed(job, attempt):
        if job.state in (JobState.STARTING, JobState.RESUMING):
            # So short that nobody saw it run.
            steps.attempt(attempt, running_at=attempt.running_at or steps.ended_at.get(attempt.pk, steps.now))
            steps.move(job, JobState.RUNNING, "All workers are up.", attempt=attempt)
        _finish(steps, job, attempt, held, JobState.COMPLETED, "completed", end.why or "Completed.", promised)
    elif attempt.stop_to:
        to, outcome = attempt.stop_to, attempt.stop_outcome
        if to == JobState.PREEMPTED and outcome == "moved":
            to, outcome = (JobState.RESERVED, "moved") if promised else (JobState.PREEMPTED, "preempted")
        if to == JobState.QUEUED and outcome == "lost":
            _lose(steps, job, attempt, held, f"{attempt.stop_cause} {end.waited_for}".rstrip(), promised, in_a_row)
        else:
            _finish(steps, job, attempt, held, to, outcome, attempt.stop_cause, promised and to != JobState.RESERVED)
    elif end.limit_over:
        _finish(steps, job, attempt, held, JobState.FAILED, "failed", _time_over(job, attempt, end, steps.now), promised)
    elif end.node_lost:
        _lose(steps, job, attempt, held, end.why or "Its node was lost.", promised, in_a_row)
    else:
        _fail(steps, job, attempt, end, held, promised)


def _only_obeyed(job: Job, attempt: Attempt) -> bool:
    """Whether the exit code 0 says no more than that it left when it was asked to. Servers and notebooks end like that, and have no end of their own;
    batch work may have come to its end meanwhile."""
    return bool(attempt.stop_to) and job.job_class != JobClass.BATCH


def _time_over(job: Job, attempt: Attempt, end: Ended, now: datetime) -> str:
    """As the scheduler says it; in the back-end's words where it was another limit than the job's own."""
    limit, began = job.limit_seconds, end.started_at or attempt.running_at or attempt.started_at
    return limit_told(limit) if limit is not None and (end.ended_at or now) >= began + timedelta(seconds=limit) else end.why


def _fail(steps: Steps, job: Job, attempt: Attempt, end: Ended, held: Sequence[Placement], promised: bool) -> None:
    why = end.why or (f"Ended with exit code {end.exit_code}." if end.exit_code is not None else "Ended without an exit code.")
    failures = job.failures + 1
    if end.is_last or failures > job.retry_limit:
        _finish(steps, job, attempt, held, JobState.FAILED, "failed", why, promised, failures=failures)
        return
    at = steps.now + retry_delay(job_id=job.pk, failures=failures)
    cause = f"{why} Try {failures + 1} of {job.retry_limit + 1} is due at {at:%H:%M:%S} UTC."
    _finish(steps, job, attempt, held, JobState.QUEUED, "failed", cause, promised, failures=failures, retry_at=at)


def _lose(steps: Steps, job: Job, attempt: Attempt, held: Sequence[Placement], why: str, promised: bool, in_a_row: int) -> None:
    """No fault of the job: it waits again at once. Starts that are lost one after the other back off, as no more is known than that they fail."""
    if in_a_row < 2:
        _finish(steps, job, attempt, held, JobState.QUEUED, "lost", why, promised)
        return
    at = steps.now + retry_delay(job_id=job.pk, failures=in_a_row - 1, longest=LONGEST_AFTER_LOSS_SECONDS)
    cause = f"{in_a_row} starts in a row failed; the next is due at {at:%H:%M:%S} UTC. {why}"
    _finish(steps, job, attempt, held, JobState.QUEUED, "lost", cause, promised, retry_at=at)


def _finish(
    steps: Steps, job: Job, attempt: Attempt, held: Sequence[Placement], to: str, outcome: str, cause: str, promised: bool, **columns: object
) -> None:
    if promised:
        steps.forget_promise(job)
    steps.end(job, attempt, to, outcome, cause, held, degraded_since=None, **columns)


def workers_up(*, attempt: OfJob, workers: Iterable[tuple[str, int]], now: datetime, news: News | None = None) -> int:
    """Workers that were added to a run are up: until now they were starting, whatever the others did. Said twice it changes nothing."""
    own = news or News()
    wanted = set(workers)
    with transaction.atomic():
        steps = Steps(now=now)
        job = jobs_locked([attempt.job_id])[attempt.job_id]
        here = [one for one in OPEN_OF([attempt.pk]) if one.joining and (one.role, one.worker) in wanted]
        if not here:
            return 0
        steps.arrive(here)
        count = len({(one.role, one.worker) for one in here})
        steps.note(job, f"{count} added {'worker is' if count == 1 else 'workers are'} up.", attempt=open_attempts([job.pk]).get(job.pk))
        steps.write(own)
        if news is None:
            own.publish()
    return len(here)


def workers_left(*, attempt: OfJob, workers: Iterable[tuple[str, int]], now: datetime, news: News | None = None) -> int:
    """Workers of a gang that shrinks have gone: what they held is free."""
    return _workers_gone(attempt, workers, now, news, leaving=True, cause="")


def workers_lost(
    *, attempt: OfJob, workers: Iterable[tuple[str, int]], now: datetime, cause: str, unseen: bool = False, news: News | None = None
) -> int:
    """Workers of a gang are gone without having been asked. The rest stays and the job is degraded until it is repaired, or stale.

    `unseen`: only their node is known to be gone. Their processes may live, and no one else may get their GPUs while they do.
    """
    return _workers_gone(attempt, workers, now, news, leaving=False, cause=cause, unseen=unseen)


def _workers_gone(
    attempt: OfJob, workers: Iterable[tuple[str, int]], now: datetime, news: News | None, *, leaving: bool, cause: str, unseen: bool = False
) -> int:
    own = news or News()
    wanted = set(workers)
    with transaction.atomic():
        steps = Steps(now=now)
        job = jobs_locked([attempt.job_id])[attempt.job_id]
        fresh = open_attempts([job.pk]).get(job.pk)
        if fresh is None or fresh.pk != attempt.pk:
            return 0
        gone = [
            placement
            for placement in OPEN_OF([attempt.pk])
            if (placement.role, placement.worker) in wanted and (placement.leaving_since is not None) == leaving
        ]
        if not gone:
            return 0
        steps.close(gone)
        if unseen and job.launch.get("in_place"):
            _tell_to_leave(steps, fresh, gone)
        if leaving:
            steps.note(job, f"{len({(one.role, one.worker) for one in gone})} workers have left.", attempt=fresh)
        elif job.state in (JobState.RUNNING, JobState.DEGRADED):
            since = job.degraded_since or steps.now
            if job.state == JobState.RUNNING:
                steps.move(job, JobState.DEGRADED, cause, attempt=fresh, degraded_since=since)
            else:
                steps.note(job, cause, attempt=fresh, degraded_since=since)
        else:
            steps.note(job, cause, attempt=fresh, degraded_since=job.degraded_since or steps.now)
        steps.write(own)
        if news is None:
            own.publish()
        lease_want()
    return len(gone)


def _tell_to_leave(steps: Steps, attempt: Attempt, gone: Iterable[Placement]) -> None:
    leave: dict[int, set[tuple[str, int]]] = defaultdict(set)
    clusters = dict(Node.objects.filter(pk__in={one.node_id for one in gone}).values_list("pk", "cluster_id"))
    for one in gone:
        leave[clusters[one.node_id]].add((one.role, one.worker))
    for cluster, some in sorted(leave.items()):
        steps.order(attempt, OrderKind.RESIZE, cluster, {"add": [], "leave": [list(worker) for worker in sorted(some)]})
