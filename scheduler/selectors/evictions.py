"""How often a job was taken off its GPUs, for whom, by which rule, and what of its work that cost."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from django.db.models import F, Q, Sum

from gpufleet.core.audit import SYSTEM
from quotas.permissions import Access, Can
from scheduler.models import ENDED, Attempt, Checkpoint, Job, JobEvent, JobState, Placement, PlanRecord
from scheduler.selectors.jobs import jobs_named

KINDS = ("evicted", "moved", "shrunk", "grown", "repaired", "restarted")
EVICTED, MOVED, SHRUNK, GROWN, REPAIRED, RESTARTED = KINDS
# A back-end that can't resize a gang in place moves it, so what the plan decided is told, not how it was carried out.
_RESIZED = {"shrink": SHRUNK, "grow": GROWN, "repair": REPAIRED}
PUT_OUT = ("preempted", "moved")  # outcomes of attempts
# What became of it.
THENS = ("leaving", "waiting", "starting", "again", "completed", "ended", "went_on")
LEAVING, WAITING, STARTING, AGAIN, COMPLETED, ENDED_SINCE, WENT_ON = THENS


@dataclass(frozen=True, slots=True)
class Held:
    """So much of GPUs that an attempt held from one moment to another. `left_at` is when it was asked to give it back while the rest stayed."""

    gpu_milli: int
    since: datetime
    until: datetime | None
    left_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Loss:
    """Work that has to be done again: how long it took, and thousandths of a GPU times milliseconds. Whole numbers, so that sums are exact."""

    milliseconds: int = 0
    gpu_milli_ms: int = 0

    @property
    def gpu_hours(self) -> float:
        return self.gpu_milli_ms / 3_600_000_000


NOTHING_LOST = Loss()


def loss_of(*, running_at: datetime | None, asked_at: datetime, ended_at: datetime, saved_at: datetime | None, held: Iterable[Held]) -> Loss:
    """What a run had computed that is not in what it goes on from. `saved_at` is when that was saved by the run itself; None: it saved nothing.

    Who saves after having been asked to leave loses nothing, although it still holds its GPUs until it has gone.
    """
    if running_at is None or (saved_at is not None and saved_at >= asked_at):
        return NOTHING_LOST
    begin = max(running_at, saved_at) if saved_at is not None else running_at
    ms = timedelta(milliseconds=1)
    parts = (one.gpu_milli * max(0, (min(one.until or ended_at, ended_at) - max(one.since, begin)) // ms) for one in held)
    return Loss(max(0, (ended_at - begin) // ms), sum(parts))


@dataclass(frozen=True, slots=True)
class For:
    """The job that something was done for. `job` is None where the reader may not know it, or it is gone."""

    job: Job | None


@dataclass(frozen=True, slots=True)
class Eviction:
    """One time that a job was taken off its GPUs, or off some of them."""

    kind: str
    at: datetime
    attempt: int
    cause: str
    code: str  # of the reason; empty where only the sentence is known
    served: For | None
    plan: int | None  # where it is still kept and the reader may see it
    by: str  # a person; empty where the scheduler did it
    grace_seconds: float | None
    left_seconds: float | None  # from being asked to having gone
    gave_back_milli: int | None  # of a gang that shrank and went on
    loss: Loss | None  # None: not known, or not yet
    ran: bool  # its workers were up
    recorded: bool  # when it was asked to leave and what it saved were written down; else nobody knows what was lost
    saved_step: int | None  # that the run itself had saved whole
    saved_in_time: bool  # after it was asked to leave
    partial_step: int | None  # that it began to save after that, and that never became whole
    then: str
    resumed_step: int | None  # None: from the beginning, or not yet
    resumed_at: datetime | None
    waited_seconds: float | None  # from having gone to running again

    @property
    def forced(self) -> bool:
        return self.grace_seconds is not None and self.left_seconds is not None and self.left_seconds >= self.grace_seconds > 0


@dataclass(frozen=True, slots=True)
class Evictions:
    """All of one job, the latest first."""

    rows: tuple[Eviction, ...]

    @property
    def lost(self) -> Loss:
        losses = [row.loss for row in self.rows if row.loss is not None]
        return Loss(sum(loss.milliseconds for loss in losses), sum(loss.gpu_milli_ms for loss in losses))

    @property
    def counts(self) -> dict[str, int]:
        """How often each kind happened, of those that did."""
        kinds = [row.kind for row in self.rows]
        return {kind: kinds.count(kind) for kind in KINDS if kind in kinds}


def _was_put_out(attempt: Attempt, event: JobEvent | None) -> bool:
    """Whether it left to make room or to stand elsewhere: neither ended for good, nor lost with its machine."""
    if not attempt.stop_to:
        return attempt.outcome in PUT_OUT  # from a past that was written down without its moments
    # Who was not up in time, say, is lost as well, and nobody decided that.
    return attempt.stop_to not in ENDED and (attempt.stop_outcome in PUT_OUT or (event is not None and "code" in event.detail))


def _asking(job: Job) -> list[JobEvent]:
    told = Q(to_state=JobState.CHECKPOINTING) & ~Q(from_state=JobState.CHECKPOINTING)
    shrank = Q(from_state=F("to_state"), detail__action="shrink")
    return list(JobEvent.objects.filter(told | shrank, job=job, attempt__isnull=False).order_by("at", "id"))


def _asks(event: JobEvent) -> bool:
    """As `_asking` looks for."""
    if event.from_state == event.to_state:
        return event.attempt_id is not None and event.detail.get("action") == "shrink"
    return event.attempt_id is not None and event.to_state == JobState.CHECKPOINTING


def job_evictions(access: Access, job: Job, attempts: Sequence[Attempt], known: Sequence[JobEvent] | None = None) -> Evictions:
    """`attempts` are all of the job, with what they resumed from; `known` its events, the latest first, where the caller has read all of them.

    Five queries at most, whatever their number; for a job that was let alone one, or none.
    """
    events = _asking(job) if known is None else [event for event in reversed(known) if _asks(event)]
    asked = {event.attempt_id: event for event in events if event.from_state != event.to_state}
    out = [(attempt, event) for attempt in attempts if _was_put_out(attempt, event := asked.get(attempt.pk))]
    notes = [event for event in events if event.from_state == event.to_state]
    if not out and not notes:
        return Evictions(())
    return _Reading(access, job, attempts, [*(event for _, event in out if event is not None), *notes]).evictions(out, notes)


class _Reading:
    """What is looked up once for all rows."""

    def __init__(self, access: Access, job: Job, attempts: Sequence[Attempt], events: Sequence[JobEvent]) -> None:
        self.job = job
        self.attempts = sorted(attempts, key=lambda attempt: attempt.number)
        named = {str(event.detail["for"]) for event in events if event.detail.get("for")}
        self.jobs = jobs_named(access, sorted(named)) if named else {}
        plans = {event.detail["plan"] for event in events if event.detail.get("plan")} if access.can_everywhere(Can.SEE) else set()
        self.plans = set(PlanRecord.objects.filter(pk__in=plans).values_list("pk", flat=True)) if plans else set()

    @cached_property
    def saved(self) -> list[Checkpoint]:
        """In the order in which they became whole."""
        return list(self.job.checkpoints.order_by("verified_at", "step", "id"))

    @cached_property
    def held(self) -> dict[int, list[Held]]:
        found: dict[int, list[Held]] = {}
        grouped = Placement.objects.filter(attempt__job=self.job).order_by().values_list("attempt_id", "since", "until", "leaving_since")
        for key, since, until, left_at, milli in grouped.annotate(milli=Sum("gpu_milli")):
            found.setdefault(key, []).append(Held(milli, since, until, left_at))
        return found

    def _held(self, attempt: Attempt) -> Iterator[Held]:
        """Looked up only if something was lost."""
        yield from self.held.get(attempt.pk, ())

    def evictions(self, out: Sequence[tuple[Attempt, JobEvent | None]], notes: Sequence[JobEvent]) -> Evictions:
        by_key = {attempt.pk: attempt for attempt in self.attempts}
        rows = [self._left(attempt, event) for attempt, event in out]
        rows += [self._shrank(by_key[event.attempt_id], event) for event in notes if event.attempt_id in by_key]
        return Evictions(tuple(sorted(rows, key=lambda row: (row.at, row.attempt), reverse=True)))

    def _facts(self, event: JobEvent | None) -> dict[str, Any]:
        detail: Mapping[str, Any] = event.detail if event is not None else {}
        return {
            "code": str(detail.get("code", "")),
            "served": For(self.jobs.get(str(detail["for"]))) if detail.get("for") else None,
            "plan": detail["plan"] if detail.get("plan") in self.plans else None,
            "by": event.actor_name if event is not None and event.actor_name != SYSTEM.name else "",
        }

    def _shrank(self, attempt: Attempt, event: JobEvent) -> Eviction:
        """A gang that gave some workers back and went on: what those had computed is with the rest, for all that is known."""
        return Eviction(
            kind=SHRUNK,
            at=event.at,
            attempt=attempt.number,
            cause=event.cause,
            **self._facts(event),
            grace_seconds=None,
            left_seconds=None,
            gave_back_milli=sum(one.gpu_milli for one in self.held.get(attempt.pk, ()) if one.left_at == event.at),
            loss=None,
            ran=attempt.running_at is not None,
            recorded=True,
            saved_step=None,
            saved_in_time=False,
            partial_step=None,
            then=WENT_ON,
            resumed_step=None,
            resumed_at=None,
            waited_seconds=None,
        )

    def _left(self, attempt: Attempt, event: JobEvent | None) -> Eviction:
        end = attempt.ended_at
        at = attempt.stop_asked_at or (event.at if event is not None else None) or end or attempt.started_at
        facts = self._facts(event)
        after = self._after(attempt)
        saved = after.resumed_from if after is not None else self._newest()
        own = saved if saved is not None and saved.attempt_id == attempt.pk else None
        again = after.running_at if after is not None else None
        completed, recorded = attempt.outcome == "completed", attempt.stop_asked_at is not None or own is not None
        in_time = own is not None and own.reported_at >= at
        return Eviction(
            kind=self._kind(attempt, event, facts["by"]),
            at=at,
            attempt=attempt.number,
            cause=attempt.stop_cause or (event.cause if event is not None else attempt.cause),
            **facts,
            grace_seconds=(attempt.stop_until - at).total_seconds() if attempt.stop_until is not None else None,
            left_seconds=(end - at).total_seconds() if end is not None else None,
            gave_back_milli=None,
            loss=None if end is None or not recorded else NOTHING_LOST if completed else self._loss(attempt, at, end, own),
            ran=attempt.running_at is not None,
            recorded=recorded,
            saved_step=own.step if own is not None else None,
            saved_in_time=in_time,
            partial_step=None if in_time or not recorded else self._begun(attempt, own),
            then=self._then(end, completed=completed, after=after),
            resumed_step=saved.step if after is not None and saved is not None else None,
            resumed_at=again,
            waited_seconds=(again - end).total_seconds() if again is not None and end is not None else None,
        )

    def _begun(self, attempt: Attempt, own: Checkpoint | None) -> int | None:
        begun = [one.step for one in self.saved if one.attempt_id == attempt.pk and one.verified_at is None and (own is None or one.step > own.step)]
        return max(begun, default=None)

    def _loss(self, attempt: Attempt, at: datetime, end: datetime, own: Checkpoint | None) -> Loss:
        saved_at = own.reported_at if own is not None else None
        return loss_of(running_at=attempt.running_at, asked_at=at, ended_at=end, saved_at=saved_at, held=self._held(attempt))

    def _after(self, attempt: Attempt) -> Attempt | None:
        """The run that went on: the next that came up, or else the next."""
        later = [one for one in self.attempts if one.number > attempt.number]
        return next((one for one in later if one.running_at is not None), later[0] if later else None)

    def _newest(self) -> Checkpoint | None:
        """What it would go on from now."""
        whole = [one for one in self.saved if one.verified_at is not None and one.removed_at is None]
        return whole[-1] if whole else None

    def _kind(self, attempt: Attempt, event: JobEvent | None, by: str) -> str:
        if (attempt.outcome if attempt.outcome in PUT_OUT else attempt.stop_outcome) != "moved":
            return RESTARTED if by else EVICTED
        return _RESIZED.get(str(event.detail.get("action", "")) if event is not None else "", MOVED)

    def _then(self, end: datetime | None, *, completed: bool, after: Attempt | None) -> str:
        if end is None:
            return LEAVING
        if completed:
            return COMPLETED
        if after is None:
            return ENDED_SINCE if self.job.state in ENDED else WAITING
        if after.running_at is not None:
            return AGAIN
        return STARTING if after.ended_at is None else ENDED_SINCE if self.job.state in ENDED else WAITING
