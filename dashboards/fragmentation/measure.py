"""How much of what is free a job could not use, and why: pure arithmetic over nodes as columns, in milli-GPU.

The measure is that of fragmentation-gradient scheduling (Weng et al., USENIX ATC 2023): of each job shape, what it cannot use of the free GPUs;
on average over shapes, weighted by how many jobs have them. What is too little for a shape even if it lay together is short, not fragmented.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class Why(StrEnum):
    """Why free GPUs are useless to a job of some shape."""

    PARTIAL = "partial"
    HOST = "host"
    TOPOLOGY = "topology"
    SPLIT = "split"
    RESERVATION = "reservation"
    GEOMETRY = "mig"


CAUSES = tuple(Why)


class Shape(NamedTuple):
    """What a job asks for: so many workers, each of so many whole GPUs and so much of the host, all within one domain of a level ('': anywhere).

    `gpus` 0: of parts of GPUs: instances of a `mig` profile, or shares; where it names neither, everything that is free can be used.
    `kept`: free GPUs by type that reservations keep for others.
    """

    workers: int
    gpus: int
    types: frozenset[str] = frozenset()
    level: str = ""
    cpu_milli: int = 0
    memory_mib: int = 0
    mig: str = ""
    share_milli: int = 0
    kept: tuple[tuple[str, int], ...] = ()

    @property
    def whole(self) -> int:
        return self.workers * self.gpus


class SplitGpu(NamedTuple):
    """A GPU that is split or shared, on the node of a number: what is free of it, and its free MIG instances by profile, both in milli-GPU."""

    node: int
    free_milli: int
    instances: tuple[tuple[str, int], ...] | None = None  # None: shared, and not by MIG


@dataclass(frozen=True, slots=True)
class Room:
    """Nodes as columns. `free` are whole idle GPUs that a start may use, `parts` milli-GPU that are free of shared ones, `splits` one by one.

    `levels` number each node's domain, wide to narrow. `profiles`: the MIG profiles of each GPU type.
    """

    types: Sequence[str]
    pools: Sequence[str]
    free: Ints
    parts: Ints
    cpu_milli: Ints
    memory_mib: Ints
    levels: Mapping[str, Ints]
    splits: Sequence[SplitGpu] = ()
    profiles: Mapping[str, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Against:
    """What the free GPUs are worth to a demand, in milli-GPU on average over its jobs. `jobs` 0: nobody asks for the type, and nothing is useless."""

    jobs: int = 0
    useless: Mapping[Why, int] = field(default_factory=lambda: dict.fromkeys(Why, 0))
    short: int = 0

    @property
    def milli(self) -> int:
        return sum(self.useless.values())


class KeptOut(NamedTuple):
    """A shape that would fit if what is free of the type lay together: `room` is how many of its workers fit where most do."""

    gpu_type: str
    shape: Shape
    jobs: int
    why: Why
    free: int
    room: int


@dataclass(frozen=True, slots=True)
class Pile:
    """What is free of one GPU type in one pool. `idle` counts nodes by how many idle GPUs they have."""

    gpu_type: str
    pool: str
    free_milli: int
    waiting: Against
    usual: Against
    idle: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Scattered:
    """The whole fleet. `largest`: GPUs that one gang could start with now within one domain, by type and level, wide to narrow."""

    piles: Sequence[Pile]
    largest: Mapping[str, Mapping[str, int]]
    kept_out: Sequence[KeptOut]


Counted = Mapping[Shape, int]  # by how many jobs


def scattered(room: Room, waiting: Counted, usual: Counted) -> Scattered:
    piles, largest = [], {}
    kept_out: list[KeptOut] = []
    names, pools = np.array(room.types, np.str_), np.array(room.pools, np.str_)
    for gpu_type in sorted(set(room.types)):
        here = names == gpu_type
        largest[gpu_type] = {level: int(np.bincount(domains[here], room.free[here]).max()) for level, domains in room.levels.items()}
        of_queue, left_out = _against(room, here, gpu_type, waiting)
        of_usual, _ = _against(room, here, gpu_type, usual)
        kept_out += left_out
        for pool in sorted(set(pools[here].tolist())):
            mine = here & (pools == pool)
            counts = np.bincount(room.free[mine])
            piles.append(
                Pile(
                    gpu_type,
                    pool,
                    1000 * int(room.free[mine].sum()) + int(room.parts[mine].sum()),
                    of_queue.of(mine),
                    of_usual.of(mine),
                    {idle: int(nodes) for idle, nodes in enumerate(counts.tolist()) if idle and nodes},
                )
            )
    kept_out.sort(key=lambda one: (-one.jobs * one.shape.whole, one.gpu_type, sorted(one.shape.types), one.shape[:2], one.shape[3:]))
    return Scattered(tuple(piles), largest, tuple(kept_out))


@dataclass(slots=True)
class _Total:
    """Sums over jobs, by node."""

    size: int
    jobs: int = 0
    useless: dict[Why, Ints] = field(default_factory=dict)
    short: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    def __post_init__(self) -> None:
        self.useless = {why: np.zeros(self.size, np.int64) for why in Why}
        self.short = np.zeros(self.size, np.int64)

    def of(self, mine: NDArray[np.bool_]) -> Against:
        if not self.jobs:
            return Against()
        return Against(
            self.jobs,
            {why: round(int(column[mine].sum()) / self.jobs) for why, column in self.useless.items()},
            round(int(self.short[mine].sum()) / self.jobs),
        )


def _against(room: Room, here: NDArray[np.bool_], gpu_type: str, demand: Counted) -> tuple[_Total, list[KeptOut]]:
    total, kept_out = _Total(len(here)), []
    free = np.where(here, room.free, 0)
    idle = int(free.sum())
    for shape, jobs in demand.items():
        if shape.types and gpu_type not in shape.types:
            continue
        total.jobs += jobs
        if not shape.gpus:
            for why, column in _useless_parts(room, here, gpu_type, shape).items():
                total.useless[why] += jobs * column
            continue
        if idle < shape.whole:
            total.short += jobs * 1000 * free
            total.short += jobs * np.where(here, room.parts, 0)
            continue
        useless, best = _useless(room, free, shape, dict(shape.kept).get(gpu_type, 0))
        for why, column in useless.items():
            total.useless[why] += jobs * 1000 * column
        total.useless[Why.SPLIT] += jobs * np.where(here, room.parts, 0)
        if best < shape.workers:
            why = max(useless, key=lambda one: int(useless[one].sum()))
            kept_out.append(KeptOut(gpu_type, shape, jobs, why, idle, best))
    return total, kept_out


def _useless(room: Room, free: Ints, shape: Shape, kept: int) -> tuple[dict[Why, Ints], int]:
    """Whole GPUs of each node that a job of the shape could not use, by cause; and how many workers fit into the domain that has room for most.

    `kept` of them are for the owners of reservations.
    """
    slots = free // shape.gpus
    partial = free - slots * shape.gpus
    able = slots
    if shape.cpu_milli:
        able = np.minimum(able, np.maximum(room.cpu_milli, 0) // shape.cpu_milli)
    if shape.memory_mib:
        able = np.minimum(able, np.maximum(room.memory_mib, 0) // shape.memory_mib)
    domains = room.levels.get(shape.level, np.zeros(len(free), np.int64))
    sums = np.bincount(domains, able).astype(np.int64)
    scattered_here = np.where(sums[domains] < shape.workers, able, 0)
    useless = {Why.PARTIAL: partial, Why.HOST: (slots - able) * shape.gpus, Why.TOPOLOGY: scattered_here * shape.gpus}
    if not shape.level or len(sums) == 1:
        # Nothing keeps its workers together: that too few fit is because nodes are too full.
        useless[Why.PARTIAL], useless[Why.TOPOLOGY] = partial + useless[Why.TOPOLOGY], np.zeros_like(partial)
    best = int(sums.max(initial=0))
    if kept:
        useful = free - sum(useless.values())
        left = max(0, int(useful.sum()) - kept)
        # What a reservation leaves is too little for the job: all of it waits for the reservation's end.
        taken = kept if left >= shape.whole else int(useful.sum())
        useless[Why.RESERVATION] = _first(useful, taken)
        best = min(best, left // shape.gpus)
    return useless, best


def _first(column: Ints, amount: int) -> Ints:
    """So much of a column, from its first node on."""
    before = np.cumsum(column) - column
    return np.clip(amount - before, 0, column)


def _useless_parts(room: Room, here: NDArray[np.bool_], gpu_type: str, shape: Shape) -> dict[Why, Ints]:
    """Milli-GPU of each node that a job of parts of GPUs could not use as the GPUs are split now."""
    found = {why: np.zeros(len(here), np.int64) for why in (Why.SPLIT, Why.GEOMETRY)}
    if not shape.mig and not shape.share_milli:
        return found
    if shape.mig and shape.mig not in room.profiles.get(gpu_type, ()):
        found[Why.GEOMETRY] += np.where(here, 1000 * room.free, 0)
    for one in room.splits:
        if not here[one.node]:
            continue
        if shape.mig:
            fitting = dict(one.instances or ()).get(shape.mig, 0)
            found[Why.SPLIT if one.instances is None else Why.GEOMETRY][one.node] += one.free_milli - fitting
        elif one.instances is not None:
            found[Why.GEOMETRY][one.node] += one.free_milli
        else:
            found[Why.SPLIT][one.node] += one.free_milli % shape.share_milli
    return found


def typical(counts: Mapping[Shape, int], *, share: float = 0.95, most: int = 40) -> dict[Shape, int]:
    """The commonest shapes that together are so much of a demand."""
    found: dict[Shape, int] = {}
    whole, seen = sum(counts.values()), 0
    for shape, jobs in sorted(counts.items(), key=lambda item: (-item[1], item[0].whole, item[0].gpus, sorted(item[0].types), item[0][3:])):
        if seen >= share * whole or len(found) >= most:
            break
        found[shape] = jobs
        seen += jobs
    return found


def counted(shapes: Iterable[Shape]) -> dict[Shape, int]:
    found: dict[Shape, int] = defaultdict(int)
    for shape in shapes:
        found[shape] += 1
    return dict(found)
