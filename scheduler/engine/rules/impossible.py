"""Why even an empty fleet refuses a job, or a limit, whatever runs; and which types it could have else."""

from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from functools import cached_property, partial, reduce
from operator import or_
from typing import NamedTuple

import numpy as np

from ..model.mig import board_of, fitting_profiles
from ..model.reasons import Reason, counted, reason
from ..model.values import Kind, Node, Role
from ..place.capacity import Capacity, plain, widest
from ..place.placement import Placer
from ..reading.checkers import thousandths
from ..state.cluster import Cluster
from ..state.fleet import Fleet, View
from ..state.form import Wants
from ..state.grid import Eligible, Grid, Ints
from ..state.work import Work

Verdict = tuple[tuple[Reason, ...], tuple[int, ...]]  # why jobs count in no request, or the types that they can have


class Verdicts:
    """What does not depend on who stands where."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._fits_empty = cluster.kept.fits_empty
        self._alike: dict[tuple[int, int, tuple[int, ...]], Verdict] = {}
        self._everywhere: dict[tuple[int, tuple[int, ...]], Verdict] = {}  # of those that may wait, where no queue has a limit

    def alike(self, work: Work) -> Verdict:
        """What is said of a job, worked out once for all that are alike in it."""
        asked = (work.form.shape, work.form.types)
        known = self._everywhere.get(asked) or self._alike.get((work.home, *asked))
        if known is None:
            known = self._alike[(work.home, *asked)] = self.of(work)
            if not known[0] and not self.cluster.tree.limited:
                self._everywhere[asked] = known
        return known

    def of(self, work: Work) -> Verdict:
        """Why jobs like this count in no request, refused even by the empty fleet or their limits; else the types that they can have."""
        if not work.form.types:
            return (self._no_type(work),), ()
        fitting = tuple(quota_type for quota_type in work.form.types if self.fits_empty(work, quota_type))
        if not fitting:
            return (self._never_fits(work),), ()
        within = tuple(quota_type for quota_type in fitting if self._within_limits(work, quota_type))
        if not within:
            refused = self.cluster.tree.limit_gate(work.home, fitting[0], work.form.least_milli(fitting[0]))
            return (refused or reason("limit", "the job alone is larger than a limit above it"),), ()
        return (), within

    def _within_limits(self, work: Work, quota_type: int) -> bool:
        milli = work.form.least_milli(quota_type)
        return all(milli <= most for _, _, most in self.cluster.tree.limits(work.home, quota_type))

    def _no_type(self, work: Work) -> Reason:
        asked = sorted({name for role in work.kind.roles for name in role.gpu_types})
        there = sorted({node.gpu_type for node in self.cluster.scenario.nodes})
        slow = sorted(name for name, speed in work.kind.throughput if speed == 0)
        detail = f"asks for {', '.join(asked) or 'any type'}"
        if slow:
            detail += f", can't run on {', '.join(slow)}"
        return reason("no_type", f"{detail}; the fleet has {', '.join(there) or 'no nodes'}")

    def fits_empty(self, work: Work, quota_type: int) -> bool:
        """Whether the minimum would fit if nothing else ran."""
        key = (work.form.shape, quota_type)
        known = self._fits_empty.get(key)
        if known is None:
            known = self._fits_empty[key] = self._tried_empty(work, quota_type)
        return known

    def _tried_empty(self, work: Work, quota_type: int) -> bool:
        cluster, kind = self.cluster, work.kind
        if not self._empty_capacity.could_fit(work.form, quota_type, suspect=kind.tolerates_suspect):
            return False
        bare = Work(work.job, work.order, work.home, work.form)
        return plain(cluster, kind) or self._placed(bare, quota_type, bare.missing())

    def _placed(self, bare: Work, quota_type: int, wants: Wants) -> bool:
        """Whether workers of a job find places were the fleet empty."""
        cluster = self.cluster
        real = cluster.fleet
        empty = Fleet(cluster.grid)
        empty.settle()
        cluster.fleet = empty
        try:
            budget = dict.fromkeys(cluster.grid.pool_of, 1 << 30)
            placer = Placer(cluster, bare, quota_type, empty.now, budget=budget)
            return placer.place(wants) is not None
        finally:
            cluster.fleet = real

    def _never_fits(self, work: Work) -> Reason:
        bare = Work(work.job, work.order, work.home, work.form)

        def alone(quota_type: int, place: int) -> bool:
            return self._placed(bare, quota_type, tuple(want for want in bare.missing() if want[0] == place))

        return never_fits(self.cluster, self._empty_capacity, work, alone)

    @cached_property
    def _empty_capacity(self) -> Capacity:
        return Capacity(self.cluster.grid, View(self.cluster.grid))


class Bind(NamedTuple):
    """How many of the workers of a role one domain of a level would hold, were it empty."""

    most: int
    role: Role
    level: int
    quota_type: int


def never_fits(cluster: Cluster, empty: Capacity, work: Work, alone: Callable[[int, int], bool]) -> Reason:
    """The reason, from the room of the fleet were nothing there. `alone`: whether a role would find places in a type by itself."""
    kind, types = work.kind, cluster.grid.types

    def bind(role: Role, quota_type: int) -> Bind:
        level = _level_of(cluster, kind, role)
        if role.parted:
            return Bind(role.least, role, level, quota_type)
        return Bind(empty.most(role, eligible_for(cluster, work, role, quota_type), level), role, level, quota_type)

    for one in sorted(kind.roles, key=lambda one: (-one.gpus, -one.least)):
        held = one.least and not one.parted and max(bind(one, each).most for each in work.types)
        lacks = what_lacks(cluster, work, one) if one.least and not held else None
        if lacks is not None:
            return reason("no_node", f"no node, however empty, can hold a worker of role {one.name}: {lacks}")

    # A gang stands in one quota type: it is told of the one that would hold most of the role that binds there.
    roles = [role for role in kind.roles if role.least]
    worst = [min((bind(role, each) for role in roles), key=_part_held) for each in work.types]
    most, role, level, quota_type = max(worst, key=_part_held)
    where = _largest(cluster, level)
    if not most:
        wanted = f"{counted(1000 * role.gpus)}, {thousandths(role.cpu_milli)} processors and {role.host_memory_mib / 1024:g} GB on one node"
        return reason("no_node", f"no node, however empty, offers role {role.name} its {wanted}, labels and attributes")
    if most < role.least:
        each = f"workers of {counted(1000 * role.gpus)}" if role.gpus else "workers"
        detail = f"{where}, were it empty, holds {most} of {role.least} {each}{f' of role {role.name}' * (len(roles) > 1)}"
        if len(work.types) > 1:
            detail += f" on {types[quota_type]}; a gang stands in one quota type"
        detail += _hosts_bind(cluster, work, Bind(most, role, level, quota_type))
        return reason("empty_fleet", detail, level=level_name(cluster, level), holds=most, needed=role.least)
    return _together(cluster, work, quota_type, alone)


def _part_held(one: Bind) -> Fraction:
    return Fraction(one.most, one.role.least)


def _together(cluster: Cluster, work: Work, quota_type: int, alone: Callable[[int, int], bool]) -> Reason:
    """The reason where each role has enough room by count."""
    kind, grid = work.kind, cluster.grid
    width = widest(cluster, kind)
    where = level_name(cluster, width)
    for place, role in enumerate(kind.roles):
        if not role.least or alone(quota_type, place):
            continue
        if role.parted:
            if role.mig and not _known(cluster, work, role, quota_type):
                return reason("no_node", f"no GPU on which role {role.name} could run can be split into {role.mig}")
            workers, each = ("the worker", "") if role.least == 1 else (f"the {role.least} workers", " each")
            return reason("no_node", f"no node, however empty, has room for {workers} of role {role.name} with {part_of(role)}{each}")
        group = role.placing.tp_group if role.placing is not None else kind.placing.tp_group
        found = f"its NVLink groups of {counted(1000 * group)} (role {role.name}) find no place in {_largest(cluster, width)}, were it empty"
        if (largest := _largest_island(cluster, work, role, quota_type)) < group:
            found = f"its NVLink groups (role {role.name}) need {counted(1000 * group)} each, and the largest island has {largest}"
        return reason("empty_fleet", found, level=where, group=group)
    needed = sum(role.gpus * role.least for role in kind.roles)
    allowed = reduce(or_, [eligible_for(cluster, work, role, quota_type).array for role in kind.roles if role.least])
    usable = np.array(grid.usable_count, dtype=np.int64) * allowed * grid.on_type[quota_type]
    largest = int(usable.sum() if width < 0 else grid.levels[width].sums(usable).max())
    detail = f"each of its roles would fit into {_largest(cluster, width)}, were it empty, but not all of them together"
    if needed > largest and not work.form.parted:
        detail = f"its roles together need {counted(1000 * needed)}, and {_largest(cluster, width)}, were it empty, has {largest}"
    return reason("empty_fleet", detail, level=where, gpus_needed=needed)


def eligible_for(cluster: Cluster, work: Work, role: Role, quota_type: int) -> Eligible:
    return cluster.grid.eligible(work.kind, role, quota_type, suspect=work.kind.tolerates_suspect, spare=False)


def _level_of(cluster: Cluster, kind: Kind, role: Role) -> int:
    """The level in one domain of which all workers of a role must stand."""
    own = role.placing.required if role.placing is not None else None
    width = widest(cluster, kind)
    return width if own is None else max(width, cluster.grid.level_index[own])


def _largest_island(cluster: Cluster, work: Work, role: Role, quota_type: int) -> int:
    grid, allowed = cluster.grid, eligible_for(cluster, work, role, quota_type).array
    whole = np.array([0 if place in grid.narrow_islands else count for place, count in enumerate(grid.usable_count)], dtype=np.int64)
    parts = (grid.usable[node] & part for node in grid.narrow_islands if allowed[node] for part in grid.nodes[node].islands)
    return max(int(grid.islands.sums(whole * allowed).max()), *[part.bit_count() for part in parts], 0)


def _hosts_bind(cluster: Cluster, work: Work, bind: Bind) -> str:
    """What of the hosts there is too little of, where GPUs would suffice."""
    role, grid = bind.role, cluster.grid
    allowed = eligible_for(cluster, work, role, bind.quota_type).array
    slots = np.array(grid.usable_count, dtype=np.int64) * allowed // role.gpus if role.gpus else role.least * allowed

    def most(slots: Ints) -> int:
        return int(slots.sum() if bind.level < 0 else grid.levels[bind.level].sums(slots).max())

    if most(slots) < role.least:
        return ""
    hosts = [
        ("processors", role.cpu_milli, [node.cpu_milli for node in grid.nodes], 1000),
        ("GB of host memory", role.host_memory_mib, [node.host_memory_mib for node in grid.nodes], 1024),
    ]
    short = [
        f"{each / unit:g} {what}, of which one node has {int((np.array(there) * allowed).max()) / unit:g} at most"
        for what, each, there, unit in hosts
        if each and most(np.minimum(slots, np.array(there, dtype=np.int64) // each)) < role.least
    ]
    return f"; each {'also ' * bool(role.gpus)}needs {' and '.join(short)}" if short else "; processors and host memory run out before the GPUs"


def _known(cluster: Cluster, work: Work, role: Role, quota_type: int) -> bool:
    """Whether a board on which the role may stand has instances as it asks for."""
    nodes, allowed = cluster.grid.nodes, eligible_for(cluster, work, role, quota_type).flags
    boards = [board_of(name) for name in {node.gpu_type for place, node in enumerate(nodes) if allowed[place]}]
    return any(fitting_profiles(role, board) for board in boards if board is not None)


def part_of(role: Role) -> str:
    """The part of a GPU that a worker asks for."""
    what = role.mig or (f"{role.share_milli} milli-GPU" if role.share_milli is not None else f"{(role.memory_mib or 0) / 1024:g} GB of a GPU")
    return f"{what} of {counted(1000 * role.devices)}" if role.devices > 1 else what


def what_lacks(cluster: Cluster, work: Work, role: Role) -> str | None:
    """The first thing that no node has of those that have all before it; None where a node has everything, as far as it is looked at here."""
    kind, grid = work.kind, cluster.grid
    slow = {name for name, speed in kind.throughput if speed == 0}
    places = [
        place
        for place, node in enumerate(grid.nodes)
        if not (role.gpus or role.parted)
        or (grid.type_of[place] in work.types and node.gpu_type not in slow and (not role.gpu_types or node.gpu_type in role.gpu_types))
    ]
    if not places:
        return None
    left = [place for place in places if _in_service(grid.nodes[place], suspect=kind.tolerates_suspect)]
    if not left:
        standing = Counter(_NOT_IN_SERVICE[grid.nodes[place].health] for place in places)
        shown = ", ".join(f"{count} {'is' if count == 1 else 'are'} {what}" for what, count in sorted(standing.items()))
        return f"of {_nodes(len(places))} that it could run on {shown}"
    for label, value in kind.labels:
        had, left = left, [place for place in left if (label, value) in grid.nodes[place].labels]
        if not left:
            return f"none of {_nodes(len(had))} has the label {label}={value}"
    offers: list[tuple[str, int, Callable[[int], int], Callable[[int], str]]] = [
        (name, least, partial(_attribute, grid, name), lambda amount: f"{amount / 1_000_000:g}") for name, least in kind.needs
    ]
    offers += [
        ("GPUs on one node", role.gpus or (role.devices if role.parted else 0), lambda place: grid.usable_count[place], str),
        ("GB of memory on one GPU", role.memory_mib or 0, lambda place: grid.nodes[place].gpu_memory_mib, lambda amount: f"{amount / 1024:g}"),
        ("processors", role.cpu_milli, lambda place: grid.nodes[place].cpu_milli, lambda amount: str(thousandths(amount))),
        ("GB of host memory", role.host_memory_mib, lambda place: grid.nodes[place].host_memory_mib, lambda amount: f"{amount / 1024:g}"),
    ]
    for what, least, of, spelt in offers:
        had, left = left, [place for place in left if of(place) >= least]
        if not left:
            return f"it needs {spelt(least)} {what}, and the most that one of {_nodes(len(had))} has is {spelt(max(of(place) for place in had))}"
    return None


_NOT_IN_SERVICE = {"healthy": "spare", "suspect": "suspect, which it does not tolerate", "draining": "draining", "down": "down"}


def _attribute(grid: Grid, name: str, place: int) -> int:
    return dict(grid.nodes[place].attributes).get(name, 0)


def _in_service(node: Node, *, suspect: bool) -> bool:
    return not node.spare and (node.health == "healthy" or (node.health == "suspect" and suspect))


def _nodes(count: int) -> str:
    return f"{count} node{'s' * (count != 1)}"


def _largest(cluster: Cluster, level: int) -> str:
    return "the fleet" if level < 0 else f"the largest {level_name(cluster, level)}"


def level_name(cluster: Cluster, level: int) -> str:
    return "fleet" if level < 0 else cluster.grid.level_names[level]
