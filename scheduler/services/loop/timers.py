"""What time alone brings about: promises that lapse, runs that don't come up, grace that is over, drains, limits, deadlines, failed dependencies.

Each looks for what is past its time and acts on it once; doing it again changes nothing.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import chain
from typing import Any, NamedTuple

from django.db import transaction
from django.db.models import Exists, OuterRef, QuerySet

from gpufleet.core.live.news import News
from gpufleet.core.prepared import Prepared, together
from scheduler.backends.base import Signal
from scheduler.backends.registry import KINDS
from scheduler.hardware import causes
from scheduler.loop.policy import Policy
from scheduler.models import HOLDING, Attempt, Dependency, Health, Job, JobState, Order, OrderKind, Placement, Promise
from scheduler.notify.happenings import Happened
from scheduler.services.hardware.draining import DRAINS_DUE, NEXT_DRAIN, drains_enforce
from scheduler.services.hardware.geometry import UNSETTLED_SPLITS, splits_advance
from scheduler.services.jobs.deferring import TO_BE_JUDGED, deferrals_settle
from scheduler.services.jobs.replacing import REPLACING, replacements_advance
from scheduler.services.jobs.scaling import SCALED, scalings_settle
from scheduler.services.loop.lease import lease_want
from scheduler.services.loop.promises import LAPSED, promises_lapse
from scheduler.services.loop.runs import Clusters, Ended, Stop, attempts_ended, attempts_stop, limit_told, workers_lost
from scheduler.services.loop.steps import Steps, jobs_locked, open_attempts

WAITING = (JobState.QUEUED, JobState.PREEMPTED)
NOT_STARTED = (JobState.DRAFT, *WAITING, JobState.RESERVED)
# A handful at a time: whatever is left over is found by the next look.
MOST = 1000
LOOKED_AT_EACH = timedelta(seconds=5)  # replicas that are being replaced, where no back-end tells of them

# Each of these is asked in every tick, and nearly always finds nothing. In the order of their moments: by key, a database would go through all the
# history there is.
OPEN = Attempt.objects.filter(ended_at__isnull=True)
LATE_STARTS: Prepared[int] = Prepared(
    lambda at: (
        OPEN.filter(running_at__isnull=True, stop_to="", started_at__lte=at).order_by("started_at", "id").values_list("job_id", flat=True)[:MOST]
    )
)
OVERDUE_STOPS: Prepared[int] = Prepared(
    lambda at: (
        OPEN.filter(stop_until__lte=at).exclude(orders__kind=OrderKind.STOP).order_by("stop_until", "id").values_list("job_id", flat=True)[:MOST]
    )
)
# Asked to end by force so long ago, and there is no back-end that could take the order. One that is only silent may still run it: its GPUs stay held.
UNANSWERED_FOR = timedelta(seconds=60)
UNANSWERED: Prepared[int] = Prepared(
    lambda at: (
        OPEN.filter(stop_until__lte=at, orders__kind=OrderKind.STOP, orders__done_at__isnull=True, orders__tries__gt=0)
        .exclude(orders__cluster__backend__in=KINDS)
        .order_by("stop_until", "id")
        .values_list("id", flat=True)[:MOST]
    )
)
# Workers that stand on a node that is down, however it came to be: by hand, by a rule, by a look at a cluster.
ON_DOWN_NODES: Prepared[tuple[int, int, str, int, str]] = Prepared(
    lambda: (
        Placement.objects.filter(until__isnull=True, leaving_since__isnull=True, node__health=Health.DOWN, attempt__stop_to="")
        .order_by("attempt_id", "role", "worker")
        .distinct()
        .values_list("attempt_id", "attempt__job_id", "role", "worker", "node__name")[:MOST]
    )
)
STANDING_ELSEWHERE: Prepared[int] = Prepared(
    lambda attempts: (
        Placement.objects.filter(attempt__among=attempts, until__isnull=True, leaving_since__isnull=True)
        .exclude(node__health=Health.DOWN)
        .order_by()
        .distinct()
        .values_list("attempt_id", flat=True)
    )
)
LIMITED: Prepared[tuple[int, datetime | None, int | None, datetime | None]] = Prepared(
    lambda: (
        OPEN.filter(stop_to="", job__state__in=HOLDING, running_at__isnull=False, job__limit_seconds__isnull=False)
        .order_by("id")
        .values_list("job_id", "running_at", "job__limit_seconds", "warned_at")
    )
)
PAST_DEADLINE: Prepared[int] = Prepared(
    lambda at: (
        Job.objects.filter(deadline__lte=at, ended_at__isnull=True)
        .exclude(state__in=(JobState.DRAFT, *HOLDING))
        .order_by("deadline", "id")
        .values_list("id", flat=True)[:MOST]
    )
)
UNMET = Dependency.objects.filter(job=OuterRef("pk"), if_completed=True, on__state__in=(JobState.FAILED, JobState.CANCELLED))
UNMEETABLE: Prepared[int] = Prepared(
    lambda: Job.objects.filter(Exists(UNMET), state__in=NOT_STARTED).order_by("id").values_list("id", flat=True)[:MOST]
)


def _first(which: QuerySet[Any], column: str) -> QuerySet[Any, Any]:
    return which.filter(**{f"{column}__isnull": False}).order_by(column).values_list(column, flat=True)[:1]


FIRST_START = Prepared[datetime](lambda: _first(OPEN.filter(running_at__isnull=True, stop_to=""), "started_at"))
NEXT_STOP = Prepared[datetime](lambda now: _first(OPEN.filter(stop_until__gt=now), "stop_until"))
NEXT_PROMISE = Prepared[datetime](lambda: _first(Promise.objects.all(), "until"))
NEXT_DEADLINE = Prepared[datetime](lambda now: _first(Job.objects.filter(ended_at__isnull=True, deadline__gt=now), "deadline"))
NEXT_ORDER = Prepared[datetime](lambda now: _first(Order.objects.filter(done_at__isnull=True, due_at__gt=now), "due_at"))


def _next_demand(column: str) -> Prepared[datetime]:
    # Whether each waits, a look at that time finds out: a condition on the state would have a database go through all that do.
    return Prepared(lambda now: _first(Job.objects.filter(**{"ended_at__isnull": True, f"{column}__gt": now}), column))


NEXT_DEMAND = [_next_demand(column) for column in ("not_before", "deferred_to", "retry_at", "set_aside_until")]


def timers_run(*, now: datetime, policy: Policy, news: News) -> int:
    """Everything that is due. Returns how many jobs it touched."""
    if not _anything_is_due(now, policy):
        return 0
    return (
        promises_lapse(now=now, news=news)
        + nodes_lost(now=now, news=news)
        + drains_enforce(now=now, news=news)
        + splits_advance(now=now)
        + starts_give_up(now=now, timeout=policy.start_timeout, news=news)
        + limits_enforce(now=now, warning=policy.limit_warning, news=news)
        + stops_force(now=now, news=news)
        + stops_give_up(now=now, news=news)
        + deadlines_enforce(now=now, news=news)
        + dependencies_settle(now=now, news=news)
        + deferrals_settle(now=now, news=news)
        + scalings_settle(now=now)
        + replacements_advance(now=now, news=news)
    )


def _anything_is_due(now: datetime, policy: Policy) -> bool:
    """All questions below at once: nearly always nothing is, and then none of them is asked again."""
    limited, *due = together(
        LIMITED.asking(),
        LAPSED.asking(now),
        LATE_STARTS.asking(now - policy.start_timeout),
        OVERDUE_STOPS.asking(now),
        UNANSWERED.asking(now - UNANSWERED_FOR),
        ON_DOWN_NODES.asking(),
        DRAINS_DUE.asking(now),
        UNSETTLED_SPLITS.asking(),
        PAST_DEADLINE.asking(now),
        UNMEETABLE.asking(),
        SCALED.asking(),
        REPLACING.asking(),
        TO_BE_JUDGED.asking(now),
    )
    return any(due) or any(end <= now or (warn_at is not None and warn_at <= now) for _, _, end, warn_at in _limited(limited, policy.limit_warning))


class _Of(NamedTuple):
    pk: int
    job_id: int


def nodes_lost(*, now: datetime, news: News) -> int:
    """Gangs lose their workers on nodes that are down: they degrade, and are repaired, shrunk or queued again by the rules."""
    gangs: dict[_Of, list[tuple[str, int, str]]] = defaultdict(list)
    for attempt, job, role, worker, node in ON_DOWN_NODES.raw():
        gangs[_Of(attempt, job)].append((role, worker, node))
    elsewhere = set(STANDING_ELSEWHERE([attempt.pk for attempt in gangs])) if gangs else set()
    stops = []
    for attempt, lost in gangs.items():
        cause = causes.down({node for _, _, node in lost}, len(lost))
        if attempt.pk in elsewhere:
            workers = [(role, worker) for role, worker, _ in lost]
            workers_lost(attempt=attempt, workers=workers, now=now, cause=cause, unseen=True, news=news)
        else:  # nobody is left whom a replacement could join
            stops.append(Stop(attempt.job_id, JobState.QUEUED, "lost", cause, grace_seconds=0))
    if stops:
        attempts_stop(stops=stops, now=now, news=news)
    return len(gangs)


def starts_give_up(*, now: datetime, timeout: timedelta, news: News) -> int:
    """A run that is not up in time gives its GPUs back and waits again."""
    jobs = LATE_STARTS(now - timeout)
    cause = f"It was not running {timeout.total_seconds():g} s after it got its GPUs."
    stops = [Stop(job, JobState.QUEUED, "lost", cause) for job in jobs]
    return attempts_stop(stops=stops, now=now, news=news) if stops else 0


def stops_force(*, now: datetime, news: News) -> int:
    """Whoever has not left when the grace is over is ended by force. Said once: a back-end is asked again by its orders."""
    keys = OVERDUE_STOPS(now)
    if not keys:
        return 0
    with transaction.atomic():
        steps = Steps(now=now)
        jobs = jobs_locked(keys)
        attempts = [one for one in open_attempts(jobs).values() if one.stop_until is not None and one.stop_until <= now]
        told = set(Order.objects.filter(attempt__among=[one.pk for one in attempts], kind=OrderKind.STOP).values_list("attempt_id", flat=True))
        clusters = Clusters(attempts)
        for attempt in attempts:
            if attempt.pk not in told:
                steps.note(jobs[attempt.job_id], "Its grace is over: it is ended by force.", attempt=attempt)
                for cluster in clusters.of(attempt):
                    steps.order(attempt, OrderKind.STOP, cluster, {"force": True})
        steps.write(news)
    return len(attempts)


def stops_give_up(*, now: datetime, news: News) -> int:
    """Nobody waits for a back-end that does not exist: the attempt ends here. What still runs there ends as a stray when there is one again."""
    keys = sorted(set(UNANSWERED(now - UNANSWERED_FOR)))
    if not keys:
        return 0
    why = "Its cluster has no back-end that could end it; nothing is placed there."
    return attempts_ended(ends=[Ended(key, None, why, node_lost=True) for key in keys], now=now, news=news)


def limits_enforce(*, now: datetime, warning: timedelta, news: News) -> int:
    """Time limits: a warning shortly before, then the run is asked to leave and its job has failed."""
    over, near = [], []
    for job, limit, end, warn_at in _limited(LIMITED(), warning):
        if end <= now:
            over.append(Stop(job, JobState.FAILED, "failed", limit_told(limit)))
        elif warn_at is not None and warn_at <= now:
            near.append(job)
    if near:
        _warn(near[:MOST], now, news)
    return len(near) + (attempts_stop(stops=over[:MOST], now=now, news=news) if over else 0)


def _limited(
    rows: Iterable[tuple[int, datetime | None, int | None, datetime | None]], warning: timedelta
) -> Iterator[tuple[int, int, datetime, datetime | None]]:
    """Jobs that run under a limit: how long it is, when it ends, and when the warning is due if none was given."""
    for job, running_at, limit, warned_at in rows:
        if running_at is not None and limit is not None:
            end = running_at + timedelta(seconds=limit)
            yield job, limit, end, end - min(warning, timedelta(seconds=limit) / 2) if warned_at is None else None


def _warn(keys: Iterable[int], now: datetime, news: News) -> None:
    with transaction.atomic():
        steps = Steps(now=now)
        jobs = jobs_locked(keys)
        attempts = [one for one in open_attempts(jobs).values() if one.warned_at is None]
        clusters = Clusters(attempts)
        for attempt in attempts:
            steps.attempt(attempt, warned_at=steps.now)
            steps.note(jobs[attempt.job_id], "It was warned that its time limit is near.", attempt=attempt, told=Happened.NEAR_LIMIT)
            for cluster in clusters.of(attempt):
                steps.order(attempt, OrderKind.SIGNAL, cluster, {"signal": Signal.WARN.value})
        steps.write(news)


def deadlines_enforce(*, now: datetime, news: News) -> int:
    """What has not started by its deadline never will."""

    def said(job: Job) -> str:
        return f"It had not started by its deadline, {job.deadline:%Y-%m-%d %H:%M:%S} UTC."

    return _end_waiting(PAST_DEADLINE(now), JobState.FAILED, said, now, news)


def dependencies_settle(*, now: datetime, news: News) -> int:
    """A job that was to follow another one's success, and can't any more, is cancelled with that reason. Those behind it are next."""
    return _end_waiting(UNMEETABLE(), JobState.CANCELLED, _blocker_of, now, news)


def _blocker_of(job: Job) -> str:
    ended = (JobState.FAILED, JobState.CANCELLED)
    other = Dependency.objects.filter(job=job, if_completed=True, on__state__in=ended).order_by("id").select_related("on").first()
    if other is None:
        return "A job on which it depends did not complete."
    return f"{other.on.public_id}, on which it depends, {'failed' if other.on.state == JobState.FAILED else 'was cancelled'}."


def _end_waiting(keys: Sequence[int], to: str, cause: Callable[[Job], str], now: datetime, news: News) -> int:
    if not keys:
        return 0
    with transaction.atomic():
        steps = Steps(now=now)
        jobs = [job for job in jobs_locked(keys).values() if job.state in NOT_STARTED]
        for job in jobs:
            steps.forget_promise(job)
            steps.move(job, to, cause(job))
        steps.write(news)
        if jobs:
            lease_want(hint=False)
    return len(jobs)


def timers_next(*, now: datetime, policy: Policy) -> datetime | None:
    """When time alone brings about something next, of what can be known now. What becomes demand is known to the plan: `demand_next`."""
    limited, starting, replacing, *others = together(
        LIMITED.asking(),
        FIRST_START.asking(),
        REPLACING.asking(),
        NEXT_STOP.asking(now),
        NEXT_PROMISE.asking(),
        NEXT_DEADLINE.asking(now),
        NEXT_ORDER.asking(now),
        NEXT_DRAIN.asking(now),
    )
    limits = [at for _, _, *both in _limited(limited, policy.limit_warning) for at in both]
    times: list[datetime | None] = [now + LOOKED_AT_EACH] if replacing else []
    times += [*limits, *(at + policy.start_timeout for at in starting), *chain.from_iterable(others)]
    return min((at for at in times if at is not None and at > now), default=None)


def demand_next(*, now: datetime) -> datetime | None:
    """When a job that waits for its time becomes demand: the next plan is due then."""
    return min(chain.from_iterable(together(*(question.asking(now) for question in NEXT_DEMAND))), default=None)
