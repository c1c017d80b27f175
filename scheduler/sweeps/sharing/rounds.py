"""Time shares carried out in rounds: who is furthest behind its shares runs, and at the end of a round others may have its GPUs.

A job that a checkpoint does not save keeps its GPUs once it has them: putting it out would lose its work. GPUs that no share fills go to jobs that
wait, in order of submission. Where a worker stands within a type is decided by the engine.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from scheduler.engine.cycle import make_plan
from scheduler.engine.model.plan import Decision, Plan
from scheduler.engine.model.reasons import Reason
from scheduler.engine.model.values import QUEUED, Amount, Job, Kind, Preemptible, Quota, Role, Scenario

from .objectives import OBJECTIVES, Ask, Objective, Shares, cost, equal, shares_of, speeds_at
from .solving import Chain

MILLION = 1_000_000
ROUND_MS = 360_000  # as in the paper
USUAL_WORK_MS = 3_600_000  # of a job that says nothing of its length
EVERYBODY = "all"
BLIND = "-blind"
WHY = Reason("preempted", "By the time shares of the round.")
FILLED = 1e-6
Lag = tuple[float, int, str, str]  # how far behind, when submitted, job and type


@dataclass(slots=True)
class Rounds:
    """A policy of the simulation: called at each of its events with what is there."""

    objective: Objective
    aware: bool
    prices: Mapping[str, float] = field(default_factory=dict)
    fills: bool = True
    chain: Chain = field(default_factory=Chain)
    round_ms: int = ROUND_MS
    shares: Shares = field(default_factory=dict)
    _among: frozenset[str] = frozenset()  # whom the shares are of
    _behind: dict[str, dict[str, float]] = field(default_factory=dict)  # milliseconds by job and type
    _on: dict[str, str] = field(default_factory=dict)  # where each has run since the last call
    _done: dict[str, float] = field(default_factory=dict)  # milliseconds of work at speed 1
    _alone: dict[str, float] = field(default_factory=dict)  # how long with equal parts that would have taken, in milliseconds
    _equal: dict[str, float] = field(default_factory=dict)  # speeds with equal parts
    _last: int | None = None
    _next: int = 0
    _kinds: dict[tuple[int, str], Kind] = field(default_factory=dict)
    _held: list[Kind] = field(default_factory=list)  # so that no identity is used again

    def __call__(self, scenario: Scenario) -> Plan:
        now = scenario.now
        types = {node.name: node.gpu_type for node in scenario.nodes}
        capacity = _capacity(scenario)
        jobs = {job.name: job for job in scenario.jobs if job.not_before is None or job.not_before <= now}
        self._account(jobs, now)
        if frozenset(jobs) != self._among:
            self._share(jobs, capacity, now)
        ends = now >= self._next
        if ends:
            self._next = now - now % self.round_ms + self.round_ms
        here = {name: types[job.run.workers[0].node] for name, job in jobs.items() if job.run.workers}
        free = dict(capacity)
        for name, gpu_type in here.items():
            free[gpu_type] -= _gpus(jobs[name].kind)
        movable = {name for name in here if ends and _may_leave(jobs[name])}
        chosen = self._chosen(jobs, here, free, movable, now)
        plan = self._placed(scenario, jobs, here, movable, chosen)
        self._on = {name: gpu_type for name, gpu_type in here.items() if chosen.get(name, gpu_type) == gpu_type and name not in _evicted(plan)}
        self._on |= {one.job: chosen[one.job] for one in plan if one.action in ("start", "move") and one.job is not None}
        waits = len(jobs) > len(self._on)
        wake = self._next if self._on and (waits or not self._is_settled()) else None
        return Plan(now, plan, (), (), wake, {})

    def _account(self, jobs: Mapping[str, Job], now: int) -> None:
        """By how much each is behind its shares by now."""
        span = now - (now if self._last is None else self._last)
        self._last = now
        self._behind = {name: self._behind.get(name, {}) for name in jobs}
        self._done = {name: self._done.get(name, 0.0) for name in jobs}
        for name, behind in self._behind.items():
            for gpu_type, share in self.shares.get(name, {}).items():
                behind[gpu_type] = behind.get(gpu_type, 0.0) + share * span
            if (on := self._on.get(name)) is not None:
                behind[on] = behind.get(on, 0.0) - span
                done = span * self._speed(jobs[name].kind, on)
                self._done[name] += done
                self._alone[name] = self._alone.get(name, 0.0) + done / self._equal.get(name, 1.0)

    def _share(self, jobs: Mapping[str, Job], capacity: Mapping[str, float], now: int) -> None:
        asks = [self._ask(job, capacity, now) for job in jobs.values()]
        self.shares = shares_of(self.objective, asks, capacity, self.prices, self.chain, aware=self.aware)
        self._among = frozenset(jobs)
        able = [ask for ask in asks if ask.gpus > 0 and any(ask.speeds.values())]
        self._equal = speeds_at(able, equal(able, capacity))

    def _speed(self, kind: Kind, gpu_type: str) -> float:
        return kind.speed(gpu_type) / MILLION if self.aware else 1.0

    def _ask(self, job: Job, capacity: Mapping[str, float], now: int) -> Ask:
        length = job.work_ms or job.estimate_ms or USUAL_WORK_MS
        left = max(1.0, length - self._done.get(job.name, 0.0))
        speeds = {name: self._speed(job.kind, name) for name in capacity if _accepts(job.kind, name)}
        age, alone = max(0, now - job.submitted), self._alone.get(job.name, 0.0)
        return Ask(job.name, _gpus(job.kind), speeds, left / 1000, age / 1000, alone / 1000)

    def _chosen(self, jobs: Mapping[str, Job], here: Mapping[str, str], free: dict[str, float], movable: set[str], now: int) -> dict[str, str]:
        """Who is to run where, of those who wait or may move."""
        room = dict(free)
        for name in movable:
            room[here[name]] += _gpus(jobs[name].kind)
        asking = [name for name, job in jobs.items() if name in movable or (not job.run.workers and job.run.state == QUEUED.state)]
        # Without GPUs there is nothing to share: it runs, whatever the objective, wherever the engine finds room.
        chosen = {name: here.get(name, next(iter(room), "")) for name in asking if not _gpus(jobs[name].kind)}
        lags: list[Lag] = []
        for name in asking:
            for gpu_type, share in self.shares.get(name, {}).items():
                stays = self.round_ms / 2 if here.get(name) == gpu_type else 0.0
                if share > 0:
                    lags.append((-self._behind[name].get(gpu_type, 0.0) - stays, jobs[name].submitted, name, gpu_type))
        for _, _, name, gpu_type in sorted(lags):
            self._take(jobs[name], gpu_type, room, chosen)
        for name in sorted(asking, key=lambda one: (jobs[one].submitted, one)) if self.fills else ():
            for gpu_type in self._liked(jobs[name].kind, room, here.get(name, "")) if name not in chosen else ():
                self._take(jobs[name], gpu_type, room, chosen)
        return chosen

    def _take(self, job: Job, gpu_type: str, room: dict[str, float], chosen: dict[str, str]) -> None:
        gpus = _gpus(job.kind)
        if job.name not in chosen and room.get(gpu_type, 0) >= gpus and _accepts(job.kind, gpu_type):
            chosen[job.name] = gpu_type
            room[gpu_type] -= gpus

    def _liked(self, kind: Kind, room: Mapping[str, float], here: str) -> list[str]:
        """Types in the order in which it fills them: aware the fastest first, blind where it is and then where most is free."""
        if self.aware:
            return sorted(room, key=lambda name: (-kind.speed(name), name))
        return sorted(room, key=lambda name: (name != here, -room[name], name))

    def _placed(
        self, scenario: Scenario, jobs: Mapping[str, Job], here: Mapping[str, str], movable: set[str], chosen: Mapping[str, str]
    ) -> tuple[Decision, ...]:
        starting = {name for name, gpu_type in chosen.items() if here.get(name) != gpu_type}
        leaving = {name for name in movable if chosen.get(name) != here[name]}
        if not starting and not leaving:
            return ()
        stand = [replace(job, quota=EVERYBODY) for job in scenario.jobs if job.run.workers and job.name not in leaving]
        come = [replace(jobs[name], quota=EVERYBODY, kind=self._only(jobs[name].kind, chosen[name]), run=QUEUED) for name in starting]
        ordered = tuple(sorted((*stand, *come), key=lambda one: (one.submitted, one.name)))
        settings = replace(scenario.settings, passes=("allocate", "repartition"), forecast="none")
        plan = make_plan(replace(scenario, quotas=(_EVERYBODY,), windows=(), settings=settings, jobs=ordered))
        found = {one.job: one for one in plan.decisions if one.action == "start"}
        out = sorted(name for name in leaving if name not in found)
        after = tuple(sorted(leaving))
        decisions = [Decision("evict", WHY, job=name, grace_ms=jobs[name].kind.grace_ms) for name in out]
        decisions += [one for one in plan.decisions if one.action == "repartition"]
        moves = [
            one._replace(action="move", after=tuple(other for other in after if other != name)) for name, one in found.items() if name in leaving
        ]
        return (*decisions, *moves, *(one._replace(after=after) for name, one in found.items() if name not in leaving))

    def _only(self, kind: Kind, gpu_type: str) -> Kind:
        """The same kind of job for one type alone."""
        key = (id(kind), gpu_type)
        if key not in self._kinds:
            roles = tuple(replace(role, gpu_types=(gpu_type,)) if _takes(role) else role for role in kind.roles)
            self._kinds[key] = replace(kind, roles=roles)
            self._held.append(kind)
        return self._kinds[key]

    def _is_settled(self) -> bool:
        """Whether each runs where all of its shares are."""
        return all(sum(self.shares.get(name, {}).values()) - self.shares.get(name, {}).get(on, 0.0) < FILLED for name, on in self._on.items())


def rounds_of(name: str, *, aware: bool, prices: Mapping[str, float] | None = None) -> Rounds:
    """The policy of an objective. Where money counts, GPUs that no share asks for stay free."""
    objective, _ = OBJECTIVES[name]
    return Rounds(objective, aware, prices or {}, fills=objective is not cost)


_EVERYBODY = Quota(EVERYBODY, None, Amount(), Amount(), 1000, 100, None, None, 0, ())


def _evicted(decisions: Iterable[Decision]) -> set[str]:
    return {one.job for one in decisions if one.action == "evict" and one.job is not None}


def _takes(role: Role) -> bool:
    return bool(role.gpus or role.parted)


def _accepts(kind: Kind, gpu_type: str) -> bool:
    return kind.speed(gpu_type) > 0 and all(not role.gpu_types or gpu_type in role.gpu_types for role in kind.roles if _takes(role))


def _gpus(kind: Kind) -> float:
    """What its minimum takes; a part as far as it is known without a place, else a GPU."""
    return sum(role.least * (role.devices * (role.share_milli or 1000) / 1000 if role.parted else role.gpus) for role in kind.roles)


def _may_leave(job: Job) -> bool:
    """Whether it computes, may be put out, and loses nothing by it."""
    saved = job.checkpoint is not None and job.checkpoint.save_ms <= job.kind.grace_ms
    return job.run.state == "running" and saved and job.movable and job.kind.preemptible != Preemptible.NEVER


def _capacity(scenario: Scenario) -> dict[str, float]:
    found: dict[str, float] = {}
    for node in scenario.nodes:
        if node.health in ("healthy", "suspect") and not node.spare:
            found[node.gpu_type] = found.get(node.gpu_type, 0.0) + node.gpus - node.unhealthy.bit_count()
    return dict(sorted(found.items()))
