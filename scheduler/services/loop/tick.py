"""One look at everything: what happened, what is due, what should change now, and telling the back-ends.

The order is fixed: observe, timers, promises, snapshot, plan, apply (one transaction), dispatch, record. Whoever is killed at any line leaves nothing
half: each step is whole by itself, and the next tick, here or elsewhere, goes on from what is committed (docs/adr/0006).
"""

import gc
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache

from django.db import Error, connection, transaction
from django.db.models import Q

from gpufleet.core.live.news import News
from gpufleet.core.prepared import Prepared
from gpufleet.core.spans import span, traced
from scheduler.backends.base import Backend
from scheduler.engine.cycle import make_plan
from scheduler.engine.model.plan import Plan
from scheduler.engine.rules.invariants import InvariantBroken
from scheduler.loop.policy import Policy, fairness_now, policy, without_splitting
from scheduler.models import Job, Outlook, PlanRecord
from scheduler.models import Lease as LeaseRow
from scheduler.services.defragmenting import Leave, leave_now, moves_count, settings_with
from scheduler.services.forecasts.outlooks import outlooks_write, told_by, told_left_out, told_undue
from scheduler.services.loop.applying import Applied, plan_apply
from scheduler.services.loop.lease import TICK, Fenced, Lease, lease_done, lease_kept, lease_lost, lease_release, lease_take, session_bounded
from scheduler.services.loop.past import past_usage_take, step_begin
from scheduler.services.loop.plans import QUIET, QUIET_SCENARIO, Packer, plan_record, plan_record_finish
from scheduler.services.loop.promises import promises_take
from scheduler.services.loop.relief import Look, relief_confirm, relief_look, relief_write, return_next
from scheduler.services.loop.steps import Steps, jobs_locked
from scheduler.services.loop.story import plan_tell, within_plan, within_tick
from scheduler.services.loop.timers import demand_next, timers_next, timers_run
from scheduler.services.windows.turn import windows_next, windows_turn
from scheduler.snapshots import Snapshot, Snapshots
from scheduler.snapshots.jobs import barred_quotas
from scheduler.snapshots.windows import next_turn

# A tick leaves one or two thousand; the first one of a process a hundred times as many.
YOUNG_OBJECTS = 20_000
# A job over which the engine's own check failed is planned around for so long.
ASIDE = timedelta(minutes=10)
MOST_ASIDE_A_TICK = 5
# After a plan that failed as a whole.
AFTER_FAULT = timedelta(seconds=30)
MOST_DROP_DELAY = timedelta(seconds=30)
# What says that it was submitted so much later than now was so by a clock that is wrong.
A_WRONG_CLOCK_MS = 60_000
# A look that took so long is traced though it planned nothing.
SLOW_MS = 500
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LEASE: Prepared[tuple[int, int, datetime | None, datetime | None]] = Prepared(
    lambda: LeaseRow.objects.filter(name=TICK).values_list("wanted", "done", "paused_at", "next_wake_at")
)
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TickResult:
    led: bool  # False: somebody else does
    planned: bool = False
    wishes: int = 0  # how often somebody had asked for a plan since the one before
    decided: int = 0
    dropped: int = 0
    again: bool = False  # something asks for another look at once
    next_at: datetime | None = None  # when the next thing is known to be due
    fault: str = ""
    record_id: int | None = None
    phases: Mapping[str, int] = field(default_factory=dict)


@cache
def collect_seldom() -> None:
    """Let the garbage collector of this process look seldom. Each full round of it goes through all that is remembered from tick to tick, which takes
    a tenth of a second with 6,000 jobs, came in every fourth tick, and found nothing."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 20, 20)


def collect_meanwhile() -> None:
    """Between ticks, when nobody waits: what is young is looked through now, so that it need not be inside one."""
    if gc.get_count()[0] > YOUNG_OBJECTS:
        gc.collect(0)


class Memory:
    """What one process keeps from tick to tick to be sooner. Losing it costs time, never truth."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.snapshots = Snapshots()
        self.packer = Packer()
        self.told: dict[int, int | None] | None = None  # by job: the revision of which it was told; None: not known
        self.recorded_at: datetime | None = None
        self.scenario_at: datetime | None = None
        self.drops = 0  # ticks in a row that had to drop something


class Phases:
    """How long each part took, in whole milliseconds."""

    def __init__(self) -> None:
        self.millis: dict[str, int] = {}

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            with span(name):
                yield
        finally:
            self.millis[name] = self.millis.get(name, 0) + round(1000 * (time.perf_counter() - began))


def tick_run(
    *,
    holder: str,
    now: datetime,
    backends: Mapping[int, Backend],
    memory: Memory | None = None,
    force: bool = False,
    clock: Callable[[], datetime] | None = None,
) -> TickResult:
    """One tick at `now`, if nobody else leads. Without a wish and before the next wake it takes no snapshot, unless `force`.

    With a `clock` the lease is renewed by it while the tick lasts, however long that is, and orders are done when it says that they were taken; all
    else is decided and written for the one moment.
    """
    with traced("tick", holder=holder) as trace:
        result = _tick_run(holder, now, backends, memory or Memory(), clock, force=force)
        trace.attributes |= {"decided": result.decided, "dropped": result.dropped, "wishes": result.wishes}
        if result.record_id is not None:
            trace.attributes["plan"] = result.record_id
        trace.fault = result.fault
        trace.told = result.planned or bool(result.fault) or sum(result.phases.values()) >= SLOW_MS
    return result


def _tick_run(
    holder: str, now: datetime, backends: Mapping[int, Backend], memory: Memory, clock: Callable[[], datetime] | None, *, force: bool
) -> TickResult:
    lease = lease_take(name=TICK, holder=holder, now=now)
    if lease is None:
        return TickResult(led=False)
    tick = _Tick(lease, now, backends, memory, policy(), clock)
    try:
        with session_bounded(), within_tick(epoch=lease.epoch), lease_kept(lease=lease, clock=clock) if clock else nullcontext():
            result = tick.run(force)
    except (Fenced, Error) as fault:
        # A session that the database ended while we were stopped: by then another one leads.
        if not isinstance(fault, Fenced) and (connection.in_atomic_block or not lease_lost(lease=lease)):
            raise
        log.warning("%s", fault)
        return TickResult(led=False, fault=str(fault), phases=tick.phases.millis)
    finally:
        again = lease_release(lease=lease, now=now)
    return replace(result, again=result.again or again)


class _Tick:
    def __init__(
        self, lease: Lease, now: datetime, backends: Mapping[int, Backend], memory: Memory, chosen: Policy, clock: Callable[[], datetime] | None
    ) -> None:
        self.lease = lease
        self.now = self.moment = now
        self.backends = backends
        self.memory = memory
        self.policy = chosen
        self.fairness = chosen.engine.fairness
        self.clock = clock
        self.engine = chosen.engine
        self.leave: Leave | None = None
        if backends and not any(backend.facts.creates_mig for backend in backends.values()):
            self.engine = without_splitting(self.engine)
        self.phases = Phases()

    def run(self, force: bool) -> TickResult:
        with self.phases.of("observe"):
            self._observe()
        with self.phases.of("timers"):
            self._timers()
        if not self.lease.paused:
            with self.phases.of("promises"):
                promises_take(now=self.now)
        result, tell = self._decide() if self._due(force) else (TickResult(led=True), None)
        with self.phases.of("dispatch"):
            self._dispatch()
        # Packing what the plan was made from takes as long as deciding: back-ends are told first.
        if tell is not None:
            with self.phases.of("record"):
                tell()
        with self.phases.of("ahead"):
            next_at = self._next_at()
        return replace(result, wishes=self.lease.wanted - self.lease.done, next_at=next_at, phases=dict(self.phases.millis))

    def _observe(self) -> None:
        if not self.backends:
            return
        from scheduler.services.loop.observe import runs_observe

        runs_observe(backends=self.backends, now=self.now)

    def _dispatch(self) -> None:
        if not self.backends:
            return
        from scheduler.services.loop.dispatch import orders_dispatch

        orders_dispatch(backends=self.backends, now=self.moment, clock=self.clock)

    def _timers(self) -> None:
        news = News()
        timers_run(now=self.now, policy=self.policy, news=news)
        news.publish()
        chosen = self.policy
        windows_turn(now=self.now, snapshots=self.memory.snapshots, settings=chosen.engine, start_timeout=chosen.start_timeout)

    def _due(self, force: bool) -> bool:
        """Whether a plan is wanted. Read anew, as what was just observed may have asked for one."""
        row = LEASE.first()
        assert row is not None, "its row was taken"
        wanted, done, paused_at, next_wake_at = row
        self.lease = replace(self.lease, wanted=wanted, done=done)
        if paused_at is not None:
            return False
        return force or wanted > done or (next_wake_at is not None and next_wake_at <= self.now)

    def _next_at(self) -> datetime | None:
        times = [timers_next(now=self.now, policy=self.policy), windows_next(now=self.now)]
        times += [backend.next_event_at(now=self.now) for backend in self.backends.values()]
        times += [next_wake_at for _, _, _, next_wake_at in LEASE()]
        return min((at for at in times if at is not None and at > self.now), default=None)

    # Deciding

    def _decide(self) -> tuple[TickResult, Callable[[], None] | None]:
        """What came of it, and what is left to write down about it once the back-ends have been told."""
        with self.phases.of("snapshot"):
            self.fairness = fairness_now(self.policy.engine)
            past_usage_take(now=self.now, fairness=self.fairness)
            self.leave = leave_now(now=self.now)
            engine = settings_with(self.engine, self.leave, now=self.now)
        for _ in range(MOST_ASIDE_A_TICK):
            with self.phases.of("snapshot"):
                snapshot = self.memory.snapshots.take(settings=engine, now=self.now, start_timeout=self.policy.start_timeout)
            try:
                with self.phases.of("plan"):
                    plan = make_plan(snapshot.scenario, snapshot.kept)
            except InvariantBroken as broken:
                record = self._broken(snapshot, f"An invariant did not hold: {broken}.")
                seen = snapshot.jobs.get(broken.job or "")
                if seen is None or not self._set_aside(seen.id, str(broken)):
                    return TickResult(led=True, planned=True, fault=str(broken), record_id=record.pk), None
                continue
            except Exception as error:
                log.exception("The engine failed")
                record = self._broken(snapshot, f"The engine failed: {error!r}")
                return TickResult(led=True, planned=True, fault=repr(error), record_id=record.pk), None
            with self.phases.of("plan"):
                look = relief_look(snapshot=snapshot, plan=plan, silent=self._silent(snapshot), now=self.now)
            return self._carry_out(snapshot, plan, look)
        return TickResult(led=True, planned=True, fault="Too many jobs had to be set aside.", again=True), None

    def _silent(self, snapshot: Snapshot) -> Collection[int]:
        """Clusters that do not answer, also those of which that is not written down yet; asked only where it matters."""
        if snapshot.relief is None:
            return ()
        from scheduler.services.loop.observe import TOLD_SILENT

        return {cluster for cluster, _ in TOLD_SILENT()} | set(getattr(self.backends, "silent", ()))

    def _carry_out(self, snapshot: Snapshot, plan: Plan, look: Look) -> tuple[TickResult, Callable[[], None]]:
        record: PlanRecord | None = None
        applied = Applied((), ())
        with self.phases.of("apply"), transaction.atomic():
            news = News()
            look = relief_confirm(look=look, plan=plan)
            plan = look.with_it(plan)
            decisions = [decision for decision in plan.decisions if decision.action != "reserve"]
            facts = {cluster: backend.facts for cluster, backend in self.backends.items()}
            if decisions or self._record_due():
                record = plan_record(lease=self.lease, plan=plan, now=self.now, phases={})
                news.add("plans", record.pk)
            if decisions:
                plan_id = record.pk if record is not None else None
                with within_plan(plan_id):
                    # The back-ends are told as of that moment, too: it is when their orders are due.
                    self.moment = self._moment_of(plan, snapshot)
                    applied = plan_apply(plan=plan, snapshot=snapshot, lease=self.lease, now=self.moment, facts=facts, news=news, plan_id=plan_id)
                if self.leave is not None:
                    moved = sum(decision.action == "move" and decision.why.code == "consolidate" for decision in applied.done)
                    moves_count(leave=self.leave, moved=moved, now=self.now)
            relief_write(look=look, done=applied.done, plan_id=record.pk if record is not None else None, news=news, now=self.now)
            wake = self._wake(plan, applied, snapshot)
            if record is not None:
                record.dropped = [decision.as_json() | {"dropped": why} for decision, why in applied.not_done]
                record.next_wake_at = wake
            news.publish()
            lease_done(lease=self.lease, next_wake_at=wake)
        result = TickResult(
            led=True,
            planned=True,
            decided=len(applied.done),
            dropped=len(applied.dropped),
            again=self.memory.drops == 1,
            record_id=record.pk if record is not None else None,
        )

        def tell() -> None:
            self._tell(snapshot, plan, applied)
            self._finish(record, snapshot, bool(decisions))
            told = {"decided": len(applied.done), "dropped": len(applied.dropped), "waiting": len(plan.waiting)}
            plan_tell(plan=result.record_id, phases=self.phases.millis, **told)

        return result, tell

    def _moment_of(self, plan: Plan, snapshot: Snapshot) -> datetime:
        """The moment of what this plan does: no job begins before it was submitted, though the tick had begun by then."""
        now = snapshot.scenario.now
        came = {name: submitted for name, submitted in snapshot.came.items() if submitted <= now + A_WRONG_CLOCK_MS}
        later = max((came[decision.job] for decision in plan.decisions if decision.job in came), default=None)
        return self.now if later is None else EPOCH + timedelta(milliseconds=later)

    def _wake(self, plan: Plan, applied: Applied, snapshot: Snapshot) -> datetime | None:
        """When to plan again though nobody asks. What was dropped is planned anew: at once, then at growing distances, should it stay so."""
        times = [demand_next(now=self.now), next_turn(snapshot.calendar, self.now)]
        self.memory.drops = self.memory.drops + 1 if applied.asks_again else 0
        if self.memory.drops:
            times.append(self.now + min(MOST_DROP_DELAY, timedelta(seconds=2 ** (self.memory.drops - 1) - 1)))
        fairness = self.fairness
        if plan.waiting and fairness.usage_weight_millionths and fairness.step_ms:
            times.append(step_begin(self.now, fairness) + timedelta(milliseconds=fairness.step_ms))
        if self.leave is not None:
            times.append(self.leave.starts_at if self.leave.starts_at > self.now else self.leave.ends_at)
        if snapshot.relief is not None:
            times.append(return_next(now=self.now))
        if plan.next_wake is not None:
            times.append(EPOCH + timedelta(milliseconds=plan.next_wake))
        return min((at for at in times if at is not None), default=None)

    def _record_due(self) -> bool:
        last = self.memory.recorded_at
        return last is None or not timedelta(0) <= self.now - last < QUIET

    def _finish(self, record: PlanRecord | None, snapshot: Snapshot, decided: bool) -> None:
        if record is None:
            return
        last = self.memory.scenario_at
        if decided or last is None or not timedelta(0) <= self.now - last < QUIET_SCENARIO:
            record.scenario = self.memory.packer.pack(snapshot.scenario)
            self.memory.scenario_at = self.now
        record.phases = dict(self.phases.millis)
        plan_record_finish(record=record)
        self.memory.recorded_at = self.now

    def _tell(self, snapshot: Snapshot, plan: Plan, applied: Applied) -> None:
        """Say to those who are new among the waiting why they wait, and to those that were changed. The others are told by the forecast, now and
        then."""
        memory = self.memory
        if memory.told is None:
            memory.told = dict.fromkeys(Outlook.objects.values_list("job_id", flat=True))
        known, rows = memory.told, snapshot.jobs
        waiting = list(snapshot.calendar.told(plan.waiting))
        told = told_by((one for one in waiting if rows[one.job].id not in known), snapshot)
        told |= {key: said for key, said in told_left_out(snapshot).items() if key not in known}
        if barred := barred_quotas():  # the engine is not shown who waits there
            told |= told_undue(now=self.now, among=Q(quota__in=barred, outlook__isnull=True))
        if told:
            outlooks_write(told=told, now=self.now, forecast=False)
        # What was foreseen was of the job as it was.
        changed = [one for one in waiting if known.get(rows[one.job].id) not in (None, rows[one.job].revision)]
        if changed:
            outlooks_write(told=told_by(changed, snapshot), now=self.now, forecast=False, forget=True)
        known |= dict.fromkeys(told) | {rows[one.job].id: rows[one.job].revision for one in waiting}
        for decision in applied.done:
            if decision.job:
                known.pop(rows[decision.job].id, None)

    # When the engine must not be believed

    def _broken(self, snapshot: Snapshot, fault: str) -> PlanRecord:
        """Write nothing but why, with the scenario to find out. What is remembered from plan to plan is suspect, too."""
        log.error("%s Nothing was written.", fault)
        packed = Packer().pack(snapshot.scenario)
        self.memory.forget()
        with transaction.atomic():
            record = plan_record(lease=self.lease, plan=None, now=self.now, phases=self.phases.millis, fault=fault)
            record.scenario, record.next_wake_at = packed, self.now + AFTER_FAULT
            plan_record_finish(record=record)
            news = News()
            news.add("plans", record.pk)
            news.publish()
            lease_done(lease=self.lease, next_wake_at=self.now + AFTER_FAULT)
        return record

    def _set_aside(self, job_id: int, why: str) -> bool:
        """Plan without this job for a while. False: it is set aside already, so the fault is not its own."""
        news = News()
        with transaction.atomic():
            steps = Steps(now=self.now)
            job: Job = jobs_locked([job_id])[job_id]
            if job.set_aside_until is not None and job.set_aside_until > self.now:
                return False
            steps.note(job, f"Planned without it for {ASIDE.total_seconds() / 60:g} min: {why}.", set_aside_until=self.now + ASIDE)
            steps.write(news)
            news.publish()
        return True
