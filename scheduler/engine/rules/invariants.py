"""The last word on a plan: what may never be, checked on the final state by rules that share nothing with the passes."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from math import inf

from ..model.mig import Instance, board_of, layout_faults
from ..state.cluster import Cluster
from ..state.fleet import Part, Seat, bits_of, on_gpus
from ..state.grid import Grid
from ..state.planning import Cycle
from ..state.tree import Tree
from ..state.work import Work

Tenant = tuple[str, int, int]  # a job, and the role and rank of its worker
Shared = dict[tuple[int, int], dict[Tenant, Part]]
Stand = tuple[Work, Sequence[Seat], int, int]  # the division and the leaf that are charged with its places


class InvariantBroken(AssertionError):
    """A plan that must not be carried out, and the job it is about."""

    def __init__(self, message: str, job: str | None = None) -> None:
        super().__init__(message)
        self.job = job


def check(cycle: Cycle) -> None:
    """Raise unless no place that a plan changed is held twice, gangs are whole and together, the books are right, and nobody goes over a limit."""
    cluster, tree, grid = cycle.cluster, cycle.tree, cycle.grid
    if cluster.state.first is not None:
        cluster.state.first.go(cluster.state.since.gone)
        cluster.state.first.come(cluster.state.first.at_first(cluster.state.since.come))
    if not cycle.placed:
        return
    first = cluster.state.first or First(cluster)
    last = first.copy()
    changed = [work for work in dict.fromkeys(cluster.journal) if work.seats != work.first_seats]
    claimed = [work for work in cluster.works if work.charged_leaf != work.home and work.seats] if cluster.windows.of_classes else []
    touched = dict.fromkeys((*changed, *claimed))
    last.go(touched)
    for work in changed:
        if work.seats:
            _whole_gang(work, grid)
            if len(work.seats) > 1:
                _together(work, grid)
    last.come((work, work.seats, tree.division_of[work.quota_type], work.charged_leaf) for work in touched if work.seats)
    for work in changed if last.shared else ():
        for seat in (*work.first_seats, *work.seats):
            for gpu in (*bits_of(seat.mask), *(part.gpu for part in seat.parts)):
                _shared(grid, (seat.node, gpu), last, first)
    if last.used != [division.used for division in tree.divisions]:
        raise InvariantBroken("the books of the quota tree do not add up")
    if tree.limited:
        _within_limits(tree, last.used, first.used)
    if cluster.power is not None:
        _under_caps(cluster)
    if cluster.colocation is not None:
        _apart(cluster, changed)


class First:
    """Who holds what, and what that comes to in the books: as a plan begins, and in a copy as it ends."""

    def __init__(self, cluster: Cluster) -> None:
        self.tree, self.grid = cluster.tree, cluster.grid
        self.held, self.used = [0] * self.grid.size, [[0] * len(self.tree.names) for _ in self.tree.divisions]
        self.shared: Shared = {}  # by node and GPU, who holds which share of it
        self.come(self.at_first(cluster.works))

    def copy(self) -> "First":
        other = copy(self)
        other.held, other.used, other.shared = [*self.held], [[*each] for each in self.used], {**self.shared}
        return other

    def at_first(self, works: Iterable[Work]) -> Iterator[Stand]:
        return ((work, seats, self.division_of(seats), work.home) for work in works if (seats := work.first_seats))

    def go(self, works: Iterable[Work]) -> None:
        """Jobs leave the places that they had at first."""
        held, used = self.held, Counter[tuple[int, int]]()
        for work, seats, division, leaf in self.at_first(works):
            for role, rank, node, mask, _, _, milli, parts in seats:
                held[node] &= ~mask
                used[division, leaf] -= milli
                for part in parts:
                    key, mine = (node, part.gpu), (work.job.name, role, rank)
                    self.shared[key] = {tenant: one for tenant, one in self.shared[key].items() if tenant != mine}
        self._use(used)

    def come(self, stands: Iterable[Stand]) -> None:
        held, used = self.held, Counter[tuple[int, int]]()
        for work, seats, division, leaf in stands:
            for role, rank, node, mask, _, _, milli, parts in seats:
                if held[node] & mask:
                    raise InvariantBroken(f"a GPU of {self.grid.nodes[node].name} is held twice", work.job.name)
                held[node] |= mask
                used[division, leaf] += milli
                for part in parts:
                    key = (node, part.gpu)
                    self.shared[key] = {**self.shared.get(key, {}), (work.job.name, role, rank): part}
        self._use(used)

    def _use(self, charged: Mapping[tuple[int, int], int]) -> None:
        for (division, leaf), milli in charged.items():
            for place in self.tree.path[leaf]:
                self.used[division][place] += milli

    def division_of(self, seats: Sequence[Seat]) -> int:
        """The one that first places are charged to: that of the first of them with GPUs."""
        if len(self.tree.divisions) == 1:
            return 0
        of_type = self.grid.type_of
        return self.tree.division_of[next((of_type[seat.node] for seat in seats if seat.milli), of_type[seats[0].node])]


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
        if on_gpus(seat) & ~grid.usable[seat.node] or node.health in ("down", "draining"):
            raise InvariantBroken(f"{work.job.name} was placed on {node.name}, which is not healthy", work.job.name)
        if not seat.parts and seat.mask.bit_count() != work.kind.roles[seat.role].gpus:
            raise InvariantBroken(f"{work.job.name} got {seat.mask.bit_count()} GPUs for a worker", work.job.name)


def _together(work: Work, grid: Grid) -> None:
    """The gang, and each role that states a level of its own, in one domain of it."""
    kind, name = work.kind, work.job.name
    widest = None if kind.placing.span_clusters else grid.level_names[0]
    asked = [(kind.placing.required or widest, name, work.seats)]
    own = [(place, role.name, role.placing.required) for place, role in enumerate(kind.roles) if role.placing is not None]
    asked += [(level, f"role {role} of {name}", tuple(seat for seat in work.seats if seat.role == place)) for place, role, level in own]
    for required, who, seats in asked:
        level = None if required is None else grid.levels[grid.level_index[required]]
        if level is not None and len({level.domain_of(seat.node) for seat in seats}) > 1:
            raise InvariantBroken(f"{who} is spread over several domains of {level.name}", name)


def _shared(grid: Grid, where: tuple[int, int], last: First, first: First) -> None:
    """A GPU that may be held in parts."""
    (node, gpu), tenants = where, last.shared.get(where)
    if not tenants:
        return
    place, name, parts = f"GPU {gpu} of {grid.nodes[node].name}", [*tenants][-1][0], [*tenants.values()]
    if last.held[node] >> gpu & 1:
        raise InvariantBroken(f"{place} is held whole and in parts", name)
    if len({part.mode for part in parts}) > 1:
        raise InvariantBroken(f"{place} is in two modes", name)
    if parts[0].mode == "mig":
        board = board_of(grid.nodes[node].gpu_type)
        assert board is not None
        if faults := layout_faults(board, [Instance(part.start, part.profile) for part in parts]):
            raise InvariantBroken(f"{place}: {faults[0]}", name)
        return
    if sum(part.milli for part in parts) > 1000:
        raise InvariantBroken(f"{place} is shared out beyond the whole", name)
    # Who stood together before that was asked about may stay.
    if len({part.trust for part in parts}) > 1 and parts[0].mode == "mps" and not tenants.keys() <= first.shared.get(where, {}).keys():
        raise InvariantBroken(f"{place} is shared across domains of trust", name)


def _apart(cluster: Cluster, changed: Iterable[Work]) -> None:
    """Nobody came to a node on which he may not be a neighbour; who stood there before may stay."""
    colocation, there = cluster.colocation, dict[int, dict[Work, None]]()
    assert colocation is not None
    for work in cluster.works:
        for seat in work.seats:
            there.setdefault(seat.node, {})[work] = None
    for work in changed:
        for node in {seat.node for seat in {*work.seats} - {*work.first_seats}}:
            for other in there[node]:
                if colocation.parts(work, other, node):
                    raise InvariantBroken(f"{work.job.name} came to {cluster.grid.nodes[node].name}, where {other.job.name} stands", work.job.name)


def _under_caps(cluster: Cluster) -> None:
    """No power cap is exceeded at any time by what may run then; what ran before may stay over it."""
    now, caps = cluster.now, [one for one in cluster.scenario.power.caps if one.end is None or one.end > cluster.now]
    standing = [(work, work.seats, work.here_since(now)) for work in cluster.works if work.seats]
    firsts = [(work, work.first_seats, work.job.run.started) for work in cluster.works if work.first_seats]
    for pool in {cap.pool for cap in caps}:
        then = _drawn_until(cluster, pool, standing)
        before = _drawn_until(cluster, pool, [(work, seats, now if since is None else since) for work, seats, since in firsts])
        for cap in caps:
            if cap.pool == pool:  # from its beginning on less is drawn, as nobody comes later
                drawn, allowed = (sum(watts for until, watts in each if until > max(now, cap.start)) for each in (then, before))
                if drawn > max(1000 * cap.watts, allowed):
                    raise InvariantBroken(f"the power cap of {pool or 'the fleet'} is exceeded")


def _drawn_until(cluster: Cluster, pool: str | None, standing: Iterable[tuple[Work, Sequence[Seat], int]]) -> list[tuple[float, int]]:
    """Milliwatts in a pool of each who stands there, after the moment at which his limit ends them. One who is over it stands there as of now."""
    rated, nodes = dict(cluster.scenario.power.gpu_watts), cluster.grid.nodes
    watts = [rated[node.gpu_type] if pool in (None, dict(node.labels).get("pool", "")) else 0 for node in nodes]
    found = []
    for work, seats, since in standing:
        if drawn := sum([seat.milli * watts[seat.node] for seat in seats]):
            limit = work.job.limit_ms
            found.append((inf if limit is None else max(cluster.now + 1, since + limit), drawn))
    return found


def _within_limits(tree: Tree, used: Sequence[list[int]], before: Sequence[list[int]]) -> None:
    """Nobody goes over a limit; who was over it may stay there."""
    for place, limit in enumerate(tree.limit_total):
        if limit is not None and sum(now[place] for now in used) > max(limit, sum(first[place] for first in before)):
            raise InvariantBroken(f"{tree.names[place]} uses more than its limit")
    for place, by_type in enumerate(tree.limit_by_type if len(used) == len(tree.types) else ()):  # else use is not told by type
        for kind, limit in (by_type or {}).items():
            division = tree.division_of[kind]
            if used[division][place] > max(limit, before[division][place]):
                raise InvariantBroken(f"{tree.names[place]} uses more {tree.types[kind]} than its limit")
