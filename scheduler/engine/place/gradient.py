"""The placement `fgd`: where a worker stands so that what is free is of the most use to what is usually asked for.

The measure is that of Weng et al., USENIX ATC 2023. Of a node, what one kind of demand cannot use are all its free GPUs where the node lacks a GPU
type, processors or GPUs for it, and else those whose free part is too small; a kind that asks for processors only uses no GPU. A node's fragmentation
is the mean of that over the demand, and the place is taken that adds least to it (the steepest descent), a GPU by GPU where a share is asked for.
Everything is whole numbers: milli-GPU, thousandths of processors, and weights of demand in millionths.
"""

from collections import Counter
from typing import NamedTuple
from weakref import proxy

import numpy as np

from ..model.values import Role, Scenario
from ..state.fleet import View
from ..state.grid import Grid, Ints, ints

MILLION = 1_000_000
USUAL_SHARE = 950_000  # of all jobs, in millionths, whose kinds are the demand where none is stated
STEP = 100 * MILLION  # of gain, below which a difference is none: the first nodes fill up, and the last stay whole
WORSE = -(1 << 62)
NO_GPU = -1


class Ask(NamedTuple):
    """What one worker asks for: whole GPUs, or a share of each of so many; processors; and with whom it may share, by number (0: nobody)."""

    gpus: int
    milli: int  # of each of them
    cpu_milli: int
    shared_with: int = 0


class Usual(NamedTuple):
    """A kind of demand: its weight, and what one worker of it asks for."""

    weight: int
    gpus: int
    milli: int
    cpu_milli: int
    gpu_types: tuple[str, ...]


def demand_of(scenario: Scenario) -> tuple[Usual, ...]:
    """The usual demand as it is stated, else the commonest kinds of all jobs that there are, up to those that cover most of them."""
    stated = [(one, one.gpus if one.share_milli is None else 1) for one in scenario.demand]
    if stated:
        return tuple(Usual(one.share, gpus, one.share_milli or 1000, one.cpu_milli, one.gpu_types) for one, gpus in stated)
    counts: Counter[Usual] = Counter()
    for kind, count in Counter(job.kind for job in scenario.jobs).items():
        for role in kind.roles:
            if role.mig is None and role.memory_mib is None:  # of these no share is known before a board is
                gpus = role.gpus if role.share_milli is None else role.devices
                counts[Usual(0, gpus, role.share_milli or 1000, role.cpu_milli, role.gpu_types)] += count
    total, covered = sum(counts.values()), 0
    found = []
    for one, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])):
        if covered * MILLION >= USUAL_SHARE * total:
            break
        covered += count
        found.append(one._replace(weight=count * MILLION // total))
    return tuple(found)


class Measure:
    """Fragmentation of nodes as columns, against one demand."""

    def __init__(self, demand: tuple[Usual, ...], types: list[str]) -> None:
        """`types`: the GPU types of the fleet; a node is of one of them, by its place here."""
        needs = sorted({one.milli for one in demand if one.gpus})
        place = {milli: at for at, milli in enumerate(needs)}
        self._weight, self._cpus = ints([one.weight for one in demand]), ints([one.cpu_milli for one in demand])
        self._needs, self._need = ints(needs), ints([place.get(one.milli, 0) for one in demand])
        self._gpus = ints([one.gpus or 1 << 30 for one in demand])  # nothing is of use to who asks for no GPU
        self._allowed = np.array([[not one.gpu_types or name in one.gpu_types for one in demand] for name in types], dtype=np.bool_)

    def of(self, free: Ints, cpus: Ints, kind: Ints) -> Ints:
        """By node, from what is free of each of its GPUs, its free processors, and its type: milli-GPU times millionths."""
        total = free.sum(axis=1)
        if not len(self._needs):
            return total * int(self._weight.sum())
        large = free[:, None, :] >= self._needs[None, :, None]
        count = large.sum(axis=2)
        small = total[:, None] - (free[:, None, :] * large).sum(axis=2)
        usable = (count[:, self._need] >= self._gpus) & (cpus[:, None] >= self._cpus) & self._allowed[kind]
        useless: Ints = np.where(usable, small[:, self._need], total[:, None]) @ self._weight
        return useless


class Column:
    """Of one thing that is asked for, by node: what placing it there gains, and on which GPU a share stands best."""

    def __init__(self, size: int) -> None:
        self.gain, self.gpu = ints([WORSE] * size), ints([NO_GPU] * size)
        self.read = -1  # so many notes of the view it has taken up; -1: nothing yet


class Columns:
    """One view as columns: of each GPU what is free, for a share where it is shared."""

    def __init__(self, gradient: "Gradient", view: View) -> None:
        size = gradient.grid.size
        self.gradient, self._view, self._read = gradient, view, -1
        self.free: Ints = np.zeros((size, gradient.grid.most_gpus), dtype=np.int64)
        self.before: Ints = np.zeros(size, dtype=np.int64)
        self.asked: dict[Ask, Column] = {}

    def column(self, ask: Ask) -> Column:
        """What it gains to place that, by node, as things stand."""
        noted = len(self._view.notes)
        if self._read < noted:
            nodes, usable = self._view.changed_since(self._read), self.gradient.grid.usable
            for node in nodes:
                for gpu in range(self.free.shape[1]):
                    shared = self._view.left[node, gpu] if usable[node] >> gpu & 1 else 0
                    self.free[node, gpu] = 1000 * (self._view.free[node] >> gpu & 1) + shared
            self.before[nodes] = self.gradient.measure.of(self.free[nodes], self._view.host_np[0][nodes], self.gradient.kinds[nodes])
            self._read = noted
        if (known := self.asked.get(ask)) is None:
            known = self.asked[ask] = Column(len(self.before))
        if known.read < noted:
            self._weigh(ask, ints(sorted(self._view.changed_since(known.read))), known)
            known.read = noted
        return known

    def _weigh(self, ask: Ask, nodes: Ints, column: Column) -> None:
        column.gain[nodes] = WORSE
        column.gpu[nodes] = NO_GPU
        free, cpus, before = self.free[nodes], self._view.host_np[0][nodes] - ask.cpu_milli, self.before[nodes]
        measure, kinds = self.gradient.measure, self.gradient.kinds[nodes]
        if not ask.shared_with:
            idle = free == 1000
            fits = (idle.sum(axis=1) >= ask.gpus) & (cpus >= 0)
            taken = idle & (np.cumsum(idle, axis=1) <= ask.gpus)
            gain = before - measure.of(np.where(taken, 0, free), cpus, kinds)
            column.gain[nodes[fits]] = gain[fits]
            return
        joins = (free == 1000) | (self._view.sharers[nodes] == ask.shared_with)
        able = (free >= ask.milli) & joins & (cpus >= 0)[:, None]
        first_idle = np.cumsum(able & (free == 1000), axis=1) == 1  # of idle GPUs the first stands for all
        able &= (free < 1000) | first_idle
        place, gpu = np.nonzero(able)
        if not len(place):
            return
        after, each = free[place], np.arange(len(place))
        after[each, gpu] -= ask.milli
        gain = before[place] - measure.of(after, cpus[place], kinds[place])
        order = np.lexsort((gpu, after[each, gpu], -gain, place))  # among equals the fullest GPU
        best = order[np.concatenate(([True], np.diff(place[order]) != 0))]  # the first one of each node
        column.gain[nodes[place[best]]] = gain[best]
        column.gpu[nodes[place[best]]] = gpu[best]


class Gradient:
    """The choice of a node by the steepest descent, for one fleet and one demand."""

    def __init__(self, grid: Grid, demand: tuple[Usual, ...]) -> None:
        self.grid, self.demand = grid, demand
        types = sorted({node.gpu_type for node in grid.nodes})
        self.kinds = ints([types.index(node.gpu_type) for node in grid.nodes])
        self.measure = Measure(demand, types)

    def best(self, view: View, ask: Ask, memory_mib: int, allowed: Ints) -> tuple[int, int] | None:
        """The node on which it gains most, in steps of a tenth of a GPU, and the first among equals; and the GPU that a share stands on."""
        columns = view.columns
        if columns is None or columns.gradient is not self:
            columns = view.columns = Columns(self, proxy(view))
        column = columns.column(ask)
        gain = np.where(allowed > 0, column.gain, WORSE)
        if memory_mib:
            gain = np.where(view.host_np[1] >= memory_mib, gain, WORSE)
        if int(gain.max(initial=WORSE)) == WORSE:
            return None
        node = int(np.argmax(gain // STEP))
        return node, int(column.gpu[node])


def ask_of(role: Role, shared_with: int = 0) -> Ask:
    return Ask(1 if shared_with else role.gpus, 1000 if role.share_milli is None else role.share_milli, role.cpu_milli, shared_with)
