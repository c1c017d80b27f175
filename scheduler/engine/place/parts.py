"""Finding parts of GPUs for workers: shares by MPS or time slices, and MIG instances, on GPUs that are split already before others.

What an instance is charged: mig.py.
"""

from collections.abc import Mapping, Sequence
from itertools import islice

from ..model.mig import Instance, board_of, fitting_profiles, room_for
from ..model.values import Role
from ..state.cluster import Cluster
from ..state.fleet import Part, Seat, Split, View, bits_of, sharers_of
from ..state.grid import Eligible, ascending, bits_of_large, flags_of
from ..state.work import Work
from .gradient import ask_of
from .slots import Slots, slots_of

Option = tuple[tuple[int, ...], Part]  # a part of one GPU, with its rank
Offer = tuple[tuple[int, ...], int, tuple[Part, ...]]  # its rank, which ends in the node; the node; and the parts


class Parts:
    """One search for one job in one view."""

    def __init__(self, cluster: Cluster, work: Work, view: View, budget: Mapping[str, int]) -> None:
        self.cluster, self.grid, self.fleet, self.view = cluster, cluster.grid, cluster.fleet, view
        self.mode, self.trust = work.kind.sharing, work.trust(cluster.settings.sharing_trust)
        self.budget = dict(budget)  # GPUs that may be split anew, by pool
        self.new_splits: list[tuple[int, int]] = []
        self._anew = frozenset([pool for pool, left in self.budget.items() if left > 0])

    def slots(self, role: Role, eligible: Eligible) -> Slots:
        """A bound by node: for how many workers of a role there is room."""
        return slots_of(self.view).parts(role, self.mode, eligible, self._anew)

    def fill(self, place: int, role: Role, ranks: Sequence[int], bits: int) -> list[Seat] | None:
        """Places for so many workers of a role on these nodes, or None; what was taken before a failure is left to the caller to undo."""
        seats = []
        steep = self.cluster.gradient is not None and role.share_milli is not None and role.devices == 1
        for rank in ranks:
            best = self._steepest_share(role, bits) if steep else self.best(role, bits)
            if best is None:
                return None
            _, node, parts = best
            for part in parts if self.mode == "mig" else ():
                self._split_anew((node, part.gpu), part)
            seats.append(Seat(place, rank, node, 0, role.cpu_milli, role.host_memory_mib, sum(part.milli for part in parts), parts))
            self.fleet.take(seats[-1])
        return seats

    def best(self, role: Role, bits: int) -> Offer | None:
        """Where one worker finds the best parts. Of the nodes on which nothing is to be joined those of one make differ only in how many whole GPUs
        they have left, so the first of the fullest stands for all of them; and they come behind every node on which all is to be had on GPUs that are
        split already."""
        bits &= self.view.hosts(role.cpu_milli, role.host_memory_mib)
        joined_to = self._nodes_to_join(role) & bits
        offers = [offer for node in bits_of_large(joined_to) if (offer := self.offer(node, role)) is not None]
        if (offers and not min(offers)[0][0]) or (self.mode == "mig" and not any(left > 0 for left in self.budget.values())):
            return min(offers, default=None)
        buckets = self.view.by_count()
        bits &= ~(joined_to | buckets[0])
        for make in [make for make in self.grid.makes if bits & make]:
            fullest = (node for nodes in buckets[1:] for node in ascending(nodes & bits & make))
            offers += islice((offer for node in fullest if (offer := self.offer(node, role)) is not None), 1)
        return min(offers, default=None)

    def _steepest_share(self, role: Role, bits: int) -> Offer | None:
        """The share whose taking leaves most of what is free of use to the usual demand; of those that stay when others have left."""
        gradient, mode, trust = self.cluster.gradient, self.mode, self.trust
        assert gradient is not None
        assert role.share_milli is not None
        ask, allowed = ask_of(role, sharers_of(mode, trust)), flags_of(bits, self.grid.size)
        while (best := gradient.best(self.view, ask, role.host_memory_mib, allowed)) is not None:
            node, gpu = best
            if self._stays(node, gpu):
                return (), node, (Part(gpu, role.share_milli, mode, trust),)
            if (found := self.offer(node, role)) is not None:  # another GPU of it may be had
                return found
            allowed[node] = 0
        return None

    def _nodes_to_join(self, role: Role) -> int:
        """All nodes with a GPU that is split already and has something left for the role, as a bit set; there may be more."""
        splits = self.view.splits
        if self.mode == "mig":
            may_split = any(left > 0 for left in self.budget.values())
            found = {node for (node, _), split in splits.items() if split.mode == "mig" and (may_split or split.tenants < len(split.instances))}
            return sum(1 << node for node in found.union(node for node, _ in self.new_splits))
        if role.share_milli is not None:
            return self.view.joinable(role.share_milli, self.mode, self.trust)
        nodes = self.grid.nodes
        return sum(1 << node for node in {node for (node, _), split in splits.items() if self._joins(split, role, nodes[node].gpu_memory_mib)})

    def _split_anew(self, key: tuple[int, int], part: Part) -> None:
        """Note that a GPU is split anew where an instance is not there yet. Empty instances that are in its way are destroyed, all of them where that
        is not a matter of place."""
        split, board = self.view.splits.get(key), board_of(self.grid.nodes[key[0]].gpu_type)
        assert board is not None
        if split is not None and Instance(part.start, part.profile) in split.instances:
            return
        if key not in self.new_splits:
            pool = self.grid.pool_of[key[0]]
            self.fleet.log += [(None, self.new_splits.pop, ()), (None, self.budget.__setitem__, (pool, self.budget[pool]))]
            self.new_splits.append(key)
            self.budget[pool] -= 1
        for view in self.fleet.views() if split is not None else ():
            known = view.splits.get(key)
            if known is not None and part.start not in room_for(board, known.instances, part.profile):
                self.fleet.set_split(view, key, known._replace(instances=tuple(sorted(set(known.taken)))))

    def offer(self, node: int, role: Role) -> Offer | None:
        """The best parts on one node for one worker, where its host has enough for it: on GPUs that are split already, the fullest first."""
        if self.view.cpus[node] < role.cpu_milli or self.view.memory[node] < role.host_memory_mib:
            return None
        of_gpu = self._instance if self.mode == "mig" else self._share
        gpus = [gpu for gpu in bits_of(self.grid.usable[node]) if self._stays(node, gpu)]  # on others who runs may stay, and nobody joins
        found = [option for gpu in gpus if (option := of_gpu(node, gpu, role, self.view.splits.get((node, gpu)))) is not None]
        options = sorted(found, key=lambda option: (option[0], option[1].gpu))
        if len(options) < role.devices:
            return None
        chosen = options[: role.devices]
        if role.devices > 1:
            anew = sum(1 for rank, part in chosen if part.mode == "mig" and rank[0] > 0 and (node, part.gpu) not in self.new_splits)
            if anew > self.budget.get(self.grid.pool_of[node], 0):
                return None
        rank = tuple(value for option in chosen for value in option[0])
        return (*rank, self.view.count[node], node), node, tuple(part for _, part in chosen)

    def _stays(self, node: int, gpu: int) -> bool:
        """Whether a GPU is still to be shared like this when those have left who are leaving. By then it may be promised whole to somebody, be split
        in another way, or belong to another domain of trust: then the place is only to be had later."""
        soon, mode, key = self.fleet.soon, self.mode, (node, gpu)
        if self.view is soon:
            return True
        now, later = self.view.splits.get(key), soon.splits.get(key)
        if later is None:
            return bool(soon.free[node] >> gpu & 1) and (mode != "mig" or now is None)
        if mode != "mig" or later.mode != mode:
            return (later.mode, later.trust) == (mode, self.trust)
        return now is None or set(later.taken) <= set(now.taken) <= set(later.instances)

    def _share(self, node: int, gpu: int, role: Role, split: Split | None) -> Option | None:
        memory = self.grid.nodes[node].gpu_memory_mib
        milli = role.part_milli(memory)
        part = Part(gpu, milli, self.mode, self.trust, memory=role.memory_mib or 0)
        if split is None:
            return ((1, 1000 - milli), part) if (role.memory_mib or 0) <= memory and self.view.free[node] >> gpu & 1 else None
        return ((0, 1000 - split.used - milli), part) if self._joins(split, role, memory) else None

    def _joins(self, split: Split, role: Role, memory: int) -> bool:
        """Whether a shared GPU with so much memory has room for a share: charges are rounded down, so memory is counted as well."""
        if (split.mode, split.trust) != (self.mode, self.trust) or split.used + role.part_milli(memory) > 1000:
            return False
        return role.memory_mib is None or split.memory + role.memory_mib <= memory

    def _instance(self, node: int, gpu: int, role: Role, split: Split | None) -> Option | None:
        """An empty instance as it is, or, where geometry may change, room for a new one."""
        board, may_split = board_of(self.grid.nodes[node].gpu_type), (node, gpu) in self.new_splits or self.budget.get(self.grid.pool_of[node], 0) > 0
        if board is None or (split.mode != "mig" if split is not None else not (may_split and self.view.free[node] >> gpu & 1)):
            return None
        instances, taken = (split.instances, split.taken) if split is not None else ((), ())
        profiles = fitting_profiles(role, board)
        for name, charge in profiles:
            spare = [one.start for one in instances if one.profile == name and one not in taken]
            if spare:
                start = min(spare, key=board.known(name).starts.index)
                return (0, charge, -len(taken)), Part(gpu, charge, "mig", "", name, start)
        if not may_split:
            return None
        for name, charge in profiles:
            for step, beside in enumerate((instances, taken)):
                starts = room_for(board, beside, name)
                if starts:
                    return (1 + step + (2 if split is None else 0), charge, 0), Part(gpu, charge, "mig", "", name, starts[0])
        return None
