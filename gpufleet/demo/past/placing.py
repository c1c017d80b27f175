"""Where work went in the demo's past: a plain and quick approximation of the scheduler, which plays a day in seconds.

It keeps the promises that a person can see: a gang gets all its GPUs or none, limits hold, guarantees are given back by borrowers, and the
longest-waiting large gang is not starved by small work.
"""

from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Iterable

from gpufleet.demo.hardware import Machine, Share
from gpufleet.demo.past.world import Seat, Work, World
from gpufleet.demo.workloads import GANG_NODE
from scheduler.models import JobClass, JobState

PATIENCE = 45_000  # a blocked job that waited this long keeps machines for itself
RECLAIM_AFTER = 75_000
SPARED = 300_000  # nobody loses his GPUs earlier
MOST_VICTIMS = 5
_NO_SHARE = Share(0, None)
_CLASS_ORDER = {JobClass.INFERENCE.value: 0, JobClass.INTERACTIVE.value: 1, JobClass.BATCH.value: 2}


def share_of(world: World, job: Work) -> Share:
    return world.hardware.shares.get((job.team, job.gpu_type), _NO_SHARE)


def within_guarantee(world: World, job: Work) -> bool:
    return world.held[job.team, job.gpu_type] + job.milli <= share_of(world, job).guaranteed


def within_limit(world: World, job: Work) -> bool:
    limit = share_of(world, job).limit
    return limit is None or world.held[job.team, job.gpu_type] + job.milli <= limit


def in_order(world: World) -> list[Work]:
    """Guarantees first, then class, priority and age."""
    return sorted(
        world.waiting(),
        key=lambda job: (not within_guarantee(world, job), _CLASS_ORDER[job.workload.job_class], -job.priority, job.submitted, job.key),
    )


class Room:
    """Where there is room in this pass: the machines that take work, by type and by how many of their GPUs are free."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.by_free: dict[str, list[list[Machine]]] = {}
        for gpu_type, machines in world.hardware.by_type.items():
            shelves: list[list[Machine]] = [[] for _ in range(GANG_NODE + 1)]
            for machine in machines:  # by name
                if machine.serves:
                    shelves[len(world.free[machine.key])].append(machine)
            self.by_free[gpu_type] = shelves
        self.kept: dict[str, set[int]] = defaultdict(set)
        self.blocked: dict[str, Work] = {}

    def keep_for(self, job: Work, *, moment: int) -> None:
        """The first blocked job of a type, once it has waited a while, keeps the machines that will be free soonest."""
        if job.profile or job.gpu_type in self.blocked or moment - job.submitted < PATIENCE:
            return
        self.blocked[job.gpu_type] = job
        machines = [machine for shelf in self.by_free.get(job.gpu_type, ()) for machine in shelf]
        soon = _soon_free(self.world)
        machines.sort(key=lambda machine: (len(machine.usable) - soon[machine.key] - len(self.world.free[machine.key]), machine.name))
        self.kept[job.gpu_type].update(machine.key for machine in machines[: machines_needed(job)])

    def seats_for(self, job: Work) -> tuple[Seat, ...]:
        """A whole set of seats, or nothing."""
        if job.profile:
            return _slices(self.world, job)
        shelves, kept, free = self.by_free.get(job.gpu_type, []), self.kept[job.gpu_type], self.world.free
        if job.gpus <= GANG_NODE:
            for shelf in shelves[job.gpus :]:
                for machine in shelf:
                    if machine.key not in kept:
                        return tuple(Seat(machine.key, gpu, 0) for gpu in free[machine.key][: job.gpus])
            return ()
        empty = [machine for machine in shelves[GANG_NODE] if machine.key not in kept] if shelves else []
        chosen = _together(empty, machines_needed(job))
        return tuple(Seat(machine.key, gpu, worker) for worker, machine in enumerate(chosen) for gpu in free[machine.key])

    def taken(self, job: Work, seats: tuple[Seat, ...]) -> None:
        """Put the machines back where they belong once the world has seated the job."""
        for key in {seat.node: None for seat in seats if seat.slice is None}:
            machine = self.world.hardware.machines[key]
            for shelf in self.by_free[job.gpu_type]:
                if machine in shelf:
                    shelf.remove(machine)
            insort(self.by_free[job.gpu_type][len(self.world.free[key])], machine, key=lambda one: (one.name, one.key))


def machines_needed(job: Work) -> int:
    return max(1, -(-job.gpus // GANG_NODE))


def _soon_free(world: World) -> Counter[int]:
    """GPUs by machine whose holders leave soon."""
    return Counter(
        seat.node for job in world.work.values() if job.state == JobState.CHECKPOINTING or job.workload.quick for seat in job.seats if not seat.slice
    )


def _together(machines: list[Machine], count: int) -> list[Machine]:
    """The narrowest part of the fabric with so many machines: a leaf, else a spine, else a cluster."""
    for place in (lambda m: (m.cluster, m.spine, m.leaf), lambda m: (m.cluster, m.spine), lambda m: (m.cluster,)):
        groups: dict[tuple[int | str, ...], list[Machine]] = defaultdict(list)
        for machine in machines:
            groups[place(machine)].append(machine)
        enough = [group for group in groups.values() if len(group) >= count]
        if enough:
            return min(enough, key=lambda group: (len(group), group[0].name))[:count]
    return []


def _slices(world: World, job: Work) -> tuple[Seat, ...]:
    machines = world.hardware.machines
    fitting = [part for part in world.free_slices.values() if part.profile == job.profile and machines[part.node].serves]
    if len(fitting) < job.gpus:
        return ()
    fitting.sort(key=lambda part: (machines[part.node].name, part.gpu, part.key))
    return tuple(Seat(part.node, part.gpu, worker, part.milli, part.key) for worker, part in enumerate(fitting[: job.gpus]))


def victims_for(world: World, job: Work, *, moment: int) -> list[Work]:
    """Borrowers that must go so that a job inside its team's guarantee can start; none where that would not be enough."""
    if job.profile or not within_guarantee(world, job) or moment - job.submitted < RECLAIM_AFTER:
        return []
    candidates = [other for other in world.work.values() if _may_go(world, other, job, moment)]
    candidates.sort(key=lambda other: (other.priority, -(other.running or 0), -other.key))
    over = {other.team: world.held[other.team, job.gpu_type] - world.hardware.shares[other.team, job.gpu_type].guaranteed for other in candidates}
    chosen: list[Work] = []
    for other in candidates:
        if len(chosen) == MOST_VICTIMS or over[other.team] <= 0:
            continue
        chosen.append(other)
        over[other.team] -= other.milli
        if _would_fit(world, job, chosen):
            return [one for one in chosen if not _would_fit(world, job, [left for left in chosen if left is not one])] or [other]
    return []


def _may_go(world: World, other: Work, job: Work, moment: int) -> bool:
    return (
        other.state == JobState.RUNNING
        and other.preemptible == "yes"
        and other.gpu_type == job.gpu_type
        and not other.profile
        and other.team != job.team
        and not other.workload.quick
        and moment - (other.running or moment) >= SPARED
        and (other.team, job.gpu_type) in world.hardware.shares
    )


def _would_fit(world: World, job: Work, gone: Iterable[Work]) -> bool:
    room: dict[int, int] = {}
    for machine in world.hardware.by_type.get(job.gpu_type, ()):
        if machine.serves:
            room[machine.key] = len(world.free[machine.key])
    for other in gone:
        for seat in other.seats:
            if seat.node in room:
                room[seat.node] += 1
    need = min(job.gpus, GANG_NODE)
    return sum(1 for free in room.values() if free >= need) >= machines_needed(job)
