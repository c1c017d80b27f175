"""A discrete-event world around the engine: jobs arrive, run, save checkpoints, are preempted and come back.

The engine plans at every distinct event time, on the same scenario values as in production. Work is counted at the speed of
`min` workers on a GPU type of speed 1.0; more workers are proportionally faster.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heappop, heappush

from scheduler.engine.cycle import make_course
from scheduler.engine.model.mig import board_of
from scheduler.engine.model.plan import Course, Decision, Plan
from scheduler.engine.model.values import QUEUED, Checkpoint, Job, Node, Placed, Role, Run, Scenario, new_run
from scheduler.engine.state.state import Kept

from .applying import came_by_reclaim, placed, split_anew
from .past import PastUsage
from .progress import MILLION, Progress, gang_rate

NEVER = 1 << 62
MOST_IDLE = 1000  # moments at which the engine asks to be asked again while nothing runs and nobody comes
Timer = tuple[int, int, str, str, int]  # when, in which order, what, to whom, and of which form of it
Policy = Callable[[Scenario], Plan | Course]


@dataclass(slots=True)
class Life:
    """One job's way through the simulation."""

    job: Job
    work: int
    progress: Progress
    arrived: int
    least: int = 0  # milli-GPU of its minimum
    milli: int = 0  # where it stands
    ready: int = 0  # when it computes, its places being free and its state restored
    first_start: int | None = None
    ended: int | None = None
    failed: bool = False
    evictions: int = 0
    brought: int = 0  # of its work what was done before the simulation, and is not lost
    lost: int = 0  # milli-GPU times milliseconds computed in vain
    contention: int = 0  # crowding times milliseconds while it was there; until it leaves, as of its arrival
    version: int = 0  # timers of an earlier form are void


@dataclass(slots=True)
class Totals:
    events: int = 0
    plans: int = 0
    preemptions: int = 0
    moves: int = 0
    held: int = 0  # milli-GPU times milliseconds
    useful: int = 0
    fragmented: int = 0
    queue: list[tuple[int, int]] = field(default_factory=list)  # (time, waiting) at every event


class World:
    def __init__(self, scenario: Scenario, policy: Policy | None = None, works: dict[str, int] | None = None) -> None:
        self.template = scenario
        self.now = scenario.now
        self._told_until: int | None = None  # until when the engine was asked whether to be asked again; None: for ever
        self.policy = policy or partial(self._course, Kept())
        self.nodes = {node.name: node for node in scenario.nodes}
        self.capacity = sum(node.gpus - node.unhealthy.bit_count() for node in scenario.nodes if node.health in ("healthy", "suspect"))
        self.lives: dict[str, Life] = {}
        self.active: dict[str, Job] = {}  # arrived and not ended, by name
        self.timers: list[Timer] = []
        self.totals = Totals()
        self._serial = 0
        self._last = scenario.now
        self._speeds: dict[int, tuple[int, dict[str, int]]] = {}  # by the identity of a kind: its minimum, and its speeds by GPU type
        self._wake: int | None = None
        self._split = False
        self._idle: tuple[int, int, int] | None = None  # since when nothing runs or comes though somebody waits; what was counted by then
        self._in_order: list[tuple[int, str]] = []  # by age, of who is active
        self._jobs: list[Job] = []  # these, in that order
        self._waiting = self._wanted = self._held = (
            0  # of who is active: how many have no place, the milli-GPU of their minima, and those of the others
        )
        self._unsaved: dict[str, None] = {}  # whose last checkpoint is to be looked at
        self._saves: list[tuple[int, str]] = []  # when each of the others has a later one, if he is still there as he was
        self._next_save: dict[str, int] = {}
        self._crowding = 0  # GPUs that were asked for and held, in thousandths of the fleet, times milliseconds
        self._past = PastUsage(scenario, self._capacity_by_type()) if scenario.settings.fairness.usage_weight_millionths else None
        works = works or {}
        coming: list[Timer] = []
        self._leasts: dict[int, int] = {}  # by the identity of a kind
        for job in scenario.jobs:
            work = job.work_ms if job.work_ms is not None else works.get(job.name, job.estimate_ms or 3_600_000)
            self._know(job, work)
            if job.run is not QUEUED and job.run.workers:
                self._already_there(job)
            else:
                self._serial += 1
                coming.append((max(scenario.now, job.submitted), self._serial, "arrive", job.name, 0))
        self._coming = self._arrivals(sorted(coming))
        self._expect_next()

    def _know(self, job: Job, work: int) -> None:
        """A job that is there or will come, with as many milliseconds of work."""
        least = self._leasts.get(id(job.kind))
        if least is None:
            least = self._leasts[id(job.kind)] = sum(role.least * self._worker_milli(role) for role in job.kind.roles)
        self.lives[job.name] = Life(job, work * MILLION, Progress(work * MILLION), job.submitted, least)

    def _arrivals(self, known: Sequence[Timer]) -> Iterator[Timer]:
        """Who comes, in order."""
        return iter(known)

    def _capacity_by_type(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for node in self.nodes.values():
            if node.health in ("healthy", "suspect"):
                found[node.gpu_type] = found.get(node.gpu_type, 0) + 1000 * (node.gpus - node.unhealthy.bit_count())
        return found

    def _note_use(self, job: Job) -> None:
        """What a job holds from now on, for past usage."""
        if self._past is None:
            return
        held: dict[str, int] = {}
        for worker in job.run.workers if job.run.state != "stopping" and job.name in self.active else ():
            node = self.nodes[worker.node]
            held[node.gpu_type] = held.get(node.gpu_type, 0) + milli_of(worker, node)
        self._past.change(job.name, job.quota, held, self.now)

    def _expect_next(self) -> None:
        """Only who comes next has a timer: those of all who ever come would make each of the others dearer."""
        for timer in self._coming:
            heappush(self.timers, timer)
            break

    def _at(self, time: int, what: str, name: str, version: int) -> None:
        self._serial += 1
        heappush(self.timers, (time, self._serial, what, name, version))

    def _already_there(self, job: Job) -> None:
        self._come(job)
        if job.run.state == "stopping":
            self._at(max(self.now, job.run.until or self.now), "stopped", job.name, 0)
        elif job.run.state == "running":
            started = job.run.started if job.run.started is not None else job.run.since
            self._goes_on(job, self.now if started is None else min(started, self.now))
        else:
            self._form(job.name, self.now)

    def _goes_on(self, job: Job, started: int) -> None:
        """A job that has computed since before the simulation. Who has outlived work that was drawn has twice as much, as often as needed."""
        life = self.lives[job.name]
        life.first_start = started
        done = (self.now - started) * self._rate(job)[0]
        while job.work_ms is None and life.work <= done:
            life.work = life.progress.work = 2 * max(life.work, MILLION)
        life.brought = min(done, life.work)
        self._form(job.name, started)

    def _worker_milli(self, role: Role) -> int:
        """What a worker will be charged, as far as that is known before it has a place."""
        if not role.parted:
            return 1000 * role.gpus
        if role.share_milli is not None:
            return role.share_milli * role.devices
        nodes = [node for node in self.nodes.values() if not role.gpu_types or node.gpu_type in role.gpu_types]
        if role.mig is not None:
            boards = {board.name: board for node in nodes if (board := board_of(node.gpu_type)) is not None}
            charges = [board.charge_milli(found) for board in boards.values() if (found := board.profile(role.mig)) is not None]
        else:
            charges = [max(1, 1000 * (role.memory_mib or 0) // node.gpu_memory_mib) for node in nodes if node.gpu_memory_mib]
        return min(1000, *charges) * role.devices if charges else 1000 * role.devices

    def _come(self, job: Job) -> None:
        key = (job.submitted, job.name)
        place = bisect_left(self._in_order, key)
        self._in_order.insert(place, key)
        self._jobs.insert(place, job)
        self.active[job.name] = job
        self._unsaved[job.name] = None
        self._count(job, 1)
        self._note_use(job)
        self.lives[job.name].contention = -self._crowding

    def _become(self, job: Job) -> None:
        """A job that is there is another one from now on."""
        before = self.active[job.name]
        self.active[job.name] = job
        place = bisect_left(self._in_order, (job.submitted, job.name))
        self._jobs[place] = job
        self._unsaved[job.name] = None
        if before.run is not job.run:
            self._note_use(job)
        if bool(before.run.workers) != bool(job.run.workers):
            self._count(before, -1)
            self._count(job, 1)

    def _count(self, job: Job, sign: int) -> None:
        life = self.lives[job.name]
        if job.run.workers:
            self._held += sign * life.milli
        else:
            self._waiting += sign
            self._wanted += sign * life.least

    # Running

    def run(self, until: int | None = None) -> None:
        """Play events until nothing can happen any more, or until an instant."""
        if self.active and not self.totals.plans and (not self.timers or self.timers[0][0] > self.now):
            self._plan()  # what runs may be repaired, grow or move, though nobody comes now
        timers = self.timers
        while (time := self._next_moment()) is not None:
            if until is not None and time > until:
                if self._idle is None:
                    self._pass_time(until)
                break
            self._pass_time(time)
            self._wake = None
            happened = 0
            while timers and timers[0][0] <= time:
                _, _, what, name, version = heappop(timers)
                happened += self._happen(what, name, version)
            self.totals.events += max(1, happened)  # nothing else: the engine has asked to be asked again
            self._plan()
            if timers or any(job.run.state != "queued" for job in self.active.values()):
                self._idle = None
            elif not self.active:
                return
            elif self._idle is None:
                self._idle = (self.now, len(self.totals.queue), self.totals.events)
            elif self.totals.events > self._idle[2] + MOST_IDLE:
                break
        if self._idle is not None:  # what still waits can never start: the simulation ended with the last that happened
            self.now = self._last = self._idle[0]
            del self.totals.queue[self._idle[1] :]
            self.totals.events = self._idle[2]

    def _next_moment(self) -> int | None:
        """When something happens, or the engine has asked to be asked again."""
        time, wake = self._next_timer(), self._wake
        if self._past is not None and self._waiting and (step := self._past.next_step(self.now)) is not None:
            wake = step if wake is None else min(wake, step)  # shares are others from then on
        return wake if wake is not None and (time is None or wake < time) else time

    def _next_timer(self) -> int | None:
        """When the next thing happens. What was to become of an earlier form of a job does not."""
        timers, lives = self.timers, self.lives
        while timers:
            time, _, what, name, version = timers[0]
            life = lives.get(name)  # of other things than jobs there is none
            if life is None or version == life.version or what == "stopped":
                return time
            heappop(timers)
        return None

    def _pass_time(self, time: int) -> None:
        span = time - self._last
        if span > 0:
            self.totals.held += span * self._held
            self.totals.queue.append((span, self._waiting))
            self._crowding += span * max(1000, (self._wanted + self._held) // max(1, self.capacity))
        self._last = self.now = time
        if self._past is not None and self._past.is_due(time):
            self.template = replace(self.template, quotas=self._past.taken(self.template.quotas, time))

    def _happen(self, what: str, name: str, version: int) -> bool:
        life = self.lives[name]
        if what == "arrive":
            self._expect_next()
            self._come(life.job.with_run(life.job.run.as_it_waits()))
            return True
        if version != life.version and what != "stopped":
            return False
        if what == "ready":
            job = self.active[name]
            run = job.run
            self._become(
                job.with_run(
                    new_run(
                        "running",
                        run.since,
                        self.now,
                        None,
                        run.workers,
                        run.leaving,
                        run.backfilled,
                        run.degraded_since,
                        run.last_evicted,
                        run.last_moved,
                        run.evictions,
                        run.reclaimed,
                    )
                )
            )
            if life.first_start is None:
                life.first_start = self.now
            life.progress.since = self.now
            return True
        if what == "end":
            life.progress.book(self.now)
            self.totals.useful += (life.work - life.brought) // MILLION * life.least
            self._leave(name)
            return True
        if what == "limit":
            life.failed = True
            self._leave(name)
            return True
        if what == "stopped":
            job = self.active[name]
            self._become(job.with_run(Run(last_evicted=self.now, evictions=job.run.evictions)))
            return True
        return False

    def _leave(self, name: str) -> None:
        life = self.lives[name]
        life.ended = self.now
        life.version += 1
        life.contention += self._crowding
        job = self.active.pop(name)
        place = bisect_left(self._in_order, (job.submitted, name))
        del self._in_order[place], self._jobs[place]
        self._count(job, -1)
        self._note_use(job)
        self._unsaved.pop(name, None)
        self._next_save.pop(name, None)

    # Progress

    def _rate(self, job: Job) -> tuple[int, int]:
        """(speed in millionths, milli-GPU) of a job where it stands."""
        kind, nodes, milli = job.kind, self.nodes, 0
        known = self._speeds.get(id(kind))
        if known is None:
            known = self._speeds[id(kind)] = (sum(role.least for role in kind.roles), {})
        least, speeds = known
        found = []
        for worker in job.run.workers:
            node = nodes[worker.node]
            milli += milli_of(worker, node)
            speed = speeds.get(node.gpu_type)
            if speed is None:
                speed = speeds[node.gpu_type] = kind.speed(node.gpu_type)
            found.append(speed)
        return gang_rate(found, least), milli

    def _form(self, name: str, ready: int) -> None:
        """A job has new places: from `ready` on it computes there."""
        life, job = self.lives[name], self.active[name]
        rate, milli = self._rate(job)
        run, progress, limit = job.run, life.progress, job.limit_ms
        self._held += milli - life.milli
        life.milli = milli
        life.version = version = life.version + 1
        progress.form(rate, ready)
        life.ready = ready
        if run.state in ("reserved", "starting"):
            self._at(ready, "ready", name, version)
        if (end := progress.ends_at) is not None:
            self._at(max(self.now, end), "end", name, version)
        if limit is not None:
            started = ready if life.first_start is None or run.started is None else run.started
            self._at(max(self.now, started + limit), "limit", name, version)

    # Planning

    def _plan(self) -> None:
        if not self.active:
            return
        self._save()
        jobs = tuple(self._jobs)
        plan = self.policy(self._scenario(jobs))
        self.totals.plans += 1
        self.totals.fragmented += plan.fragmented
        gone: dict[str, int] = {}
        for decision in plan.decisions:
            self._carry_out(decision, gone)
        self._wake = plan.next_wake
        until = self._told_until
        if until is not None and (self._wake is None or self._wake > until) and (self._next_timer() or NEVER) > until:
            self._wake = until  # what was to happen then does not, by this very plan

    def _scenario(self, jobs: tuple[Job, ...]) -> Scenario:
        if self._split:
            self.template = replace(self.template, nodes=tuple(self.nodes[node.name] for node in self.template.nodes))
            self._split = False
        template = self.template
        places = template.topology, template.nodes
        return Scenario(self.now, template.settings, *places, template.quotas, template.windows, template.demand, jobs, template.power)

    def _course(self, kept: Kept, scenario: Scenario) -> Course:
        self._told_until = self._next_timer()
        return make_course(scenario, kept, self._told_until)

    def _save(self) -> None:
        """Every job has the checkpoint that it has by now."""
        saves, due, now = self._saves, self._next_save, self.now
        while saves and saves[0][0] <= now:
            at, name = heappop(saves)
            if due.get(name) == at:
                self._unsaved[name] = None
        changed, self._unsaved = self._unsaved, {}
        for name in changed:
            job = self.active[name]
            shown, until = self._shown(job)
            if shown is not job:
                self._become(shown)
            if until < NEVER:
                heappush(saves, (until, name))
            due[name] = until
        self._unsaved.clear()

    def _shown(self, job: Job) -> tuple[Job, int]:
        """With the checkpoint that it has by now, and until when it has no later one."""
        checkpoint, started = job.checkpoint, job.run.started
        if checkpoint is None or checkpoint.interval_ms is None or not job.run.workers or started is None:
            return job, NEVER
        interval = checkpoint.interval_ms
        last = started + (self.now - started) // interval * interval if interval else self.now
        if checkpoint.last != last:
            job = job.with_run(job.run, Checkpoint(interval, last, checkpoint.save_ms, checkpoint.restore_ms))
        return job, last + interval

    def _carry_out(self, decision: Decision, gone: dict[str, int]) -> None:
        action, name = decision.action, decision.job
        if action == "repartition":
            split_anew(self.nodes, decision, self.now)
            self._split = True
            return
        if name is None or action == "reserve":
            return
        if action == "evict":
            self._put_out(name, gone)
            return
        job, now = self.active[name], self.now
        free_at = max([now, *[gone.get(other, self._gone_at(other)) for other in decision.after]]) if decision.after else now
        workers = placed(job.kind, decision.workers)
        reclaimed = came_by_reclaim(job.run, decision, now)
        if action == "start":
            before, ready = job.run, free_at + self._restore(job)
            at_once = ready == now
            run = new_run(
                "running" if at_once else "reserved",
                now,
                now if at_once else None,
                None if at_once else ready,
                workers,
                before.leaving,
                decision.backfilled,
                before.degraded_since,
                before.last_evicted,
                before.last_moved,
                before.evictions,
                reclaimed,
            )
            life = self.lives[name]
            if at_once and life.first_start is None:
                life.first_start = now
            self._become(job.with_run(run))
            self._form(name, ready)
            return
        if action == "move":
            self.totals.moves += 1
            self._interrupt(name)
            gone[name] = self.now
            run = replace(job.run, workers=workers, started=self.now, last_moved=self.now, backfilled=decision.backfilled, reclaimed=reclaimed)
            self._become(job.with_run(run))
            self._form(name, free_at + self._restore(job))
            return
        self.lives[name].progress.book(self.now)
        if action == "shrink":
            gone[name] = self.now
        self._become(job.with_run(replace(job.run, workers=workers, degraded_since=None, reclaimed=reclaimed)))
        self._form(name, max(self.now, self.lives[name].ready))

    def _gone_at(self, name: str) -> int:
        job = self.active.get(name)
        return self.now if job is None or job.run.until is None else max(self.now, job.run.until)

    def _restore(self, job: Job) -> int:
        return job.checkpoint.restore_ms if job.checkpoint is not None and self.lives[job.name].progress.done else 0

    def _interrupt(self, name: str) -> int:
        """Stop computing: what no checkpoint holds is lost, unless one can be saved within the grace. Returns how long it takes to leave."""
        life, job = self.lives[name], self.active[name]
        checkpoint = job.checkpoint
        saves = checkpoint is not None and checkpoint.save_ms <= job.kind.grace_ms
        lost = life.progress.interrupt(self.now, saves=saves, interval=checkpoint.interval_ms if checkpoint else None)
        life.lost += lost // MILLION * life.least
        life.brought = min(life.brought, life.progress.done)
        return checkpoint.save_ms if checkpoint is not None and saves else 0

    def _put_out(self, name: str, gone: dict[str, int]) -> None:
        life, job = self.lives[name], self.active[name]
        leaving = self._interrupt(name)
        life.progress.rate = 0
        life.version += 1
        life.evictions += 1
        self.totals.preemptions += 1
        gone[name] = self.now + leaving
        run, now = job.run, self.now
        evictions = run.evictions + 1
        if not leaving:
            self._become(job.with_run(Run(last_evicted=now, evictions=evictions)))
            return
        stops = new_run(
            "stopping",
            now,
            run.started,
            now + leaving,
            run.workers,
            run.leaving,
            run.backfilled,
            run.degraded_since,
            now,
            run.last_moved,
            evictions,
            run.reclaimed,
        )
        self._become(job.with_run(stops))
        self._at(now + leaving, "stopped", name, life.version)


def milli_of(worker: Placed, node: Node) -> int:
    """What a worker is charged where it stands."""
    if worker.mig:
        board = board_of(node.gpu_type)
        assert board is not None
        return sum(board.charge_milli(board.known(name)) for _, name, _ in worker.mig)
    return worker.gpus.bit_count() * (1000 if worker.share_milli is None else worker.share_milli)
