"""A job tried on the fleet as it will probably be at some moment to come: where counting GPUs is not all, it is placed as today's starts are."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain

import numpy as np

from ..place.placement import Placer
from ..state.cluster import Cluster
from ..state.fleet import Fleet, Seat, Split, joined, lowest
from ..state.grid import Grid
from ..state.work import Work
from .entries import Stays, Use
from .lookahead import END, FOREVER, Lookahead

MOST_MOMENTS = 64  # that are tried for one job; one that fits at none of them gets no date


class Rehearsal:
    """Who stands where until when, and who will. Moments are counted in milliseconds from now."""

    def __init__(self, cluster: Cluster, ahead: Lookahead, stays: Stays) -> None:
        self.cluster, self.grid, self.ahead, self.stays = cluster, cluster.grid, ahead, stays
        self._coming: dict[int, list[Use]] = {}  # by node

    def add(self, start: int, length: int, seats: Sequence[Seat]) -> None:
        """Somebody more who will stand there. Whole GPUs are the look-ahead's to count."""
        for seat in seats:
            self._coming.setdefault(seat.node, []).append(Use(self.cluster.now + start, self._until(start, length), seat._replace(mask=0)))

    def _until(self, moment: int, length: int) -> int:
        return END if length >= FOREVER else self.cluster.now + moment + length

    def earliest(self, work: Work, quota_type: int, since: int, length: int, banned: int = 0) -> tuple[int, tuple[Seat, ...]] | None:
        """The first moment from `since` on at which the job finds a place for so long off the banned nodes, and the place."""
        leaving, before, split = self._leaving(since), -1, None
        if _one_part(work, self.grid):  # the nodes on which a GPU is split at some time
            split = {node for splits in (self.cluster.fleet.soon.splits, self.stays.tenants) for node, _ in splits}
            split |= {node for node, uses in self._coming.items() if any(use.seat.parts for use in uses)}
        for moment in [since, *sorted(leaving)[: MOST_MOMENTS - 1]]:
            among = None
            if split is not None:
                among = self._hopeful(split, moment, length)
                if before >= 0:  # where nothing comes free it fits no better than before
                    among &= self._come_free(work, before, moment, leaving[moment])
            before = moment
            seats = None if among is not None and not among else self.place(work, quota_type, moment, length, among, banned)
            if seats is not None:
                return moment, seats
        return None

    def _leaving(self, since: int) -> dict[int, set[int]]:
        """The nodes on which somebody leaves later than at a moment, by when."""
        now, leaving = self.cluster.now, dict[int, set[int]]()
        stays = ((held.until, seat.node) for held in self.stays.held.values() if now + since < held.until < END for seat in held.seats)
        coming = ((use.end, node) for node, uses in self._coming.items() for use in uses if now + since < use.end < END)
        for until, node in chain(stays, coming):
            leaving.setdefault(until - now, set()).add(node)
        return leaving

    def _hopeful(self, split: set[int], moment: int, length: int) -> set[int]:
        """The nodes on which one worker with parts of GPUs may find them: some are split there, or whole for so long."""
        table = self.ahead.table(1)
        whole = (table.start <= self.cluster.now + moment) & (table.end >= self._until(moment, length))
        return split.union(np.flatnonzero(whole.any(axis=1)).tolist())

    def _come_free(self, work: Work, before: int, moment: int, leaving: set[int]) -> set[int]:
        """The nodes on which somebody leaves at a moment, or more GPUs are whole or shared than at the one before."""
        first, last = self.cluster.now + before, self.cluster.now + moment
        found = leaving.union(node for node, uses in self._coming.items() if any(first < use.start <= last for use in uses))
        for count in range(1, work.kind.roles[0].devices + 1):
            table = self.ahead.table(count)
            found.update(np.flatnonzero(((table.start > first) & (table.start <= last)).any(axis=1)).tolist())
        return found

    def host_suffices(self, cpus: int, memory: int, node: int, moment: int, length: int) -> bool:
        """Whether a node has so much left of its processors and memory for so long from a moment on."""
        host, seats = self.grid.nodes[node], [use.seat for use in self.on(node, moment, length)]
        cpus, memory = cpus + sum([seat.cpus for seat in seats]), memory + sum([seat.memory for seat in seats])
        return cpus <= host.cpu_milli and memory <= host.host_memory_mib

    def on(self, node: int, moment: int, length: int) -> Iterator[Use]:
        """What is taken of a node at some time in so long from a moment on."""
        start, until = self.cluster.now + moment, self._until(moment, length)
        return (use for use in chain(self.stays.on(node), self._coming.get(node, ())) if use.end > start and use.start < until)

    def place(
        self, work: Work, quota_type: int, moment: int, length: int, among: Collection[int] | None = None, banned: int = 0
    ) -> tuple[Seat, ...] | None:
        """Where the job would stand if it started at the moment, on all nodes or on some; nothing is changed."""
        cluster, real = self.cluster, self.cluster.fleet
        banned |= 0 if among is None else ~sum(1 << node for node in among)
        try:
            for spare in (False, True)[: 1 + bool(work.seats)]:
                cluster.fleet = self._fleet(real, moment, length, among)
                seats = Placer(cluster, work, quota_type, cluster.fleet.now, banned=banned, spare=spare).place(work.missing())
                if seats is not None:
                    return seats
            return None
        finally:
            cluster.fleet = real

    def _fleet(self, real: Fleet, moment: int, length: int, among: Collection[int] | None) -> Fleet:
        """What is free all the time from the moment on, on all nodes or on some. Layouts of boards stay as they are."""
        fleet = Fleet(self.grid)
        view, now = fleet.now, self.cluster.now + moment
        busy: dict[int, int] = dict.fromkeys(range(self.grid.size) if among is None else among, 0)
        for key, split in real.soon.splits.items():
            if split.mode == "mig" and key[0] in busy:
                view.splits[key] = Split("mig", instances=split.instances)
        for node in busy:
            for start, _, seat in self.on(node, moment, length):
                busy[node] |= seat.mask
                view.cpus[node] -= seat.cpus
                view.memory[node] -= seat.memory
                for part in seat.parts:
                    key = (node, part.gpu)
                    if start > now:  # whoever joined it at once would be alone there at first, and nobody has kept the whole of it for that
                        busy[node] |= 1 << part.gpu
                    view.splits[key] = joined(view.splits.get(key), part)
        for node, gpu in [key for key in view.splits if busy[key[0]] >> key[1] & 1]:
            del view.splits[node, gpu]  # held as a whole, too, at some time
        for node, gpu in view.splits:
            busy[node] |= 1 << gpu
        for node, held in busy.items():
            free = self.grid.usable[node] & ~held
            count = self.ahead.least_free(node, moment, END if length >= FOREVER else moment + length)
            view.free[node] = free if count >= free.bit_count() else lowest(free, max(0, count))
        view.recount()
        return fleet


def _one_part(work: Work, grid: Grid) -> bool:
    """Whether it is one worker with parts of GPUs that may stand on any node: then what one node offers depends on no other."""
    roles, placing = work.kind.roles, work.kind.placing
    if work.seats or len(roles) != 1 or roles[0].least != 1 or not roles[0].parted or roles[0].placing is not None:
        return False
    return placing.required is None and (placing.span_clusters or len(grid.levels[0]) == 1)


def counts_of(seats: Iterable[Seat], usable: Sequence[int]) -> list[tuple[int, int]]:
    """(node, GPUs) of whole GPUs, and of those that are newly in parts: all that a look-ahead by counting has to keep free."""
    counts = Counter[int]()
    for seat in seats:
        counts[seat.node] += (seat.mask & usable[seat.node]).bit_count()
    return [(node, count) for node, count in sorted(counts.items()) if count]


def newly_shared(seats: Sequence[Seat], rehearsal: Rehearsal, moment: int, length: int) -> list[tuple[int, int]]:
    """(node, GPUs) that are whole until these seats take parts of them."""
    if not any(seat.parts for seat in seats):
        return []
    nodes = {seat.node for seat in seats}
    split = {(node, part.gpu) for node in nodes for use in rehearsal.on(node, moment, length) for part in use.seat.parts}
    fresh = {(seat.node, part.gpu) for seat in seats for part in seat.parts if part.mode != "mig"} - split
    return counts_of((Seat(0, 0, node, 1 << gpu, 0, 0, 0) for node, gpu in sorted(fresh)), [-1] * rehearsal.grid.size)
