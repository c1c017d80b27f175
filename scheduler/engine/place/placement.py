"""Finding a place for workers: the tightest domain that suffices, then the tightest nodes in it, ranks along the fabric.

A placement is all or nothing: what was taken for the first workers is given back when the last one finds no room. Suspect
nodes are looked at last, and only for a job that tolerates them.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ..model.values import Kind, Placing, Role
from ..state.cluster import Cluster
from ..state.fleet import NO_PARTS, Seat, View, lowest, new_seat
from ..state.form import Wants
from ..state.grid import Eligible, Grid, Level, bits_of_large, flags_of, span_bits
from ..state.work import Work
from .gradient import ask_of
from .parts import Parts

Slice = tuple[int, int]
Seats = tuple[Seat, ...]


class Placer:
    """One search for one job in one quota type and one view."""

    def __init__(
        self,
        cluster: Cluster,
        work: Work,
        quota_type: int,
        view: View,
        *,
        banned: int = 0,
        spare: bool = False,
        budget: Mapping[str, int] | None = None,
    ) -> None:
        self.cluster = cluster
        self.grid: Grid = cluster.grid
        self.fleet = cluster.fleet
        self.work = work
        self.kind: Kind = work.kind
        self.quota_type = quota_type
        self.view = view
        self.banned = banned
        self.spare = spare
        self.suspect = False  # whether suspect nodes serve, too
        self.spread = cluster.settings.placement == "spread"
        self.parts = Parts(cluster, work, view, budget or {})

    def eligible(self, place: int) -> Eligible:
        """The nodes on which workers of a role may stand."""
        return self.work.form.eligible(place, self.quota_type, suspect=self.suspect, spare=self.spare)

    def place(self, wants: Wants, within: Slice | None = None) -> Seats | None:
        """Take places for all the workers wanted, or none and nothing taken: as topology asks, or inside one slice of the fleet."""
        for suspect in (False, True)[: 1 + self.kind.tolerates_suspect]:
            self.suspect = suspect
            slices = self.domains(self.kind.placing, wants, (0, self.grid.size), self.work.seats) if within is None else [within]
            for low, high in slices:
                mark = self.parts.mark()
                seats = self._place_in(wants, low, high)
                if seats is not None:
                    return seats
                self.parts.undo(mark)
        return None

    def _place_in(self, wants: Wants, low: int, high: int) -> Seats | None:
        """Role by role as they are stated; where that fails, the role with the largest workers first, as small ones fit into what those leave.

        What was taken before a failure is left to the caller to undo.
        """
        if len(wants) == 1:
            return self._place_roles(wants, low, high)
        mark = self.parts.mark()
        seats = self._place_roles(wants, low, high)
        largest = sorted(wants, key=lambda want: -self.kind.roles[want[0]].gpus)
        if seats is None and largest != list(wants):
            self.parts.undo(mark)
            seats = self._place_roles(largest, low, high)
        return seats

    def _place_roles(self, wants: Sequence[tuple[int, tuple[int, ...]]], low: int, high: int) -> Seats | None:
        seats: list[Seat] = []
        for place, ranks in wants:
            found = self._place_role(place, self.kind.roles[place], ranks, low, high)
            if found is None:
                return None
            seats.extend(found)
        return tuple(seats)

    # Domains

    def widths(self, placing: Placing) -> list[int]:
        """Levels to try, the preferred one first and then each wider one up to what is required; -1 is the whole fleet."""
        index = self.grid.level_index
        widest = index[placing.required] if placing.required is not None else (-1 if placing.span_clusters else 0)
        preferred = index[placing.preferred] if placing.preferred is not None else None
        if preferred is None and self.grid.habitual is not None and placing.required is None:
            preferred = self.grid.habitual
        return list(range(widest if preferred is None else max(preferred, widest), widest - 1, -1))

    def domains(self, placing: Placing, wants: Wants, within: Slice, pinned: Sequence[Seat]) -> Iterable[Slice]:
        """Slices that may hold everything wanted, best fit first, level by level."""
        sole_worker = not pinned and sum(len(ranks) for _, ranks in wants) == 1
        widths = self.widths(placing)
        if sole_worker and widths[0] != widths[-1] and placing.required is None:
            widths = widths[-1:]  # one worker is together with itself on any level
        for width in widths:
            level = self.grid.levels[width]
            if width == -1 or len(level) == 1:
                yield within
            elif not pinned:
                yield from self._fitting(level, wants, within)
            elif len(domains := {level.domain_of(seat.node) for seat in pinned}) == 1:
                yield common(level.slice_of(domains.pop()), within)

    def _fitting(self, level: Level, wants: Wants, within: Slice) -> Iterable[Slice]:
        """Domains of one level with room for the workers by count, the one with the least free room first."""
        good = np.ones(len(level), dtype=bool)
        everyone = np.zeros(self.grid.size, dtype=np.int64)
        for place, ranks in wants:
            role = self.kind.roles[place]
            eligible = self.eligible(place)
            everyone |= eligible.array
            if role.parted:
                continue
            slots = self.view.slots(role.gpus, role.cpu_milli, role.host_memory_mib, eligible.array)
            good &= level.sums(slots) >= len(ranks)
        candidates = np.flatnonzero(good)
        if not len(candidates):
            return
        free = level.sums(self.view.count_np * everyone)[candidates]
        size = level.sums(self.grid.usable_np)[candidates]
        order = np.lexsort((candidates, size, -free if self.spread else free))
        for domain in candidates[order].tolist():
            low, high = common(level.slice_of(domain), within)
            if low < high:
                yield low, high

    # One role

    def _place_role(self, place: int, role: Role, ranks: Sequence[int], low: int, high: int) -> list[Seat] | None:
        placing = role.placing
        if placing is None:
            return self._fill(place, role, ranks, low, high, self.kind.placing.tp_group)
        if placing.required is not None or placing.preferred is not None:
            pinned = [seat for seat in self.work.seats if seat.role == place]
            for inner_low, inner_high in self.domains(placing, ((place, tuple(ranks)),), (low, high), pinned):
                mark = self.parts.mark()
                seats = self._fill(place, role, ranks, inner_low, inner_high, placing.tp_group)
                if seats is not None:
                    return seats
                self.parts.undo(mark)
        return None if placing.required is not None else self._fill(place, role, ranks, low, high, placing.tp_group)

    def _fill(self, place: int, role: Role, ranks: Sequence[int], low: int, high: int, tp_group: int) -> list[Seat] | None:
        if role.parted:
            return self.parts.fill(place, role, ranks, self.eligible(place).bits & ~self.banned & span_bits(low, high))
        if 0 < role.gpus < tp_group:
            return self._fill_groups(place, role, ranks, low, high, tp_group)
        bits = self.eligible(place).bits & ~self.banned
        if low or high < self.grid.size:
            bits &= span_bits(low, high)
        chosen = self._choose(role, len(ranks), bits, tp_group if role.gpus else 1)
        if chosen is None:
            return None
        if len(chosen) > 1:
            chosen.sort()
        cpus, memory, milli = role.cpu_milli, role.host_memory_mib, role.gpus * 1000
        return [new_seat((place, rank, node, mask, cpus, memory, milli, NO_PARTS)) for rank, (node, mask) in zip(ranks, chosen, strict=True)]

    def _choose(self, role: Role, count: int, bits: int, group: int) -> list[tuple[int, int]] | None:
        """(node, GPUs) for so many workers, each on the tightest node that suffices; the places are taken. Groups of GPUs lie on one island each."""
        chosen: list[tuple[int, int]] = []
        take, cpus, memory = self.fleet.take_gpus, role.cpu_milli, role.host_memory_mib
        while len(chosen) < count:
            node = best_node(self.cluster, self.view, role, bits, steep=group <= 1, first=not chosen)
            if node is None:
                return None
            worker_mask = self._gpus_on(node, role.gpus, group)
            if role.gpus and not worker_mask:
                bits &= ~(1 << node)
                continue
            take(node, worker_mask, cpus, memory)
            chosen.append((node, worker_mask))
        return chosen

    def _gpus_on(self, node: int, count: int, group: int) -> int:
        """Which idle GPUs of a node one worker gets: whole islands stay whole where they can."""
        free = self.view.free[node]
        if node not in self.grid.narrow_islands:
            return lowest(free, count)
        parts = sorted((free & island for island in self.grid.nodes[node].islands), key=lambda mask: (mask.bit_count(), mask))
        for part in parts:
            if part.bit_count() >= count:
                return lowest(part, count)
        result = 0
        for part in reversed(parts):  # the roomiest first, so that few islands are broken into
            wanted = count - result.bit_count()
            usable = part.bit_count() // group * group
            result |= lowest(part, min(usable, wanted))
        return result if result.bit_count() == count else 0

    # Groups of several workers that need NVLink

    def _fill_groups(self, place: int, role: Role, ranks: Sequence[int], low: int, high: int, tp_group: int) -> list[Seat] | None:
        size = max(1, tp_group // role.gpus)
        groups: dict[int, list[int]] = {}
        for rank in ranks:
            groups.setdefault(rank // size, []).append(rank)
        pinned: dict[int, Seat] = {seat.rank // size: seat for seat in self.work.seats if seat.role == place}
        seats: list[Seat] = []
        blocks: list[list[Seat]] = []
        for number, members in sorted(groups.items()):
            block = self._place_group(place, role, members, low, high, pinned.get(number))
            if block is None:
                return None
            if number in pinned or len(members) < size:
                seats.extend(block)
            else:
                blocks.append(block)
        whole_ranks = [seat.rank for block in blocks for seat in block]
        blocks.sort(key=lambda block: min(seat.node for seat in block))
        in_order = [seat for block in blocks for seat in sorted(block, key=lambda seat: (seat.node, seat.mask))]
        seats.extend(seat._replace(rank=rank) for seat, rank in zip(in_order, whole_ranks, strict=True))
        return seats

    def _place_group(self, place: int, role: Role, ranks: Sequence[int], low: int, high: int, pin: Seat | None) -> list[Seat] | None:
        """Consecutive ranks inside one island: the tightest island that holds them."""
        islands = self.grid.islands
        if pin is not None:
            # An island may reach beyond the domain in which the gang stands.
            low, high = common((low, high), islands.slice_of(islands.domain_of(pin.node)))
        bits = self.eligible(place).bits & ~self.banned & span_bits(low, high)
        found: list[tuple[int, int, int, list[int]]] = []
        for domain in range(islands.domain_of(low), islands.domain_of(max(low, high - 1)) + 1):
            start, stop = common(islands.slice_of(domain), (low, high))
            nodes = [node for node in range(start, stop) if bits >> node & 1]
            for part in self._parts_of(nodes, pin):
                if sum(self._room(node, part, role) for node in nodes) >= len(ranks):
                    free = sum((self.view.free[node] & part).bit_count() for node in nodes)
                    found.append((-free if self.spread else free, start, max(part, 0), nodes))
        if not found:
            return None
        _, _, part, nodes = min(found)
        return self._seat_group(place, role, ranks, nodes, part or -1)

    def _parts_of(self, nodes: list[int], pin: Seat | None) -> Iterable[int]:
        """Masks of the islands inside a node, or one that covers all."""
        if len(nodes) == 1 and nodes[0] in self.grid.narrow_islands:
            parts = self.grid.nodes[nodes[0]].islands
            return [part for part in parts if pin is None or part & pin.mask]
        return [-1]

    def _room(self, node: int, part: int, role: Role) -> int:
        room = (self.view.free[node] & part).bit_count() // role.gpus
        return min(room, self.view.room_on(node, role.gpus, role.cpu_milli, role.host_memory_mib))

    def _seat_group(self, place: int, role: Role, ranks: Sequence[int], nodes: list[int], part: int) -> list[Seat]:
        seats: list[Seat] = []
        left = list(ranks)
        for node in sorted(nodes, key=lambda node: (-self._room(node, part, role), node)):
            while left and self._room(node, part, role):
                mask = lowest(self.view.free[node] & part, role.gpus)
                seat = Seat(place, left.pop(0), node, mask, role.cpu_milli, role.host_memory_mib, role.gpus * 1000)
                self.fleet.take(seat)
                seats.append(seat)
        return seats


def common(one: Slice, other: Slice) -> Slice:
    """The nodes that are in both."""
    return max(one[0], other[0]), min(one[1], other[1])


def best_node(cluster: Cluster, view: View, role: Role, bits: int, *, steep: bool = True, first: bool = True) -> int | None:
    """Where a worker of whole GPUs stands best: by the gradient of fragmentation, where that decides; else on the node with the least room that
    suffices, among equals on the one that breaks the fewest blocks, and then on the first. `first`: of the workers of its job."""
    gpus, cpus, memory = role.gpus, role.cpu_milli, role.host_memory_mib
    if steep and (gradient := cluster.gradient) is not None:
        best = gradient.best(view, ask_of(role), memory, flags_of(bits, cluster.grid.size))
        return None if best is None else best[0]
    buckets, blocks, free_cpus, free_memory = view.by_count(), cluster.blocks, view.cpus, view.memory
    for nodes in reversed(buckets[gpus:]) if cluster.settings.placement == "spread" else buckets[gpus:]:
        candidates = nodes & bits
        if blocks and candidates & (candidates - 1):
            for node in blocks.least_broken(view, gpus, bits_of_large(candidates), anew=first):
                if free_cpus[node] >= cpus and free_memory[node] >= memory:
                    return node
            continue
        while candidates:
            node = (candidates & -candidates).bit_length() - 1
            if free_cpus[node] >= cpus and free_memory[node] >= memory:
                return node
            candidates &= candidates - 1
    return None
