"""The room in the fleet. Whatever a plan changes of it goes through `Fleet`, which logs how to undo it.

There are two views of the same nodes. `now` is what is idle this moment; `soon` adds what is being freed: the places of
stopping jobs, of leaving workers and of victims of this plan. Both are one object until the first place is freed.
Within a view a node's idle GPUs are a bit mask, and nodes with equally many idle GPUs are one big bit set, so that the
tightest node that suffices is the lowest set bit of the first bucket that has one.
"""

from collections.abc import Callable, Sequence
from copy import copy
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..model.mig import Instance, board_of, layout_faults
from .grid import Grid, Ints, bit_set, ints

if TYPE_CHECKING:
    from ..place.gradient import Columns
    from ..place.slots import SlotCounts


MOST_NOTES = 10_000  # about changes of nodes, before all of them are looked at anew


class Part(NamedTuple):
    """A worker's part of one GPU: a share by MPS or time slice, or a MIG instance."""

    gpu: int
    milli: int
    mode: str  # "mig", "mps" or "timeslice"
    trust: str
    profile: str = ""
    start: int = 0
    memory: int = 0  # MiB of the GPU, where that was requested


class Seat(NamedTuple):
    """One worker's place: a node, whole GPUs as a mask, or parts of GPUs; and what it takes of the host."""

    role: int
    rank: int  # the worker's index within its role
    node: int
    mask: int
    cpus: int  # in thousandths, as everywhere in the engine
    memory: int
    milli: int
    parts: tuple[Part, ...] = ()


NO_PARTS: tuple[Part, ...] = ()
new_seat = partial(tuple.__new__, Seat)  # of all the fields at once: thousands are made in a plan, and the constructor takes three times as long


class Split(NamedTuple):
    """A GPU that is not whole: its mode, who may join, what is used, and for MIG its instances and which of them are taken."""

    mode: str
    trust: str = ""
    used: int = 0
    tenants: int = 0
    instances: tuple[Instance, ...] = ()
    taken: tuple[Instance, ...] = ()
    memory: int = 0  # MiB of the GPU that its tenants requested

    @property
    def empty(self) -> bool:
        return not self.tenants


@cache
def bits_of(mask: int) -> tuple[int, ...]:
    return tuple(place for place in range(mask.bit_length()) if mask >> place & 1)


@cache
def lowest(mask: int, count: int) -> int:
    result = 0
    for _ in range(count):
        low = mask & -mask
        result |= low
        mask ^= low
    return result


def sharers_of(mode: str, trust: str) -> int:
    """A number for who may share a GPU, of 64 bits."""
    return hash((mode, trust))


class View:
    """The room on every node, under one assumption about what has left."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.free = list(grid.usable)
        self.cpus = [node.cpu_milli for node in grid.nodes]
        self.memory = [node.host_memory_mib for node in grid.nodes]
        self.splits: dict[tuple[int, int], Split] = {}
        self.version = 0
        self.left: Ints = np.zeros((grid.size, grid.most_gpus), dtype=np.int64)  # milli-GPU of each shared GPU that may be joined
        self.sharers: Ints = np.zeros_like(self.left)  # by whom: `sharers_of`
        self.recount()

    def recount(self) -> None:
        """Derive the rest from what is free of GPUs and hosts, after that was written to directly."""
        self.count = [mask.bit_count() for mask in self.free]
        self.idle = sum(self.count)  # of all nodes together
        self.count_np = ints(self.count)
        self.host_np = ints(self.cpus), ints(self.memory)
        self.buckets: list[int] | None = None
        self.forget()
        self.left[:] = 0
        for key, split in self.splits.items():
            self._note_left(key, split)

    def copy(self) -> "View":
        other = copy(self)
        for name in ("free", "count", "cpus", "memory", "splits", "count_np", "left", "sharers"):
            setattr(other, name, getattr(self, name).copy())
        other.host_np = self.host_np[0].copy(), self.host_np[1].copy()
        other.buckets = self.buckets and self.buckets.copy()
        other.forget()
        return other

    def forget(self) -> None:
        """Begin anew to note which nodes change. What others have made of the view up to then is of no use to them any more."""
        self.notes: list[int] = []
        self.columns: Columns | None = None
        self.slot_counts: SlotCounts | None = None

    def changed_since(self, read: int) -> list[int]:
        """The nodes that have changed since so many notes were taken up; -1: all of them."""
        return [*range(self.grid.size)] if read < 0 else [*{*self.notes[read:]}]

    def by_count(self) -> list[int]:
        """Bit sets of nodes by their number of idle GPUs."""
        if self.buckets is None:
            size = max(1, (len(self.count) + 7) // 8)
            rows = [bytearray(size) for _ in range(self.grid.most_gpus + 1)]
            for node, count in enumerate(self.count):
                rows[count][node >> 3] |= 1 << (node & 7)
            self.buckets = [int.from_bytes(row, "little") for row in rows]
        return self.buckets

    @property
    def largest(self) -> int:
        """The most idle GPUs of a node."""
        return max((count for count, nodes in enumerate(self.by_count()) if nodes), default=0)

    # Changing

    def change(self, node: int, bits: int, cpus: int, memory: int) -> None:
        """Of these GPUs those that were idle are not any more, and the others are; and so much more of the host is left."""
        if bits:
            mask = self.free[node] = self.free[node] ^ bits
            old, count = self.count[node], mask.bit_count()
            self.count[node] = self.count_np[node] = count
            self.idle += count - old
            if self.buckets is not None:
                self.buckets[old] ^= 1 << node
                self.buckets[count] ^= 1 << node
        if cpus or memory:
            self.cpus[node] += cpus
            self.memory[node] += memory
            self.host_np[0][node], self.host_np[1][node] = self.cpus[node], self.memory[node]
        self.version += 1
        self.notes.append(node)

    def put_split(self, key: tuple[int, int], split: Split | None) -> None:
        if split is None:
            self.splits.pop(key, None)
        else:
            self.splits[key] = split
        self._note_left(key, split)
        self.change(key[0], 0, 0, 0)

    def _note_left(self, key: tuple[int, int], split: Split | None) -> None:
        if split is None or split.mode == "mig":
            self.left[key] = 0
        else:
            self.left[key], self.sharers[key] = 1000 - split.used, sharers_of(split.mode, split.trust)

    # Room

    def joinable(self, share: int, mode: str | None = None, trust: str = "") -> int:
        """The nodes on which a shared GPU has so many milli-GPU left, for a mode and domain of trust if given: a bit set that may hold others."""
        if not self.splits:
            return 0
        left = self.left >= share
        if mode is not None:
            left &= self.sharers == sharers_of(mode, trust)
        return bit_set(np.logical_or.reduce(left, axis=1))

    def hosts(self, cpus: int, memory: int) -> int:
        """The nodes that have so much left of their processors and memory, as a bit set."""
        nodes = (1 << self.grid.size) - 1
        for left, asked in zip(self.host_np, (cpus, memory), strict=True):
            nodes &= bit_set(left >= asked) if asked else -1
        return nodes

    def slots(self, gpus: int, cpus: int, memory: int, allowed: Ints, where: slice = slice(None)) -> Ints:
        """How many workers of a shape each node of a slice has room for; a bound of 10**6 where the shape needs nothing."""
        free = self.count_np[where]
        result = free // gpus if gpus else np.full(len(free), 10**6, dtype=np.int64)
        for left, asked in zip(self.host_np, (cpus, memory), strict=True):
            if asked:
                result = np.minimum(result, np.maximum(left[where], 0) // asked)
        return result * allowed[where]

    def slots_in(self, gpus: int, cpus: int, memory: int, allowed: Ints, low: int, high: int) -> int:
        """How many workers of a shape fit into a slice of the fleet."""
        return int(self.slots(gpus, cpus, memory, allowed, slice(low, high)).sum()) if gpus <= self.largest else 0

    def room_on(self, node: int, gpus: int, cpus: int, memory: int) -> int:
        """How many workers of a shape one node has room for."""
        room = self.count[node] // gpus if gpus else 10**6
        if cpus:
            room = min(room, max(0, self.cpus[node]) // cpus)
        if memory:
            room = min(room, max(0, self.memory[node]) // memory)
        return room


class Fleet:
    """Both views and the log by which every change since a mark is taken back, here and in what else a plan changes."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.log: list[tuple[View | None, Callable[..., object], tuple[Any, ...]]] = []  # what undoes a change, and in which view, if it is of one
        self._alike = 0  # so much of the log is from before the views became two, and is about both
        self.now = self.soon = View(grid)
        self.idle_at_start: list[int] = []

    def views(self) -> tuple[View, ...]:
        return (self.now,) if self.soon is self.now else (self.now, self.soon)

    # Building

    def lay_out(self, node: int, gpus: int) -> None:
        """Split GPUs of a node, given as a mask, as they are while nobody stands there. One out of service holds nothing."""
        layouts, usable = dict(self.grid.nodes[node].mig), self.grid.usable[node]
        for gpu in bits_of(gpus):
            split = Split("mig", instances=layouts[gpu]) if gpu in layouts and usable >> gpu & 1 else None
            self.set_split(self.soon, (node, gpu), split)

    def promise(self, seats: Sequence[Seat]) -> None:
        """Places are promised to somebody who is not there yet: what stands in their way on a board is to be split anew."""
        for seat in seats:
            for gpu in bits_of(seat.mask):
                self.soon.put_split((seat.node, gpu), None)
            for part in seat.parts:
                key = (seat.node, part.gpu)
                split = self.soon.splits.get(key)
                if split is None or split.mode != "mig":
                    continue
                beside: Split | None = None
                if part.mode == "mig":
                    mine = Instance(part.start, part.profile)
                    beside = split._replace(instances=tuple(one for one in split.instances if not self._overlap(seat.node, one, mine)))
                self.soon.put_split(key, beside)

    def _overlap(self, node: int, one: Instance, other: Instance) -> bool:
        """Whether two instances of a board want the same memory; the same instance does not stand in its own way."""
        board = board_of(self.grid.nodes[node].gpu_type)
        assert board is not None, "a part of a board that can't be split was refused at the door"
        return one != other and bool(layout_faults(board, (one, other)))

    def begin(self, leaving: Sequence[Seat]) -> None:
        """What will be free soon is known of each node: hold as well what is leaving, and begin a plan with what is idle then."""
        if len(self.soon.notes) > MOST_NOTES:
            self.soon.forget()
        if leaving:
            self.now = self.soon.copy()
            for seat in leaving:
                self.take(seat, (self.now,))
        self.idle_at_start = list(self.now.free)
        self.log.clear()
        self._alike = 0

    def leave_instances(self, leaving: Sequence[Seat]) -> None:
        """Who leaves keeps the geometry: an emptied MIG instance can be used again as it is, unless its place was promised to somebody already."""
        soon = self.soon
        for node, part in [(seat.node, part) for seat in leaving for part in seat.parts if part.mode == "mig"]:
            key, bit, mine = (node, part.gpu), 1 << part.gpu, Instance(part.start, part.profile)
            if (split := soon.splits.get(key)) is None:
                promised = not soon.free[node] & bit  # whole
            else:
                promised = split.mode != "mig" or any(self._overlap(node, mine, one) for one in split.taken)
            if promised:
                continue
            soon.splits[key] = left(joined(split, part), part) or Split("mig")
            soon.change(node, soon.free[node] & bit, 0, 0)

    # Changing

    def mark(self) -> int:
        return len(self.log)

    def undo(self, mark: int) -> None:
        log = self.log
        while len(log) > mark:
            view, back, given = log.pop()
            if view is None:
                back(*given)
                continue
            for each in (view,) if len(log) >= self._alike else self.views():
                back(each, *given)
        self._alike = min(self._alike, mark)

    def take(self, seat: Seat, views: Sequence[View] = ()) -> None:
        """Hold a place, in both views or only in some."""
        _, _, node, mask, cpus, memory, _, parts = seat
        for view in views or self.views():
            for part in parts:
                self.set_split(view, (node, part.gpu), joined(view.splits.get((node, part.gpu)), part))
            self._change(view, node, mask & view.free[node], -cpus, -memory)

    def take_gpus(self, node: int, mask: int, cpus: int, memory: int) -> None:
        """Hold whole GPUs of one node in both views, for any number of seats."""
        for view in self.views():
            self._change(view, node, mask & view.free[node], -cpus, -memory)

    def release(self, seats: Sequence[Seat], *, fresh: bool) -> None:
        """Give places back. Fresh ones were never stood on, so they are idle again at once; others are only being freed."""
        if not seats:
            return
        if not fresh and self.soon is self.now:
            self.soon, self._alike = self.now.copy(), len(self.log)
        here = by_node(seats)
        for view in self.views() if fresh else (self.soon,):
            for node, part in [(seat.node, part) for seat in seats for part in seat.parts]:
                if (split := view.splits.get((node, part.gpu))) is not None:
                    self.set_split(view, (node, part.gpu), left(split, part))
            for node, (mask, cpus, memory) in here.items():
                mask &= self.grid.usable[node]
                self._change(view, node, mask if view is self.soon else mask & self.idle_at_start[node], cpus, memory)

    def _change(self, view: View, node: int, bits: int, cpus: int, memory: int) -> None:
        self.log.append((view, View.change, (node, bits, -cpus, -memory)))
        view.change(node, bits, cpus, memory)

    def set_split(self, view: View, key: tuple[int, int], split: Split | None) -> None:
        """Change what a GPU is split into, in one view; a GPU that is split is not idle, one that is whole again is."""
        self.log.append((view, View.put_split, (key, view.splits.get(key))))
        view.put_split(key, split)
        node, bit = key[0], 1 << key[1]
        if bool(view.free[node] & bit) != (split is None):
            self._change(view, node, bit & self.grid.usable[node], 0, 0)


def on_gpus(seat: Seat) -> int:
    """The GPUs that a worker holds, whole or in part, as a mask."""
    mask = seat.mask
    for part in seat.parts:
        mask |= 1 << part.gpu
    return mask


def by_node(seats: Sequence[Seat]) -> dict[int, tuple[int, int, int]]:
    """GPUs, processors and memory that workers hold of each node."""
    here: dict[int, tuple[int, int, int]] = {}
    for _, _, node, mask, cpus, memory, _, _ in seats:
        known = here.get(node, (0, 0, 0))
        here[node] = known[0] | mask, known[1] + cpus, known[2] + memory
    return here


def joined(split: Split | None, part: Part) -> Split:
    """The GPU with one more part taken."""
    if part.mode == "mig":
        instance = Instance(part.start, part.profile)
        instances = split.instances if split else ()
        if instance not in instances:
            instances = tuple(sorted((*instances, instance)))
        taken = tuple(sorted((*(split.taken if split else ()), instance)))
        return Split("mig", instances=instances, taken=taken, tenants=len(taken))
    if split is None:
        return Split(part.mode, part.trust, part.milli, 1, memory=part.memory)
    return split._replace(used=split.used + part.milli, tenants=split.tenants + 1, memory=split.memory + part.memory)


def left(split: Split, part: Part) -> Split | None:
    """The GPU with one part less; None where it is whole again. An emptied MIG layout stays as it is."""
    if part.mode == "mig":
        taken = list(split.taken)
        taken.remove(Instance(part.start, part.profile))
        return split._replace(taken=tuple(taken), tenants=len(taken))
    if split.tenants == 1:
        return None
    return split._replace(used=split.used - part.milli, tenants=split.tenants - 1, memory=split.memory - part.memory)
