"""The room in the fleet, changed only by `take` and `release`, each of which can be undone.

There are two views of the same nodes. `now` is what is idle this moment; `soon` adds what is being freed: the places of
stopping jobs, of leaving workers and of victims of this plan. Both are one object until the first place is freed.
Within a view a node's idle GPUs are a bit mask, and nodes with equally many idle GPUs are one big bit set, so that the
tightest node that suffices is the lowest set bit of the first bucket that has one.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..model.mig import Instance, board_of, layout_faults
from .grid import Eligible, Grid, Ints


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
    """The `count` lowest GPUs of a mask."""
    result = 0
    for _ in range(count):
        low = mask & -mask
        result |= low
        mask ^= low
    return result


def bit_set(flags: npt.NDArray[np.bool_]) -> int:
    """The places that are set, as one number."""
    return int.from_bytes(np.packbits(flags, bitorder="little").tobytes(), "little")


def _sharers_of(mode: str, trust: str) -> int:
    """A number for who may share a GPU; that of others may be the same, so it only rules out."""
    return hash((mode, trust))


class View:
    """The room on every node, under one assumption about what has left."""

    def __init__(self, grid: Grid, log: Sequence[object] = ()) -> None:
        self.grid = grid
        self._log = log  # of the fleet: by its length a state of this plan is told from later ones
        # What found no room, and as of which length of the log; until room is given there is none, and it goes on from plan to plan.
        self.refused: dict[object, int] = {}
        self.free = list(grid.usable)
        self.count = list(grid.usable_count)
        self.idle = grid.gpus  # of all nodes together
        self.cpus = [node.cpu_milli for node in grid.nodes]
        self.memory = [node.host_memory_mib for node in grid.nodes]
        self.splits: dict[tuple[int, int], Split] = {}
        self.buckets: list[int] | None = None
        self.count_np = np.array(self.count, dtype=np.int64)
        self._host_np: tuple[Ints, Ints] | None = None
        self.host_changed: set[int] = set()
        self.version = 0
        self.notes: list[int] | None = None  # nodes that have changed, where somebody reads that
        self.columns: object = None  # what he has made of it
        self._largest = (-1, 0)  # as of which version
        self._left: Ints = np.zeros((grid.size, grid.most_gpus), dtype=np.int64)  # milli-GPU of each shared GPU that may be joined
        self._sharers: Ints = np.zeros_like(self._left)  # by whom: `_sharers_of`

    def recount(self) -> None:
        """Derive the counts from the masks, after these were written to directly."""
        self.count = [mask.bit_count() for mask in self.free]
        self.idle = sum(self.count)
        self.count_np = np.array(self.count, dtype=np.int64)
        self.buckets = None
        self._host_np = None
        self.notes = self.columns = None
        self._largest = (-1, 0)
        self._left[:] = 0
        for key, split in self.splits.items():
            self._note_left(key, split)

    def copy(self) -> "View":
        other = View.__new__(View)
        other.grid, other._log = self.grid, self._log
        other.refused = dict(self.refused)
        other.free = list(self.free)
        other.count = list(self.count)
        other.idle = self.idle
        other.cpus = list(self.cpus)
        other.memory = list(self.memory)
        other.splits = dict(self.splits)
        other.buckets = list(self.buckets) if self.buckets is not None else None
        other.count_np = self.count_np.copy()
        other._host_np = None if self._host_np is None else (self._host_np[0].copy(), self._host_np[1].copy())
        other.host_changed = set(self.host_changed)
        other.version = self.version
        other.notes = other.columns = None
        other._largest = self._largest
        other._left, other._sharers = self._left.copy(), self._sharers.copy()
        return other

    def refuse(self, asked: object) -> None:
        self.refused[asked] = len(self._log)

    def unrefuse(self, mark: int) -> None:
        """The log was taken back to a mark: what was refused after it may find room."""
        refused = self.refused
        while refused and refused[last := next(reversed(refused))] > mark:
            del refused[last]

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
        version, count = self._largest
        if version != self.version:
            count = 0
            if self.idle:
                buckets = self.by_count()
                count = len(buckets) - 1
                while count and not buckets[count]:
                    count -= 1
            self._largest = (self.version, count)
        return count

    def put_split(self, key: tuple[int, int], split: Split | None) -> None:
        if split is None:
            self.splits.pop(key, None)
        else:
            self.splits[key] = split
        self._note_left(key, split)
        self.version += 1
        if self.notes is not None:
            self.notes.append(key[0])

    def _note_left(self, key: tuple[int, int], split: Split | None) -> None:
        if split is None or split.mode == "mig":
            self._left[key] = 0
        else:
            self._left[key], self._sharers[key] = 1000 - split.used, _sharers_of(split.mode, split.trust)

    def joinable(self, share: int, mode: str | None = None, trust: str = "") -> int:
        """The nodes on which a shared GPU has so many milli-GPU left, for a mode and domain of trust if given: a bit set that may hold others."""
        if not self.splits:
            return 0
        left = self._left >= share
        if mode is not None:
            left &= self._sharers == _sharers_of(mode, trust)
        return bit_set(np.logical_or.reduce(left, axis=1))

    def slots_at_most(self, gpus: int) -> int:
        """How many workers of so many GPUs there is room for, if they may stand anywhere."""
        buckets = self.by_count()
        return sum([buckets[count].bit_count() * (count // gpus) for count in range(gpus, len(buckets))])

    def set_free(self, node: int, mask: int) -> None:
        self.free[node] = mask
        count = mask.bit_count()
        old = self.count[node]
        if count != old:
            self.count[node] = count
            self.count_np[node] = count
            self.idle += count - old
            if self.buckets is not None:
                bit = 1 << node
                self.buckets[old] ^= bit
                self.buckets[count] ^= bit
        self.version += 1
        if self.notes is not None:
            self.notes.append(node)

    def add_host(self, node: int, cpus: int, memory: int) -> None:
        self.cpus[node] += cpus
        self.memory[node] += memory
        self.version += 1
        if self.notes is not None:
            self.notes.append(node)
        if self._host_np is not None:
            self.host_changed.add(node)

    def host_np(self) -> tuple[Ints, Ints]:
        if self._host_np is None:
            self._host_np = (np.array(self.cpus, dtype=np.int64), np.array(self.memory, dtype=np.int64))
        elif self.host_changed:
            for node in self.host_changed:
                self._host_np[0][node] = self.cpus[node]
                self._host_np[1][node] = self.memory[node]
        self.host_changed = set()
        return self._host_np

    def hosts(self, cpus: int, memory: int) -> int:
        """The nodes that have so much left of their processors and memory, as a bit set."""
        nodes = (1 << self.grid.size) - 1
        if cpus or memory:
            for left, asked in zip(self.host_np(), (cpus, memory), strict=True):
                nodes &= bit_set(left >= asked) if asked else -1
        return nodes

    def slots(self, gpus: int, cpus: int, memory: int, eligible: Eligible) -> Ints:
        """How many workers of a shape each node has room for; a bound of 10**6 where the shape needs nothing."""
        if gpus > 1:
            result = self.count_np // gpus
        elif gpus == 1:
            result = self.count_np
        else:
            result = np.full(self.grid.size, 10**6, dtype=np.int64)
        if cpus or memory:
            cpu_np, memory_np = self.host_np()
            if cpus:
                result = np.minimum(result, cpu_np // cpus)
            if memory:
                result = np.minimum(result, memory_np // memory)
            result = np.maximum(result, 0)
        return result * eligible.array

    def slots_in(self, gpus: int, cpus: int, memory: int, allowed: Ints, low: int, high: int) -> int:
        """How many workers of a shape fit into a slice of the fleet."""
        if gpus > self.largest:
            return 0
        span = slice(low, high)
        result = self.count_np[span] // gpus if gpus else np.full(high - low, 10**6, dtype=np.int64)
        if cpus or memory:
            cpu_np, memory_np = self.host_np()
            if cpus:
                result = np.minimum(result, cpu_np[span] // cpus)
            if memory:
                result = np.minimum(result, memory_np[span] // memory)
            result = np.maximum(result, 0)
        return int((result * allowed[span]).sum())

    def room_on(self, node: int, gpus: int, cpus: int, memory: int) -> int:
        """How many workers of a shape one node has room for."""
        room = self.count[node] // gpus if gpus else 10**6
        if cpus:
            room = min(room, max(0, self.cpus[node]) // cpus)
        if memory:
            room = min(room, max(0, self.memory[node]) // memory)
        return room


class Fleet:
    """Both views and the log by which every change since a mark is taken back."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.log: list[tuple[Any, ...]] = []
        self.now = View(grid, self.log)
        self.soon = self.now
        self.idle_at_start: list[int] = []

    # Building

    def hold_geometry(self) -> None:
        """Note which GPUs are split when the plan begins."""
        for place, node in enumerate(self.grid.nodes):
            if not node.split:
                continue
            by_gpu: dict[int, list[Instance]] = {gpu: [] for gpu in bits_of(node.split)}
            for one in node.mig:
                by_gpu[one.gpu].append(Instance(one.start, one.profile))
            for gpu, instances in by_gpu.items():
                if self.now.free[place] >> gpu & 1:
                    self.now.splits[place, gpu] = Split("mig", instances=tuple(sorted(instances)))
            self.now.free[place] &= ~node.split

    def hold(self, seats: Sequence[Seat]) -> None:
        """Note places that are held when the plan begins; `settle` must follow before anything else is read."""
        now = self.now
        free, cpus, memory = now.free, now.cpus, now.memory
        for seat in seats:
            node = seat.node
            if seat.parts:
                for part in seat.parts:
                    now.splits[node, part.gpu] = joined(now.splits.get((node, part.gpu)), part)
                    free[node] &= ~(1 << part.gpu)
            else:
                free[node] &= ~seat.mask
            cpus[node] -= seat.cpus
            memory[node] -= seat.memory

    def promise(self, seats: Sequence[Seat]) -> None:
        """Note places that were promised to somebody who is not there yet: what stands in their way on a board is to be split anew."""
        splits = self.now.splits
        for seat in seats:
            for gpu in bits_of(seat.mask):
                splits.pop((seat.node, gpu), None)
            for part in seat.parts:
                key = (seat.node, part.gpu)
                split = splits.get(key)
                if split is None or split.mode != "mig":
                    continue
                if part.mode != "mig":
                    del splits[key]
                else:
                    beside = tuple(one for one in split.instances if not self._overlap(seat.node, one, Instance(part.start, part.profile)))
                    splits[key] = split._replace(instances=beside)
        self.hold(seats)

    def _overlap(self, node: int, one: Instance, other: Instance) -> bool:
        """Whether two instances of a board want the same memory; the same instance does not stand in its own way."""
        board = board_of(self.grid.nodes[node].gpu_type)
        assert board is not None, "a part of a board that can't be split was refused at the door"
        return one != other and bool(layout_faults(board, (one, other)))

    def lift(self, seats: Sequence[Seat]) -> None:
        """Whole GPUs and shares that were held when an earlier plan began are not any more; `begin` must follow."""
        soon, usable = self.soon, self.grid.usable
        soon.refused.clear()
        for _, _, node, mask, cpus, memory, _, parts in seats:
            for part in parts:
                split = left(soon.splits[node, part.gpu], part)
                soon.put_split((node, part.gpu), split)
                mask |= 0 if split else 1 << part.gpu
            soon.set_free(node, soon.free[node] | (mask & usable[node]))
            if cpus or memory:
                soon.add_host(node, cpus, memory)

    def put(self, view: View, seats: Sequence[Seat]) -> None:
        """Whole GPUs and shares are held that were idle when an earlier plan began; `begin` must follow."""
        for _, _, node, mask, cpus, memory, _, parts in seats:
            for part in parts:
                view.put_split((node, part.gpu), joined(view.splits.get((node, part.gpu)), part))
                mask |= 1 << part.gpu
            view.set_free(node, view.free[node] & ~mask)
            if cpus or memory:
                view.add_host(node, -cpus, -memory)

    def begin(self, leaving: Sequence[Seat]) -> None:
        """What will be free soon is known of each node: hold as well what is leaving, and begin a plan with what is idle then."""
        self.now = self.soon
        if leaving:
            self.now = self.soon.copy()
            self.put(self.now, leaving)
        self.idle_at_start = list(self.now.free)
        self.log.clear()

    def settle(self, leaving: Sequence[Seat] = ()) -> None:
        """Everything held is noted: count what is idle, and free in `soon` what is leaving."""
        self.now.recount()
        if leaving:
            held_soon = self.now.copy()
            self.hold(leaving)
            self.now.recount()
            self.soon = held_soon
            # Who leaves keeps the geometry: an emptied MIG instance can be used again as it is.
            for seat in leaving:
                for part in seat.parts:
                    if part.mode == "mig":
                        self._leave_empty(seat.node, part)
        self.idle_at_start = list(self.now.free)
        self.log.clear()

    def _leave_empty(self, node: int, part: Part) -> None:
        """An instance whose tenant is leaving can be used again, unless its place was promised to somebody already."""
        soon, key = self.soon, (node, part.gpu)
        split = soon.splits.get(key)
        if split is None and not soon.free[node] >> part.gpu & 1:
            return  # promised whole
        if split is not None and split.mode != "mig":
            return
        mine = Instance(part.start, part.profile)
        if split is not None and any(self._overlap(node, mine, one) for one in split.taken):
            return
        soon.splits[key] = left(joined(split, part), part) or Split("mig")
        soon.set_free(node, soon.free[node] & ~(1 << part.gpu))

    def part_ways(self) -> None:
        if self.soon is self.now:
            self.soon = self.now.copy()

    # Changing

    def mark(self) -> int:
        return len(self.log)

    def undo(self, mark: int) -> None:
        log = self.log
        while len(log) > mark:
            entry = log.pop()
            if len(entry) == 3:
                for view in (self.now, self.soon) if entry[0] is None else (entry[0],):
                    view.put_split(entry[1], entry[2])
            else:
                node, now_bits, soon_bits, now_cpus, now_memory, soon_cpus, soon_memory = entry
                self._flip(node, now_bits, soon_bits, -now_cpus, -now_memory, -soon_cpus, -soon_memory)
        self.now.unrefuse(mark)
        if self.soon is not self.now:
            self.soon.unrefuse(mark)

    @contextmanager
    def attempt(self) -> Iterator["Attempt"]:
        """Changes that are undone on the way out unless kept."""
        attempt = Attempt()
        mark = self.mark()
        try:
            yield attempt
        finally:
            if not attempt.kept:
                self.undo(mark)

    def take(self, seat: Seat) -> None:
        _, _, node, mask, cpus, memory, _, parts = seat
        if parts:
            self._take_parts(seat)
        if mask or cpus or memory:
            self._do(node, mask & self.now.free[node], mask & self.soon.free[node], -cpus, -memory, -cpus, -memory)

    def take_gpus(self, node: int, mask: int, cpus: int, memory: int) -> None:
        """The same of whole GPUs, for who makes the seat later."""
        now, soon = self.now, self.soon
        in_now, in_soon = mask & now.free[node], mask & soon.free[node]
        self.log.append((node, in_now, in_soon, -cpus, -memory, -cpus, -memory))
        if in_now:
            now.set_free(node, now.free[node] ^ in_now)
        if soon is not now and in_soon:
            soon.set_free(node, soon.free[node] ^ in_soon)
        if cpus or memory:
            now.add_host(node, -cpus, -memory)
            if soon is not now:
                soon.add_host(node, -cpus, -memory)

    def release(self, seat: Seat, *, fresh: bool) -> None:
        """Give a place back. A fresh one was never stood on, so it is idle again at once; another is only being freed."""
        if fresh:
            self.now.refused.clear()
        else:
            self.part_ways()
        self.soon.refused.clear()
        node, mask = seat.node, seat.mask & self.grid.usable[seat.node]
        if seat.parts:
            self._leave_parts(seat, fresh=fresh)
        if fresh:
            idle = mask & self.idle_at_start[node]
            self._do(node, idle, mask, seat.cpus, seat.memory, seat.cpus, seat.memory)
        else:
            self._do(node, 0, mask, 0, 0, seat.cpus, seat.memory)

    def free_all(self, seats: Sequence[Seat]) -> None:
        """Let places of whole GPUs become free that were held when the plan began: one step per node."""
        if not seats:
            return
        self.part_ways()
        self.soon.refused.clear()
        here: dict[int, list[int]] = {}
        for _, _, node, mask, cpus, memory, _, _ in seats:
            known = here.get(node)
            if known is None:
                here[node] = [mask, cpus, memory]
            else:
                known[0] |= mask
                known[1] += cpus
                known[2] += memory
        soon, usable, log = self.soon, self.grid.usable, self.log
        for node, (mask, cpus, memory) in here.items():
            freed = mask & usable[node]
            log.append((node, 0, freed, 0, 0, cpus, memory))
            if freed:
                soon.set_free(node, soon.free[node] ^ freed)
            if cpus or memory:
                soon.add_host(node, cpus, memory)

    def _do(self, *entry: int) -> None:
        self.log.append(entry)
        self._flip(*entry)

    def _flip(self, node: int, now_bits: int, soon_bits: int, now_cpus: int, now_memory: int, soon_cpus: int, soon_memory: int) -> None:
        now, soon = self.now, self.soon
        if now_bits:
            now.set_free(node, now.free[node] ^ now_bits)
        if now_cpus or now_memory:  # spelt out: nothing is called more often
            now.cpus[node] += now_cpus
            now.memory[node] += now_memory
            now.version += 1
            if now.notes is not None:
                now.notes.append(node)
            if now._host_np is not None:
                now.host_changed.add(node)
        if soon is not now:
            if soon_bits:
                soon.set_free(node, soon.free[node] ^ soon_bits)
            if soon_cpus or soon_memory:
                soon.add_host(node, soon_cpus, soon_memory)

    # Split GPUs

    def both(self) -> tuple[View, View]:
        """The two views as two objects: an entry of the log about a split names its view."""
        self.part_ways()
        return self.now, self.soon

    def set_split(self, view: View, key: tuple[int, int], split: Split | None) -> None:
        """Change what a GPU is split into, in one view; a GPU that is split is not idle, one that is whole again is."""
        old = view.splits.get(key)
        self.part_ways()  # an entry names its view, so the views must not become two behind its back
        self.log.append((view, key, old))
        view.put_split(key, split)
        if split is None:
            view.refused.clear()
        node, bit = key[0], 1 << key[1]
        if bool(view.free[node] & bit) != (split is None):
            bit &= self.grid.usable[node]
            if view is self.now:
                self._do(node, bit, 0, 0, 0, 0, 0)
            else:
                self._do(node, 0, bit, 0, 0, 0, 0)

    def _split_alike(self, key: tuple[int, int], split: Split | None) -> None:
        """The same while both views are one; should they part, the entry is about both."""
        now, (node, gpu) = self.now, key
        self.log.append((None, key, now.splits.get(key)))
        now.put_split(key, split)
        bit = 1 << gpu
        if bool(now.free[node] & bit) != (split is None):
            bit &= self.grid.usable[node]
            self._do(node, bit, bit, 0, 0, 0, 0)

    def _take_parts(self, seat: Seat) -> None:
        if self.soon is self.now:
            for part in seat.parts:
                key = (seat.node, part.gpu)
                self._split_alike(key, joined(self.now.splits.get(key), part))
            return
        self.now.refused.clear()  # the GPU may be held whole until somebody has left it, and counts as shared from here on
        for view in self.both():
            for part in seat.parts:
                key = (seat.node, part.gpu)
                self.set_split(view, key, joined(view.splits.get(key), part))

    def _leave_parts(self, seat: Seat, *, fresh: bool) -> None:
        if fresh and self.soon is self.now:
            for part in seat.parts:
                key = (seat.node, part.gpu)
                if (split := self.now.splits.get(key)) is not None:
                    self._split_alike(key, left(split, part))
            return
        for view in self.both() if fresh else self.both()[1:]:
            for part in seat.parts:
                key = (seat.node, part.gpu)
                split = view.splits.get(key)
                if split is not None:
                    self.set_split(view, key, left(split, part))


class Attempt:
    __slots__ = ("kept",)

    def __init__(self) -> None:
        self.kept = False

    def keep(self) -> None:
        self.kept = True


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
