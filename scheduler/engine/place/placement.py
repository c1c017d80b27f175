"""Finding a place for workers: the tightest domain that suffices, then the tightest nodes in it, ranks along the fabric.

A placement is all or nothing: what was taken for the first workers is given back when the last one finds no room. Suspect
nodes are looked at last, and only for a job that tolerates them.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ..model.values import Kind, Placing, Role
from ..state.cluster import Cluster
from ..state.fleet import NO_PARTS, Seat, View, new_seat
from ..state.form import Wants
from ..state.grid import Eligible, Grid, Level, Slice, bits_of_large, common, flags_of, span_bits
from ..state.work import Work
from .gradient import ask_of
from .islands import Groups, gpus_on
from .parts import Parts

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
                slots = self.parts.slots(role, eligible).array
            else:
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
        eligible = self.eligible(place)
        bits = eligible.bits & ~self.banned
        if low or high < self.grid.size:
            bits &= span_bits(low, high)
        if role.parted:
            room = int(self.parts.slots(role, eligible).array[low:high].sum())
            return self.parts.fill(place, role, ranks, bits) if room >= len(ranks) else None
        if 0 < role.gpus < tp_group:
            return Groups(self.cluster, self.work, self.view, bits, place).fill(ranks, (low, high), tp_group)
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
            worker_mask = gpus_on(self.grid, self.view, node, role.gpus, group)
            if role.gpus and not worker_mask:
                bits &= ~(1 << node)
                continue
            take(node, worker_mask, cpus, memory)
            chosen.append((node, worker_mask))
        return chosen


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
