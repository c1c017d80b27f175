"""What stands on a guarantee: plain functions, the same line-up that the engine makes before it takes anything back.

At a node of the tree the work of one GPU type stands in line: what may not be preempted, what may be while it borrows, the rest; inside each
inference, interactive, batch; higher priority; minima before surplus; earlier start; name; worker. Added up from the front, a unit is inside as
long as the sum stays within what the node is promised; the unit that crosses the line is outside, and so is all behind it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

CLASS_ORDER = {"inference": 0, "interactive": 1, "batch": 2}
PREEMPTIBLE_ORDER = {"no": 0, "when_borrowed": 1, "yes": 2}
GUARANTEED, RESERVED, BORROWED = STANDINGS = ("guaranteed", "reserved", "borrowed")

Key = tuple[int, str, int, str]  # attempt, role, worker, GPU type


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker of a run. The minimum of its gang stands and falls together, a surplus worker for itself. `began` grows with time."""

    key: Key
    surplus: bool
    path: str
    gpu_milli: int
    preemptible: str
    job_class: str
    priority: int
    began: int
    job: str

    @property
    def unit(self) -> Key:
        attempt, _, _, gpu_type = self.key
        return self.key if self.surplus else (attempt, "", -1, gpu_type)

    @property
    def place(self) -> tuple[int, int, int, bool, int, str, int, Key]:
        kind = (PREEMPTIBLE_ORDER[self.preemptible], CLASS_ORDER[self.job_class], -self.priority)
        return (*kind, self.surplus, self.began, self.job, self.unit[2], self.unit)

    @property
    def gpu_type(self) -> str:
        return self.key[3]


class Weight(NamedTuple):
    """Thousandths of a type that are held at a node, by whomever."""

    path: str
    gpu_type: str
    gpu_milli: int


@dataclass(frozen=True, slots=True)
class Promised:
    """What a node is promised of a type: its guarantee (None: unlimited), and the windows in force on top of it."""

    guaranteed_milli: int | None
    window_milli: int = 0


NOTHING = Promised(0)


@lru_cache(maxsize=4096)
def above(path: str) -> tuple[str, ...]:
    """A node and all nodes above it, from the top."""
    return tuple(accumulate(path.split("/"), lambda upper, name: f"{upper}/{name}"))


def all_inside(asked: Sequence[Worker], others: Iterable[Weight], promises: Mapping[tuple[str, str], Promised]) -> bool:
    """Whether none of these can stand outside, as all that is held where they stand fits into what is promised there."""
    places = {(path, worker.gpu_type) for worker in asked for path in above(worker.path)}
    rest = {at: milli for at in places if (milli := promises.get(at, NOTHING).guaranteed_milli) is not None}
    for place, gpu_type, milli in (*(Weight(worker.path, worker.gpu_type, worker.gpu_milli) for worker in asked), *others):
        for path in above(place):
            if (path, gpu_type) in rest:
                rest[path, gpu_type] -= milli
    return all(milli >= 0 for milli in rest.values())


def share_classes(workers: Iterable[Worker], promises: Mapping[tuple[str, str], Promised], asked: Iterable[Worker] | None = None) -> dict[Key, str]:
    """The class of every worker: guaranteed where its unit is inside at its leaf and at each node above, reserved where that takes a window.

    `promises` is by path and GPU type; a node that is not named is promised nothing. `asked` says about whom it is: only their lines are made.
    """
    everyone = list(workers)
    about = everyone if asked is None else list(asked)
    wanted = {(path, worker.key[3]) for worker in about for path in above(worker.path)}
    milli: dict[Key, int] = {}
    first: dict[Key, Worker] = {}
    for worker in everyone:
        milli[worker.unit] = milli.get(worker.unit, 0) + worker.gpu_milli
        first.setdefault(worker.unit, worker)
    lines: dict[tuple[str, str], list[Worker]] = {}
    for unit in sorted(first.values(), key=lambda worker: worker.place):
        for path in above(unit.path):
            if (path, unit.key[3]) in wanted:
                lines.setdefault((path, unit.key[3]), []).append(unit)
    standing = dict.fromkeys(first, 0)
    for at, line in lines.items():
        for key, rank in _ranks(line, milli, promises.get(at, NOTHING)):
            standing[key] = max(standing[key], rank)
    return {worker.key: STANDINGS[standing[worker.unit]] for worker in about}


def _ranks(line: Sequence[Worker], milli: Mapping[Key, int], promised: Promised) -> Iterator[tuple[Key, int]]:
    """Those of a line that stand outside the guarantee: 1 where windows reach as far, else 2."""
    if promised.guaranteed_milli is None:
        return
    total = 0
    for worker in line:
        total += milli[worker.unit]
        if total > promised.guaranteed_milli:
            yield worker.unit, 1 if total <= promised.guaranteed_milli + promised.window_milli else 2


def with_class_windows(classes: Mapping[Key, str], workers: Iterable[Worker], rooms: Mapping[tuple[str, str], int]) -> dict[Key, str]:
    """The same with what borrows and stands on a window of its class: first come, first served, a unit as a whole.

    `rooms` is by class and GPU type.
    """
    found = dict(classes)
    units: dict[Key, list[Worker]] = {}
    for worker in workers:
        if (worker.job_class, worker.gpu_type) in rooms and classes.get(worker.key) == BORROWED:
            units.setdefault(worker.unit, []).append(worker)
    left = dict(rooms)
    for members in sorted(units.values(), key=lambda members: (members[0].began, members[0].job, members[0].unit)):
        at, milli = (members[0].job_class, members[0].gpu_type), sum(worker.gpu_milli for worker in members)
        if milli <= left[at]:
            left[at] -= milli
            found.update((worker.key, RESERVED) for worker in members)
    return found
