"""Room by shape, computed once per state: how many workers of a shape fit into each domain of each level."""

from functools import reduce
from operator import or_

import numpy as np

from ..model.values import Kind, Role
from ..state.cluster import Cluster
from ..state.fleet import View
from ..state.form import Form
from ..state.grid import Eligible, Grid, Ints


class Capacity:
    """Slots per node and per domain in one view; forgets everything when the view has changed."""

    def __init__(self, grid: Grid, view: View) -> None:
        self.grid = grid
        self.view = view
        self.version = view.version
        self._slots: dict[tuple[int, int, int, int], Ints] = {}
        self._sums: dict[tuple[int, int, int, int, int], Ints] = {}
        self._most: dict[tuple[int, int, int, int, int], int] = {}
        self._hosts: dict[tuple[int, int], int] = {}  # bit sets of nodes by the processors and memory that they have left
        self._roomy: dict[tuple[int, int | None], int] = {}  # the same by GPUs, or by the share that may be had of one

    def _fresh(self) -> None:
        if self.version != self.view.version:
            self.version = self.view.version
            self._slots.clear()
            self._sums.clear()
            self._most.clear()
            self._hosts.clear()
            self._roomy.clear()

    def could_fit(self, form: Form, quota_type: int, *, suspect: bool) -> bool:
        """A quick bound: False means that the minimum of a job without workers certainly does not fit. Asked once, until room is given."""
        key = (form.shape, quota_type, suspect)
        if key in self.view.refused:
            return False
        fits = _could_fit(self, form, quota_type, suspect=suspect)
        if not fits:
            self.view.refuse(key)
        return fits

    def nodes_for(self, role: Role) -> int:
        """The nodes that have room for a worker, as a bit set; of who takes a part of a GPU a bound."""
        self._fresh()
        host, view = (role.cpu_milli, role.host_memory_mib), self.view
        nodes = self._hosts.get(host)
        if nodes is None:
            nodes = self._hosts[host] = view.hosts(*host)
        if not role.gpus and role.share_milli is None:
            return nodes
        roomy = self._roomy.get((role.gpus, role.share_milli))
        if roomy is None:
            roomy = reduce(or_, view.by_count()[role.gpus or 1 :], 0)
            if role.share_milli is not None:
                roomy |= view.joinable(role.share_milli)
            self._roomy[role.gpus, role.share_milli] = roomy
        return nodes & roomy

    def slots(self, role: Role, eligible: Eligible) -> Ints:
        self._fresh()
        key = (role.gpus, role.cpu_milli, role.host_memory_mib, id(eligible))
        known = self._slots.get(key)
        if known is None:
            known = self._slots[key] = self.view.slots(role.gpus, role.cpu_milli, role.host_memory_mib, eligible)
        return known

    def sums(self, role: Role, eligible: Eligible, level: int) -> Ints:
        """Workers per domain of a level; level -1 is the whole fleet."""
        self._fresh()
        key = (role.gpus, role.cpu_milli, role.host_memory_mib, id(eligible), level)
        known = self._sums.get(key)
        if known is None:
            if role.gpus > self.view.largest:
                known = np.zeros(1 if level < 0 else len(self.grid.levels[level]), dtype=np.int64)
            else:
                slots = self.slots(role, eligible)
                known = slots.sum(keepdims=True) if level < 0 else self.grid.levels[level].sums(slots)
            self._sums[key] = known
        return known

    def most(self, role: Role, eligible: Eligible, level: int) -> int:
        """The most workers that one domain of a level has room for."""
        self._fresh()
        key = (role.gpus, role.cpu_milli, role.host_memory_mib, id(eligible), level)
        known = self._most.get(key)
        if known is None:
            known = 0
            if role.gpus <= self.view.largest:
                sums = self.sums(role, eligible, level)
                known = int(sums.max()) if len(sums) else 0
            self._most[key] = known
        return known


def widest(cluster: Cluster, kind: Kind) -> int:
    """The level in one domain of which the whole job must stand."""
    return cluster.forms.of(kind).width


def plain(cluster: Cluster, kind: Kind) -> bool:
    return cluster.forms.of(kind).plain


def _could_fit(capacity: Capacity, form: Form, quota_type: int, *, suspect: bool) -> bool:
    view = capacity.view
    for place, role in enumerate(form.kind.roles):
        if not role.least:
            continue
        several = role.least > 1 and not role.parted
        if several and (view.idle < role.gpus * role.least or (role.gpus and view.slots_at_most(role.gpus) < role.least)):
            return False
        eligible = form.eligible(capacity.grid, place, quota_type, suspect=suspect, spare=False)
        if not capacity.nodes_for(role) & eligible.bits or (several and capacity.most(role, eligible, form.width) < role.least):
            return False
    return True
