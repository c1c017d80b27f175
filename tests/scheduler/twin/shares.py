"""Fair shares per division, allocated, non-preemptible and requested milli-GPU per quota, and who stands inside a guarantee.

A division is a quota type where the tree's guarantees are maps, and all types together where they are numbers.
"""

from dataclasses import dataclass, replace
from fractions import Fraction

from .boards import profiles_of
from .places import Occupancy, Undecided, accepts, gang_fits, runs_on
from .world import ALL, CLASSES, Job, Role, Worker, World, charge_on


@dataclass
class Figures:
    """One quota in one division. Milli-GPU; None for unlimited."""

    quota: str
    guaranteed: int | None
    limit: int | None
    weight: Fraction
    priority: int
    created: int
    usage: Fraction
    allocated: int = 0
    fixed: int = 0  # allocated to non-preemptible work
    requested: int = 0
    fair: int = 0
    counted_on: int = 0  # B: what the quota may count on


def request_of(world: World, job: Job, role: Role, division: str, *, settled: bool = False) -> int | None:
    """What one unplaced worker of the role asks of the division; None where it accepts nothing there."""
    nodes = [n for n in world.nodes.values() if division in (ALL, n.quota_type) and runs_on(job, role, n)]
    if not nodes or (role.mig is not None and not any(role.mig in profiles_of(n.gpu_type) for n in nodes)):
        return None
    if role.memory_mib is not None:
        among = nodes if settled else [n for n in world.nodes.values() if accepts(job, role, n)]
        fitting = [n.memory_mib for n in among if n.memory_mib >= role.memory_mib]
        return charge_on(role, replace(nodes[0], memory_mib=min(fitting, default=0)))
    return max(charge_on(role, n) for n in nodes)


def least(world: World, job: Job, division: str) -> int:
    """The charge of the job's missing minimum in a division or in one type of it (all of it for a queued job).

    Each attempt is judged in its type alone, so a part by memory is as large here as on the GPUs of that type.
    """
    total = 0
    for role in job.roles.values():
        have = job.count(role.name) if job.state != "queued" else 0
        total += max(0, role.min - have) * (request_of(world, job, role, division, settled=True) or 0)
    return total


def unplaced(world: World, job: Job, division: str) -> int:
    """What the job adds to R beyond what it holds: every worker up to its maximum that has no place."""
    if job.state == "stopping" or (job.not_before is not None and job.not_before > 0):
        return 0
    types = {world.nodes[worker.node].quota_type for worker in job.workers if job.holds and worker.gpus}
    if types and division not in {*types, ALL}:
        return 0
    if job.state == "queued" and hopeless(world, job, division):
        return 0
    have = {name: job.count(name) if job.holds else 0 for name in job.roles}
    kind = min(types) if types else division  # what runs grows in the type where it runs
    return sum(max(0, role.most - have[role.name]) * (request_of(world, job, role, kind, settled=bool(types)) or 0) for role in job.roles.values())


def hopeless(world: World, job: Job, division: str) -> bool:
    """Whether even the empty fleet, or the job's own limits, refuse its minimum in the division: in each of its types."""
    types = {node.quota_type for node in world.nodes.values()} if division == ALL else {division}
    return all(_refused(world, job, quota_type) for quota_type in sorted(types))


def _refused(world: World, job: Job, quota_type: str) -> bool:
    division = quota_type if world.by_type else ALL
    for name in world.ancestry(job.quota):
        limit = limit_of(world, name, division, typed=quota_type)
        if limit is not None and least(world, job, quota_type) > limit:
            return True
    try:
        return gang_fits(Occupancy(world), job, empty=True, division=quota_type) is None
    except Undecided:
        return False


def guarantee_of(world: World, quota: str, division: str, *, at: int = 0) -> int | None:
    """D with the windows that are open: each adds its GPUs to its owner and every ancestor."""
    stated = world.quotas[quota].guaranteed
    if stated is None:
        return None
    base = stated.get(division, 0) if isinstance(stated, dict) else stated
    return None if base is None else base + window_milli(world, quota, division, at=at)


def window_milli(world: World, quota: str, division: str, *, at: int = 0) -> int:
    return sum(
        window.milli
        for window in world.windows
        if window.quota is not None
        and window.open_at(at)
        and quota in world.ancestry(window.quota)
        and (division == ALL or window.gpu_type in (None, division))
    )


def limit_of(world: World, quota: str, division: str, *, typed: str | None = None, at: int = 0) -> int | None:
    """L as stated for the division (or for one type in it), raised where an open window needs it."""
    stated = world.quotas[quota].limit
    if isinstance(stated, dict):
        types = [typed] if typed else ([division] if division != ALL else sorted({n.quota_type for n in world.nodes.values()}))
        parts = [stated.get(name) for name in types]
        limit = None if any(part is None for part in parts) else sum(part for part in parts if part is not None)
    else:
        limit = stated
    if limit is None or not (extra := window_milli(world, quota, division, at=at)):
        return limit
    guaranteed = guarantee_of(world, quota, division, at=at)
    return limit if guaranteed is None else min(limit + extra, max(limit, guaranteed))


def figures(world: World) -> dict[tuple[str, str], Figures]:
    """Everything per (quota, division), shares included."""
    table: dict[tuple[str, str], Figures] = {}
    for division in world.divisions():
        for name, quota in world.quotas.items():
            usage = quota.usage.get(division, 0) if isinstance(quota.usage, dict) else quota.usage
            table[name, division] = Figures(
                name,
                guarantee_of(world, name, division),
                limit_of(world, name, division),
                quota.weight.get(division, Fraction(1)) if isinstance(quota.weight, dict) else quota.weight,
                quota.priority.get(division, 100) if isinstance(quota.priority, dict) else quota.priority,
                quota.created,
                Fraction(int(Fraction(str(usage)) * 10**6), 10**6),
            )
        for job in world.jobs.values():
            held, more = world.held(job, division), unplaced(world, job, division)
            for name in world.ancestry(job.quota):
                entry = table[name, division]
                entry.allocated += held
                entry.requested += held + more
                entry.fixed += held if job.preemptible is False else 0
    for name, quota in world.quotas.items():
        if quota.limit is not None and not isinstance(quota.limit, dict) and world.by_type:
            for division in world.divisions():
                others = sum(table[name, other].allocated for other in world.divisions() if other != division)
                entry = table[name, division]
                assert entry.limit is not None
                entry.limit = max(0, entry.limit - others)
    for division in world.divisions():
        _share_out(world, table, division, None, world.capacity(division))
    return table


def _share_out(world: World, table: dict[tuple[str, str], Figures], division: str, parent: str | None, pool: int) -> None:
    group = [table[name, division] for name in world.children(parent)]
    weight_of_usage = Fraction(str(world.settings["fairness"].get("usage_weight") or 0))
    divide(pool, group, weight_of_usage)
    for entry in group:
        promise = entry.guaranteed
        if promise is None:
            entry.counted_on = world.capacity(division) if entry.limit is None else entry.limit
        else:
            most = max(promise, entry.fair)
            entry.counted_on = most if entry.limit is None else min(entry.limit, most)
        _share_out(world, table, division, entry.quota, entry.fair)


def divide(pool: int, group: list[Figures], usage_weight: Fraction = Fraction(0)) -> None:
    """Fair shares of one group of siblings, written into `fair`."""
    want = {e.quota: e.requested if e.limit is None else min(e.limit, e.requested) for e in group}
    for entry in group:
        entry.fair = min(pool if entry.guaranteed is None else entry.guaranteed, want[entry.quota])
    rest = pool - sum(entry.fair for entry in group)
    for priority in sorted({entry.priority for entry in group}, reverse=True):
        if rest <= 0:
            return
        rest = _surplus(rest, [entry for entry in group if entry.priority == priority], want, usage_weight)


def _surplus(rest: int, members: list[Figures], want: dict[str, int], usage_weight: Fraction) -> int:
    lost: dict[str, Fraction] = {}  # of those with a part in the last round
    while rest > 0:
        hungry = [entry for entry in members if entry.fair < want[entry.quota]]
        weights = sum(entry.weight for entry in hungry)
        if not hungry or not weights:
            return rest
        normal = {entry.quota: entry.weight / weights for entry in hungry}
        score = {e.quota: max(Fraction(0), normal[e.quota] + usage_weight * (normal[e.quota] - e.usage)) for e in hungry}
        total = sum(score.values())
        if not total:
            return rest
        part = {entry.quota: rest * score[entry.quota] / total for entry in hungry}
        lost = {name: exact % 1000 for name, exact in part.items() if normal[name]}
        given, capped = 0, False
        for entry in hungry:
            whole, need = int(part[entry.quota] // 1000 * 1000), want[entry.quota] - entry.fair
            capped = capped or (need <= whole and need < part[entry.quota])  # content with less than its part
            entry.fair += min(whole, need)
            given += min(whole, need)
        rest -= given
        if not capped:
            break
    entitled = [entry for entry in members if entry.quota in lost and entry.fair < want[entry.quota]]
    for entry in sorted(entitled, key=lambda e: (-lost[e.quota], e.created, e.quota)):
        extra = min(1000, want[entry.quota] - entry.fair, rest)
        entry.fair += extra
        rest -= extra
    return rest


@dataclass(frozen=True)
class Unit:
    """What is taken as one: the minimum of a gang, or one step of surplus workers of a role."""

    job: str
    workers: tuple[Worker, ...]
    milli: int
    surplus: bool


def units_of(world: World, job: Job, division: str) -> list[Unit]:
    """The minimum first, then the surplus, lower index first, whatever the role."""
    base: list[Worker] = []
    rest: list[list[Worker]] = []
    for role in job.roles.values():
        members = sorted((w for w in job.workers if w.role == role.name), key=lambda w: w.index)
        base += members[: role.min]
        more = members[role.min :]
        rest += [more[at : at + role.step] for at in range(0, len(more), role.step)]
    rest.sort(key=lambda step: step[-1].index)

    def unit(workers: list[Worker], *, surplus: bool) -> Unit:
        total = sum(world.charge(w, job.roles[w.role]) for w in workers if world.division_of(w.node) == division)
        return Unit(job.name, tuple(workers), total, surplus)

    return [unit(base, surplus=False), *(unit(step, surplus=True) for step in rest)]


def below(world: World, quota: str) -> list[Job]:
    return [job for job in world.jobs.values() if job.holds and quota in world.ancestry(job.quota)]


def place_in_line(job: Job) -> tuple[int, int, int, int, str]:
    """Where a job stands when work is lined up at a guarantee."""
    kinds = {False: 0, "when_borrowed": 1, True: 2}
    started = job.since if job.started is None else job.started
    return (kinds[job.preemptible], -CLASSES.index(job.cls), -job.priority, started, job.name)


def line_up(world: World, quota: str, division: str) -> list[tuple[Unit, bool]]:
    """The work of a quota in the order in which its guarantee covers it; True for what stands inside."""
    line: list[tuple[Unit, bool]] = []
    total, inside = 0, True
    promise = guarantee_of(world, quota, division)
    for job in sorted(below(world, quota), key=place_in_line):
        for unit in units_of(world, job, division):
            total += unit.milli
            inside = inside and (promise is None or total <= promise)
            line.append((unit, inside))
    return line


def borrowed_units(world: World, quota: str, division: str) -> set[tuple[str, tuple[Worker, ...]]]:
    return {(unit.job, unit.workers) for unit, inside in line_up(world, quota, division) if not inside}
