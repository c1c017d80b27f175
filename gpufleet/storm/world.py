"""The storm itself: happenings on a clock, schedulers that come and go, and a look at everything after each step."""

import heapq
import math
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

from django.core.exceptions import ValidationError
from django.db import OperationalError, connection, transaction
from django.utils import timezone

from gpufleet.core.audit import SYSTEM
from gpufleet.core.faults import Conflict
from gpufleet.core.times import millis, whole_millis
from gpufleet.storm.edits import EDITED, EDITS_A_DAY
from gpufleet.storm.fleet import EVERYTHING, TEAMS, TYPE, Fleet, fleet_make, job_drawn, part_drawn
from gpufleet.storm.policy import POLICY_A_DAY, QUIET_POLICY, PolicyStorm, policy_made
from gpufleet.storm.promises import Promises
from gpufleet.storm.reaper import AFTER_SNAPSHOT, Killed, Reaper
from gpufleet.storm.safety import Plans, Unsafe, gap_faults, history_faults, present_faults, stuck_jobs
from quotas.models import QuotaNode
from quotas.rules import Share
from quotas.services.ledger import ledger_hour
from quotas.services.nodes import node_update, node_values
from scheduler.backends.faults import NO_FAULTS, FaultPlan
from scheduler.backends.registry import Backends
from scheduler.backends.simulated import MemoryStore, SimulatedBackend
from scheduler.models import ENDED, Attempt, Gpu, Health, Job, JobState, Node, PlanRecord
from scheduler.services.hardware.hardware import gpu_health_change, node_health_change
from scheduler.services.jobs.jobs import job_create, job_hold, job_let_go, job_stop
from scheduler.services.loop.lease import LEASE_SECONDS, lease_pause, lease_resume
from scheduler.services.loop.tick import Memory, TickResult, tick_run
from scheduler.services.loop.usage import timeline_review
from scheduler.simulation.progress import Life

# The night in which clocks in Berlin are set back lies in the first day.
START = datetime(2026, 10, 24, 14, 0, tzinfo=UTC)
ZONE = ZoneInfo("Europe/Berlin")
BEAT = timedelta(seconds=1)
CALM = timedelta(hours=48)  # for what still waits to be done after the last fault
STEPS_BETWEEN_LOOKS_BACK = 400
GAP_EVERY = 4  # steps between looks at the utilization gap; to look at each step takes half as much time again
STORY = 80

# What a stormy day must at least have seen; a calmer one proves nothing.
LEAST_SUBMISSIONS, LEAST_EVICTIONS, LEAST_FAULTS, LEAST_KINDS, LEAST_NODES = 150, 30, 20, 8, 16
FAULTS_A_DAY = {
    "killed tick": 8,
    "killed after an order": 4,
    "killed submission": 2,
    "database error": 3,
    "two schedulers": 4,
    "people in between": 3,
    "node lost": 3,
    "GPU fell out": 2,
    "node drained": 2,
    "back-end silent": 2,
    "orders refused": 2,
    "orders time out": 2,
    "orders twice": 2,
    "runs hidden": 2,
    "clock skew": 2,
    "call doubled": 2,
    "scheduler paused": 1,
    "tree changed": 2,
}
PUT_OUT = ("preempted", "moved")
ORDERS = ("start", "resize", "signal", "stop")
# Nobody has to decide anything after these.
QUIET = ("review", "full hour", "clock skew", "barometer", QUIET_POLICY)
# So many hours into a day it is looked whether enough was evicted by then; where not, the next flood comes early.
BAROMETER_HOURS = (12, 14, 16, 18, 20, 22)


class Mortal:
    """A back-end as one process sees it: before and after every call that process may die."""

    def __init__(self, inner: SimulatedBackend, reaper: Reaper) -> None:
        self._inner, self._reaper = inner, reaper

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found) or name in ("together", "next_event_at"):
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            self._reaper.step(f"killed before the back-end was told: {name}")
            answer = found(*arguments, **named)
            if name in ORDERS:
                self._reaper.order_told()
            self._reaper.step(f"killed after the back-end was told: {name}")
            return answer

        return call


class Watched(Memory):
    """What a scheduler remembers; the reaper hears of every snapshot that it takes."""

    def __init__(self, reaper: Reaper) -> None:
        self._reaper = reaper
        super().__init__()

    def forget(self) -> None:
        super().forget()
        take = self.snapshots.take

        def taken(**named: Any) -> Any:
            snapshot = take(**named)
            self._reaper.snapshot_taken()
            return snapshot

        self.snapshots.take = taken  # type: ignore[method-assign]


@dataclass
class Process:
    """A scheduler: its name, what it remembers, and how far its clock is off."""

    name: str
    backends: Backends
    memory: Memory
    skew: timedelta = timedelta(0)


@dataclass(frozen=True)
class Report:
    seed: int
    days: int
    ticks: int
    plans: int
    jobs: int
    completed: int
    evictions: int
    faults: dict[str, int]
    struck: int
    writes: int
    nodes: int
    thin_days: list[str]
    policy: dict[str, int]
    digest: int

    @property
    def kinds(self) -> int:
        return len(self.faults)


class World:
    def __init__(
        self,
        *,
        seed: int,
        days: int = 2,
        hours: int = 0,
        parts: float = 0.0,
        faults: Mapping[str, int] = FAULTS_A_DAY,
        look_back_every: int = STEPS_BETWEEN_LOOKS_BACK,
        gap_every: int = GAP_EVERY,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        """`parts` is how many of the small jobs ask for parts of GPUs.

        `hours`: the storm ends so long after its beginning, and what happens on a day to quotas, windows and budgets happens in that time.

        `faults` says how often each kind strikes on a day; a storm that is to find something says more of it, and looks back more often.
        """
        self._look_back_every, self._gap_every = look_back_every, gap_every
        self.seed, self.days, self._faults_a_day = seed, days, faults
        self.rng = Random(seed)  # noqa: S311
        # Drawn apart, so that a storm without parts is the one that it would be if there were none.
        self._parts, self._parts_rng = parts, Random(f"parts of {seed}")  # noqa: S311
        self.clock = START
        self.end = START + (timedelta(hours=hours) if hours else timedelta(days=days))
        self._hours = hours
        self.reaper = Reaper()
        self.story: list[str] = []
        self.digest = seed
        self._tell = tell
        self._heap: list[tuple[datetime, int, str, Callable[[], None]]] = []
        self._numbers = 0
        self._tick_at: datetime | None = None
        self._steps = self._ticks = self._struck = 0
        self._plans, self._promises = Plans(), Promises()
        self._restarts = 0
        self.faults: list[tuple[datetime, str]] = []
        with transaction.atomic():
            self.fleet: Fleet = fleet_make(now=START)
        self.policy = PolicyStorm(seed, self._now, self.tell)
        self.store = MemoryStore()
        self.backend = SimulatedBackend(self.store, speed_of=lambda node: TYPE)
        self.processes = [self._process("north"), self._process("south")]

    # Telling

    def tell(self, words: str) -> None:
        line = f"{self.clock:%m-%d %H:%M:%S.%f}"[:-3] + f"  {words}"
        self.digest = hash_of(self.digest, line)
        self.story = [*self.story[-STORY + 1 :], line]
        if self._tell is not None:
            self._tell(line)

    def told(self) -> str:
        return "\n".join(self.story)

    # The clock

    def at(self, moment: datetime, what: str, act: Callable[[], None]) -> None:
        self._numbers += 1
        heapq.heappush(self._heap, (whole_millis(moment), self._numbers, what, act))

    def after(self, what: str, act: Callable[[], None], **length: float) -> None:
        self.at(self.clock + timedelta(**length), what, act)

    def run(self) -> Report:
        """The storm, and the calm after it. `Unsafe` where something must not have been."""
        try:
            with timezone.override(ZONE):
                self._weather()
                self._until(self.end)
                report = self._report()
                self._calm()
                self._until(self.end + CALM, stop=lambda: not self._anything_open())
                self._look_back()
                if stuck := stuck_jobs():
                    raise Unsafe("After the storm this is stuck: " + "; ".join(stuck[:12]))
        except Unsafe as fault:
            raise Unsafe(f"Seed {self.seed}, {self.clock:%Y-%m-%d %H:%M:%S} UTC: {fault}\n\n{self.told()}") from fault.__cause__
        return report

    def _until(self, end: datetime, stop: Callable[[], bool] | None = None) -> None:
        while True:
            due = min((moment for moment in (self._heap[0][0] if self._heap else None, self._tick_at) if moment is not None), default=None)
            if due is None or due > end:
                break
            self.clock = max(self.clock, due)
            what = "tick"
            if self._heap and self._heap[0][0] <= due:
                _, _, what, act = heapq.heappop(self._heap)
                self._happen(what, act)
                if what not in QUIET:
                    # The hint that a service sends after its commit; now and then it is lost, and beat's next look has to do.
                    self._tick_soon(0.02 if self.rng.random() < 0.9 else 1.0)
            else:
                self._tick_at = None
                self._tick(self.rng.choice(self.processes))
            self._look(edited=what in EDITED or what == QUIET_POLICY)
            if stop is not None and self._steps % 20 == 0 and stop():
                break
        self.clock = max(self.clock, min(end, self.clock + timedelta(0)))

    def _tick_soon(self, seconds: float) -> None:
        moment = whole_millis(self.clock + timedelta(seconds=seconds))
        self._tick_at = moment if self._tick_at is None else min(self._tick_at, moment)

    # What happens

    def _weather(self) -> None:
        for day in range(self.days):
            begin = START + timedelta(days=day)
            for moment, large, count, team in self._submissions(begin):
                self.at(moment, "submit", lambda large=large, count=count, team=team: self._submit(large, count, team))  # type: ignore[misc]
            for kind, times in self._faults_a_day.items():
                for _ in range(times):
                    self.at(begin + timedelta(days=self.rng.random()), kind, lambda kind=kind: self._strike(kind))  # type: ignore[misc]
            for _ in range(5):
                self.at(begin + timedelta(days=self.rng.random()), "cancel", self._cancel)
            for _ in range(4):
                self.at(begin + timedelta(days=self.rng.random()), "hold", self._hold)
            for number in range(24):
                self.at(begin + timedelta(hours=number, minutes=20, seconds=7), "review", lambda: _ignore(timeline_review(now=self._now())))
            for hours in BAROMETER_HOURS:
                self.at(begin + timedelta(hours=hours), "barometer", lambda begin=begin, hours=hours: self._rouse(begin, hours))  # type: ignore[misc]
            for moment, kind, act in self.policy.of_day(begin, timedelta(hours=self._hours or 24)):
                self.at(moment, kind, act)
        self._local_hours()
        if self._hours:
            self._heap = [one for one in self._heap if one[0] <= self.end]
            heapq.heapify(self._heap)

    def _submissions(self, begin: datetime) -> Iterator[tuple[datetime, bool, int, int]]:
        """Single jobs all day; every two hours one team floods the fleet with batch work, and the others want their guarantees back soon after."""
        rng = self.rng
        for _ in range(60):
            yield begin + timedelta(days=rng.random()), False, 1, rng.randrange(len(TEAMS))
        for hour in range(0, 24, 2):
            yield from _flood(rng, begin + timedelta(hours=hour), 50)

    def _rouse(self, begin: datetime, hours: int) -> None:
        """A day whose floods happened to put out few has another one: a calm day proves nothing."""
        if self._evicted_since(begin) < LEAST_EVICTIONS * hours / 24 + 2:
            for moment, large, count, team in _flood(Random(f"{self.seed} {begin} {hours}"), self.clock, 20):  # noqa: S311 (no secret)
                self.at(moment, "submit", lambda large=large, count=count, team=team: self._submit(large, count, team))  # type: ignore[misc]

    def _evicted_since(self, begin: datetime) -> int:
        return Attempt.objects.filter(outcome__in=PUT_OUT, ended_at__gte=begin).count()

    def _local_hours(self) -> None:
        """At each full hour of the clock on the wall: the classes are decided anew, and jobs wait for an hour that comes twice or not at all."""
        hour = START.replace(minute=0)
        while hour < self.end:
            hour += timedelta(hours=1)
            self.at(hour, "full hour", lambda: _ignore(ledger_hour(now=self._now())))
        night = datetime(2026, 10, 25, 2, 30, tzinfo=ZONE)
        for fold in (0, 1):
            due = night.replace(fold=fold)
            self.at(START + timedelta(hours=1, minutes=fold), "submit for the night", lambda due=due: self._submit(False, 2, 0, not_before=due))  # type: ignore[misc]

    def _happen(self, what: str, act: Callable[[], None]) -> None:
        try:
            act()
        except (Conflict, ValidationError) as refused:
            self.tell(f"{what}: refused, {refused}")

    def _now(self) -> datetime:
        return whole_millis(self.clock)

    def _submit(self, large: bool, count: int, team: int, not_before: datetime | None = None) -> None:
        drawn = [self._in_parts(job_drawn(self.rng, large=large), large) for _ in range(count)]
        quota = self.fleet.teams[team]
        with self.reaper.watching():
            try:
                names = [self._hand_in(quota, dict(facts), not_before) for facts in drawn]
                self.tell(f"{quota.name} submits {', '.join(names)}")
            except Killed as killed:
                # Whoever handed it in got no answer, and asks again.
                self._struck += 1
                self.tell(f"submission of {quota.name}: {killed}")
                self.after("submit again", lambda: self._submit(large, count, team, not_before), seconds=3)
            except OperationalError as fault:
                self._struck += 1
                self.tell(f"submission of {quota.name}: {fault}")
                self.after("submit again", lambda: self._submit(large, count, team, not_before), seconds=3)

    def _in_parts(self, facts: dict[str, Any], large: bool) -> dict[str, Any]:
        return part_drawn(self._parts_rng, facts) if not large and self._parts_rng.random() < self._parts else facts

    def _hand_in(self, quota: QuotaNode, facts: dict[str, Any], not_before: datetime | None) -> str:
        """One job, all of it in one transaction as the submission service does."""
        later = {name: facts.pop(name) for name in ("launch", "retry_limit")} | ({"not_before": not_before} if not_before else {})
        with transaction.atomic():
            job = job_create(name="storm", quota=quota, owner=None, now=self._now(), actor=SYSTEM, **facts)
            Job.objects.filter(pk=job.pk).update(**later)
        return job.public_id

    def _cancel(self) -> None:
        jobs = list(Job.objects.exclude(state__in=ENDED).order_by("id").values_list("pk", flat=True))
        if jobs:
            job = Job.objects.get(pk=self.rng.choice(jobs))
            self.tell(f"{job.public_id} is cancelled, it was {job.state}")
            job_stop(job=job, to=JobState.CANCELLED, outcome="cancelled", cause="Not wanted any more.", now=self._now())

    def _cancel_waiting(self) -> None:
        for job in Job.objects.filter(state=JobState.QUEUED).order_by("-id")[:2]:
            self.tell(f"{job.public_id} is cancelled while a plan is made")
            job_stop(job=job, to=JobState.CANCELLED, outcome="cancelled", cause="Handed in by mistake.", now=self._now())

    def _hold(self) -> None:
        jobs = list(Job.objects.filter(state=JobState.QUEUED, held_at__isnull=True).order_by("id").values_list("pk", flat=True))
        if jobs:
            job = Job.objects.get(pk=self.rng.choice(jobs))
            self.tell(f"{job.public_id} is held back for half an hour")
            job_hold(job=job, now=self._now())
            self.after("released", lambda: self._let_go(job.pk), minutes=30)

    def _let_go(self, key: int) -> None:
        job = Job.objects.get(pk=key)
        if job.held_at is not None:
            job_let_go(job=job, now=self._now())

    # Faults

    def _strike(self, kind: str) -> None:
        self.faults.append((self.clock, kind))
        rng = self.rng
        match kind:
            case "killed tick" | "killed submission":
                # Between any two writes: nearly all ticks write a few, some write many.
                self.reaper.kill_after = 1 + int(rng.expovariate(1 / 12))
            case "killed after an order":
                # Between its being told and the note of that: another process tells it again.
                self.reaper.kill_after_order = rng.randint(1, 5)
            case "database error":
                self.reaper.fail_after = 1 + int(rng.expovariate(1 / 25))
            case "two schedulers" | "people in between":
                self._interrupt(kind)
            case "node lost":
                self._lose(rng.choice(self.fleet.nodes))
            case "GPU fell out":
                self._gpu_out(rng.choice(self.fleet.nodes))
            case "node drained":
                self._drain(rng.choice(self.fleet.nodes))
            case "clock skew":
                one = rng.choice(self.processes)
                one.skew = timedelta(milliseconds=rng.randint(-1800, 1800))
                self.tell(f"{one.name}'s clock is off by {one.skew.total_seconds()} s")
                return
            case "call doubled":
                self._tick(rng.choice(self.processes))
                self._tick(rng.choice(self.processes))
            case "scheduler paused":
                lease_pause(by="storm", reason="Maintenance.", now=self._now())
                self.after("resume", lambda: lease_resume(), minutes=rng.randint(2, 15))
            case "tree changed":
                self._change_tree()
            case _:
                self._backend_fault(kind)
        if kind == "killed submission":
            self._submit(False, 1, rng.randrange(len(TEAMS)))
            return
        self.tell(f"-- {kind}")

    def _interrupt(self, kind: str) -> None:
        """In the middle of a tick that has something to decide: the process sleeps until another one leads, or people change what it has seen."""
        first, second = self.processes

        def takes_over() -> None:
            self.clock += timedelta(seconds=LEASE_SECONDS + 4 + self.rng.random())
            self.tell(f"{first.name} sleeps, {second.name} takes over")
            self._tick_watched(second)

        def people() -> None:
            self._happen("people in between", self._cancel_waiting)

        self._submit(False, 2, self.rng.randrange(len(TEAMS)))
        self.reaper.wake_at = self.rng.choice((AFTER_SNAPSHOT, AFTER_SNAPSHOT, 1 + int(self.rng.expovariate(1 / 12))))
        self.reaper.wake = takes_over if kind == "two schedulers" else people
        self._tick(first)

    def _backend_fault(self, kind: str) -> None:
        minutes = self.rng.randint(1, 12)
        until = self.clock + timedelta(minutes=minutes)
        chances: dict[str, dict[str, float]] = {
            "back-end silent": {"silent": 0.8},
            "orders refused": {"refuses": 0.6},
            "orders time out": {"times_out": 0.6},
            "orders twice": {"repeats": 0.9},
            "runs hidden": {"hides": 0.15},
        }
        self.backend.faults = FaultPlan(seed=self.rng.randrange(1 << 30), until=until, **chances[kind])
        self.tell(f"the back-end is ill for {minutes} min: {kind}")

    def _lose(self, node: Node) -> None:
        fresh = Node.objects.get(pk=node.pk)
        self.tell(f"{node.name} goes dark")
        self.backend.node_lost(node=node.name, now=self._now())
        if fresh.health in (Health.HEALTHY, Health.SUSPECT, Health.DRAINING):
            node_health_change(access=EVERYTHING, node=fresh, to=Health.DOWN, reason="It does not answer.", now=self._now())
            self.after("repaired", lambda: self._mend(node), minutes=self.rng.randint(20, 120))

    def _drain(self, node: Node) -> None:
        fresh = Node.objects.get(pk=node.pk)
        if fresh.health == Health.HEALTHY:
            self.tell(f"{node.name} is drained")
            node_health_change(access=EVERYTHING, node=fresh, to=Health.DRAINING, reason="A fan.", now=self._now())
            self.after("drained", lambda: self._mend(node), minutes=self.rng.randint(20, 90))

    def _gpu_out(self, node: Node) -> None:
        gpu = Gpu.objects.filter(node=node).order_by("index")[self.rng.randrange(4)]
        if gpu.health == Health.HEALTHY:
            self.tell(f"GPU {gpu.index} of {node.name} is suspect, then draining")
            gpu_health_change(access=EVERYTHING, gpu=gpu, to=Health.DRAINING, reason="It counts errors.", now=self._now())
            self.after("GPU is back", lambda: self._mend_gpu(gpu.pk), minutes=self.rng.randint(20, 90))

    def _mend(self, node: Node) -> None:
        """Back into service by the way that people take: through burn-in after a failure, which needs it to be empty."""
        fresh = Node.objects.get(pk=node.pk)
        try:
            if fresh.health == Health.DOWN:
                fresh = node_health_change(access=EVERYTHING, node=fresh, to=Health.BURN_IN, reason="Repaired.", now=self._now())
            if fresh.health in (Health.BURN_IN, Health.DRAINING):
                node_health_change(access=EVERYTHING, node=fresh, to=Health.HEALTHY, reason="As good as new.", now=self._now())
                self.tell(f"{node.name} is back")
        except ValidationError:
            self.after("repaired later", lambda: self._mend(node), minutes=5)

    def _mend_gpu(self, key: int) -> None:
        gpu = Gpu.objects.get(pk=key)
        if gpu.health == Health.DRAINING:
            gpu_health_change(access=EVERYTHING, gpu=gpu, to=Health.HEALTHY, reason="It was a loose cable.", now=self._now())

    def _change_tree(self) -> None:
        node = QuotaNode.objects.get(pk=self.rng.choice(self.fleet.teams).pk)
        gpus = max(0, TEAMS[node.name] + self.rng.randint(-8, 4))
        values = node_values(node)
        shares = {TYPE: Share(1000 * gpus)}
        changed = type(values)(**{name: getattr(values, name) for name in values.__slots__ if name != "shares"}, shares=shares)
        node_update(access=EVERYTHING, node=node, values=changed, revision=node.revision, now=self._now())
        self.tell(f"{node.path} is promised {gpus} GPUs")

    # Schedulers

    def _process(self, name: str) -> Process:
        return Process(name, Backends({self.fleet.cluster.pk: Mortal(self.backend, self.reaper)}), Watched(self.reaper))

    def _tick(self, process: Process) -> None:
        with self.reaper.watching():
            self._tick_watched(process)

    def _tick_watched(self, process: Process) -> None:
        self._ticks += 1
        now = whole_millis(self.clock + process.skew)
        try:
            result = tick_run(holder=process.name, now=now, backends=process.backends, memory=process.memory)
        except Killed as killed:
            self._struck += 1
            self._restarts += 1
            self.tell(f"{process.name}: {killed}")
            place = self.processes.index(process)
            self.processes[place] = self._process(f"{process.name.partition('-')[0]}-{self._restarts}")
            self._tick_soon(1.0)
        except OperationalError as fault:
            if not self.reaper.struck:
                raise Unsafe(f"{process.name}: {fault}") from fault
            self._struck += 1
            self.tell(f"{process.name}: {self.reaper.struck}")
            self._tick_soon(1.0)
        except Exception as fault:
            where = "".join(traceback.format_exception(fault)[-6:])
            raise Unsafe(f"{process.name} failed: {fault!r}\n{where}") from fault
        else:
            self._after_tick(process, result)

    def _after_tick(self, process: Process, result: TickResult) -> None:
        if result.decided or result.dropped or not result.led or result.fault:
            words = f"{process.name}: {result.decided} decisions, {result.dropped} dropped" if result.led else f"{process.name} does not lead"
            self.tell(words + (f" ({result.fault})" if result.fault else ""))
        if not result.led:
            self._tick_soon(1.0)
        elif result.again:
            self._tick_soon(0.05)
        else:
            # Beat looks every second; seconds in which nothing is due are left out, and a worker that is busy comes late to the others.
            wait = 600.0 if result.next_at is None else (result.next_at - self.clock).total_seconds()
            late = self.rng.choice((0.0, 15.0, 60.0, 300.0))
            self._tick_soon(min(600.0, max(1.0, math.ceil(wait) + late)))

    # Looking

    def lives(self) -> list[Life]:
        """What truly runs, by now."""
        now = millis(self.clock)
        return [life for _, life in sorted(self.store.lives.items()) if life.ended_at is None or life.ended_at > now]

    def _look(self, *, edited: bool) -> None:
        self._steps += 1
        if connection.in_atomic_block:
            raise Unsafe("a transaction was left open")
        faults = list(present_faults(self.lives(), parts=self._parts > 0))
        faults += self._plans.faults()
        faults += self._promises.faults(self._now(), edited=edited)
        if self._steps % self._gap_every == 0:
            faults += gap_faults(self._now())
        if self._steps % self._look_back_every == 0:
            self._look_back()
        if faults:
            raise Unsafe("; ".join(faults[:6]))

    def _look_back(self) -> None:
        if faults := list(history_faults()):
            raise Unsafe("; ".join(faults[:6]))

    def _anything_open(self) -> bool:
        return Job.objects.exclude(state__in=ENDED).exists()

    def _calm(self) -> None:
        """No more faults: everything is mended, and what waits has the fleet for itself."""
        self.tell("-- the storm is over")
        self.reaper.calm()
        self.backend.faults = NO_FAULTS
        self._heap = [one for one in self._heap if one[2] not in FAULTS_A_DAY | POLICY_A_DAY | EDITS_A_DAY]
        heapq.heapify(self._heap)
        lease_resume()
        self.policy.calm()
        for key in Job.objects.exclude(state__in=ENDED).filter(held_at__isnull=False).order_by("id").values_list("pk", flat=True):
            self._let_go(key)
        for node in self.fleet.nodes:
            self._mend(node)
        for key in Gpu.objects.exclude(health=Health.HEALTHY).order_by("pk").values_list("pk", flat=True):
            self._mend_gpu(key)
        self._tick_soon(1.0)

    def _report(self) -> Report:
        submitted = Counter((at - START).days for at in Job.objects.values_list("submitted_at", flat=True))
        evicted = Counter(
            (at - START).days
            for at in Attempt.objects.filter(outcome__in=PUT_OUT, ended_at__isnull=False).values_list("ended_at", flat=True)
            if at is not None
        )
        struck = Counter((at - START).days for at, _ in self.faults)
        kinds = {day: len({kind for at, kind in self.faults if (at - START).days == day}) for day in range(self.days)}
        thin = [
            f"day {day + 1}: {submitted[day]} submissions, {evicted[day]} evictions, {struck[day]} faults of {kinds[day]} kinds"
            for day in range(self.days if not self._hours else 0)
            if submitted[day] < LEAST_SUBMISSIONS or evicted[day] < LEAST_EVICTIONS or struck[day] < LEAST_FAULTS or kinds[day] < LEAST_KINDS
        ]
        return Report(
            seed=self.seed,
            days=self.days,
            ticks=self._ticks,
            plans=PlanRecord.objects.count(),
            jobs=sum(submitted.values()),
            completed=Job.objects.filter(state=JobState.COMPLETED).count(),
            evictions=sum(evicted.values()),
            faults=dict(sorted(Counter(kind for _, kind in self.faults).items())),
            struck=self._struck,
            writes=self.reaper.writes,
            nodes=len(self.fleet.nodes),
            thin_days=thin,
            policy=policy_made(),
            digest=self.digest,
        )


def _flood(rng: Random, begin: datetime, minutes: int) -> Iterator[tuple[datetime, bool, int, int]]:
    team = rng.randrange(len(TEAMS))
    moment = begin + timedelta(minutes=rng.randrange(minutes))
    yield moment, True, rng.randint(5, 7), team
    for other in range(len(TEAMS)):
        if other != team:
            yield moment + timedelta(minutes=rng.randint(8, 40)), True, rng.randint(1, 2), other


def hash_of(before: int, line: str) -> int:
    """A running number over the story: the same for the same story, in every process."""
    for letter in line.encode():
        before = (before * 1_099_511_628_211 ^ letter) & 0xFFFF_FFFF_FFFF_FFFF
    return before


def _ignore(_: object) -> None:
    return None
