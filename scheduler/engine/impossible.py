"""Why even an empty fleet refuses a job, or a limit, whatever runs; and which types it could have else."""

from collections.abc import Callable
from functools import cached_property

from .capacity import Capacity, could_fit, plain, widest
from .cluster import Cluster, Work
from .fleet import Fleet, View
from .placement import Placer
from .reasons import Reason, counted, reason
from .values import Kind

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
        if not could_fit(cluster, self._empty_capacity, work.form, quota_type, suspect=kind.tolerates_suspect):
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
        return Capacity(self.cluster, View(self.cluster.grid))


def never_fits(cluster: Cluster, empty: Capacity, work: Work) -> Reason:
    """The reason, from the room of the fleet were nothing there."""
    kind = work.kind
    role = max(kind.roles, key=lambda one: (one.gpus, one.least))
    best = 0
    level = widest(cluster, kind)
    for quota_type in work.types:
        eligible = cluster.grid.eligible(kind, role, quota_type, suspect=kind.tolerates_suspect, spare=False)
        if not role.parted:
            best = max(best, empty.most(role, eligible, level))
    where = level_name(cluster, kind)
    if role.parted:
        return reason("no_node", f"no node offers what role {role.name} asks for, however empty")
    if not best:
        wanted = f"{counted(1000 * role.gpus)}, {role.cpus} processors and {role.host_memory_mib // 1024} GB on one node"
        return reason("no_node", f"no node, however empty, offers role {role.name} its {wanted}, labels and attributes")
    detail = f"the largest {where}, were it empty, holds {best} of {role.least} workers of {counted(1000 * role.gpus)}"
    return reason("empty_fleet", detail, level=where, holds=best, needed=role.least)


def level_name(cluster: Cluster, kind: Kind) -> str:
    level = widest(cluster, kind)
    return "fleet" if level < 0 else cluster.grid.level_names[level]
