"""Many steps of many jobs, gathered and then written in few statements: what the loop does to jobs, it does through here.

The caller has locked the jobs (`jobs_locked`) in its transaction, so what it saw is what is changed; should that ever not hold, nothing is written.
Several steps of one job are one change of its row and an event each.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any

from django.db import connection, models
from django.db.models import F, Max

from gpufleet.core.audit import SYSTEM, Actor, audit_entry, audit_write
from gpufleet.core.bulk import row_made, rows_insert
from gpufleet.core.faults import Conflict
from gpufleet.core.live.news import News
from gpufleet.core.models import AuditEntry
from gpufleet.core.prepared import Prepared, PreparedDelete, PreparedUpdate
from scheduler.jobs.transitions import OUTCOMES, may_become
from scheduler.models import ENDED, Attempt, Job, JobEvent, Order, OrderKind, Placement, Promise, PromisedSeat
from scheduler.services.jobs.waits import left_waiting, waits_close
from scheduler.services.loop.holds import Seat, placements_insert
from scheduler.services.loop.story import Event, steps_tell
from scheduler.services.loop.usage import usage_follow, usage_moment
from scheduler.services.notify.outbox import happenings_write

CAUSE_LENGTH = 300
BATCH = 1000
FEW = 8  # rows that are sooner written one by one
EVENT_COLUMNS = ("job_id", "attempt_id", "at", "from_state", "to_state", "cause", "actor_name", "detail")
ORDER_COLUMNS = ("attempt_id", "cluster_id", "sequence", "kind", "payload", "made_at", "due_at")


# Without its key: a new row that refers to a job, as what comes after it does, has no reason to wait.
LOCKED = Prepared[Job](lambda keys: Job.objects.select_for_update(no_key=True).filter(pk__among=keys).order_by("pk").defer("labels", "launch"))
OPEN_ATTEMPTS = Prepared[Attempt](lambda jobs: Attempt.objects.filter(job__among=jobs, ended_at__isnull=True))
LAST_NUMBERS: Prepared[tuple[int, int]] = Prepared(
    lambda jobs: Attempt.objects.filter(job__among=jobs).order_by().values("job").annotate(last=Max("number")).values_list("job", "last")
)
PROMISED: Prepared[int] = Prepared(lambda jobs: Promise.objects.filter(job__among=jobs).values_list("pk", flat=True))
PROMISED_GPUS: Prepared[int | None] = Prepared(lambda jobs: PromisedSeat.objects.filter(promise__job__among=jobs).values_list("gpu_id", flat=True))
SEATS_GONE = PreparedDelete(lambda promises: PromisedSeat.objects.filter(promise__among=promises))
PROMISES_GONE = PreparedDelete(lambda promises: Promise.objects.filter(pk__among=promises))
CLOSE = PreparedUpdate(lambda keys, at: (Placement.objects.filter(pk__among=keys), {"until": at}))
LEAVE = PreparedUpdate(lambda keys, at: (Placement.objects.filter(pk__among=keys), {"leaving_since": at}))
ARRIVE = PreparedUpdate(lambda keys: (Placement.objects.filter(pk__among=keys), {"joining": False}))


class IllegalTransition(Exception):
    """The caller asked for a step that the state machine does not have. A bug in the caller, never something that a person did."""


def jobs_locked(keys: Iterable[int]) -> dict[int, Job]:
    """Jobs by key, held until the end of the transaction; in the order of keys, so that two callers never wait for each other in a ring."""
    assert connection.in_atomic_block, "a lock only holds inside a transaction"
    return {job.pk: job for job in LOCKED(set(keys))}


def open_attempts(keys: Iterable[int]) -> dict[int, Attempt]:
    """The open attempt of each job that has one. An attempt is only changed by who holds its job."""
    return {attempt.job_id: attempt for attempt in OPEN_ATTEMPTS(set(keys))}


class Steps:
    """What is to be written in one transaction. Made before anything is locked: the moment of all of it is the ledger's."""

    def __init__(self, *, now: datetime, actor: Actor = SYSTEM, batch: str = "") -> None:
        """`batch` names what a person did to many jobs at once; each entry of the audit log says it."""
        self.now = usage_moment(now=now)
        self.actor = actor
        self.batch = batch
        self.jobs: dict[int, Job] = {}
        self._first: dict[int, tuple[str, int]] = {}
        self._job_columns: dict[int, dict[str, Any]] = defaultdict(dict)
        self._attempt_columns: dict[int, dict[str, Any]] = defaultdict(dict)
        self._new_attempts: list[Attempt] = []
        self._events: list[Event] = []
        self._orders: list[tuple[Attempt, tuple[Any, ...]]] = []
        self._opened: list[tuple[Attempt, int, Seat, bool]] = []
        self._closed: dict[datetime, list[int]] = defaultdict(list)
        self.ended_at: Mapping[int, datetime] = {}  # of attempts that ended before now, by what their back-end says
        self._freed: dict[int, datetime] = {}  # GPUs of these
        self._up_at: dict[int, datetime] = {}  # attempts that came up before now
        self._up_gpus: dict[int, datetime] = {}
        self._leaving: list[int] = []
        self._arrived: list[int] = []
        self._gpus: list[int] = []
        self._promises_gone: list[int] = []
        self._touched: set[int] = set()
        self._left_waiting: dict[int, datetime] = {}  # since when each had waited
        self._audit: list[tuple[Job, str, Mapping[str, Any] | None, Mapping[str, Any] | None, str]] = []

    # Jobs

    def move(self, job: Job, to: str, cause: str, *, attempt: Attempt | None = None, detail: Mapping[str, Any] | None = None, **columns: Any) -> None:
        """A step of the state machine; `columns` of the job change with it. The job given is changed in memory at once."""
        if not may_become(job.state, to):
            raise IllegalTransition(f"A job does not go from {job.state} to {to}.")
        before = job.state
        if left_waiting(before, to):
            self._left_waiting[job.pk] = job.state_since
        self._event(job, before, to, cause, attempt, detail)
        self.record(job, "job.state", {"state": before}, {"state": to}, cause)
        self.change(job, state=to, state_since=self.now, ended_at=self.now if to in ENDED else None, **columns)

    def note(
        self, job: Job, cause: str, *, attempt: Attempt | None = None, detail: Mapping[str, Any] | None = None, told: str = "", **columns: Any
    ) -> None:
        """Something that happened to a job without a new state. `told` is what others are told it was; most notes they are not."""
        self._event(job, job.state, job.state, cause, attempt, detail, told)
        self.change(job, **columns)

    def record(self, job: Job, action: str, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, cause: str) -> None:
        """An entry in the audit log, where a person does this. Steps of the state machine have theirs already."""
        self._audit.append((job, action, before, after, cause))

    def change(self, job: Job, **columns: Any) -> None:
        self._first.setdefault(job.pk, (job.state, job.revision))
        self.jobs[job.pk] = job
        job.revision += 1
        for name, value in columns.items():
            setattr(job, name, value)
        self._job_columns[job.pk].update(columns)

    def _event(self, job: Job, before: str, to: str, cause: str, attempt: Attempt | None, detail: Mapping[str, Any] | None, told: str = "") -> None:
        event = Event(job, attempt, self.now, before, to, cause[:CAUSE_LENGTH], self.actor.name, dict(detail or {}), job.revision + 1, told)
        self._events.append(event)

    # Attempts and what they hold

    def begin(self, job: Job, number: int, **columns: Any) -> Attempt:
        attempt = Attempt(job=job, number=number, started_at=self.now, **columns)
        self._new_attempts.append(attempt)
        return attempt

    def attempt(self, attempt: Attempt, **columns: Any) -> None:
        for name, value in columns.items():
            setattr(attempt, name, value)
        if attempt.pk is not None:
            self._attempt_columns[attempt.pk].update(columns)

    def up(self, attempt: Attempt, at: datetime, held: Iterable[Placement]) -> None:
        """All its workers are up since a moment, at most now."""
        self.attempt(attempt, running_at=at)
        self._up_at[attempt.pk] = at
        self._up_gpus.update({placement.gpu_id: at for placement in held if placement.gpu_id is not None})

    def end(self, job: Job, attempt: Attempt, to: str, outcome: str, cause: str, held: Iterable[Placement], **columns: Any) -> None:
        """The attempt is over: what it holds is free, and its job goes on to `to`."""
        if outcome not in OUTCOMES.get(to, ()):
            raise IllegalTransition(f"An attempt whose job becomes {to} did not end as {outcome}.")
        at = self.ended_at.get(attempt.pk, self.now)
        self.close(held, at)
        self.attempt(attempt, ended_at=at, outcome=outcome, cause=cause[:CAUSE_LENGTH], token_digest="")
        self.move(job, to, cause, attempt=attempt, **columns)

    def open(self, job: Job, attempt: Attempt, seats: Sequence[Seat], *, joining: bool = False) -> None:
        self.attempt(attempt)
        self._opened.extend((attempt, job.pk, seat, joining) for seat in seats)
        self._gpus.extend(seat.gpu_id for seat in seats if seat.gpu_id is not None)

    def close(self, placements: Iterable[Placement], at: datetime | None = None) -> None:
        for placement in placements:
            self._closed[at or self.now].append(placement.pk)
            self._attempt_columns.setdefault(placement.attempt_id, {})
            if placement.gpu_id is not None:
                self._gpus.append(placement.gpu_id)
                if at is not None and at < self.now:
                    self._freed[placement.gpu_id] = at

    def leave(self, placements: Iterable[Placement]) -> None:
        """Workers that are asked to go; they hold their GPUs until the back-end says that they went."""
        for placement in placements:
            self._leaving.append(placement.pk)
            self._attempt_columns.setdefault(placement.attempt_id, {})

    def arrive(self, placements: Iterable[Placement]) -> None:
        """Workers that joined a run and are up."""
        for placement in placements:
            self._arrived.append(placement.pk)
            self._attempt_columns.setdefault(placement.attempt_id, {})

    def forget_promise(self, job: Job) -> None:
        self._promises_gone.append(job.pk)

    def order(
        self, attempt: Attempt, kind: OrderKind, cluster_id: int, payload: Mapping[str, Any] | None = None, due_at: datetime | None = None
    ) -> None:
        """Tell the back-end, after the commit and behind what it was told before about this attempt."""
        self.attempt(attempt, sequence=attempt.sequence + 1)
        self._orders.append((attempt, (cluster_id, attempt.sequence, kind, dict(payload or {}), self.now, due_at or self.now)))

    def touch(self, gpus: Iterable[int | None]) -> None:
        """GPUs that are promised now, or no longer."""
        self._touched.update(gpu for gpu in gpus if gpu is not None)

    # Writing

    @property
    def empty(self) -> bool:
        return not (self.jobs or self._attempt_columns or self._orders or self._closed or self._leaving or self._arrived)

    def write(self, news: News) -> None:
        """All of it, in the caller's transaction. Closed before opened, so that a seat may pass from one job to another in one step."""
        assert connection.in_atomic_block, "steps are written whole or not at all"
        if self._promises_gone:
            self.touch(PROMISED_GPUS(self._promises_gone))
            SEATS_GONE(promised := PROMISED(self._promises_gone))
            PROMISES_GONE(promised)
        if self._up_at and self._closed:
            self._follow_up()
        for at, placements in self._closed.items():
            CLOSE(placements, at)
        LEAVE(self._leaving, self.now)
        ARRIVE(self._arrived)
        grouped_update(Attempt, self._attempt_columns)
        self._write_attempts()
        self._write_jobs()
        if self._left_waiting:
            waits_close(since=self._left_waiting, at=self.now)
        placements_insert(self._opened, self.now)
        rows_insert(JobEvent, EVENT_COLUMNS, (event.row for event in self._events))
        happenings_write(events=self._events, actor=self.actor)
        rows_insert(Order, ORDER_COLUMNS, ((attempt.pk, *order) for attempt, order in self._orders))
        if self.actor.user is not None:
            audit_write(entries=[self._entry(*one) for one in self._audit])
        attempts = {*self._attempt_columns, *(attempt.pk for attempt in self._new_attempts)}
        if attempts or self._touched:
            gpus = {*self._touched, *self._gpus}
            since, gpus_since = {**self._up_at, **self.ended_at}, {**self._up_gpus, **self._freed}
            usage_follow(attempts=attempts, gpus=gpus, at=self.now, since=since, gpus_since=gpus_since)
        self._tell(news)
        steps_tell(events=self._events)

    def _follow_up(self) -> None:
        """What came up is written down before what ended, as a run or a GPU may have done both since the last look."""
        grouped_update(Attempt, {key: {"running_at": at} for key, at in self._up_at.items()})
        usage_follow(attempts=self._up_at, at=self.now, since=self._up_at, gpus_since=self._up_gpus)
        self._up_at, self._up_gpus = {}, {}

    def _entry(self, job: Job, action: str, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, cause: str) -> AuditEntry:
        entry = audit_entry(
            actor=self.actor, action=action, kind="job", object_id=job.public_id, quota=job.quota, before=before, after=after, reason=cause
        )
        if self.batch:
            entry.after = {**(entry.after or {}), "batch": self.batch}
        return entry

    def _write_attempts(self) -> None:
        if len(self._new_attempts) > FEW:
            Attempt.objects.bulk_create(self._new_attempts, batch_size=BATCH)
            return
        for attempt in self._new_attempts:
            row_made(attempt)

    def _write_jobs(self) -> None:
        groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
        for key, columns in self._job_columns.items():
            groups[self._first[key][0], self.jobs[key].revision - self._first[key][1], *sorted(columns.items())].append(key)
        for (state, steps, *values), keys in groups.items():
            change = _job_update(tuple(name for name, _ in values))
            if change(keys, state, steps, *(value for _, value in values)) != len(keys):
                raise Conflict("A job has moved on meanwhile.")

    def _tell(self, news: News) -> None:
        if self.jobs:
            news.add("jobs", *self.jobs)
            news.add("overview", 1)
        if self._gpus:
            news.add("gpus", *self._gpus)
            news.add("quotas", *{job.quota_id: None for job in self.jobs.values()})


def grouped_update(model: type[models.Model], columns: Mapping[int, Mapping[str, Any]]) -> None:
    """One UPDATE for all rows that get the same values."""
    groups: dict[tuple[tuple[str, Any], ...], list[int]] = defaultdict(list)
    for key, values in columns.items():
        if values:
            groups[tuple(sorted(values.items()))].append(key)
    for values_of_group, keys in groups.items():
        _update(model, tuple(name for name, _ in values_of_group))(keys, *(value for _, value in values_of_group))


@cache
def _update(model: type[models.Model], names: tuple[str, ...]) -> PreparedUpdate:
    """Of these columns, by keys; the values follow in their order."""
    return PreparedUpdate(
        lambda keys, *values: (model._default_manager.filter(pk__among=keys), dict(zip(names, values, strict=True))), 1 + len(names)
    )


@cache
def _job_update(names: tuple[str, ...]) -> PreparedUpdate:
    """As `_update`, of jobs that are in one state still, and so many revisions on."""
    return PreparedUpdate(
        lambda keys, state, steps, *values: (
            Job.objects.filter(pk__among=keys, state=state),
            dict(zip(names, values, strict=True)) | {"revision": F("revision") + steps},
        ),
        3 + len(names),
    )
