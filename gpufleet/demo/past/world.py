"""The world of the demo's past as plain values: who holds what, what waits. Times are milliseconds since 1970."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from gpufleet.demo.activity import Held
from gpufleet.demo.hardware import Hardware, SliceOf
from gpufleet.demo.workloads import Want, Workload, team_of
from scheduler.models import HOLDING, JobState
from scheduler.simulation.progress import seed_of
from scheduler.simulation.telemetry import Loads

WHOLE_MILLI = 1000


@dataclass(frozen=True, slots=True)
class Seat:
    """A worker's hold on one GPU, or on one slice of it."""

    node: int
    gpu: int
    worker: int
    milli: int = WHOLE_MILLI
    slice: int | None = None


@dataclass(slots=True, eq=False)
class Work:
    """One job that has not ended. `number` is the digits of its public id, and seeds whatever is particular about it."""

    key: int
    number: int
    workload: Workload
    quota: str
    state: str
    since: int
    submitted: int
    priority: int
    preemptible: str
    gpu_type: str
    gpus: int
    milli: int
    profile: str = ""
    revision: int = 1
    attempt: int = 0
    attempts: int = 0
    running: int | None = None
    seats: tuple[Seat, ...] = ()
    team: str = field(init=False)  # asked for hundreds of times in the life of a job

    def __post_init__(self) -> None:
        self.team = team_of(self.quota)

    @property
    def holds(self) -> bool:
        return self.state in HOLDING


class World:
    """Hardware and work at one moment, with what follows from them: which GPUs are free, and what each team holds."""

    def __init__(self, hardware: Hardware, work: Iterable[Work]) -> None:
        self.hardware = hardware
        self.work: dict[int, Work] = {job.key: job for job in sorted(work, key=lambda job: job.key)}
        self.free: dict[int, list[int]] = {key: list(machine.usable) for key, machine in hardware.machines.items() if not machine.sliced}
        taken_slices: set[int] = set()
        self.held: dict[tuple[str, str], int] = defaultdict(int)  # (team, type) -> milli
        self.guests: dict[int, set[int]] = defaultdict(set)  # machine -> jobs on it
        for job in self.work.values():
            self._count(job)
            taken_slices.update(seat.slice for seat in job.seats if seat.slice is not None)
        self.free_slices: dict[int, SliceOf] = {part.key: part for part in hardware.slices if part.key not in taken_slices}
        self._parts = {part.key: part for part in hardware.slices}

    def _count(self, job: Work) -> None:
        for seat in job.seats:
            self.guests[seat.node].add(job.key)
            self.held[job.team, job.gpu_type] += seat.milli
            free = self.free.get(seat.node)
            if free is not None and seat.slice is None and seat.gpu in free:
                free.remove(seat.gpu)

    def seat(self, job: Work, seats: tuple[Seat, ...]) -> None:
        job.seats = seats
        self._count(job)
        for seat in seats:
            if seat.slice is not None:
                del self.free_slices[seat.slice]

    def unseat(self, job: Work) -> None:
        for seat in job.seats:
            self.guests[seat.node].discard(job.key)
            self.held[job.team, job.gpu_type] -= seat.milli
            machine = self.hardware.machines[seat.node]
            if seat.slice is not None:
                self.free_slices[seat.slice] = self._parts[seat.slice]
            elif seat.gpu in machine.usable:
                free = self.free[seat.node]
                free.append(seat.gpu)
                free.sort(key=machine.usable.index)
        job.seats = ()

    def waiting(self) -> list[Work]:
        return [job for job in self.work.values() if job.state in (JobState.QUEUED, JobState.PREEMPTED)]


@dataclass(slots=True, eq=False)
class Run:
    """One attempt of a job of the past."""

    job: int
    number: int
    started: int
    seats: tuple[Seat, ...]
    running: int | None = None
    ended: int | None = None
    outcome: str = ""
    cause: str = ""

    def computed(self, now: int) -> int:
        """For how many milliseconds it ran."""
        return 0 if self.running is None else max(0, (self.ended or now) - self.running)


# What happened in a step. The driver writes these through the services, the past is built from them in bulk.


@dataclass(frozen=True, slots=True)
class Submitted:
    at: int
    want: Want
    milli: int


@dataclass(frozen=True, slots=True)
class Placed:
    at: int
    job: Work
    attempt: int
    seats: tuple[Seat, ...]
    to: str
    cause: str


@dataclass(frozen=True, slots=True)
class Moved:
    """From a holding state to another one: running at last, or saving its work before it must go."""

    at: int
    job: Work
    to: str
    cause: str


@dataclass(frozen=True, slots=True)
class Released:
    at: int
    job: Work
    to: str
    outcome: str
    cause: str
    actor: str = ""


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """Somebody gave up waiting."""

    at: int
    job: Work
    cause: str
    actor: str


@dataclass(frozen=True, slots=True)
class Turned:
    """A machine's health changed."""

    at: int
    machine: int
    before: str
    health: str
    reason: str


Act = Submitted | Placed | Moved | Released | Withdrawn | Turned


def held_by(world: World) -> Held:
    """Who holds which GPU, for the sensors. Figures are drawn from the same numbers as those of the runs that go on in the present."""
    held = [job for job in world.work.values() if job.seats]
    loads = Loads.of(
        [
            (
                seed_of(f"j-{job.number}"),
                job.workload.rhythm.value,
                job.workload.busy,
                job.workload.memory,
                job.running or 0,
                job.state == JobState.CHECKPOINTING,
            )
            for job in held
        ]
    )
    return Held.of(loads, ((seat.gpu, row, seat.milli) for row, job in enumerate(held) for seat in job.seats))
