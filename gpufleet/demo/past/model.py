"""One step of the demo's past: what happened between two moments. Time and chance are arguments, so the same seed and clock give the same story.

Only the past is played this way, quickly and roughly: a day of a fleet in a few seconds. The present is decided by the real scheduler.
"""

import random
from collections import defaultdict

from gpufleet.demo.demand import SUBMITTERS, Demand
from gpufleet.demo.past import placing
from gpufleet.demo.past.world import Act, Moved, Placed, Released, Seat, Submitted, Turned, Withdrawn, Work, World
from gpufleet.demo.trouble import BETWEEN_FAULTS, DRAIN_PATIENCE, GIVING_UP, LONG_WAIT, SICKNESS, SILENT, overheated, reason_of
from gpufleet.demo.workloads import BY_KEY, FAILURES, GANG_NODE, Workload
from scheduler.models import ENDED, Health, JobState

LONGEST = 60_000  # however long nobody drove the demo, a step never makes up for more than a minute
RUNNING = JobState.RUNNING.value  # plain, as every job is asked in every step of the past
MOST_STARTS = 12
MOST_DUE = 12


class Step:
    """Advances a world from `before` to `moment` and collects what happened, in order."""

    def __init__(self, world: World, *, seed: int, before: int, moment: int) -> None:
        self.world, self.before, self.moment = world, before, moment
        self.span = min(max(moment - before, 1), LONGEST)
        self.paused = moment - before > LONGEST
        self.rng = random.Random(f"{seed} {moment}")  # noqa: S311 - a play, not a secret
        self.acts: list[Act] = []
        self.demand = Demand(world.hardware, rng=self.rng, moment=moment, span=self.span)
        self.have = self._have()

    def run(self) -> list[Act]:
        self._dues()
        self._endings()
        self._withdrawals()
        self._health()
        self._placing()
        self._arrivals()
        return self.acts

    # What was only a question of time.

    def _when(self, due: int, since: int) -> int:
        """The moment something happened that was due: when it was, or now where nobody was there to see it."""
        return self.moment if self.paused else max(due, since, self.before)

    def _dues(self) -> None:
        done = 0
        for job in list(self.world.work.values()):
            if job.state in (JobState.STARTING, JobState.RESUMING):
                due = job.since + start_millis(job)
            elif job.state == JobState.CHECKPOINTING:
                due = job.since + save_millis(job)
            else:
                continue
            if due > self.moment or done >= MOST_DUE * self.span / 2000:
                continue
            done += 1
            at = self._when(due, job.since)
            if job.state == JobState.CHECKPOINTING:
                self._release(job, at, JobState.PREEMPTED, "preempted", "Checkpoint saved; GPUs given back.")
            else:
                self.acts.append(Moved(at, job, JobState.RUNNING, "All workers are up."))
                job.state, job.since, job.running = JobState.RUNNING, at, at

    def _release(self, job: Work, at: int, to: str, outcome: str, cause: str, actor: str = "") -> None:
        self.acts.append(Released(at, job, to, outcome, cause, actor))
        self.world.unseat(job)
        job.state, job.since, job.running = to, at, None
        if to in ENDED:
            del self.world.work[job.key]
            self.have[job.workload.key, job.gpu_type, job.profile] -= job.milli

    # What ends by chance: the same chance every second, so that a pause of hours is followed by no storm.

    def _endings(self) -> None:
        surplus, draw = self.demand.surplus(self.have), self.rng.random
        limits = {workload.key: (floor * 60_000, self.span / (mean * 60_000), workload.scales_in) for workload, floor, mean in self._minutes()}
        for job in [job for job in self.world.work.values() if job.state == RUNNING]:
            kind, luck = job.workload, draw()
            floor, odds, scales_in = limits[kind.key]
            if luck >= odds and not scales_in:
                continue
            if self.moment - (job.running or self.moment) < floor:
                continue
            key = (kind.key, job.gpu_type, job.profile)
            at = max(job.since, self.moment - int(draw() * min(self.span, self.moment - self.before)))
            if scales_in and surplus.get(key, 0) >= job.milli and luck < self.span / 90_000:
                surplus[key] -= job.milli
                self._release(job, at, JobState.COMPLETED, "completed", "Scaled in: fewer requests than an hour ago.")
            elif luck < odds:
                self._end(job, at)

    def _minutes(self) -> list[tuple[Workload, float, float]]:
        stretch = {True: self.world.hardware.stretch, False: 1}
        return [(kind, kind.minutes[0] * stretch[kind.quick], kind.minutes[1] * stretch[kind.quick]) for kind in BY_KEY.values()]

    def _end(self, job: Work, at: int) -> None:
        draw = self.rng.random()
        if draw < job.workload.fails:
            self._release(job, at, JobState.FAILED, "failed", FAILURES[int(self.rng.random() * len(FAILURES))])
        elif draw > 0.975:
            self._release(job, at, JobState.CANCELLED, "cancelled", "No longer needed.", self.rng.choice(SUBMITTERS.get(job.team, ("",))))
        else:
            self._release(job, at, JobState.COMPLETED, "completed", "All workers ended with exit code 0.")

    def _withdrawals(self) -> None:
        """People don't wait for ever."""
        for job in self.world.waiting():
            if self.moment - job.submitted > LONG_WAIT and job.state == JobState.QUEUED and self.rng.random() < self.span / GIVING_UP:
                person = self.rng.choice(SUBMITTERS.get(job.team, ("",)))
                self.acts.append(Withdrawn(self.moment, job, "Waited too long; will try a smaller one.", person))
                del self.world.work[job.key]
                self.have[job.workload.key, job.gpu_type, job.profile] -= job.milli

    # The one machine that is always in some trouble.

    def _health(self) -> None:
        machines = [machine for machine in self.world.hardware.machines.values() if not machine.spare]
        ill = [machine for machine in machines if machine.health != Health.HEALTHY]
        for machine in ill:
            if machine.health == Health.DRAINING:
                self._drain(machine.key)
            elif (step := SICKNESS.get(machine.health)) and self.moment - machine.since >= step[0] * 60_000:
                self._turn(machine.key, step[1], reason_of(step[1], step[2], self.moment))
        if not ill and machines and self.rng.random() < self.span / BETWEEN_FAULTS:
            if self.rng.random() < 0.2:
                machine = self.rng.choice(sorted((m for m in machines if not m.sliced), key=lambda machine: machine.key))
                self._turn(machine.key, Health.DOWN, SILENT)
                self._lose(machine.key, machine.name)
            else:
                self.overheat()

    def overheat(self) -> None:
        """A machine that somebody works on begins to throttle."""
        machines = sorted(self.world.hardware.machines.values(), key=lambda machine: machine.key)
        busy = [machine for machine in machines if machine.serves and not machine.sliced and self.world.guests[machine.key]]
        if busy:
            full = [machine for machine in busy if not self.world.free[machine.key]]
            machine, worst = self.rng.choice(full or busy), int(self.rng.random() * GANG_NODE)
            self._turn(machine.key, Health.SUSPECT, overheated(worst))

    def _turn(self, key: int, health: str, reason: str) -> None:
        machine = self.world.hardware.machines[key]
        self.acts.append(Turned(self.moment, key, machine.health, health, reason))
        machine.health, machine.since = health, self.moment

    def _drain(self, key: int) -> None:
        """What can be moved saves its work and goes; the rest ends by itself."""
        machine = self.world.hardware.machines[key]
        guests = [self.world.work[job] for job in sorted(self.world.guests[key])]
        if not guests:
            self._turn(key, Health.DRAINED, "Nothing runs here any more.")
            return
        overdue = self.moment - machine.since >= DRAIN_PATIENCE
        for job in guests:
            if overdue and job.state == JobState.RUNNING:
                self._evict(job, f"{machine.name} is being drained; it had time to finish.")

    def _evict(self, job: Work, cause: str) -> None:
        self.acts.append(Moved(self.moment, job, JobState.CHECKPOINTING, cause))
        job.state, job.since = JobState.CHECKPOINTING, self.moment

    def _lose(self, key: int, name: str) -> None:
        for guest in sorted(self.world.guests[key]):
            self._release(self.world.work[guest], self.moment, JobState.QUEUED, "lost", f"{name} stopped answering; the job waits for another place.")

    # Who gets GPUs now.

    def _placing(self) -> None:
        room = placing.Room(self.world)
        left = max(MOST_STARTS * self.span // 2000, MOST_STARTS)
        for job in placing.in_order(self.world):
            if not left:
                break
            if not placing.within_limit(self.world, job):
                continue
            seats = room.seats_for(job)
            if seats:
                left -= 1
                self._place(job, seats)
                room.taken(job, seats)
            else:
                room.keep_for(job, moment=self.moment)
        leaving = {job.gpu_type for job in self.world.work.values() if job.state == JobState.CHECKPOINTING}
        for gpu_type, job in sorted(room.blocked.items()):
            if gpu_type not in leaving:
                for victim in placing.victims_for(self.world, job, moment=self.moment):
                    self._evict(victim, f"Its GPUs are lent; {job.team.rsplit('/', 1)[-1]} reclaims its guarantee.")

    def _place(self, job: Work, seats: tuple[Seat, ...]) -> None:
        resumes = job.state == JobState.PREEMPTED
        cause = (
            "Resumed from its last checkpoint."
            if resumes
            else "Inside its guarantee."
            if placing.within_guarantee(self.world, job)
            else "On idle GPUs."
        )
        to = JobState.RESUMING if resumes else JobState.STARTING
        job.attempts += 1
        self.acts.append(Placed(self.moment, job, job.attempts, seats, to, cause))
        self.world.seat(job, seats)
        job.state, job.since = to, self.moment

    # Who asks for more.

    def _have(self) -> dict[tuple[str, str, str], int]:
        have: dict[tuple[str, str, str], int] = defaultdict(int)
        for job in self.world.work.values():
            have[job.workload.key, job.gpu_type, job.profile] += job.milli
        return have

    def _arrivals(self) -> None:
        asked: dict[tuple[str, str], int] = defaultdict(int)
        for job in self.world.work.values():
            asked[job.team, job.gpu_type] += job.milli
        for one in self.demand.arrivals(self.have, asked, self.before):
            self.acts.append(Submitted(one.at, one.want, one.want.milli))


def start_millis(job: Work) -> int:
    """From taking the GPUs to running: images, then one rendezvous over the gang."""
    return 5_000 + job.number * 7919 % 9_000 + min(job.gpus, 128) * 180


def save_millis(job: Work) -> int:
    return 9_000 + job.number * 6151 % 16_000


def demo_trouble(world: World, *, seed: int, moment: int) -> list[Act]:
    """See to it that some machine has not been suspect for long, and so will be for a while."""
    step, long = Step(world, seed=seed, before=moment, moment=moment), SICKNESS[Health.SUSPECT][0] * 30_000
    if not any(machine.health == Health.SUSPECT and moment - machine.since < long for machine in world.hardware.machines.values()):
        step.overheat()
    return step.acts


def demo_step(world: World, *, seed: int, before: int, moment: int) -> list[Act]:
    """Everything that happens in (before, moment], in an order in which it can be written down. Changes `world` accordingly."""
    return Step(world, seed=seed, before=before, moment=moment).run()
