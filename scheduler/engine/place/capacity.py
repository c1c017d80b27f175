"""Room by shape, computed once per state: how many workers of a shape fit into each domain of each level."""

from functools import reduce
from operator import or_

from ..model.values import Role
from ..state.fleet import View
from ..state.form import Form
from ..state.grid import Eligible, Grid, Ints


class Capacity:
    """Slots per node and per domain in one view; forgets everything when the view has changed."""

    def __init__(self, grid: Grid, view: View) -> None:
        self.grid = grid
        self.view = view
        self._version = view.version
        self._sums: dict[tuple[int, int, int, Eligible, int], Ints] = {}
        self._nodes: dict[tuple[str, int, int | None], int] = {}
        self._useless: dict[tuple[int, int], int] = {}

    def _fresh(self) -> None:
        if self._version != self.view.version:
            self._version = self.view.version
            self._sums.clear()
            self._nodes.clear()
            self._useless.clear()

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
        self._fresh()
        key = (role.gpus, role.cpu_milli, role.host_memory_mib, eligible, level)
        known = self._sums.get(key)
        if known is None:
            slots = self.view.slots(role.gpus, role.cpu_milli, role.host_memory_mib, eligible.array)
            known = self._sums[key] = slots.sum(keepdims=True) if level < 0 else self.grid.levels[level].sums(slots)
        return known

    def useless(self, form: Form, role: Role, quota_type: int) -> int:
        """Idle GPUs of a type that jobs of one form can't use, as this role of them decides."""
        self._fresh()
        known = self._useless.get((form.shape, quota_type))
        if known is None:
            grid, suspect = self.grid, form.kind.tolerates_suspect
            idle = self.view.idle
            if not grid.plain:
                idle = int((self.view.count_np * grid.startable[suspect] * grid.on_type[quota_type]).sum())
            eligible = grid.eligible(form.kind, role, quota_type, suspect=suspect, spare=False)
            usable = sum([room for room in self.sums(role, eligible, form.width).tolist() if room >= role.least]) * role.gpus
            known = self._useless[form.shape, quota_type] = max(0, idle - usable)
        return known

    def most(self, role: Role, eligible: Eligible, level: int) -> int:
        """The most workers that one domain of a level has room for."""
        return int(self.sums(role, eligible, level).max(initial=0))


def _could_fit(capacity: Capacity, form: Form, quota_type: int, *, suspect: bool) -> bool:
    view = capacity.view
    for place, role in enumerate(form.kind.roles):
        if not role.least:
            continue
        several = role.least > 1 and not role.parted
        if several and (view.idle < role.gpus * role.least or (role.gpus and view.slots_at_most(role.gpus) < role.least)):
            return False
        eligible = form.eligible(place, quota_type, suspect=suspect, spare=False)
        if not capacity.nodes_for(role) & eligible.bits or (several and capacity.most(role, eligible, form.width) < role.least):
            return False
    return True
