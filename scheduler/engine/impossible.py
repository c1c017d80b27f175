"""Why even an empty fleet refuses a job, or a limit, whatever runs; and which types it could have else."""

from collections import Counter
from collections.abc import Callable
from functools import cached_property, partial

from .capacity import Capacity, plain, widest
from .cluster import Cluster
from .fleet import Fleet, View
from .grid import Grid
from .placement import Placer
from .reasons import Reason, counted, reason
from .values import Kind, Node, Role
from .work import Work

Verdict = tuple[tuple[Reason, ...], tuple[int, ...]]  # why jobs count in no request, or the types that they can have


class Verdicts:
    """What does not depend on who stands where."""

    def __init__(self, cluster: Cluster, least_milli: Callable[[Kind, int], int]) -> None:
        self.cluster = cluster
        self._least_milli = least_milli
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
            return (never_fits(self.cluster, self._empty_capacity, work),), ()
        within = tuple(quota_type for quota_type in fitting if self._within_limits(work, quota_type))
        if not within:
            refused = self.cluster.tree.limit_gate(work.home, fitting[0], self._least_milli(work.kind, fitting[0]))
            return (refused or reason("limit", "the job alone is larger than a limit above it"),), ()
        return (), within

    def _within_limits(self, work: Work, quota_type: int) -> bool:
        tree = self.cluster.tree
        milli = self._least_milli(work.kind, quota_type)
        for place in tree.path[work.home]:
            total = tree.limit_total[place]
            caps = tree.limit_by_type[place]
            if (total is not None and milli > total) or (caps is not None and milli > caps.get(quota_type, milli)):
                return False
        return True

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
        if plain(cluster, kind):
            return True
        real = cluster.fleet
        empty = Fleet(cluster.grid)
        empty.settle()
        cluster.fleet = empty
        try:
            bare = Work(work.job, work.order, work.home, work.form)
            budget = dict.fromkeys(cluster.grid.pool_of, 1 << 30)
            placer = Placer(cluster, bare, quota_type, empty.now, suspect=kind.tolerates_suspect, budget=budget)
            return placer.place(bare.missing()) is not None
        finally:
            cluster.fleet = real

    @cached_property
    def _empty_capacity(self) -> Capacity:
        return Capacity(self.cluster.grid, View(self.cluster.grid))


def never_fits(cluster: Cluster, empty: Capacity, work: Work) -> Reason:
    """The reason, from the room of the fleet were nothing there."""
    kind = work.kind
    level = widest(cluster, kind)

    def most(role: Role) -> int:
        if role.parted:
            return 0
        suspect = kind.tolerates_suspect
        return max(empty.most(role, cluster.grid.eligible(kind, role, each, suspect=suspect, spare=False), level) for each in work.types)

    for one in sorted(kind.roles, key=lambda one: (-one.gpus, -one.least)):
        lacks = what_lacks(cluster, work, one) if one.least and not most(one) else None
        if lacks is not None:
            return reason("no_node", f"no node, however empty, can hold a worker of role {one.name}: {lacks}")
    role = max(kind.roles, key=lambda one: (one.gpus, one.least))
    best = most(role)
    where = level_name(cluster, kind)
    if role.parted:
        return reason(
            "no_node", f"no node, however empty, can hold the {role.least} workers of role {role.name}, each with the part of a GPU that it asks for"
        )
    if not best:
        wanted = f"{counted(1000 * role.gpus)}, {role.cpus} processors and {role.host_memory_mib / 1024:g} GB on one node"
        return reason("no_node", f"no node, however empty, offers role {role.name} its {wanted}, labels and attributes")
    detail = f"the largest {where}, were it empty, holds {best} of {role.least} workers of {counted(1000 * role.gpus)}"
    return reason("empty_fleet", detail, level=where, holds=best, needed=role.least)


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
        ("processors", role.cpus, lambda place: grid.nodes[place].cpus, str),
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


def level_name(cluster: Cluster, kind: Kind) -> str:
    level = widest(cluster, kind)
    return "fleet" if level < 0 else cluster.grid.level_names[level]
