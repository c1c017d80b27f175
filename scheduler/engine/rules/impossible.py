"""Why even an empty fleet refuses a job, or a limit, whatever runs; and which types it could have else."""

from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cached_property, reduce
from operator import or_
from typing import NamedTuple

import numpy as np

from ..model.mig import board_of, fitting_profiles
from ..model.reasons import Reason, counted, reason, thousandths
from ..model.values import Role
from ..place.placement import Placer
from ..place.slots import SlotCounts
from ..state.cluster import Cluster
from ..state.fleet import Fleet, View
from ..state.form import Wants
from ..state.grid import Eligible, Grid, ints
from ..state.work import Work
from .gates import limit_gate

Verdict = tuple[tuple[Reason, ...], tuple[int, ...]]  # why jobs count in no request, or the types that they can have


class Verdicts:
    """What does not depend on who stands where."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._known: dict[tuple[object, ...], Verdict] = {}  # by shape and types, and by leaf where that matters

    def of(self, work: Work) -> Verdict:
        """Why jobs like this count in no request, refused even by the empty fleet or their limits; else the types that they can have."""
        asked = (work.form.shape, work.form.types)
        if (known := self._known.get(asked) or self._known.get((work.home, *asked))) is None:
            known = self._new_verdict(work)
            anywhere = not known[0] and not self.cluster.tree.limited  # a refusal names roles, and a limit what was used when it was asked
            self._known[asked if anywhere else (work.home, *asked)] = known
        return known

    def _new_verdict(self, work: Work) -> Verdict:
        if not work.form.types:
            asked = sorted({name for role in work.kind.roles for name in role.gpu_types})
            there = sorted({node.gpu_type for node in self.cluster.scenario.nodes})
            slow = f", can't run on {', '.join(sorted(work.kind.slow))}" if work.kind.slow else ""
            return (reason("no_type", f"asks for {', '.join(asked) or 'any type'}{slow}; the fleet has {', '.join(there) or 'no nodes'}"),), ()
        fitting = tuple([quota_type for quota_type in work.form.types if self.fits_empty(work, quota_type)])
        if not fitting:
            return (NeverFits(self, work).reason(),), ()
        limits, least = self.cluster.tree.limits, work.form.least_milli
        within = tuple([each for each in fitting if all(least(each) <= most for _, _, most in limits(work.home, each))])
        if not within:
            refused = limit_gate(self.cluster.tree, work.home, fitting[0], work.form.least_milli(fitting[0]))
            return (refused or reason("limit", "the job alone is larger than a limit above it"),), ()
        return (), within

    def fits_empty(self, work: Work, quota_type: int) -> bool:
        """Whether the minimum would fit if nothing else ran."""
        key, fits = (work.form.shape, quota_type), self.cluster.forms.fits_empty
        if key not in fits:
            could = self.slots.could_fit(work.form, quota_type)
            fits[key] = could and (work.form.plain or self.finds_places(work, quota_type, work.form.wants))
        return fits[key]

    def finds_places(self, work: Work, quota_type: int, wants: Wants) -> bool:
        """Whether workers of a job find places were the fleet empty."""
        cluster, bare = self.cluster, Work(work.job, work.order, work.home, work.form)
        real, empty = cluster.fleet, Fleet(cluster.grid)
        cluster.fleet = empty
        try:
            budget = dict.fromkeys(cluster.grid.pool_of, 1 << 30)
            return Placer(cluster, bare, quota_type, empty.now, budget=budget).place(wants) is not None
        finally:
            cluster.fleet = real

    @cached_property
    def slots(self) -> SlotCounts:
        """Of the fleet were nothing there."""
        return SlotCounts(self.cluster.grid, View(self.cluster.grid))


class Bind(NamedTuple):
    """How many of the workers of a role one domain of a level would hold, were it empty."""

    most: int
    role: Role
    level: int
    quota_type: int


class NeverFits:
    """Why even the empty fleet has no place for a job."""

    def __init__(self, verdicts: Verdicts, work: Work) -> None:
        self.verdicts = verdicts
        self.work, self.kind, self.width = work, work.kind, work.form.width
        self.grid = verdicts.cluster.grid
        self.sizes = self.grid.usable_np

    def reason(self) -> Reason:
        kind, work = self.kind, self.work
        for one in sorted(kind.roles, key=lambda one: (-one.gpus, -one.least)):
            held = one.least and not one.parted and max(self._bind(one, each).most for each in work.types)
            lacks = what_lacks(self.grid, work, one) if one.least and not held else None
            if lacks is not None:
                return reason("no_node", f"no node, however empty, can hold a worker of role {one.name}: {lacks}")

        # A gang stands in one quota type: it is told of the one that would hold most of the role that binds there.
        roles = [role for role in kind.roles if role.least]
        worst = [min((self._bind(role, each) for role in roles), key=_part_held) for each in work.types]
        most, role, level, quota_type = bind = max(worst, key=_part_held)
        if not most:
            wanted = f"{counted(1000 * role.gpus)}, {thousandths(role.cpu_milli)} processors and {role.host_memory_mib / 1024:g} GB on one node"
            return reason("no_node", f"no node, however empty, offers role {role.name} its {wanted}, labels and attributes")
        if most < role.least:
            each = f"workers of {counted(1000 * role.gpus)}" if role.gpus else "workers"
            detail = f"{self._largest(level)}, were it empty, holds {most} of {role.least} {each}{f' of role {role.name}' * (len(roles) > 1)}"
            if len(work.types) > 1:
                detail += f" on {self.grid.types[quota_type]}; a gang stands in one quota type"
            return reason("empty_fleet", detail + self._short_hosts(bind), level=self._name(level), holds=most, needed=role.least)
        return self._together(quota_type)

    def _bind(self, role: Role, quota_type: int) -> Bind:
        own = role.placing.required if role.placing is not None else None
        level = self.width if own is None else max(self.width, self.grid.level_index[own])
        most = role.least if role.parted else self.verdicts.slots.most(role, self._eligible(role, quota_type), level)
        return Bind(most, role, level, quota_type)

    def _together(self, quota_type: int) -> Reason:
        """The reason where each role has enough room by count."""
        kind, grid = self.kind, self.grid
        where, largest_of = self._name(self.width), self._largest(self.width)
        for place, role in enumerate(kind.roles):
            alone = tuple(want for want in self.work.form.wants if want[0] == place)
            if not role.least or self.verdicts.finds_places(self.work, quota_type, alone):
                continue
            if role.parted:
                if role.mig and not self._is_known(role, quota_type):
                    return reason("no_node", f"no GPU on which role {role.name} could run can be split into {role.mig}")
                workers, each = ("the worker", "") if role.least == 1 else (f"the {role.least} workers", " each")
                return reason("no_node", f"no node, however empty, has room for {workers} of role {role.name} with {part_of(role)}{each}")
            group = role.placing.tp_group if role.placing is not None else kind.placing.tp_group
            found = f"its NVLink groups of {counted(1000 * group)} (role {role.name}) find no place in {largest_of}, were it empty"
            if (largest := self._largest_island(role, quota_type)) < group:
                found = f"its NVLink groups (role {role.name}) need {counted(1000 * group)} each, and the largest island has {largest}"
            return reason("empty_fleet", found, level=where, group=group)
        needed = sum(role.gpus * role.least for role in kind.roles)
        allowed = reduce(or_, [self._eligible(role, quota_type).array for role in kind.roles if role.least])
        largest = int(grid.sums(self.sizes * allowed * grid.on_type[quota_type], self.width).max())
        detail = f"each of its roles would fit into {largest_of}, were it empty, but not all of them together"
        if needed > largest and not self.work.form.parted:
            detail = f"its roles together need {counted(1000 * needed)}, and {largest_of}, were it empty, has {largest}"
        return reason("empty_fleet", detail, level=where, gpus_needed=needed)

    def _eligible(self, role: Role, quota_type: int) -> Eligible:
        return self.grid.eligible(self.kind, role, quota_type, suspect=self.kind.tolerates_suspect, spare=False)

    def _largest_island(self, role: Role, quota_type: int) -> int:
        grid, allowed = self.grid, self._eligible(role, quota_type).array
        whole = ints([0 if place in grid.narrow_islands else count for place, count in enumerate(grid.usable_count)])
        parts = (grid.usable[node] & part for node in grid.narrow_islands if allowed[node] for part in grid.nodes[node].islands)
        return max(int(grid.islands.sums(whole * allowed).max()), *[part.bit_count() for part in parts], 0)

    def _short_hosts(self, bind: Bind) -> str:
        """What of the hosts there is too little of, where GPUs would suffice."""
        role, nodes, allowed = bind.role, self.grid.nodes, self._eligible(bind.role, bind.quota_type).array
        slots = self.sizes * allowed // role.gpus if role.gpus else role.least * allowed
        if self.grid.sums(slots, bind.level).max() < role.least:
            return ""
        cpus, memory = ints([node.cpu_milli for node in nodes]), ints([node.host_memory_mib for node in nodes])
        hosts = [("processors", role.cpu_milli, cpus, 1000), ("GB of host memory", role.host_memory_mib, memory, 1024)]
        short = [
            f"{each / unit:g} {what}, of which one node has {int((there * allowed).max()) / unit:g} at most"
            for what, each, there, unit in hosts
            if each and self.grid.sums(np.minimum(slots, there // each), bind.level).max() < role.least
        ]
        return f"; each {'also ' * bool(role.gpus)}needs {' and '.join(short)}" if short else "; processors and host memory run out before the GPUs"

    def _is_known(self, role: Role, quota_type: int) -> bool:
        """Whether a board on which the role may stand has instances as it asks for."""
        allowed = self._eligible(role, quota_type).flags
        boards = (board_of(name) for name in {node.gpu_type for place, node in enumerate(self.grid.nodes) if allowed[place]})
        return any(fitting_profiles(role, board) for board in boards if board is not None)

    def _name(self, level: int) -> str:
        return "fleet" if level < 0 else self.grid.level_names[level]

    def _largest(self, level: int) -> str:
        return "the fleet" if level < 0 else f"the largest {self._name(level)}"


def _part_held(one: Bind) -> Fraction:
    return Fraction(one.most, one.role.least)


def part_of(role: Role) -> str:
    """The part of a GPU that a worker asks for."""
    what = role.mig or (f"{role.share_milli} milli-GPU" if role.share_milli is not None else f"{(role.memory_mib or 0) / 1024:g} GB of a GPU")
    return f"{what} of {counted(1000 * role.devices)}" if role.devices > 1 else what


def what_lacks(grid: Grid, work: Work, role: Role) -> str | None:
    """The first thing that no node has of those that have all before it; None where a node has everything, as far as it is looked at here."""
    kind, nodes = work.kind, grid.nodes
    places = [place for place, node in enumerate(nodes) if not role.gpu_types or node.gpu_type in role.gpu_types]
    places = [place for place in places if grid.type_of[place] in work.types and nodes[place].gpu_type not in kind.slow]
    if not (role.gpus or role.parted):
        places = [*range(len(nodes))]
    if not places:
        return None
    if not (left := [place for place in places if grid.startable[kind.tolerates_suspect][place]]):
        standing = Counter(_NOT_IN_SERVICE[nodes[place].health] for place in places)
        shown = ", ".join(f"{count} {'is' if count == 1 else 'are'} {what}" for what, count in sorted(standing.items()))
        return f"of {_nodes(len(places))} that it could run on {shown}"
    for label, value in kind.labels:
        had, left = left, [place for place in left if (label, value) in nodes[place].labels]
        if not left:
            return f"none of {_nodes(len(had))} has the label {label}={value}"
    offers: list[tuple[str, int, Sequence[int], Callable[[int], str]]] = [
        (name, least, [dict(node.attributes).get(name, 0) for node in nodes], lambda amount: f"{amount / 1_000_000:g}") for name, least in kind.needs
    ]
    offers += [
        ("GPUs on one node", role.gpus or (role.devices if role.parted else 0), grid.usable_count, str),
        ("GB of memory on one GPU", role.memory_mib or 0, [node.gpu_memory_mib for node in nodes], lambda amount: f"{amount / 1024:g}"),
        ("processors", role.cpu_milli, [node.cpu_milli for node in nodes], lambda amount: str(thousandths(amount))),
        ("GB of host memory", role.host_memory_mib, [node.host_memory_mib for node in nodes], lambda amount: f"{amount / 1024:g}"),
    ]
    for what, least, there, spelt in offers:
        had, left = left, [place for place in left if there[place] >= least]
        if not left:
            return f"it needs {spelt(least)} {what}, and the most that one of {_nodes(len(had))} has is {spelt(max(there[place] for place in had))}"
    return None


_NOT_IN_SERVICE = {"healthy": "spare", "suspect": "suspect, which it does not tolerate", "draining": "draining", "down": "down"}


def _nodes(count: int) -> str:
    return f"{count} node{'s' * (count != 1)}"
