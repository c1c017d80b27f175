"""Room by shape: how many workers of a shape fit into each domain of each level. It goes on from plan to plan."""

from functools import reduce
from operator import or_
from weakref import proxy

import numpy as np

from ..model.mig import board_of, fitting_profiles, most_beside
from ..model.values import Role
from ..state.fleet import View, bits_of
from ..state.form import Form
from ..state.grid import Eligible, Grid, Ints

MANY = 32  # nodes that have changed, beyond which all are looked at anew: that is done by columns


class Slots:
    """How many workers of one shape each node has room for, as of so many notes of the view."""

    def __init__(self, array: Ints, read: int) -> None:
        self.array = array
        self.total = int(array.sum())
        self.read = read
        self.sums: dict[int, Ints] = {}  # by level


def slots_of(view: View) -> "SlotCounts":
    if view.slot_counts is None:
        # Else a view that nobody has any more would stay, with its nodes, until the garbage collector comes by.
        view.slot_counts = SlotCounts(view.grid, proxy(view))
    return view.slot_counts


class SlotCounts:
    """Slots per node and per domain in one view. What is known by node is kept up to date, the rest forgotten when the view has changed."""

    def __init__(self, grid: Grid, view: View) -> None:
        self.grid = grid
        self.view = view
        self._read = len(view.notes)
        self._slots: dict[tuple[int, int, int, Eligible], Slots] = {}
        self._parts: dict[tuple[object, ...], Slots] = {}
        self._nodes: dict[tuple[str, int, int | None], int] = {}
        self._useless: dict[tuple[int, int], int] = {}
        self._fits: dict[tuple[int, int], bool] = {}

    def _fresh(self) -> None:
        if self._read != len(self.view.notes):
            self._read = len(self.view.notes)
            for known in (self._nodes, self._useless, self._fits):
                known.clear()

    def could_fit(self, form: Form, quota_type: int) -> bool:
        """A quick bound: False means that the minimum of a job without workers certainly does not fit."""
        self._fresh()
        if (known := self._fits.get((form.shape, quota_type))) is None:
            known = True
            for place, ranks in form.wants:
                role, least = form.kind.roles[place], len(ranks)
                eligible = form.eligible(place, quota_type, suspect=form.kind.tolerates_suspect, spare=False)
                if role.parted:
                    known = known and bool(self.nodes_for(role) & eligible.bits)
                elif known:
                    known = self._slots_of(role, eligible).total >= least and (least == 1 or self.most(role, eligible, form.width) >= least)
            self._fits[form.shape, quota_type] = known
        return known

    def nodes_for(self, role: Role) -> int:
        """The nodes that have room for a worker, as a bit set; of who takes a part of a GPU a bound."""
        self._fresh()
        view, host, board = self.view, ("host", role.cpu_milli, role.host_memory_mib), ("board", role.gpus, role.share_milli)
        if host not in self._nodes:
            self._nodes[host] = view.hosts(role.cpu_milli, role.host_memory_mib)
        if not role.gpus and role.share_milli is None:
            return self._nodes[host]
        if board not in self._nodes:
            roomy = reduce(or_, view.by_count()[role.gpus or 1 :], 0)
            self._nodes[board] = roomy if role.share_milli is None else roomy | view.joinable(role.share_milli)
        return self._nodes[host] & self._nodes[board]

    def sums(self, role: Role, eligible: Eligible, level: int) -> Ints:
        """Workers that there is room for per domain of a level; level -1 is the whole fleet."""
        slots = self._slots_of(role, eligible)
        if (known := slots.sums.get(level)) is None:
            known = slots.sums[level] = self.grid.sums(slots.array, level)
        return known

    def _slots_of(self, role: Role, eligible: Eligible) -> Slots:
        view, shape = self.view, (role.gpus, role.cpu_milli, role.host_memory_mib)
        known, noted = self._slots.get((*shape, eligible)), len(view.notes)
        if known is None or noted - known.read > MANY:
            known = self._slots[*shape, eligible] = Slots(view.slots(*shape, eligible.array), noted)
        elif known.read < noted:
            for node in view.notes[known.read :]:
                room = view.room_on(node, *shape) if eligible.flags[node] else 0
                more = room - int(known.array[node])
                if more:
                    known.array[node] = room
                    known.total += more
                    known.sums.clear()
            known.read = noted
        return known

    def parts(self, role: Role, mode: str, eligible: Eligible, anew: frozenset[str]) -> Slots:
        """A bound: for how many workers with parts of GPUs each node has room, if GPUs of some pools may be split anew."""
        key = (mode, role.mig, role.memory_mib, role.share_milli, role.devices, role.cpu_milli, role.host_memory_mib, eligible, anew)
        known, noted = self._parts.get(key), len(self.view.notes)
        if known is None:
            known = self._parts[key] = Slots(np.zeros(self.grid.size, dtype=np.int64), -1)
        if known.read < noted:
            for node in self.view.changed_since(known.read):
                if eligible.flags[node]:
                    known.array[node] = self._parts_on(node, role, mode, anew)
            known.total, known.read = int(known.array.sum()), noted
        return known

    def _parts_on(self, node: int, role: Role, mode: str, anew: frozenset[str]) -> int:
        view, host = self.view, self.view.room_on(node, 0, role.cpu_milli, role.host_memory_mib)
        if mode == "mig":
            return min(host, self._instances_on(node, role, may_split=self.grid.pool_of[node] in anew) // role.devices)
        if (share := role.share_milli) is None:
            return host  # so much memory is another part of each GPU
        return min(host, (int((np.maximum(view.left[node], 0) // share).sum()) + view.count[node] * (1000 // share)) // role.devices)

    def _instances_on(self, node: int, role: Role, *, may_split: bool) -> int:
        view, board = self.view, board_of(self.grid.nodes[node].gpu_type)
        profiles = fitting_profiles(role, board) if board is not None else ()
        if board is None or not profiles:
            return 0
        names, room = {name for name, _ in profiles}, view.count[node] * most_beside(board, (), profiles) if may_split else 0
        for gpu in bits_of(self.grid.usable[node]):
            split = view.splits.get((node, gpu))
            if split is not None and split.mode == "mig":
                spare = sum([one.profile in names and one not in split.taken for one in split.instances])
                room += max(spare, most_beside(board, split.taken, profiles)) if may_split else spare
        return room

    def useless(self, form: Form, place: int, quota_type: int) -> int:
        """Idle GPUs of a type that jobs of one form can't use, as this role of them decides."""
        self._fresh()
        if (known := self._useless.get((form.shape, quota_type))) is None:
            grid, suspect, role = self.grid, form.kind.tolerates_suspect, form.kind.roles[place]
            idle = self.view.idle
            if not grid.plain:
                idle = int((self.view.count_np * grid.startable[suspect] * grid.on_type[quota_type]).sum())
            eligible = form.eligible(place, quota_type, suspect=suspect, spare=False)
            usable = sum([room for room in self.sums(role, eligible, form.width).tolist() if room >= role.least]) * role.gpus
            known = self._useless[form.shape, quota_type] = max(0, idle - usable)
        return known

    def most(self, role: Role, eligible: Eligible, level: int) -> int:
        return int(self.sums(role, eligible, level).max(initial=0))
