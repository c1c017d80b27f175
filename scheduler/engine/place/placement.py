"""Finding a place for workers: the tightest domain that suffices, then the tightest nodes in it, ranks along the fabric.

A placement is all or nothing: what was taken for the first workers is given back when the last one finds no room.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from ..model.mig import BOARDS, Instance, board_of, room_for
from ..model.values import Kind, Placing, Role
from ..state.cluster import Cluster, fitting_profiles
from ..state.fleet import NO_PARTS, Part, Seat, Split, View, bits_of, lowest, new_seat
from ..state.form import Wants
from ..state.grid import Eligible, Grid, Ints, Level, span_bits
from ..state.work import Work
from .gradient import ask_of

FEW_BITS = 12  # that are sooner taken one by one
Slice = tuple[int, int]
Offer = tuple[tuple[int, ...], int, tuple[Part, ...]]  # its rank, which ends in the node; the node; and the parts


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
        suspect: bool = False,
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
        self.suspect = suspect
        self.budget = dict(budget) if budget else {}  # GPUs that may be split anew, by pool
        self._eligible: dict[int, Eligible] = {}
        self.spread = cluster.settings.placement == "spread"
        self.new_splits: list[tuple[int, int]] = []

    def eligible(self, role: Role) -> Eligible:
        known = self._eligible.get(id(role))
        if known is None:
            known = self.grid.eligible(self.kind, role, self.quota_type, suspect=self.suspect, spare=self.spare)
            self._eligible[id(role)] = known
        return known

    def place(self, wants: Wants) -> tuple[Seat, ...] | None:
        """Take places for all the workers wanted, or none and nothing taken."""
        for low, high in self.domains(self.kind.placing, wants, (0, self.grid.size), self.work.seats):
            mark = self.fleet.mark()
            before = (dict(self.budget), len(self.new_splits))
            seats = self.place_in(wants, low, high)
            if seats is not None:
                return seats
            self.fleet.undo(mark)
            self.budget = before[0]
            del self.new_splits[before[1] :]
        return None

    def place_in(self, wants: Wants, low: int, high: int) -> tuple[Seat, ...] | None:
        """Take places inside one slice of the fleet; what was taken before a failure is left to the caller to undo.

        Role by role as they are stated; where that fails, the role with the largest workers first, as small ones fit into what those leave.
        """
        if len(wants) == 1:
            return self._place_roles(wants, low, high)
        mark, before = self.fleet.mark(), (dict(self.budget), len(self.new_splits))
        seats = self._place_roles(wants, low, high)
        largest = sorted(wants, key=lambda want: -self.kind.roles[want[0]].gpus)
        if seats is None and largest != list(wants):
            self.fleet.undo(mark)
            self.budget = before[0]
            del self.new_splits[before[1] :]
            seats = self._place_roles(largest, low, high)
        return seats

    def _place_roles(self, wants: Sequence[tuple[int, tuple[int, ...]]], low: int, high: int) -> tuple[Seat, ...] | None:
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
            if width == -1:
                yield within
                continue
            level = self.grid.levels[width]
            if len(level) == 1:
                yield max(within[0], 0), within[1]
                continue
            if pinned:
                domains = {level.domain_of(seat.node) for seat in pinned}
                if len(domains) == 1:
                    low, high = level.slice_of(domains.pop())
                    yield max(low, within[0]), min(high, within[1])
                continue
            yield from self._fitting(level, wants, within)

    def _fitting(self, level: Level, wants: Wants, within: Slice) -> Iterable[Slice]:
        """Domains of one level with room for the workers by count, the one with the least free room first."""
        good = np.ones(len(level), dtype=bool)
        everyone = np.zeros(self.grid.size, dtype=np.int64)
        for place, ranks in wants:
            role = self.kind.roles[place]
            eligible = self.eligible(role)
            everyone |= eligible.array
            if role.parted:
                continue
            slots = self.view.slots(role.gpus, role.cpu_milli, role.host_memory_mib, eligible)
            good &= level.sums(slots) >= len(ranks)
        candidates = np.flatnonzero(good)
        if not len(candidates):
            return
        free = level.sums(self.view.count_np * everyone)[candidates]
        size = self.grid.capacity_of(level)[candidates]
        order = np.lexsort((candidates, size, -free if self.spread else free))
        for domain in candidates[order].tolist():
            low, high = level.slice_of(domain)
            if low >= within[0] and high <= within[1]:
                yield low, high
            elif low < within[1] and high > within[0] and within != (0, self.grid.size):
                yield max(low, within[0]), min(high, within[1])

    # One role

    def _place_role(self, place: int, role: Role, ranks: Sequence[int], low: int, high: int) -> list[Seat] | None:
        placing = role.placing
        if placing is None:
            return self._fill(place, role, ranks, low, high, self.kind.placing.tp_group)
        pinned = [seat for seat in self.work.seats if seat.role == place]
        own = placing if placing.required is not None or placing.preferred is not None else None
        if own is None:
            return self._fill(place, role, ranks, low, high, placing.tp_group)
        for inner_low, inner_high in self.domains(own, ((place, tuple(ranks)),), (low, high), pinned):
            mark = self.fleet.mark()
            seats = self._fill(place, role, ranks, inner_low, inner_high, placing.tp_group)
            if seats is not None:
                return seats
            self.fleet.undo(mark)
        if own.required is None:
            return self._fill(place, role, ranks, low, high, placing.tp_group)
        return None

    def _fill(self, place: int, role: Role, ranks: Sequence[int], low: int, high: int, tp_group: int) -> list[Seat] | None:
        if role.parted:
            return self._fill_parts(place, role, ranks, low, high)
        if tp_group > 1 and role.gpus:
            return self._fill_groups(place, role, ranks, low, high, tp_group)
        bits = self.eligible(role).bits & ~self.banned
        if low or high < self.grid.size:
            bits &= span_bits(low, high)
        chosen = self._choose(role, len(ranks), bits, role.gpus)
        if chosen is None:
            return None
        if len(chosen) > 1:
            chosen.sort()
        cpus, memory, milli = role.cpu_milli, role.host_memory_mib, role.gpus * 1000
        return [new_seat((place, rank, node, mask, cpus, memory, milli, NO_PARTS)) for rank, (node, mask) in zip(ranks, chosen, strict=True)]

    def _choose(self, role: Role, count: int, bits: int, gpus: int) -> list[tuple[int, int]] | None:
        """(node, GPUs) for so many workers, each on the tightest node that suffices; the places are taken."""
        view = self.view
        buckets = view.by_count()
        order = range(len(buckets) - 1, gpus - 1, -1) if self.spread else range(gpus, len(buckets))
        chosen: list[tuple[int, int]] = []
        take, cpus, memory = self.fleet.take_gpus, role.cpu_milli, role.host_memory_mib
        gradient = self.cluster.gradient
        while len(chosen) < count:
            if gradient is not None:
                best = gradient.best(view, ask_of(role), memory, flags_of(bits, self.grid.size))
                node = None if best is None else best[0]
            else:
                node = self._tightest(buckets, order, bits, role, first=not chosen)
            if node is None:
                return None
            worker_mask = self._gpus_on(node, gpus, 1)
            take(node, worker_mask, cpus, memory)
            chosen.append((node, worker_mask))
        return chosen

    def _tightest(self, buckets: list[int], order: range, bits: int, role: Role, *, first: bool) -> int | None:
        """The node with the least room that suffices; among equals the one that breaks the fewest blocks, and then the first."""
        view = self.view
        cpus, memory = role.cpu_milli, role.host_memory_mib
        blocks = self.cluster.blocks
        for count in order:
            candidates = buckets[count] & bits
            if blocks and candidates & (candidates - 1):
                for node in blocks.least_broken(view, role.gpus, bits_of_large(candidates), anew=first):
                    if view.cpus[node] >= cpus and view.memory[node] >= memory:
                        return node
                continue
            while candidates:
                node = (candidates & -candidates).bit_length() - 1
                if view.cpus[node] >= cpus and view.memory[node] >= memory:
                    return node
                candidates &= candidates - 1
        return None

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

    # Groups that need NVLink

    def _fill_groups(self, place: int, role: Role, ranks: Sequence[int], low: int, high: int, tp_group: int) -> list[Seat] | None:
        if role.gpus >= tp_group:
            return self._fill_wide_workers(place, role, ranks, low, high, tp_group)
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

    def _fill_wide_workers(self, place: int, role: Role, ranks: Sequence[int], low: int, high: int, tp_group: int) -> list[Seat] | None:
        """Workers that hold whole groups themselves: only nodes with several islands need care."""
        bits = self.eligible(role).bits & ~self.banned & span_bits(low, high)
        buckets = self.view.by_count()
        order = range(len(buckets) - 1, role.gpus - 1, -1) if self.spread else range(role.gpus, len(buckets))
        chosen: list[tuple[int, int]] = []
        while len(chosen) < len(ranks):
            node = self._tightest(buckets, order, bits, role, first=not chosen)
            if node is None:
                return None
            mask = self._gpus_on(node, role.gpus, tp_group)
            if not mask:
                bits &= ~(1 << node)
                continue
            self.fleet.take(Seat(0, 0, node, mask, role.cpu_milli, role.host_memory_mib, 0))
            chosen.append((node, mask))
        chosen.sort()
        return [
            Seat(place, rank, node, mask, role.cpu_milli, role.host_memory_mib, role.gpus * 1000)
            for rank, (node, mask) in zip(ranks, chosen, strict=True)
        ]

    def _place_group(self, place: int, role: Role, ranks: Sequence[int], low: int, high: int, pin: Seat | None) -> list[Seat] | None:
        """Consecutive ranks inside one island: the tightest island that holds them."""
        islands = self.grid.islands
        if pin is not None:
            first, end = islands.slice_of(islands.domain_of(pin.node))
            low, high = max(low, first), min(high, end)  # an island may reach beyond the domain in which the gang stands
        bits = self.eligible(role).bits & ~self.banned & span_bits(low, high)
        best: tuple[int, int, int, int] | None = None
        needed = len(ranks)
        for domain in range(islands.domain_of(low), islands.domain_of(max(low, high - 1)) + 1):
            start, stop = islands.slice_of(domain)  # an island may be wider than the domain that holds the job
            start, stop = max(start, low), min(stop, high)
            nodes = [node for node in range(start, stop) if bits >> node & 1]
            for part in self._parts_of(nodes, pin):
                room = sum(self._room(node, part, role) for node in nodes)
                if room >= needed:
                    free = sum((self.view.free[node] & part).bit_count() for node in nodes)
                    rank = (-free if self.spread else free, start, part if part >= 0 else 0, stop)
                    if best is None or rank < best:
                        best = rank
        if best is None:
            return None
        _, start, part, stop = best
        return self._seat_group(place, role, ranks, [node for node in range(start, stop) if bits >> node & 1], part or -1)

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

    # Parts of GPUs

    def _fill_parts(self, place: int, role: Role, ranks: Sequence[int], low: int, high: int) -> list[Seat] | None:
        seats = []
        bits = self.eligible(role).bits & ~self.banned & span_bits(low, high)
        steep = self.cluster.gradient is not None and role.share_milli is not None and role.devices == 1
        for rank in ranks:
            best = self._steepest_share(role, bits) if steep else self._best_parts(role, bits)
            if best is None:
                return None
            _, node, parts = best
            for part in parts:
                self._note_new_split(node, part)
            seat = Seat(place, rank, node, 0, role.cpu_milli, role.host_memory_mib, sum(part.milli for part in parts), parts)
            self.fleet.take(seat)
            seats.append(seat)
        return seats

    def _best_parts(self, role: Role, bits: int) -> Offer | None:
        """Where one worker finds the best parts.

        Of the nodes on which nothing is to be joined those of one make differ only in how many whole GPUs they have left, so the first of the
        fullest stands for all of them; and they come behind every node on which all is to be had on GPUs that are split already.
        """
        bits &= self.view.hosts(role.cpu_milli, role.host_memory_mib)
        joined_to = self._nodes_to_join(role) & bits
        best = min((offer for node in bits_of_large(joined_to) if (offer := self._offer(node, role)) is not None), default=None)
        if (best is not None and not best[0][0]) or (self.kind.sharing == "mig" and not any(left > 0 for left in self.budget.values())):
            return best
        buckets = self.view.by_count()
        bits &= ~(joined_to | buckets[0])
        for make in [make for make in self.grid.makes if bits & make]:
            fullest = (node for nodes in buckets[1:] for node in ascending(nodes & bits & make))
            offer = next((offer for node in fullest if (offer := self._offer(node, role)) is not None), None)
            if offer is not None and (best is None or offer < best):
                best = offer
        return best

    def _steepest_share(self, role: Role, bits: int) -> Offer | None:
        """The share whose taking leaves most of what is free of use to the usual demand; of those that stay when others have left."""
        gradient, trust, mode = self.cluster.gradient, self.cluster.trust_of(self.work), self.kind.sharing
        assert gradient is not None
        assert role.share_milli is not None
        ask, allowed = ask_of(role, gradient.number(mode, trust)), flags_of(bits, self.grid.size)
        while (best := gradient.best(self.view, ask, role.host_memory_mib, allowed)) is not None:
            node, gpu = best
            if self._stays(node, gpu, mode, trust):
                return (), node, (Part(gpu, role.share_milli, mode, trust),)
            found = self._offer(node, role)  # another GPU of it may be had
            if found is not None:
                return found
            allowed[node] = 0
        return None

    def _nodes_to_join(self, role: Role) -> int:
        """All nodes with a GPU that is split already and has something left for the role, as a bit set; there may be more."""
        splits = self.view.splits
        if self.kind.sharing == "mig":
            may_split = any(left > 0 for left in self.budget.values())
            found = {node for (node, _), split in splits.items() if split.mode == "mig" and (may_split or split.tenants < len(split.instances))}
            return sum(1 << node for node in found.union(node for node, _ in self.new_splits))
        mode, trust, nodes = self.kind.sharing, self.cluster.trust_of(self.work), self.grid.nodes
        if (share := role.share_milli) is not None:
            return self.view.joinable(share, mode, trust)
        room = {
            node
            for (node, _), split in splits.items()
            if (split.mode, split.trust) == (mode, trust) and has_room(split, role, nodes[node].gpu_memory_mib)
        }
        return sum(1 << node for node in room)

    def _offer(self, node: int, role: Role) -> Offer | None:
        """The best parts on one node, where its host has enough for the worker."""
        if self.view.cpus[node] < role.cpu_milli or self.view.memory[node] < role.host_memory_mib:
            return None
        found = self._parts_on(node, role)
        return None if found is None else (found[0], node, found[1])

    def _note_new_split(self, node: int, part: Part) -> None:
        if part.mode != "mig":
            return
        split = self.view.splits.get((node, part.gpu))
        if split is None or Instance(part.start, part.profile) not in split.instances:
            if (node, part.gpu) not in self.new_splits:
                self.new_splits.append((node, part.gpu))
                self.budget[self.grid.pool_of[node]] -= 1
            if split is not None:
                self._clear_overlap((node, part.gpu), part)

    def _clear_overlap(self, key: tuple[int, int], part: Part) -> None:
        """Destroy the empty instances that are in the way of a new one, all of them where that is not a matter of place."""
        board = board_of(self.grid.nodes[key[0]].gpu_type)
        assert board is not None
        profile = board.profile(part.profile)
        assert profile is not None
        for view in self.fleet.both():
            split = view.splits.get(key)
            if split is not None and part.start not in room_for(board, split.instances, profile):
                self.fleet.set_split(view, key, split._replace(instances=tuple(sorted(set(split.taken)))))

    def _parts_on(self, node: int, role: Role) -> tuple[tuple[int, ...], tuple[Part, ...]] | None:
        """The best parts on one node for one worker: on GPUs that are split already, the fullest first."""
        options: list[tuple[tuple[int, ...], Part]] = []
        kind = self.kind
        if kind.sharing == "mig":
            options = self._instances_on(node, role)
        else:
            options = self._shares_on(node, role, self.cluster.trust_of(self.work))
        if len(options) < role.devices:
            return None
        options.sort(key=lambda option: (option[0], option[1].gpu))
        chosen = options[: role.devices]
        if role.devices > 1 and self._over_budget(node, chosen):
            return None
        rank = tuple(value for option in chosen for value in option[0])
        return (*rank, self.view.count[node], node), tuple(part for _, part in chosen)

    def _over_budget(self, node: int, chosen: Sequence[tuple[tuple[int, ...], Part]]) -> bool:
        anew = sum(1 for rank, part in chosen if part.mode == "mig" and rank[0] > 0 and (node, part.gpu) not in self.new_splits)
        return anew > self.budget.get(self.grid.pool_of[node], 0)

    def _stays(self, node: int, gpu: int, mode: str, trust: str = "") -> bool:
        """Whether a GPU is still to be shared like this when those have left who are leaving.

        By then it may be promised whole to somebody, be split in another way, or belong to another domain of trust: then the place is only to be
        had later.
        """
        soon = self.fleet.soon
        if self.view is soon:
            return True
        later = soon.splits.get((node, gpu))
        if later is None:
            return bool(soon.free[node] >> gpu & 1) and (mode != "mig" or (node, gpu) not in self.view.splits)
        if later.mode != mode or (mode != "mig" and later.trust != trust):
            return False
        now = self.view.splits.get((node, gpu))
        return mode != "mig" or now is None or set(later.taken) <= set(now.taken) <= set(later.instances)

    def _shares_on(self, node: int, role: Role, trust: str) -> list[tuple[tuple[int, ...], Part]]:
        options: list[tuple[tuple[int, ...], Part]] = []
        memory = self.grid.nodes[node].gpu_memory_mib
        milli = part_milli(role, memory)
        if milli > 1000:
            return options
        for gpu in bits_of(self.grid.usable[node]):  # on others who runs may stay, and nobody joins
            if not self._stays(node, gpu, self.kind.sharing, trust):
                continue
            split = self.view.splits.get((node, gpu))
            part = Part(gpu, milli, self.kind.sharing, trust, memory=role.memory_mib or 0)
            if split is None:
                if self.view.free[node] >> gpu & 1:
                    options.append(((1, 1000 - milli), part))
            elif split.mode == self.kind.sharing and split.trust == trust and has_room(split, role, memory):
                options.append(((0, 1000 - split.used - milli), part))
        return options

    def _may_split(self, node: int, gpu: int) -> bool:
        return (node, gpu) in self.new_splits or self.budget.get(self.grid.pool_of[node], 0) > 0

    def _instances_on(self, node: int, role: Role) -> list[tuple[tuple[int, ...], Part]]:
        board = board_of(self.grid.nodes[node].gpu_type)
        if board is None:
            return []
        options: list[tuple[tuple[int, ...], Part]] = []
        for gpu in bits_of(self.grid.usable[node]):
            if not self._stays(node, gpu, "mig"):
                continue
            split = self.view.splits.get((node, gpu))
            if split is None and not (self._may_split(node, gpu) and self.view.free[node] >> gpu & 1):
                continue
            if split is not None and split.mode != "mig":
                continue
            may_split = self._may_split(node, gpu)
            option = self._instance_on(gpu, split, fitting_profiles(role, board.name), board.name, may_split)
            if option is not None:
                options.append(option)
        return options

    def _instance_on(
        self, gpu: int, split: Split | None, profiles: Sequence[tuple[str, int]], board_name: str, may_split: bool
    ) -> tuple[tuple[int, ...], Part] | None:
        """An empty instance as it is, or, where geometry may change, room for a new one."""
        board = BOARDS[board_name]
        for name, charge in profiles:
            if split is not None:
                taken = list(split.taken)
                spare = [one for one in split.instances if one.profile == name and one not in taken]
                if spare:
                    profile = board.profile(name)
                    assert profile is not None
                    starts = profile.starts
                    best = min(spare, key=lambda one: starts.index(one.start))
                    return (0, charge, -len(taken)), Part(gpu, charge, "mig", "", name, best.start)
        if not may_split:
            return None
        for name, charge in profiles:
            profile = board.profile(name)
            assert profile is not None
            for step, beside in enumerate((split.instances, split.taken) if split else ((),)):
                starts = room_for(board, beside, profile)
                if starts:
                    return (1 + step + (2 if split is None else 0), charge, 0), Part(gpu, charge, "mig", "", name, starts[0])
        return None


def has_room(split: Split, role: Role, memory: int) -> bool:
    """Whether a shared GPU with so much memory has room for a share: charges are rounded down, so memory is counted as well."""
    return split.used + part_milli(role, memory) <= 1000 and (role.memory_mib is None or split.memory + role.memory_mib <= memory)


def part_milli(role: Role, memory: int) -> int:
    """What a share of a GPU with so much memory comes to; more than there is where it can't hold it."""
    if role.memory_mib is None:
        return role.share_milli if role.share_milli is not None else 0
    return max(1, 1000 * role.memory_mib // memory) if memory else 1001


def ascending(mask: int) -> Iterator[int]:
    """Positions of the set bits of a wide bit set, for who may not want them all."""
    while mask:
        yield (mask & -mask).bit_length() - 1
        mask &= mask - 1


def flags_of(mask: int, size: int) -> Ints:
    """1 where a bit of a wide bit set is set, of so many."""
    raw = np.frombuffer((mask & (1 << size) - 1).to_bytes((size + 7) // 8, "little"), dtype=np.uint8)
    return np.unpackbits(raw, bitorder="little")[:size].astype(np.int64)


def bits_of_large(mask: int) -> list[int]:
    """Positions of the set bits of a wide bit set."""
    if mask.bit_count() <= FEW_BITS:
        positions = []
        while mask:
            low = mask & -mask
            positions.append(low.bit_length() - 1)
            mask ^= low
        return positions
    size = (mask.bit_length() + 7) // 8
    if not size:
        return []
    array = np.unpackbits(np.frombuffer(mask.to_bytes(size, "little"), dtype=np.uint8), bitorder="little")
    found: list[int] = np.flatnonzero(array).tolist()
    return found


__all__ = ["Placer", "bits_of", "bits_of_large"]
