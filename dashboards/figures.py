"""HLT-3's two numbers, always side by side: what is handed out, and what computes. Pure arithmetic over the fleet's columns, in milli-GPU.

A GPU without a reading is counted as that and as nothing else: it neither computes nor idles in any of these figures.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dashboards.selectors import SEVERITY, UNREAD, Fleet
from gpufleet.core.money import MILLIS_PER_HOUR, cost_micros
from scheduler.models import Health

# Below this share of the SMs of what is held a GPU is called idle.
IDLE_BELOW_PERCENT = 5


@dataclass(frozen=True, slots=True)
class Figures:
    """What one GPU type, or the whole fleet, has and does.

    `held`, `free` and `away` (out of service and not held) add up to all there is; `out` counts GPUs that take no work.
    `active` is SM activity over all GPUs that have a reading, `active_held` the part of it on what is held (never more than is held of the GPU).
    `gap` is what is held and does not compute; held GPUs without a reading are in `held_unread` instead. Of what is free,
    `suspect` is on hardware that may be failing, `kept` is for replacements and reservations, `scattered` serves no job of the queue as it lies, and
    `startable` is the rest.
    """

    gpus: int = 0
    out: int = 0
    read: int = 0
    held: int = 0
    held_unread: int = 0
    active: int = 0
    active_held: int = 0
    gap: int = 0
    idle: int = 0
    away: int = 0
    suspect: int = 0
    kept: int = 0
    scattered: int = 0

    @property
    def milli(self) -> int:
        return self.gpus * 1000

    @property
    def unread(self) -> int:
        return self.gpus - self.read

    @property
    def free(self) -> int:
        return self.milli - self.held - self.away

    @property
    def startable(self) -> int:
        return self.free - self.suspect - self.kept - self.scattered

    @property
    def held_read(self) -> int:
        return self.held - self.held_unread

    def __add__(self, other: "Figures") -> "Figures":
        mine, theirs = asdict(self), asdict(other)
        return Figures(**{name: mine[name] + theirs[name] for name in mine})


def _is_low(fleet: Fleet) -> NDArray[np.bool_]:
    """What computes less than a twentieth of the part of the GPU that is held."""
    return np.asarray(1000 * fleet.sm < IDLE_BELOW_PERCENT * fleet.held)


NOTHING_KNOWN: Mapping[str, int] = {}


def figures_by_type(fleet: Fleet, *, reserved: Mapping[str, int] = NOTHING_KNOWN, scattered: Mapping[str, int] = NOTHING_KNOWN) -> dict[str, Figures]:
    """`reserved`: kept free for reservations, by type; `scattered`: of no use to the queue as it lies. The rest of what is free is startable."""
    read = fleet.sm != UNREAD
    active = np.where(read, fleet.sm * 10, 0)
    held_read = np.where(read, fleet.held, 0)
    active_held = np.minimum(active, held_read)
    idle = np.where(read & _is_low(fleet), fleet.held, 0)
    away = np.where(fleet.out, 1000 - fleet.held, 0)
    free = np.where(fleet.out, 0, 1000 - fleet.held)
    suspect = np.where(fleet.severity == SEVERITY.index(Health.SUSPECT), free, 0)
    spare = np.where(fleet.spare, free - suspect, 0)
    found = {}
    for number, name in enumerate(fleet.types):
        mine = fleet.type_of == number
        rest = int((free - suspect - spare)[mine].sum())
        windows = min(rest, reserved.get(name, 0))
        found[name] = Figures(
            gpus=int(mine.sum()),
            out=int((mine & fleet.out).sum()),
            read=int((mine & read).sum()),
            held=int(fleet.held[mine].sum()),
            held_unread=int(fleet.held[mine & ~read].sum()),
            active=int(active[mine].sum()),
            active_held=int(active_held[mine].sum()),
            gap=int((held_read - active_held)[mine].sum()),
            idle=int(idle[mine].sum()),
            away=int(away[mine].sum()),
            suspect=int(suspect[mine].sum()),
            kept=int(spare[mine].sum()) + windows,
            scattered=min(rest - windows, scattered.get(name, 0)),
        )
    return found


def gap_cost(figures: dict[str, Figures], rates: dict[str, int]) -> int:
    """What the gap costs an hour, in micro-units. A type without a rate costs nothing here; the page names it."""
    return sum(cost_micros(gpu_milli=figure.gap, millis=MILLIS_PER_HOUR, micros_per_gpu_hour=rates.get(name, 0)) for name, figure in figures.items())


@dataclass(frozen=True, slots=True)
class Holding:
    """What one owner holds, how much of it idles, and its SM activity."""

    owner: int
    held: int
    idle: int
    read: int
    active: int


def holdings(fleet: Fleet) -> list[Holding]:
    """Every owner that holds something, the most idle first. GPUs that several share belong to nobody's list but `SEVERAL`'s."""
    read = fleet.sm != UNREAD
    active = np.where(read, np.minimum(fleet.sm * 10, fleet.held), 0)
    found = []
    for owner in np.unique(fleet.owner[fleet.held > 0]).tolist():
        mine = fleet.owner == owner
        idle = mine & read & _is_low(fleet)
        found.append(
            Holding(
                owner=owner,
                held=int(fleet.held[mine].sum()),
                idle=int(fleet.held[idle].sum()),
                read=int(fleet.held[mine & read].sum()),
                active=int(active[mine].sum()),
            )
        )
    return sorted(found, key=lambda holding: (-holding.idle, -holding.held, holding.owner))


@dataclass(frozen=True, slots=True)
class Waiting:
    """The queue of one class: jobs, what they ask for, and how long they have waited."""

    job_class: str
    jobs: int
    milli: int
    median_seconds: int
    longest_seconds: int


def queue_by_class(jobs: Sequence[tuple[str, int, datetime]], *, classes: Sequence[str], now: datetime) -> list[Waiting]:
    found = []
    for name in classes:
        mine = [(milli, max(0.0, (now - since).total_seconds())) for job_class, milli, since in jobs if job_class == name]
        waits = [wait for _, wait in mine]
        found.append(Waiting(name, len(mine), sum(milli for milli, _ in mine), int(median(waits or [0])), int(max(waits, default=0))))
    return found


@dataclass(frozen=True, slots=True)
class Series:
    """The past in equal steps, in GPUs. None where nothing was recorded; `active` is also None where nothing could be read."""

    step_seconds: int
    at: tuple[int, ...]  # milliseconds, the start of each step
    capacity: tuple[float | None, ...]
    allocated: tuple[float | None, ...]
    active: tuple[float | None, ...]
    unread: tuple[float | None, ...]


def series_of(rows: Sequence[tuple[datetime, str, int, int, int, int, int]], *, start: datetime, steps: int, step_seconds: int) -> Series:
    """A minute is a sum over types; a step is the mean of its minutes."""
    begin = start.timestamp()
    minutes: dict[float, list[int]] = {}
    for at, _, capacity, _, allocated, active, unread in rows:
        sums = minutes.setdefault(at.timestamp(), [0, 0, 0, 0])
        for number, value in enumerate((capacity, allocated, active, unread)):
            sums[number] += value
    buckets: list[list[list[int]]] = [[] for _ in range(steps)]
    for moment, sums in minutes.items():
        place = int((moment - begin) // step_seconds)
        if 0 <= place < steps:
            buckets[place].append(sums)

    def mean(column: int, bucket: list[list[int]]) -> float | None:
        return round(sum(sums[column] for sums in bucket) / len(bucket) / 1000, 2) if bucket else None

    def active_mean(bucket: list[list[int]]) -> float | None:
        read = [sums for sums in bucket if sums[3] < sums[0]]
        return mean(2, read)

    return Series(
        step_seconds=step_seconds,
        at=tuple(int((begin + number * step_seconds) * 1000) for number in range(steps)),
        capacity=tuple(mean(0, bucket) for bucket in buckets),
        allocated=tuple(mean(1, bucket) for bucket in buckets),
        active=tuple(active_mean(bucket) for bucket in buckets),
        unread=tuple(mean(3, bucket) for bucket in buckets),
    )


def as_columns(items: Sequence[Any]) -> list[list[Any]]:
    """Dataclasses as rows of plain values, the shortest JSON that keeps the order of their fields."""
    return [list(asdict(item).values()) for item in items]
