"""The last word on a plan: what may never be, checked on the final state by rules that share nothing with the passes."""

from collections.abc import Sequence
from functools import cached_property
from itertools import chain
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from ..model.mig import Instance, board_of, layout_faults
from ..state.cluster import Cluster
from ..state.fleet import Part, Seat, bits_of
from ..state.grid import Grid, Ints, ints
from ..state.planning import Cycle
from ..state.tree import Division, Tree
from ..state.work import Work

Tenant = tuple[str, int, int]  # a job, and the role and rank of its worker
Shared = dict[tuple[int, int], dict[Tenant, Part]]


class InvariantBroken(AssertionError):
    """A plan that must not be carried out, and the job it is about."""

    def __init__(self, message: str, job: str | None = None) -> None:
        super().__init__(message)
        self.job = job


def check(cycle: Cycle) -> None:
    """Raise unless no place is held twice, gangs are whole and together, and limits and guarantees hold."""
    cluster = cycle.cluster
    first, state = cluster.kept.first, cluster.first_state
    if first is not None:
        first.follow(cluster)
    if not cycle.placed:
        return  # nothing was decided that could be wrong
    if state.goes_on:
        check_changes(cluster, first or First(cluster))
        return
    settled = Settled(cluster)
    held = settled.held()
    for work in settled.dubious():
        _whole_gang(work, cycle.grid)
    parts: dict[tuple[int, int], list[tuple[str, Seat]]] = {}
    for work in settled.others:
        if work.seats and work.seats != work.first_seats:
            _whole_gang(work, cycle.grid)
            if len(work.seats) > 1:
                _together(work, cycle.grid)
        for seat in work.seats:
            if seat.parts:
                for part in seat.parts:
                    parts.setdefault((seat.node, part.gpu), []).append((work.job.name, seat))
                continue
            if held[seat.node] & seat.mask:
                raise InvariantBroken(f"a GPU of {cycle.grid.nodes[seat.node].name} is held twice", work.job.name)
            held[seat.node] |= seat.mask
    for (node, gpu), tenants in parts.items():
        mine = [part for _, seat in tenants for part in seat.parts if part.gpu == gpu]
        _shared(cycle.grid, (node, gpu), mine, tenants[-1][0], whole=bool(held[node] >> gpu & 1))
    _quotas(cycle, settled)


class Settled:
    """In columns who stands on whole GPUs as he stood when the plan began, who has left them, and who came with one worker: they are most of all.

    `others` are the rest.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        parted = cluster.forms.parted
        usual = [work for work in cluster.works if not work.form.parted] if parted else cluster.works
        changed = [work for work in usual if work.seats is not work.first_seats]
        gone = [work for work in changed if not work.seats]
        here = [work for work in usual if work.seats and work.seats is work.first_seats]
        self.others = [work for work in cluster.works if work.form.parted] if parted else []
        self.fresh: list[Work] = []
        for work in [work for work in changed if work.seats]:
            alone = len(work.seats) == 1 and not work.first_seats and len(work.kind.roles) == 1
            (self.fresh if alone else self.others).append(work)
        self.works = here + self.fresh
        there, left = Stood(cluster, [work.seats for work in self.works]), Stood(cluster, [work.first_seats for work in gone])
        self.node, self.mask = there.node, there.mask
        # What they use, by the leaf that is charged, and what was used as the plan began, by their own; and in which types, if that matters.
        self._leaf, self._milli = ints([work.charged_leaf for work in self.works]), there.milli
        self._home, were = ints([work.home for work in chain(here, gone)]), len(here)
        self._milli_before = np.concatenate((there.milli[:were], left.milli))
        self._types: tuple[Ints, Ints] | None = None
        if len(cluster.tree.divisions) > 1:
            self._types = ints([work.quota_type for work in self.works]), np.concatenate((there.first_type[:were], left.first_type))

    def dubious(self) -> list[Work]:
        """Who came with one worker and may not be whole, or not on healthy GPUs; all the others surely are."""
        if not self.fresh:
            return []
        grid = self.cluster.grid
        node, mask = self.node[-len(self.fresh) :], self.mask[-len(self.fresh) :]
        roles = [work.kind.roles[0] for work in self.fresh]
        healthy = np.array([each.health not in ("down", "draining") for each in grid.nodes], dtype=np.bool_)
        sound = healthy[node] & (mask & ~np.array(grid.usable, dtype=np.uint64)[node] == 0)
        sound &= np.bitwise_count(mask) == ints([role.gpus for role in roles])
        sound &= ints([role.least for role in roles]) <= 1
        sound &= ints([work.seats[0].role for work in self.fresh]) == 0
        return [work for work, well in zip(self.fresh, sound.tolist(), strict=True) if not well]

    def held(self) -> list[int]:
        """The GPUs that they hold, by node."""
        grid = self.cluster.grid
        held = np.zeros(grid.size, dtype=np.uint64)
        np.bitwise_or.at(held, self.node, self.mask)
        masks: list[int] = held.tolist()
        if np.bitwise_count(held).sum() == np.bitwise_count(self.mask).sum():
            return masks
        masks = [0] * grid.size  # somebody stands where another one does: who?
        for work in self.works:
            for seat in work.seats:
                if masks[seat.node] & seat.mask:
                    raise InvariantBroken(f"a GPU of {grid.nodes[seat.node].name} is held twice", work.job.name)
                masks[seat.node] |= seat.mask
        raise AssertionError("what is held twice has two holders")

    def charged(self, division: Division) -> tuple[dict[int, int], dict[int, int]]:
        """What they use of a division, by the leaf that is charged, and what they used of it, by their own."""
        sums = []
        for number, (leaf, milli) in enumerate(((self._leaf, self._milli), (self._home, self._milli_before))):
            found = np.zeros(len(self.cluster.tree.names), dtype=np.int64)
            np.add.at(found, leaf, milli if self._types is None else np.where(np.isin(self._types[number], division.types), milli, 0))
            sums.append({place: used for place, used in enumerate(found.tolist()) if used})
        return sums[0], sums[1]


class Stood:
    """The places of jobs: node and GPUs by worker, milli-GPU and the type of the first worker by job."""

    def __init__(self, cluster: Cluster, held: Sequence[tuple[Seat, ...]]) -> None:
        self.cluster = cluster
        self._seats = seats = [*chain.from_iterable(held)]
        milli: Ints = np.fromiter(map(attrgetter("milli"), seats), dtype=np.int64, count=len(seats))
        self._held_by = held
        if len(seats) == len(held):  # everyone who is looked at stands somewhere, so each with one worker
            self.milli = milli
        else:
            self.milli = np.zeros(len(held), dtype=np.int64)
            np.add.at(self.milli, np.repeat(np.arange(len(held)), self._counts), milli)

    @cached_property
    def _counts(self) -> Ints:
        return ints([*map(len, self._held_by)])

    @cached_property
    def node(self) -> Ints:
        return np.fromiter(map(attrgetter("node"), self._seats), dtype=np.int64, count=len(self._seats))

    @cached_property
    def mask(self) -> npt.NDArray[np.uint64]:
        return np.fromiter(map(attrgetter("mask"), self._seats), dtype=np.uint64, count=len(self._seats))

    @cached_property
    def first_type(self) -> Ints:
        return ints(self.cluster.grid.type_of)[self.node[np.cumsum(self._counts) - self._counts]]


def prepare(cluster: Cluster) -> None:
    """Note at the end of a plan what the next one is checked against, where it can go on from this one."""
    if cluster.kept.first is None and cluster.first_state.by_places and not cluster.scenario.windows:
        First(cluster)


class First:
    """Where everyone stood as the plan began, and what was used then: a plan that goes on from another is checked against that."""

    def __init__(self, cluster: Cluster) -> None:
        self.held = [0] * cluster.grid.size
        self.shared: Shared = {}  # by node and GPU, who holds which share of it
        self.used = [[0] * len(cluster.tree.names) for _ in cluster.tree.divisions]
        for work in cluster.works:
            self.stand(cluster, work)
        cluster.kept.first = self

    def follow(self, cluster: Cluster) -> None:
        since = cluster.first_state.since
        for work in since.gone:
            for seat in work.first_seats:
                self.held[seat.node] &= ~seat.mask
                for part in seat.parts:
                    del self.shared[seat.node, part.gpu][work.job.name, seat.role, seat.rank]
            self._use(cluster, work, -1)
        for work in since.come:
            self.stand(cluster, work)

    def stand(self, cluster: Cluster, work: Work) -> None:
        for seat in work.first_seats:
            if self.held[seat.node] & seat.mask:
                raise InvariantBroken(f"a GPU of {cluster.grid.nodes[seat.node].name} is held twice", work.job.name)
            self.held[seat.node] |= seat.mask
            for part in seat.parts:
                self.shared.setdefault((seat.node, part.gpu), {})[work.job.name, seat.role, seat.rank] = part
        self._use(cluster, work, 1)

    def tenants(self, held: Shared, node: int, gpu: int) -> dict[Tenant, Part]:
        """Who holds which share of a GPU, to be changed in what a plan has changed."""
        known = held.get((node, gpu))
        if known is None:
            known = held[node, gpu] = dict(self.shared.get((node, gpu), ()))
        return known

    def _use(self, cluster: Cluster, work: Work, sign: int) -> None:
        seats = work.first_seats
        if seats:
            used = self.used[0] if len(self.used) == 1 else self.used[_charged(cluster, seats)]
            milli = sign * (seats[0].milli if len(seats) == 1 else sum([seat.milli for seat in seats]))
            for place in cluster.tree.path[work.home]:
                used[place] += milli


def _charged(cluster: Cluster, seats: Sequence[Seat]) -> int:
    """The division that places are charged to: that of the first one with GPUs."""
    of_type = cluster.grid.type_of
    return cluster.tree.division_of[next((of_type[seat.node] for seat in seats if seat.milli), of_type[seats[0].node])]


def check_changes(cluster: Cluster, first: First) -> None:
    """The same for a plan that goes on from another: only what has changed can be wrong."""
    tree, grid = cluster.tree, cluster.grid
    changed = [work for work in dict.fromkeys(cluster.journal) if work.seats != work.first_seats]
    held: dict[int, int] = {}
    shared: Shared = {}
    used = [list(each) for each in first.used]
    for work in changed:
        if work.first_seats:
            its_own = used[_charged(cluster, work.first_seats)]
        for seat in work.first_seats:
            held[seat.node] = held.get(seat.node, first.held[seat.node]) & ~seat.mask
            for part in seat.parts:
                del first.tenants(shared, seat.node, part.gpu)[work.job.name, seat.role, seat.rank]
            for place in tree.path[work.home]:
                its_own[place] -= seat.milli
    for work in changed:
        if work.seats:
            _whole_gang(work, grid)
            if len(work.seats) > 1:
                _together(work, grid)
        for seat in work.seats:
            here = held.get(seat.node, first.held[seat.node])
            if here & seat.mask:
                raise InvariantBroken(f"a GPU of {grid.nodes[seat.node].name} is held twice", work.job.name)
            held[seat.node] = here | seat.mask
            for part in seat.parts:
                first.tenants(shared, seat.node, part.gpu)[work.job.name, seat.role, seat.rank] = part
            for place in tree.path[work.charged_leaf]:
                used[tree.division_of[work.quota_type]][place] += seat.milli
    for work in changed:
        for seat in work.seats:
            for gpu in bits_of(seat.mask):
                if shared.get((seat.node, gpu), first.shared.get((seat.node, gpu))):
                    raise InvariantBroken(f"GPU {gpu} of {grid.nodes[seat.node].name} is held whole and in parts", work.job.name)
    for (node, gpu), tenants in shared.items():
        if tenants:
            whole = held.get(node, first.held[node]) >> gpu & 1
            _shared(grid, (node, gpu), [*tenants.values()], [*tenants][-1][0], whole=bool(whole))
    for index, division in enumerate(tree.divisions):
        _within_books(tree, division, used[index], first.used[index])


def _whole_gang(work: Work, grid: Grid) -> None:
    first = set(work.first_seats)
    for place, role in enumerate(work.kind.roles):
        ranks = [seat.rank for seat in work.seats if seat.role == place]
        if len(set(ranks)) != len(ranks):
            raise InvariantBroken(f"{work.job.name} has two workers {role.name} of one index", work.job.name)
        if len(ranks) < role.least and not (work.degraded and set(work.seats) <= first):
            raise InvariantBroken(f"{work.job.name} has {len(ranks)} of {role.least} workers {role.name}", work.job.name)
    if work.gave_back and work.grown():
        raise InvariantBroken(f"{work.job.name} gets workers and gives others back at once", work.job.name)
    for seat in work.seats:
        if seat in first:
            continue
        node = grid.nodes[seat.node]
        mask = seat.mask
        for part in seat.parts:
            mask |= 1 << part.gpu
        if mask & ~grid.usable[seat.node] or node.health in ("down", "draining"):
            raise InvariantBroken(f"{work.job.name} was placed on {node.name}, which is not healthy", work.job.name)
        if not seat.parts and seat.mask.bit_count() != work.kind.roles[seat.role].gpus:
            raise InvariantBroken(f"{work.job.name} got {seat.mask.bit_count()} GPUs for a worker", work.job.name)


def _together(work: Work, grid: Grid) -> None:
    kind = work.kind
    if kind.placing.required is not None:
        level = grid.levels[grid.level_index[kind.placing.required]]
    elif not kind.placing.span_clusters:
        level = grid.levels[0]
    else:
        return
    if len({level.domain_of(seat.node) for seat in work.seats}) > 1:
        raise InvariantBroken(f"{work.job.name} is spread over several domains of {level.name}", work.job.name)
    for place, role in enumerate(kind.roles):
        if role.placing is not None and role.placing.required is not None:
            own = grid.levels[grid.level_index[role.placing.required]]
            if len({own.domain_of(seat.node) for seat in work.seats if seat.role == place}) > 1:
                raise InvariantBroken(f"role {role.name} of {work.job.name} is spread over several domains of {own.name}", work.job.name)


def _shared(grid: Grid, where: tuple[int, int], parts: Sequence[Part], name: str, *, whole: bool) -> None:
    """A GPU that is held in parts, by the job of that name and others."""
    node, gpu = where
    place = f"GPU {gpu} of {grid.nodes[node].name}"
    if whole:
        raise InvariantBroken(f"{place} is held whole and in parts", name)
    if len({part.mode for part in parts}) > 1:
        raise InvariantBroken(f"{place} is in two modes", name)
    if parts[0].mode == "mig":
        board = board_of(grid.nodes[node].gpu_type)
        assert board is not None
        faults = layout_faults(board, [Instance(part.start, part.profile) for part in parts])
        if faults:
            raise InvariantBroken(f"{place}: {faults[0]}", name)
        return
    if sum(part.milli for part in parts) > 1000:
        raise InvariantBroken(f"{place} is shared out beyond the whole", name)
    if len({part.trust for part in parts}) > 1 and parts[0].mode == "mps":
        raise InvariantBroken(f"{place} is shared across domains of trust", name)


def _quotas(cycle: Cycle, settled: Settled) -> None:
    """A limit may be exceeded by what ran before it was lowered, never by more than that."""
    tree = cycle.tree
    for division in tree.divisions:
        at_leaf, at_home = settled.charged(division)
        for work in settled.others:
            seats, first = work.seats, work.first_seats
            if not seats and not first:
                continue
            held = 0
            if seats and work.quota_type in division.types:
                held = seats[0].milli if len(seats) == 1 else sum([seat.milli for seat in seats])
                at_leaf[work.charged_leaf] = at_leaf.get(work.charged_leaf, 0) + held
            if first and cycle.grid.type_of[first[0].node] in division.types:
                if first is not seats or not held:
                    held = first[0].milli if len(first) == 1 else sum([seat.milli for seat in first])
                at_home[work.home] = at_home.get(work.home, 0) + held
        _within_books(tree, division, _summed(tree, at_leaf), _summed(tree, at_home))


def _within_books(tree: Tree, division: Division, used: list[int], before: list[int]) -> None:
    if used != division.used:
        raise InvariantBroken("the books of the quota tree do not add up")
    if len(tree.divisions) > 1 or not tree.limited:
        return
    for place, limit in enumerate(tree.limit_total):
        if limit is not None and used[place] > max(limit, before[place]):
            raise InvariantBroken(f"{tree.names[place]} uses more than its limit")


def _summed(tree: Tree, at_leaf: dict[int, int]) -> list[int]:
    sums = [0] * len(tree.names)
    for leaf, milli in at_leaf.items():
        for place in tree.path[leaf]:
            sums[place] += milli
    return sums
