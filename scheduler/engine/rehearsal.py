"""A job tried on the fleet as it will probably be at some moment to come.

Counting GPUs tells when a job could start at the soonest. Whether it can then also be placed (processors and memory of the
host, several roles on the same nodes, groups inside islands, parts of GPUs) is found by placing it, moment by moment, with
the same search as today's starts.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .cluster import Cluster, Work
from .fleet import Fleet, Seat, Split, joined, lowest
from .lookahead import END, FOREVER, Lookahead
from .placement import Placer

MOST_MOMENTS = 64  # that are tried for one job; one that fits at none of them gets no date


class Stay(NamedTuple):
    """Who stands where from one moment to another, in milliseconds from now."""

    start: int
    end: int
    seats: tuple[Seat, ...]


class Rehearsal:
    def __init__(self, cluster: Cluster, ahead: Lookahead, stays: Iterable[Stay]) -> None:
        self.cluster = cluster
        self.grid = cluster.grid
        self.ahead = ahead
        self.stays = list(stays)
        self._by_node: dict[int, list[tuple[int, int, int, int]]] = {}
        self._indexed = 0  # so many of the stays are in it

    def add(self, start: int, length: int, seats: Sequence[Seat]) -> None:
        """Somebody more who will stand there. Whole GPUs are the look-ahead's to count."""
        self.stays.append(Stay(start, END if length >= FOREVER else start + length, tuple(seat._replace(mask=0) for seat in seats)))

    def earliest(self, work: Work, quota_type: int, since: int, length: int) -> tuple[int, tuple[Seat, ...]] | None:
        """The first moment from `since` on at which the job finds a place for so long, and the place."""
        for moment in self._moments(since):
            seats = self.place(work, quota_type, moment, length)
            if seats is not None:
                return moment, seats
        return None

    def _moments(self, since: int) -> list[int]:
        """When something changes: the one asked for, then whenever somebody leaves."""
        return [since, *sorted({stay.end for stay in self.stays if since < stay.end < END})[: MOST_MOMENTS - 1]]

    def hosts_suffice(self, role_host: tuple[int, int], counts: Iterable[tuple[int, int]], moment: int, length: int) -> bool:
        """Whether so many workers per node find the processors and the memory that each of them needs."""
        until = END if length >= FOREVER else moment + length
        by_node = self._hosts_by_node()
        for node, count in counts:
            here = [use for use in by_node.get(node, ()) if use[1] > moment and use[0] < until]
            cpus = self.grid.nodes[node].cpus - sum(use[2] for use in here)
            memory = self.grid.nodes[node].host_memory_mib - sum(use[3] for use in here)
            if role_host[0] * count > cpus or role_host[1] * count > memory:
                return False
        return True

    def _hosts_by_node(self) -> dict[int, list[tuple[int, int, int, int]]]:
        """(from, to, processors, memory) of everyone on a node."""
        for stay in self.stays[self._indexed :]:
            for seat in stay.seats:
                self._by_node.setdefault(seat.node, []).append((stay.start, stay.end, seat.cpus, seat.memory))
        self._indexed = len(self.stays)
        return self._by_node

    def there(self, moment: int, length: int) -> Iterable[Stay]:
        """Who stands anywhere at some time between the moment and so much later."""
        until = END if length >= FOREVER else moment + length
        return (stay for stay in self.stays if stay.end > moment and stay.start < until)

    def place(self, work: Work, quota_type: int, moment: int, length: int) -> tuple[Seat, ...] | None:
        """Where the job would stand if it started at the moment; nothing is changed."""
        cluster, real = self.cluster, self.cluster.fleet
        tries = [(False, False)]
        if work.kind.tolerates_suspect:
            tries.append((True, False))
        if work.seats:
            tries.append((work.kind.tolerates_suspect, True))
        try:
            for suspect, spare in tries:
                cluster.fleet = self._fleet(real, moment, length)
                placer = Placer(cluster, work, quota_type, cluster.fleet.now, suspect=suspect, spare=spare)
                seats = placer.place(work.missing())
                if seats is not None:
                    return seats
            return None
        finally:
            cluster.fleet = real

    def _fleet(self, real: Fleet, moment: int, length: int) -> Fleet:
        """What is free all the time from the moment on. Layouts of boards stay as they are."""
        fleet = Fleet(self.grid)
        view = fleet.now
        until = END if length >= FOREVER else moment + length
        busy = [0] * self.grid.size
        for key, split in real.soon.splits.items():
            if split.mode == "mig":
                view.splits[key] = Split("mig", instances=split.instances)
        for stay in self.there(moment, length):
            for seat in stay.seats:
                busy[seat.node] |= seat.mask
                view.cpus[seat.node] -= seat.cpus
                view.memory[seat.node] -= seat.memory
                for part in seat.parts:
                    key = (seat.node, part.gpu)
                    view.splits[key] = joined(view.splits.get(key), part)
        for node, gpu in view.splits:
            busy[node] |= 1 << gpu
        for node, usable in enumerate(self.grid.usable):
            free = usable & ~busy[node]
            count = self.ahead.least_free(node, moment, until)
            view.free[node] = free if count >= free.bit_count() else lowest(free, max(0, count))
        view.recount()
        return fleet


def counts_of(seats: Iterable[Seat], usable: Sequence[int]) -> list[tuple[int, int]]:
    """(node, GPUs) of whole GPUs, and of those that are newly in parts: all that a look-ahead by counting has to keep free."""
    counts: dict[int, int] = {}
    for seat in seats:
        counts[seat.node] = counts.get(seat.node, 0) + (seat.mask & usable[seat.node]).bit_count()
    return [(node, count) for node, count in sorted(counts.items()) if count]


def newly_shared(seats: Sequence[Seat], rehearsal: Rehearsal, moment: int, length: int) -> list[tuple[int, int]]:
    """(node, GPUs) that are whole until these seats take parts of them."""
    if not any(seat.parts for seat in seats):
        return []
    split = {(seat.node, part.gpu) for stay in rehearsal.there(moment, length) for seat in stay.seats for part in seat.parts}
    fresh = {(seat.node, part.gpu) for seat in seats for part in seat.parts if part.mode != "mig"} - split
    return counts_of((Seat(0, 0, node, 1 << gpu, 0, 0, 0) for node, gpu in sorted(fresh)), [-1] * rehearsal.grid.size)
