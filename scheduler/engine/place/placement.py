"""Finding a place for workers: the tightest domain that suffices, then the tightest nodes in it, ranks along the fabric.

A placement is all or nothing: what was taken for the first workers is given back when the last one finds no room. Suspect
nodes are looked at last, and only for a job that tolerates them.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..model.values import Placing, Role
from ..state.cluster import Cluster
from ..state.fleet import NO_PARTS, Seat, View, lowest, new_seat
from ..state.form import Wants
from ..state.grid import Eligible, Level, Slice, bits_of_large, common, flags_of, span_bits
from ..state.work import Work
from .gradient import ask_of
from .islands import Groups, gpus_on
from .parts import Parts

if TYPE_CHECKING:
    from ..state.planning import Cycle

Seats = tuple[Seat, ...]
Budget = Mapping[str, int]  # GPUs that may be split anew, by pool


class Placer:
    """One search for one job in one quota type and one view."""

    def __init__(
        self, cluster: Cluster, work: Work, quota_type: int, view: View, *, banned: int = 0, spare: bool = False, budget: Budget | None = None
    ) -> None:
        self.cluster, self.grid, self.fleet, self.view = cluster, cluster.grid, cluster.fleet, view
        self.work, self.kind, self.quota_type = work, work.kind, quota_type
        self.banned, self.spare = banned, spare
        self.suspect = False  # whether suspect nodes serve, too
        self.spread = cluster.settings.placement == "spread"
        self.parts = Parts(cluster, work, view, budget or {})

    def eligible(self, place: int) -> Eligible:
        return self.work.form.eligible(place, self.quota_type, suspect=self.suspect, spare=self.spare)

    def place(self, wants: Wants, within: Slice | None = None) -> Seats | None:
        """Take places for all the workers wanted, or none and nothing taken: as topology asks, or inside one slice of the fleet."""
        for suspect in (False, True)[: 1 + self.kind.tolerates_suspect]:
            self.suspect = suspect
            slices = self.domains(self.kind.placing, wants, (0, self.grid.size), self.work.seats) if within is None else [within]
            for low, high in slices:
                if (seats := self._place_in(wants, low, high)) is not None:
                    return seats
        return None

    def _place_in(self, wants: Wants, low: int, high: int) -> Seats | None:
        """Role by role as they are stated; where that fails, the role with the largest workers first, as small ones fit into what those leave."""
        mark = self.fleet.mark()
        largest = tuple(sorted(wants, key=lambda want: -self.kind.roles[want[0]].gpus))
        for order in (wants,) if largest == wants else (wants, largest):
            seats: list[Seat] = []
            for place, ranks in order:
                if (found := self._place_role(place, self.kind.roles[place], ranks, low, high)) is None:
                    self.fleet.undo(mark)
                    break
                seats += found
            else:
                return tuple(seats)
        return None

    def domains(self, placing: Placing, wants: Wants, within: Slice, pinned: Sequence[Seat]) -> Iterable[Slice]:
        """Slices that may hold everything wanted, best fit first: in the preferred level, then in each wider one up to what is required."""
        index, widest, narrowest = self.grid.level_index, -1 if placing.span_clusters else 0, -1
        if placing.required is not None:
            widest = index[placing.required]
        if placing.preferred is not None:
            narrowest = index[placing.preferred]
        elif self.grid.habitual is not None and placing.required is None:
            narrowest = self.grid.habitual
        if placing.required is None and not pinned and sum(len(ranks) for _, ranks in wants) == 1:
            narrowest = widest  # one worker is together with itself on any level
        for width in range(max(narrowest, widest), widest - 1, -1):  # -1 is the whole fleet
            level = self.grid.levels[width]
            if width == -1 or len(level) == 1:
                yield within
            elif not pinned:
                yield from self._fitting(level, wants, within)
            elif len(domains := {level.domain_of(seat.node) for seat in pinned}) == 1:
                yield common(level.slice_of(domains.pop()), within)

    def _fitting(self, level: Level, wants: Wants, within: Slice) -> Iterable[Slice]:
        """Domains of one level with room for the workers by count, the one with the least free room first."""
        good, everyone = np.ones(len(level), dtype=bool), np.zeros(self.grid.size, dtype=np.int64)
        for place, ranks in wants:
            role, eligible = self.kind.roles[place], self.eligible(place)
            everyone |= eligible.array
            if role.parted:
                slots = self.parts.slots(role, eligible).array
            else:
                slots = self.view.slots(role.gpus, role.cpu_milli, role.host_memory_mib, eligible.array)
            good &= level.sums(slots) >= len(ranks)
        candidates = np.flatnonzero(good)
        free = level.sums(self.view.count_np * everyone)[candidates]
        size = level.sums(self.grid.usable_np)[candidates]
        order = np.lexsort((candidates, size, -free if self.spread else free))
        slices = (common(level.slice_of(domain), within) for domain in candidates[order].tolist())
        yield from (each for each in slices if each[0] < each[1])

    def _place_role(self, place: int, role: Role, ranks: Sequence[int], low: int, high: int) -> list[Seat] | None:
        if (placing := role.placing) is None:
            return self._fill(place, role, ranks, low, high, self.kind.placing.tp_group)
        if placing.required is not None or placing.preferred is not None:
            pinned = [seat for seat in self.work.seats if seat.role == place]
            for inner_low, inner_high in self.domains(placing, ((place, tuple(ranks)),), (low, high), pinned):
                mark = self.fleet.mark()
                if (seats := self._fill(place, role, ranks, inner_low, inner_high, placing.tp_group)) is not None:
                    return seats
                self.fleet.undo(mark)
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
        group, chosen = tp_group if role.gpus else 1, list[tuple[int, int]]()
        take, cpus, memory, milli = self.fleet.take_gpus, role.cpu_milli, role.host_memory_mib, role.gpus * 1000
        while len(chosen) < len(ranks):  # each on the tightest node that suffices; groups of GPUs lie on one island each
            if (node := best_node(self.cluster, self.view, role, bits, steep=group <= 1, first=not chosen)) is None:
                return None
            mask = gpus_on(self.grid, self.view, node, role.gpus, group)
            if mask or not role.gpus:
                take(node, mask, cpus, memory)
                chosen.append((node, mask))
            else:
                bits &= ~(1 << node)
        chosen.sort()
        return [new_seat((place, rank, node, mask, cpus, memory, milli, NO_PARTS)) for rank, (node, mask) in zip(ranks, chosen, strict=True)]


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


def fit(cycle: "Cycle", work: Work, quota_type: int, view: View, banned: int = 0, budget: Budget | None = None) -> Seats | None:
    """Take places for what is missing of a job, a repair on spares where nothing else suffices; the seats, or None and nothing taken."""
    banned |= cycle.cluster.apart(work)
    if is_alone(cycle, work):
        return fit_one(cycle, work, quota_type, view, banned)
    if not work.seats and not cycle.slots(view).could_fit(work.form, quota_type):
        return None
    for spare in (False, True) if work.seats else (False,):
        placer = Placer(cycle.cluster, work, quota_type, view, banned=banned, spare=spare, budget=budget)
        if (seats := placer.place(work.missing())) is not None:
            for key in placer.parts.new_splits:
                cycle.cluster.split_anew(work, key)
            return seats
    return None


def is_alone(cycle: "Cycle", work: Work) -> bool:
    """Whether it asks for one worker of whole GPUs that may stand on any node that serves it."""
    form = work.form
    return form.sole and not work.seats and not form.kind.tolerates_suspect and not cycle.grid.narrow_islands


def fit_one(cycle: "Cycle", work: Work, quota_type: int, view: View, banned: int) -> tuple[Seat] | None:
    """The seat of a job that `is_alone`, on the tightest node; None where none has room."""
    role = work.kind.roles[0]
    node = best_node(cycle.cluster, view, role, work.form.eligible(0, quota_type, suspect=False, spare=False).bits & ~banned)
    if node is None:
        return None
    seat = new_seat((0, 0, node, lowest(view.free[node], role.gpus), role.cpu_milli, role.host_memory_mib, role.gpus * 1000, NO_PARTS))
    cycle.fleet.take(seat)
    return (seat,)
