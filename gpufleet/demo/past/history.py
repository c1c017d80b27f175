"""The demo's past: the model is run up to now in memory, and its rows are then written in bulk."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dashboards.fragmentation.measure import Room, Scattered, Shape, counted, scattered, typical
from dashboards.fragmentation.store import fragmentation_sum, fragmentation_write
from dashboards.gap.causes import Ask, Device, Hold, Part, Role, divided
from dashboards.gap.snapshot import health_state
from dashboards.gap.store import Gap, gaps_write, spans_sum
from dashboards.models import NO_READING, FleetSample, NodeSample, TelemetryMinute
from dashboards.telemetry.frames import MINUTE, Columns, Sums, added, frame_write, minute_of, minute_values, sums_of_frame
from dashboards.telemetry.rollups import FOREVER, SLOT, Gpus, Holds, fleet_samples, gpus_of, held_milli_millis, job_sums, node_samples, use_of
from dashboards.telemetry.spans import JobSums, jobs_write, spans_roll
from gpufleet.core.audit import SYSTEM
from gpufleet.core.bulk import rows_insert
from gpufleet.core.ids import public_numbers
from gpufleet.core.models import User
from gpufleet.core.times import millis
from gpufleet.demo.activity import layouts_of, readings
from gpufleet.demo.hardware import Hardware
from gpufleet.demo.past.adoption import runs_adopt, waiting_checkpoints, work_seconds
from gpufleet.demo.past.model import demo_step, demo_trouble
from gpufleet.demo.past.usage import Shares, Tree, shares_write, usage_write
from gpufleet.demo.past.world import Act, Moved, Placed, Released, Run, Submitted, Turned, Withdrawn, Work, World, held_by
from gpufleet.demo.rows import keys_stated, moment_of, next_key
from gpufleet.demo.templates import templates_named
from gpufleet.demo.workloads import GANG_NODE, GRACE_SECONDS, job_fields
from quotas.models import QuotaNode
from scheduler.jobs.marks import Mark, marks_of
from scheduler.models import ENDED, IN_SERVICE, Attempt, Gpu, Health, InventoryEvent, Job, JobEvent, JobMark, JobState, MarkKind, Node, Placement

WARM_UP = timedelta(hours=5)
TROUBLE = timedelta(minutes=5)  # so long ago something began to go wrong that whoever looks first still sees
SOURCE = "simulated"
GAP_MINUTES = 5  # so often the demo's past has a snapshot of the gap
_SAMPLE = ("node_id", "at", "sm_active", "memory_used", "allocated")
BATCH = 900


@dataclass(frozen=True, slots=True)
class Event:
    at: int
    job: int
    run: Run | None
    before: str
    to: str
    cause: str
    actor: str


@dataclass(slots=True)
class Past:
    """Rows as they pile up. Jobs are known by their position here; the database's own keys come when the rows are written."""

    first_number: int
    jobs: list[Work] = field(default_factory=list)
    submitted: list[Submitted] = field(default_factory=list)
    final: dict[int, tuple[str, int]] = field(default_factory=dict)  # ended jobs: state and moment
    runs: list[Run] = field(default_factory=list)
    open_runs: dict[int, Run] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    turns: list[Turned] = field(default_factory=list)
    states: dict[int, str] = field(default_factory=dict)

    def record(self, act: Act, world: World) -> None:
        match act:
            case Submitted():
                self._submit(act, world)
            case Placed():
                run = Run(act.job.key, act.attempt, act.at, act.seats)
                self.runs.append(run)
                self.open_runs[act.job.key] = run
                self._event(act.at, act.job.key, run, act.to, act.cause)
            case Moved():
                run = self.open_runs[act.job.key]
                if act.to == JobState.RUNNING and run.running is None:
                    run.running = act.at
                self._event(act.at, act.job.key, run, act.to, act.cause)
            case Released():
                run = self.open_runs.pop(act.job.key)
                run.ended, run.outcome, run.cause = act.at, act.outcome, act.cause
                self._event(act.at, act.job.key, run, act.to, act.cause, act.actor)
                if act.to in ENDED:
                    self.final[act.job.key] = (act.to, act.at)
            case Withdrawn():
                self._event(act.at, act.job.key, None, JobState.CANCELLED, act.cause, act.actor)
                self.final[act.job.key] = (JobState.CANCELLED, act.at)
            case Turned():
                self.turns.append(act)

    def runs_by_job(self) -> dict[int, list[Run]]:
        found: dict[int, list[Run]] = {}
        for run in self.runs:
            found.setdefault(run.job, []).append(run)
        return found

    def _submit(self, act: Submitted, world: World) -> None:
        want, key = act.want, len(self.jobs)
        job = Work(
            key=key,
            number=self.first_number + key,
            workload=want.workload,
            quota=want.quota,
            state=JobState.QUEUED,
            since=act.at,
            submitted=act.at,
            priority=want.priority,
            preemptible=want.workload.preemptible,
            gpu_type=want.gpu_type,
            gpus=want.gpus,
            milli=act.milli,
            profile=want.profile,
        )
        self.jobs.append(job)
        self.submitted.append(act)
        self.states[key] = ""
        world.work[key] = job
        self._event(act.at, key, None, JobState.QUEUED, "Submitted.", want.username)

    def _event(self, at: int, key: int, run: Run | None, to: str, cause: str, actor: str = "") -> None:
        self.events.append(Event(at, key, run, self.states[key], to, cause, actor))
        self.states[key] = to


def history_write(*, hardware: Hardware, seed: int, now: datetime, hours: float, pace: timedelta) -> int:
    """Write the last `hours` and leave the demo as it stands at `now`. Returns how many jobs there are."""
    if not hours:
        return 0
    past = Past(first_number=public_numbers(0).stop)
    world = World(hardware, ())
    _play(past, world, seed=seed, now=now, hours=hours, pace=pace)
    taken = public_numbers(len(past.jobs))
    assert not past.jobs or taken.start == past.first_number, "nobody else takes numbers inside this transaction"
    _write_jobs(past, world, seed=seed, now=now)
    _write_health(past, world)
    for cluster, columns in readings(held_by(world), world.hardware, layouts_of(world.hardware), moment=millis(now)).items():
        frame_write(cluster_id=cluster, at=now, source=SOURCE, columns=columns)
    return len(past.jobs)


def past_begin(now: datetime, hours: float) -> datetime:
    """When the first of its jobs is submitted."""
    return now - timedelta(hours=hours) - min(WARM_UP, timedelta(hours=5 * hours))


def _play(past: Past, world: World, *, seed: int, now: datetime, hours: float, pace: timedelta) -> None:
    begin = past_begin(now, hours)
    samples = Sampler(world, past, start=minute_of(now - timedelta(hours=hours)) + MINUTE)
    before = begin
    while before < now:
        moment = min(before + pace, now)
        for act in demo_step(world, seed=seed, before=millis(before), moment=millis(moment)):
            past.record(act, world)
        if before < now - TROUBLE <= moment:
            for act in demo_trouble(world, seed=seed, moment=millis(moment)):
                past.record(act, world)
        if moment >= samples.start and moment.second < pace.total_seconds():
            samples.look(moment)
        before = moment
    samples.write(now)


def _ask(job: Work) -> Ask:
    """What a waiting job asks for of the hardware."""
    shape = _shape(job)
    if not shape.gpus:
        return Ask((Role(1, 1, shape.types, min(1000, job.milli)),))
    return Ask((Role(shape.workers, shape.gpus, shape.types),))


def _shape(job: Work) -> Shape:
    """The same as a shape: gangs take whole nodes."""
    if job.milli < 1000 or job.profile:
        return Shape(1, 0, frozenset((job.gpu_type,)), "cluster")
    return Shape(max(1, job.gpus // GANG_NODE), min(job.gpus, GANG_NODE), frozenset((job.gpu_type,)), "cluster")


# Milliseconds. What lasts for half a minute would be met in every second minute by one look.
LOOKS = (0, 20_000, 40_000)


class Sampler:
    """Frames of the past, kept as sums a minute, and made into samples with the roll-up's own arithmetic."""

    def __init__(self, world: World, past: Past, *, start: datetime) -> None:
        self.world, self.past, self.start = world, past, start
        self.layouts = layouts_of(world.hardware)
        self.sums: dict[datetime, list[Sums]] = {}
        self.clusters: list[int] = []
        self.gaps: dict[datetime, Gap] = {}
        self.fragments: dict[datetime, Scattered] = {}
        self.demand: Counter[Shape] = Counter()
        self.demand_of = 0  # so many of the jobs are in it
        self.quotas: dict[str, int] = dict(QuotaNode.objects.values_list("path", "pk"))
        self.pools: dict[int, str] = dict(Node.objects.filter(pool__isnull=False).values_list("pk", "pool__name"))
        self.in_service: dict[datetime, NDArray[np.bool_]] = {}
        self.tree, self.shares = Tree.read(), dict[datetime, Shares]()
        self.machines = sorted(world.hardware.machines.values(), key=lambda machine: machine.key)

    def look(self, moment: datetime) -> None:
        minute = minute_of(moment)
        held = held_by(self.world)
        found, *later = (readings(held, self.world.hardware, self.layouts, moment=millis(moment) + after) for after in LOOKS)
        self.clusters = list(found)
        self.sums[minute] = [added([sums_of_frame(look[cluster]) for look in (found, *later)]) for cluster in found]
        if not minute.minute % GAP_MINUTES:
            self.gaps[minute] = Gap(1, self._gap(found.values()))
            self.fragments[minute] = self._fragments()
        hour = minute.replace(minute=0)
        if hour not in self.shares:
            self.shares[hour] = self.tree.fair(self.world)
        self.in_service[minute] = np.array(
            [machine.health in IN_SERVICE and gpu in machine.usable for machine in self.machines for gpu in machine.gpus], np.bool_
        )

    def _gap(self, read: Iterable[Columns]) -> dict[Part, int]:
        """The parts of the fleet as they are in the model now."""
        sm = {gpu: percent for columns in read for gpu, percent in zip(columns.gpus.tolist(), columns.sm_active.tolist(), strict=True)}
        holds: dict[int, list[Hold]] = {}
        asks = []
        for job in sorted(self.world.work.values(), key=lambda one: (-one.priority, one.submitted, one.key)):
            for seat in job.seats:
                hold = Hold(seat.milli, job.workload.job_class, self.quotas[job.quota], job.running is None)
                holds.setdefault(seat.gpu, []).append(hold)
            if not job.seats:
                asks.append(_ask(job))
        devices = [
            Device(
                gpu,
                machine.key,
                machine.gpu_type,
                self.pools.get(machine.key, ""),
                health_state(machine.health, Health.HEALTHY if gpu in machine.usable else Health.DOWN),
                None if sm.get(gpu, NO_READING) == NO_READING else sm[gpu],
                holds.get(gpu, ()),
            )
            for machine in self.machines
            for gpu in machine.gpus
        ]
        return divided(devices, asks)

    def _fragments(self) -> Scattered:
        """What is free in the model now, and what of it is useless. The usual demand is what was submitted so far."""
        held: Counter[int] = Counter()
        waiting = []
        for job in self.world.work.values():
            for seat in job.seats:
                held[seat.gpu] += seat.milli
            if not job.seats:
                waiting.append(_shape(job))
        machines = [machine for machine in self.machines if machine.serves]
        free = [0 if machine.sliced else sum(not held[gpu] for gpu in machine.usable) for machine in machines]
        parts = [sum(1000 - held[gpu] for gpu in machine.usable if machine.sliced or 0 < held[gpu] < 1000) for machine in machines]
        places = {"cluster": ("cluster",), "spine": ("cluster", "spine"), "leaf": ("cluster", "spine", "leaf"), "node": ("key",)}
        keys = {level: [tuple(str(getattr(machine, name)) for name in names) for machine in machines] for level, names in places.items()}
        plenty = np.full(len(machines), 10**9, np.int64)
        room = Room(
            [machine.gpu_type for machine in machines],
            [self.pools.get(machine.key, "") for machine in machines],
            np.array(free, np.int64),
            np.array(parts, np.int64),
            plenty,
            plenty,
            {level: np.unique(np.array(named), axis=0, return_inverse=True)[1].reshape(-1) for level, named in keys.items()},
        )
        self.demand.update(map(_shape, self.past.jobs[self.demand_of :]))
        self.demand_of = len(self.past.jobs)
        return scattered(room, counted(waiting), typical(self.demand))

    def write(self, now: datetime) -> None:
        gpus, (holds, jobs) = self._gpus(), self._holds()
        fleet: list[FleetSample] = []
        minutes: list[TelemetryMinute] = []
        of_jobs: dict[datetime, JobSums] = {}
        slots: dict[datetime, list[Sums]] = {}
        for minute in sorted(minute for minute in self.sums if self.start <= minute <= now - MINUTE):
            sums = self.sums[minute]
            use = use_of(gpus, held_milli_millis(gpus, holds, minute, minute + MINUTE), sums)
            fleet.extend(fleet_samples(replace(gpus, in_service=self.in_service[minute]), use, at=minute))
            slots.setdefault(minute - timedelta(minutes=minute.minute % 5), []).extend(sums)
            for cluster, part in zip(self.clusters, sums, strict=True):
                minutes.append(TelemetryMinute(cluster_id=cluster, at=minute, is_rolled=True, **minute_values(part)))
            of_jobs[minute] = job_sums(gpus, holds, jobs, sums, minute, minute + MINUTE)
        TelemetryMinute.objects.bulk_create(minutes, batch_size=BATCH)
        jobs_write(60, of_jobs)
        spans_roll(late=(), now=now)
        gaps_write(60, {minute: gap for minute, gap in self.gaps.items() if self.start <= minute <= now - MINUTE})
        spans_sum(now=now)
        fragmentation_write({minute: found for minute, found in self.fragments.items() if self.start <= minute <= now - MINUTE})
        fragmentation_sum(now=now)
        shares_write(self.shares)
        FleetSample.objects.bulk_create(fleet, batch_size=BATCH)
        for slot, parts in slots.items():
            if self.start <= slot <= now - SLOT:
                use = use_of(gpus, held_milli_millis(gpus, holds, slot, slot + SLOT), parts)
                rows_insert(NodeSample, _SAMPLE, map(attrgetter(*_SAMPLE), node_samples(gpus, use, at=slot, period=SLOT)))

    def _gpus(self) -> Gpus:
        rows = [(gpu, machine.key, machine.gpu_type) for machine in self.machines for gpu in machine.gpus]
        keys = np.array([row[0] for row in rows], np.int64)
        return gpus_of(keys, np.array([row[1] for row in rows], np.int64), np.array([row[2] for row in rows], np.str_), np.ones(len(keys), np.bool_))

    def _holds(self) -> tuple[Holds, NDArray[np.int64]]:
        """What was held, and by which job: jobs get their keys in this order."""
        first = next_key(Job)
        rows = [(seat.gpu, seat.milli, run.started, run.ended or FOREVER, first + run.job) for run in self.past.runs for seat in run.seats]
        *holds, jobs = np.array(rows, np.int64).reshape(-1, 5).T
        return Holds(*holds), jobs


def _write_jobs(past: Past, world: World, *, seed: int, now: datetime) -> None:
    quotas = {node.path: node for node in QuotaNode.objects.all()}
    people = {user.username: user for user in User.objects.all()}
    changes = Counter(event.job for event in past.events)
    first = next_key(Job)
    runs = past.runs_by_job()
    templates = templates_named()
    facts = [
        job_fields(
            act.want,
            quota=quotas[act.want.quota],
            owner=people.get(act.want.username),
            work=work_seconds(job, runs.get(job.key, ()), stretch=world.hardware.stretch, seed=seed, now=millis(now)),
            templates=templates,
        )
        for job, act in zip(past.jobs, past.submitted, strict=True)
    ]
    rows_insert(
        Job,
        (
            "id",
            "public_id",
            "quota_id",
            "owner_id",
            "state",
            "state_since",
            "revision",
            "submitted_at",
            "ended_at",
            "gpus_milli",
            "limit_seconds",
            *_FACTS,
        ),
        [
            (
                first + job.key,
                f"j-{job.number}",
                fact["quota"].pk,
                fact["owner"].pk if fact["owner"] else None,
                past.final[job.key][0] if job.key in past.final else job.state,
                moment_of(past.final[job.key][1] if job.key in past.final else job.since),
                changes[job.key],
                moment_of(job.submitted),
                moment_of(past.final[job.key][1]) if job.key in past.final else None,
                job.milli,
                None,
                *(fact[name] for name in _FACTS),
            )
            for job, fact in zip(past.jobs, facts, strict=True)
        ],
    )
    attempts = _write_runs(past, first)
    usage_write(past.runs, past.jobs, facts, attempts, now)
    keys_stated(Job, Attempt)
    _write_marks(past, first, facts)
    open_runs = [(past.jobs[run.job], run, first + run.job, attempts[id(run)]) for run in past.runs if run.ended is None]
    runs_adopt(open_runs, runs, facts, now=now)
    last = {run.job: run for run in past.runs}
    put_out = [(past.jobs[key], run, first + key, attempts[id(run)]) for key, run in last.items() if past.jobs[key].state == JobState.PREEMPTED]
    waiting_checkpoints([one for one in put_out if one[0].key not in past.final], runs, now=now)
    names = {username: str(user) for username, user in people.items()}
    rows_insert(
        JobEvent,
        ("job_id", "attempt_id", "at", "from_state", "to_state", "cause", "actor_name", "detail"),
        [
            (
                first + event.job,
                attempts[id(event.run)] if event.run else None,
                moment_of(event.at),
                event.before,
                event.to,
                event.cause,
                names.get(event.actor, SYSTEM.name),
                {},
            )
            for event in sorted(past.events, key=lambda event: event.at)
        ],
    )


_FACTS = (
    *("name", "job_class", "priority", "preemptible", "spec", "launch", "labels", "cost_centre", "estimate_seconds"),
    *("template", "template_version"),
)


def _write_marks(past: Past, first_job: int, facts: Sequence[Mapping[str, Any]]) -> None:
    """What the jobs are looked for by: what they name, and where they have run."""
    types = dict(Gpu.objects.values_list("id", "gpu_type_id"))
    found = {(job.key, *mark) for job, fact in zip(past.jobs, facts, strict=True) for mark in marks_of(fact["spec"], fact["labels"])}
    found |= {(run.job, MarkKind.TYPE.value, types[seat.gpu], "") for run in past.runs for seat in run.seats}
    rows_insert(JobMark, ("job_id", *Mark._fields), [(first_job + key, *mark) for key, *mark in sorted(found)])


def _write_runs(past: Past, first_job: int) -> dict[int, int]:
    """Attempts and placements. Returns the key of every run's attempt."""
    keys = {id(run): key for key, run in enumerate(past.runs, next_key(Attempt))}
    rows_insert(
        Attempt,
        (
            "id",
            "job_id",
            "number",
            "started_at",
            "running_at",
            "ended_at",
            "outcome",
            "cause",
            "sequence",
            "stop_to",
            "stop_outcome",
            "stop_cause",
            "stop_asked_at",
            "stop_until",
        ),
        [
            (
                keys[id(run)],
                first_job + run.job,
                run.number,
                moment_of(run.started),
                moment_of(run.running) if run.running else None,
                moment_of(run.ended) if run.ended else None,
                run.outcome,
                run.cause,
                1,
                *_stop(past.jobs[run.job], run),
            )
            for run in past.runs
        ],
    )
    rows_insert(
        Placement,
        ("attempt_id", "job_id", "role", "worker", "node_id", "gpu_id", "mig_id", "gpu_milli", "since", "until"),
        [
            (
                keys[id(run)],
                first_job + run.job,
                "worker",
                seat.worker,
                seat.node,
                seat.gpu,
                seat.slice,
                seat.milli,
                moment_of(run.started),
                moment_of(run.ended) if run.ended else None,
            )
            for run in past.runs
            for seat in run.seats
        ],
    )
    return keys


def _stop(job: Work, run: Run) -> tuple[str, str, str, datetime | None, datetime | None]:
    """What a run was asked for that is about to leave."""
    if run.ended is not None or job.state != JobState.CHECKPOINTING:
        return "", "", "", None, None
    asked = moment_of(job.since)
    return JobState.PREEMPTED.value, "preempted", "Its GPUs were reclaimed.", asked, asked + timedelta(seconds=GRACE_SECONDS)


def _write_health(past: Past, world: World) -> None:
    nodes = {node.pk: node for node in Node.objects.all()}
    InventoryEvent.objects.bulk_create(
        [
            InventoryEvent(
                at=moment_of(turn.at),
                node=nodes[turn.machine],
                cluster_id=nodes[turn.machine].cluster_id,
                kind="health",
                before={"health": turn.before},
                after={"health": turn.health},
                cause=turn.reason,
                actor_name=SYSTEM.name,
            )
            for turn in past.turns
        ]
    )
    for turn in {turn.machine: turn for turn in past.turns}.values():
        well = turn.health == Health.HEALTHY
        Node.objects.filter(pk=turn.machine).update(health=turn.health, health_since=moment_of(turn.at), health_reason="" if well else turn.reason)
