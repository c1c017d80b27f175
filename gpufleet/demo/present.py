"""The demo's present: people who ask for GPUs and change their minds, machines that fall ill, operators who see to them, and sensors.

Who gets GPUs is decided by the scheduler, and what runs is played by the simulated back-end; nothing here places, starts or ends a run. A step every
two seconds; each thing that it does is whole by itself, so a console that is killed in the middle leaves nothing half, and a doubled step finds that
its turn is taken. What is remembered between steps only saves reading.
"""

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Max

from dashboards.health.models import Incident
from dashboards.health.state import state_write
from dashboards.telemetry.frames import frame_write
from gpufleet.core.audit import SYSTEM, Actor
from gpufleet.core.faults import Conflict
from gpufleet.core.live.news import News
from gpufleet.core.models import Installation, User
from gpufleet.core.progress import turn_take
from gpufleet.core.times import millis
from gpufleet.demo.activity import Layout, held_by_lives, layouts_of, readings
from gpufleet.demo.ailing import ailments, raw_state, slow_down, slowed, steps_tell
from gpufleet.demo.demand import SUBMITTERS, Asked, Demand, Line
from gpufleet.demo.fleet import PLANS
from gpufleet.demo.hardware import Hardware, Machine
from gpufleet.demo.links import Ports, links_ailing, with_links
from gpufleet.demo.loading import DRIVER, hardware_now
from gpufleet.demo.templates import templates_named
from gpufleet.demo.trouble import BETWEEN_FAULTS, DRAIN_PATIENCE, GIVING_UP, LONG_WAIT, SICKNESS, SILENT, overheated, reason_of
from gpufleet.demo.workloads import BY_KEY, GANG_NODE, job_fields, team_of
from quotas.models import QuotaNode
from quotas.permissions import Access, Can, Grant
from scheduler.backends.memory import Glance
from scheduler.backends.registry import backend_for
from scheduler.backends.simulated import SimulatedBackend, moment_of
from scheduler.jobs.stored import roles_of
from scheduler.models import ENDED, HOLDING, Cluster, Gpu, Health, InventoryEvent, Job, JobState, Node, Placement
from scheduler.selectors.nodes import nominal_speeds
from scheduler.services.hardware.hardware import node_health_change
from scheduler.services.jobs.jobs import job_create, job_stop

SOURCE = "simulated"
PACE = timedelta(seconds=1.5)  # beat asks every two seconds, give or take
HEARTBEAT = timedelta(seconds=30)
RAW_EVERY = 14  # seconds between looks at the raw state of the hardware
LONGEST = 60_000  # however long nobody drove the demo, a step never makes up for more than a minute
NO_LONGER_NEEDED = 900 * 60_000  # a mean
OPERATOR = Access(SYSTEM, (Grant("", frozenset({Can.OPERATE})),))


@dataclass(slots=True)
class Ask:
    """A job that has not ended, as the people of the play see it."""

    key: int
    line: Line
    team: str
    milli: int
    submitted: int
    waits: bool = True
    runs: bool = False


@dataclass(slots=True)
class Memory:
    """What the last step of this process left behind: the hardware while no event is added to it, and what never changes about a job."""

    seed: int
    hardware_event: int
    hardware: Hardware
    layouts: list[Layout]
    gpus: dict[tuple[str, int], int]
    glances: dict[int, Glance]
    ports: Ports
    asks: dict[int, Ask] = field(default_factory=dict)


_memory: Memory | None = None


def demo_advance(*, now: datetime) -> bool:
    """One step of the play up to `now`. False: there is no demo, or a step was just done."""
    global _memory
    demo = Installation.objects.filter(id=1).exclude(demo="none").first()
    if demo is None:
        _memory = None
        return False
    with transaction.atomic():
        turn = turn_take(name=DRIVER, now=now, at_least=PACE)
        if turn is None:
            return False
        _memory = memory = _recall(_memory, plan=demo.demo, seed=demo.demo_seed)
        _sense(memory, before=turn.before, now=turn.moment)
        if turn.before.timestamp() // HEARTBEAT.total_seconds() != turn.moment.timestamp() // HEARTBEAT.total_seconds():
            Node.objects.filter(removed_at__isnull=True).exclude(health__in=(Health.DOWN, Health.REPAIRING)).update(heartbeat_at=turn.moment)
    # What people and machines do comes after the turn is taken: a step that dies here is not done again, and nobody misses it.
    Step(memory, before=turn.before, now=turn.moment).run()
    return True


def _recall(remembered: Memory | None, *, plan: str, seed: int) -> Memory:
    event = InventoryEvent.objects.aggregate(newest=Max("id"))["newest"] or 0
    if remembered is not None and (remembered.seed, remembered.hardware_event) == (seed, event):
        return remembered
    hardware = hardware_now(plan=PLANS[plan])
    gpus = {(node, index): key for key, node, index in Gpu.objects.filter(removed_at__isnull=True).values_list("pk", "node__name", "index")}
    glances = {key: Glance(key) for key in Cluster.objects.order_by("pk").values_list("pk", flat=True)}
    return Memory(seed, event, hardware, layouts_of(hardware), gpus, glances, nominal_speeds(list(hardware.machines)))


def _sense(memory: Memory, *, before: datetime, now: datetime) -> None:
    """A reading for every GPU, from what truly runs, and now and then the raw state of the hardware."""
    news = News()
    ill = ailments(memory.hardware, seed=memory.seed, moment=millis(now))
    slow = slowed(ill, millis(now))
    lives = [life for glance in memory.glances.values() for life in glance.lives()]
    held = held_by_lives(lives, memory.gpus, moment=millis(now))
    found = readings(held, memory.hardware, memory.layouts, moment=millis(now))
    for cluster, columns in found.items():
        slow_down(columns, slow)
        if frame_write(cluster_id=cluster, at=now, source=SOURCE, columns=columns):
            news.add("telemetry", cluster)
    news.publish()
    if before.timestamp() // RAW_EVERY != now.timestamp() // RAW_EVERY:
        for layout in memory.layouts:
            degrees = found[layout.cluster].temperature_c
            state = raw_state(layout, memory.hardware, ill, degrees=degrees, moment=millis(now), before=millis(before))
            links = links_ailing(memory.hardware, seed=memory.seed, moment=millis(now))
            state_write(cluster_id=layout.cluster, at=now, source=SOURCE, state=with_links(state, links, memory.ports))
        steps_tell(memory.gpus, lives, slow, now=now)


class Step:
    def __init__(self, memory: Memory, *, before: datetime, now: datetime) -> None:
        self.memory, self.now = memory, now
        self.moment = millis(now)
        self.span = min(max(self.moment - millis(before), 1), LONGEST)
        self.earliest = max(millis(before), self.moment - self.span)
        self.rng = random.Random(f"{memory.seed} {self.moment}")  # noqa: S311 - a play, not a secret
        self.asks = _asks(memory)
        self.demand = Demand(memory.hardware, rng=self.rng, moment=self.moment, span=self.span)

    def run(self) -> None:
        self._change_minds()
        self._health()
        self._ask()

    # People

    def _ask(self) -> None:
        have: dict[Line, int] = defaultdict(int)
        asked: dict[tuple[str, str], int] = defaultdict(int)
        for ask in self.asks.values():
            have[ask.line] += ask.milli
            asked[ask.team, ask.line[1]] += ask.milli
        for one in self.demand.arrivals(have, asked, self.earliest):
            self._submit(one)

    def _submit(self, asked: Asked) -> None:
        want = asked.want
        quota = QuotaNode.objects.filter(path=want.quota, archived_at__isnull=True, children__isnull=True).first()
        if quota is None:
            return  # an admin has changed the tree; these people have no place in it any more
        owner = User.objects.filter(username=want.username).first()
        fields = job_fields(want, quota=quota, owner=owner, work=self.demand.work_seconds(want.workload), templates=templates_named())
        job_create(now=moment_of(asked.at), actor=_person(want.username), gpus_milli=want.milli, **fields)

    def _change_minds(self) -> None:
        """People don't wait for ever, find that they no longer need something, and need fewer services at night than by day."""
        have: dict[Line, int] = defaultdict(int)
        for ask in self.asks.values():
            have[ask.line] += ask.milli
        surplus = self.demand.surplus(have)
        for key in sorted(self.asks):
            ask, luck = self.asks[key], self.rng.random()
            workload = BY_KEY[ask.line[0]]
            if ask.waits and self.moment - ask.submitted > LONG_WAIT and luck < self.span / GIVING_UP:
                self._stop(ask, "Waited too long; will try a smaller one.", person=True)
            elif ask.runs and workload.scales_in and surplus.get(ask.line, 0) >= ask.milli and luck < self.span / 90_000:
                surplus[ask.line] -= ask.milli
                self._stop(ask, "Scaled in: fewer requests than an hour ago.", to=JobState.COMPLETED, outcome="completed")
            elif ask.runs and luck < self.span / NO_LONGER_NEEDED:
                self._stop(ask, "No longer needed.", person=True)

    def _stop(self, ask: Ask, cause: str, *, to: str = JobState.CANCELLED, outcome: str = "cancelled", person: bool = False) -> None:
        actor = _person(self.rng.choice(SUBMITTERS.get(ask.team, ("",)))) if person else SYSTEM
        _try(lambda: job_stop(job=Job.objects.get(pk=ask.key), to=to, outcome=outcome, cause=cause, now=self.now, actor=actor))
        self.asks.pop(ask.key, None)

    # The one machine that is always in some trouble, and those who see to it

    def _health(self) -> None:
        # What health rules found is theirs to take through its life cycle; people only repair it.
        ruled = set(Incident.objects.filter(closed_at__isnull=True, by_rule=True).values_list("node_id", flat=True))
        machines = [machine for machine in self.memory.hardware.machines.values() if not machine.spare]
        ill = [machine for machine in machines if machine.health != Health.HEALTHY]
        for machine in ill:
            if machine.key in ruled and machine.health != Health.REPAIRING:
                continue
            if machine.health == Health.DRAINING:
                self._drain(machine)
            elif (step := SICKNESS.get(machine.health)) and self.moment - machine.since >= step[0] * 60_000:
                self._turn(machine, step[1], reason_of(step[1], step[2], self.moment))
        if not ill and machines and self.rng.random() < self.span / BETWEEN_FAULTS:
            self._fall_ill(machines)

    def _fall_ill(self, machines: list[Machine]) -> None:
        busy = set(Placement.objects.filter(until__isnull=True).values_list("node_id", flat=True).distinct())
        candidates = sorted((one for one in machines if not one.sliced and one.serves and one.key in busy), key=lambda machine: machine.key)
        if not candidates:
            return
        machine = self.rng.choice(candidates)
        if self.rng.random() >= 0.2:
            self._turn(machine, Health.SUSPECT, overheated(int(self.rng.random() * GANG_NODE)))
        elif self._turn(machine, Health.DOWN, SILENT):
            backend = backend_for(Cluster.objects.get(pk=machine.cluster))
            if isinstance(backend, SimulatedBackend):
                backend.node_lost(node=machine.name, now=self.now)

    def _drain(self, machine: Machine) -> None:
        """What runs there is saving its work and go once patience is over; then the machine is drained."""
        guests = sorted(set(Placement.objects.filter(node=machine.key, until__isnull=True).values_list("job_id", flat=True)))
        if not guests:
            self._turn(machine, Health.DRAINED, "Nothing runs here any more.")
        elif self.moment - machine.since >= DRAIN_PATIENCE:
            cause = f"{machine.name} is being drained; it had time to finish."
            for job in Job.objects.filter(pk__in=guests, state=JobState.RUNNING).order_by("pk"):
                self._evict(job, cause)

    def _evict(self, job: Job, cause: str) -> None:
        _try(lambda: job_stop(job=job, to=JobState.PREEMPTED, outcome="preempted", cause=cause, now=self.now))

    def _turn(self, machine: Machine, health: str, reason: str) -> bool:
        """Operators are quicker now and then: what they did is read in the next step."""
        node = Node.objects.get(pk=machine.key)
        return _try(lambda: node_health_change(access=OPERATOR, node=node, to=health, reason=reason, now=self.now, seen=machine.health))


def _try(act: Callable[[], object]) -> bool:
    """Do it, unless somebody else has been quicker."""
    try:
        act()
    except (Conflict, ValidationError):
        return False
    return True


def _asks(memory: Memory) -> dict[int, Ask]:
    """Every job of the play that has not ended. Labels are read once a job."""
    states = dict(Job.objects.exclude(state__in=[*ENDED, JobState.DRAFT]).values_list("pk", "state"))
    fresh = [key for key in states if key not in memory.asks]
    for first in range(0, len(fresh), 500):
        rows = Job.objects.filter(pk__in=fresh[first : first + 500]).order_by("pk")
        for key, labels, spec, quota, milli, submitted in rows.values_list("pk", "labels", "spec", "quota__path", "gpus_milli", "submitted_at"):
            role = next(iter(roles_of(spec)), {})
            kind = str(labels.get("workload", ""))
            line = (kind, str((role.get("gpu_types") or [""])[0]), str(role.get("mig") or ""))
            memory.asks[key] = Ask(key, line, team_of(quota), milli, millis(submitted))
    for key in [key for key in memory.asks if key not in states]:
        del memory.asks[key]
    found = {}
    for key, ask in memory.asks.items():
        if ask.line[0] in BY_KEY:  # what somebody else has submitted is theirs to change
            state = states[key]
            ask.waits, ask.runs = state == JobState.QUEUED, state in HOLDING and state != JobState.CHECKPOINTING
            found[key] = ask
    return found


def _person(username: str) -> Actor:
    if not username:
        return SYSTEM
    user = User.objects.filter(username=username).first()
    return Actor(user=None, name=str(user or username), via="system")
