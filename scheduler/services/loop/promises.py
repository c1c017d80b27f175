"""Giving jobs their GPUs: at once where they are free, as a promise where somebody is still leaving, and from promise to hold when he has left."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Exists, OuterRef

from gpufleet.core.bulk import row_made, rows_insert
from gpufleet.core.live.news import News
from gpufleet.core.prepared import Prepared, together
from scheduler.backends.base import attempt_key
from scheduler.loop.measures import WAITED
from scheduler.loop.policy import policy
from scheduler.models import HOLDING, Attempt, Job, JobState, Node, Order, OrderKind, Placement, Promise, PromisedSeat
from scheduler.services.jobs.checkpoints import COMPLETE
from scheduler.services.jobs.tokens import attempt_token, token_digest
from scheduler.services.loop.holds import WHOLE_MILLI, Seat, seats_faults
from scheduler.services.loop.lease import lease_want
from scheduler.services.loop.measuring import tally
from scheduler.services.loop.steps import LAST_NUMBERS, OPEN_ATTEMPTS, Steps, jobs_locked

# How much longer than the grace of those who leave a promise holds: what a back-end may take to say that they are gone.
SLACK = timedelta(seconds=120)

SITTING = Placement.objects.filter(until__isnull=True)
PROMISES: Prepared[tuple[int, int]] = Prepared(lambda: Promise.objects.order_by("id").values_list("id", "job_id"))
PROMISES_OF = Prepared[Promise](lambda jobs: Promise.objects.filter(job__among=jobs).order_by("id"))
LAPSED: Prepared[int] = Prepared(lambda at: Promise.objects.filter(until__lte=at).values_list("job_id", flat=True))
WHOLE_BLOCKED: Prepared[int] = Prepared(
    lambda: PromisedSeat.objects.filter(Exists(SITTING.filter(gpu=OuterRef("gpu"))), gpu_milli=WHOLE_MILLI).values_list("promise_id", flat=True)
)
PART_BLOCKED: Prepared[int] = Prepared(
    lambda: PromisedSeat.objects.filter(Exists(SITTING.filter(mig=OuterRef("mig"))), mig__isnull=False).values_list("promise_id", flat=True)
)
SEATS: Prepared[tuple[Any, ...]] = Prepared(
    lambda promises: (
        PromisedSeat.objects.filter(promise__among=promises)
        .order_by("id")
        .values_list("promise_id", "node_id", "gpu_id", "worker", "role", "gpu_milli", "mig_id")
    )
)
CLUSTERS = Prepared(lambda nodes: Node.objects.filter(pk__among=nodes).values_list("pk", "cluster_id"))
STARTS = Order.objects.filter(kind=OrderKind.START, done_at__isnull=True)
LAST_START: Prepared[datetime] = Prepared(lambda now: STARTS.filter(due_at__gt=now).order_by("-due_at").values_list("due_at", flat=True)[:1])


@dataclass(frozen=True, slots=True)
class Grant:
    """Seats that a job gets: its whole gang, or workers that join the ones it has."""

    job: Job
    kind: str
    seats: Sequence[Seat]
    cause: str
    backfilled: bool = False
    resumes: bool = False  # it was taken off its GPUs before
    reclaimed_at: datetime | None = None  # when it came to its place by reclaim
    detail: Mapping[str, object] = field(default_factory=dict)


class Starter:
    """Writes grants down as steps. Starts that come together are spread over time, so that no back-end is stormed."""

    def __init__(self, steps: Steps, jobs: Iterable[int], seats: Iterable[Seat]) -> None:
        self.steps = steps
        keys, nodes = set(jobs), {seat.node_id for seat in seats}
        attempts, numbers, newest, clusters, starts = together(
            OPEN_ATTEMPTS.asking(keys), LAST_NUMBERS.asking(keys), COMPLETE.asking(keys), CLUSTERS.asking(nodes), LAST_START.asking(steps.now)
        )
        self.attempts: dict[int, Attempt] = {attempt.job_id: attempt for attempt in attempts}
        self._last_numbers: dict[int, int] = dict(numbers)
        self._resume: dict[int, int] = dict(newest)
        self._clusters: dict[int, int] = dict(clusters)
        self._gap = timedelta(seconds=1) / policy().starts_per_second
        self._next: datetime = starts[0] + self._gap if starts else steps.now
        self._waited: list[tuple[str, float]] = []

    def grant(self, grant: Grant) -> None:
        if grant.job.state in HOLDING:
            self._join(grant)
        else:
            self._start(grant)

    def _start(self, grant: Grant) -> None:
        steps, job = self.steps, grant.job
        number = self._last_numbers.get(job.pk, 0) + 1
        token = attempt_token(attempt_key(job=job.public_id, attempt=number))
        facts = {"backfilled": grant.backfilled, "reclaimed_at": grant.reclaimed_at, "resumed_from_id": self._resume.get(job.pk)}
        attempt = steps.begin(job, number, token_digest=token_digest(token), **facts)
        steps.open(job, attempt, grant.seats)
        if attempt.number == 1:
            self._count(job)
        to = JobState.RESUMING if grant.resumes else JobState.STARTING
        steps.move(job, to, grant.cause, attempt=attempt, detail=grant.detail, retry_at=None)
        for cluster in self._clusters_of(grant.seats):
            steps.order(attempt, OrderKind.START, cluster, due_at=self._next)
        self._next = max(self._next, steps.now) + self._gap

    def _count(self, job: Job) -> None:
        """How long it waited, once that is committed."""
        if not self._waited:
            transaction.on_commit(self._tell, robust=True)
        since = max(job.submitted_at, job.not_before or job.submitted_at, job.deferred_to or job.submitted_at)
        self._waited.append((job.job_class, (self.steps.now - since).total_seconds()))

    def _tell(self) -> None:
        for job_class, seconds in self._waited:
            tally.time(WAITED, job_class, seconds=seconds)

    def _join(self, grant: Grant) -> None:
        steps, job, attempt = self.steps, grant.job, self.attempts[grant.job.pk]
        steps.open(job, attempt, grant.seats, joining=True)
        if grant.reclaimed_at is not None:
            steps.attempt(attempt, reclaimed_at=grant.reclaimed_at)
        steps.note(job, grant.cause, attempt=attempt, detail=grant.detail, degraded_since=None)
        for cluster in self._clusters_of(grant.seats):
            here = [seat for seat in grant.seats if self._clusters[seat.node_id] == cluster]
            steps.order(attempt, OrderKind.RESIZE, cluster, {"add": workers_in(here), "leave": []})

    def _clusters_of(self, seats: Iterable[Seat]) -> list[int]:
        return sorted({self._clusters[seat.node_id] for seat in seats})


def workers_in(seats: Iterable[Seat]) -> list[list[object]]:
    """(role, index) of each worker, once, as an order's payload has them."""
    return [list(worker) for worker in sorted({(seat.role, seat.worker) for seat in seats})]


def promise_make(*, grant: Grant, after: Sequence[str], until: datetime, now: datetime, back_to: str, plan_id: int | None = None) -> Promise:
    """Keep seats for a job until those who sit there have left. The job's own step is the caller's."""
    promise = row_made(
        Promise(
            job=grant.job,
            kind=grant.kind,
            made_at=now,
            until=until,
            after=list(after),
            plan_id=plan_id,
            cause=grant.cause[:300],
            backfilled=grant.backfilled,
            reclaimed_at=grant.reclaimed_at,
            back_to=back_to,
        )
    )
    promised_seats_insert(promise, grant.seats)
    return promise


def promised_seats_insert(promise: Promise, seats: Iterable[Seat]) -> None:
    rows_insert(
        PromisedSeat,
        ("promise_id", "role", "worker", "node_id", "gpu_id", "mig_id", "gpu_milli"),
        ((promise.pk, seat.role, seat.worker, seat.node_id, seat.gpu_id, seat.mig_id, seat.gpu_milli) for seat in seats),
    )


def promises_take(*, now: datetime, news: News | None = None) -> int:
    """Start what was promised GPUs that are free by now, each gang whole. One on hardware that has gone is given up. Returns how many started."""
    own = news or News()
    if not (hopeful := _hopeful()):
        return 0
    with transaction.atomic():
        steps = Steps(now=now)
        jobs = jobs_locked(hopeful)
        promises = {promise.job_id: promise for promise in PROMISES_OF(jobs)}
        seats = _promised_seats(promises.values())
        ready = {key: seats[promise.pk] for key, promise in promises.items() if _may_take(jobs[key], promise)}
        broken, busy = seats_faults(wanted=ready, own={key: key for key in ready})
        taken = [key for key in ready if key not in broken and key not in busy]
        starter = Starter(steps, taken, [seat for key in taken for seat in ready[key]])
        for key in taken:
            promise = promises[key]
            resumes = promise.back_to == JobState.PREEMPTED
            cause = promise.cause or "Its GPUs are free."
            starter.grant(Grant(jobs[key], promise.kind, ready[key], cause, promise.backfilled, resumes, promise.reclaimed_at))
            steps.forget_promise(jobs[key])
        for key, fault in broken.items():
            _give_up(steps, jobs[key], promises[key], fault)
        steps.write(own)
        if news is None:
            own.publish()
        if broken:
            lease_want(hint=False)
    return len(taken)


def _hopeful() -> list[int]:
    """Jobs whose promise could be taken: nobody sits on a whole GPU or an instance of it. Most promises wait, and are not looked at any closer."""
    promises = PROMISES()
    if not promises:
        return []
    whole, parts = together(WHOLE_BLOCKED.asking(), PART_BLOCKED.asking())
    blocked = {*whole, *parts}
    return [job for promise, job in promises if promise not in blocked]


def _promised_seats(promises: Iterable[Promise]) -> Mapping[int, list[Seat]]:
    found: dict[int, list[Seat]] = defaultdict(list)
    for promise, *seat in SEATS([promise.pk for promise in promises]):
        found[promise].append(Seat(*seat))
    return found


def _may_take(job: Job, promise: Promise) -> bool:
    """A gang starts from its promise; workers join a run that goes on. A job that is still leaving its old place does neither."""
    if promise.kind in (Promise.Kind.START, Promise.Kind.MOVE):
        return job.state == JobState.RESERVED
    return job.state in (JobState.RESERVED, JobState.RUNNING, JobState.DEGRADED)


def promises_lapse(*, now: datetime, news: News | None = None) -> int:
    """Give up what could not be taken in time: somebody did not leave. The job waits again, and the next plan knows better."""
    own = news or News()
    if not LAPSED(now):
        return 0
    with transaction.atomic():
        steps = Steps(now=now)
        jobs = jobs_locked(LAPSED(now))
        late = [promise for promise in PROMISES_OF(jobs) if promise.until <= now]
        for promise in late:
            _give_up(steps, jobs[promise.job_id], promise, "The GPUs that it was promised were not given back in time.")
        steps.write(own)
        if news is None:
            own.publish()
        if late:
            lease_want(hint=False)
    return len(late)


def _give_up(steps: Steps, job: Job, promise: Promise, cause: str) -> None:
    steps.forget_promise(job)
    if job.state == JobState.RESERVED:
        steps.move(job, promise.back_to, cause)
    else:
        steps.note(job, cause)
