"""Who must leave for a window: asked of the engine itself, on the fleet as it would be when the window starts.

In the owner's name the whole of the window is asked for at once. Whom the engine would then put out by its own rules is who must leave before: nobody
inside a guarantee, borrowers first, least lost work first. What it finds no room for is what the window lacks.
"""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace

from scheduler.engine.cycle import make_plan
from scheduler.engine.model.values import CLASSES, QUEUED, Amount, Job, Kind, Quota, Scenario, Settings, Window
from scheduler.snapshots.jobs import Kinds

ASKS = "window"
TOP = "~window"
PASSES = ("allocate", "shrink", "reclaim")
GANG = 8
SINGLY = 64  # so many GPUs are asked for one by one, more of them by eights
HELD_STATES = ("running", "starting", "reserved")


@dataclass(frozen=True, slots=True)
class Leaver:
    """A job that must leave, or give workers back (`shrinks`)."""

    job: str
    quota: str
    milli: int
    shrinks: bool
    lost_ms: int  # since its last complete checkpoint, or its start


@dataclass(frozen=True, slots=True)
class Clearing:
    """How a window is met. All amounts are in milli-GPU."""

    milli: int
    used: int  # its owner holds so much beyond the guarantees already
    idle: int
    leavers: tuple[Leaver, ...]
    missing: int
    displaced: tuple[str, ...] = ()  # jobs that are in its way and can't be asked to leave

    @property
    def is_met(self) -> bool:
        return not self.missing

    @property
    def freed(self) -> int:
        return max(0, self.milli - self.used - self.idle - self.missing)


def clearing_of(scenario: Scenario, mine: Sequence[Window], kinds: Kinds) -> Clearing:
    """For one window, which may be told to the engine in parts (`mine`: they start together)."""
    first = mine[0]
    at = max(scenario.now, first.start)
    milli = sum(window.gpus for window in mine)
    there = [job for job in scenario.jobs if _is_there(job, at)]
    used = min(milli, _used(scenario, there, mine, at))
    asking, leaf = _asking(mine, kinds, milli - used, at)
    lasting = (
        *(_standing(window, at) for window in scenario.windows if window not in mine and window.lasts(at)),
        *(_standing(one, at) for one in mine),
    )
    then = replace(
        scenario,
        now=at,
        settings=_settings(scenario.settings),
        quotas=tuple(sorted((*scenario.quotas, leaf), key=lambda quota: quota.name)),
        windows=tuple(sorted(lasting, key=lambda window: (window.start, window.name))),
        jobs=tuple(sorted((*there, *asking), key=lambda job: (job.submitted, job.name))),
    )
    plan = make_plan(then)
    names = {job.name for job in asking}
    placed = 0
    out: dict[str, tuple[str, int]] = {}
    for one in plan.decisions:
        if one.action == "start" and one.job in names:
            placed += 1000 * sum(stand.gpus.bit_count() for stand in one.workers)
        elif one.action in ("evict", "move", "shrink") and one.job is not None:
            kept = 1000 * sum(stand.gpus.bit_count() for stand in one.workers) if one.action == "shrink" else 0
            out[one.job] = (one.action, kept)
    by_name = {job.name: job for job in there}
    leavers = tuple(
        Leaver(name, by_name[name].quota, max(0, held_milli(by_name[name]) - kept), action == "shrink", _lost(by_name[name], at))
        for name, (action, kept) in sorted(out.items())
    )
    missing = max(0, milli - used - placed)
    freed = min(placed, sum(one.milli for one in leavers))
    displaced = _displaced(scenario, there, mine, leavers) if missing else ()
    return Clearing(milli, used, max(0, placed - freed), leavers, missing, displaced)


def _settings(settings: Settings) -> Settings:
    return replace(
        settings, passes=PASSES, max_moves=0, forecast="none", hysteresis_ms=0, fairness=replace(settings.fairness, usage_weight_millionths=0)
    )


def _is_there(job: Job, at: int) -> bool:
    """Whether it holds GPUs then, as far as that is certain: its limit ends it, an estimate does not."""
    run = job.run
    if run.state not in HELD_STATES or not run.workers:
        return False
    return job.limit_ms is None or run.started is None or run.started + job.limit_ms > at


def _standing(window: Window, at: int) -> Window:
    return replace(window, start=min(window.start, at), decay_ms=None)


def held_milli(job: Job, nodes: Container[str] | None = None) -> int:
    """On these nodes, or on all."""
    return sum(
        worker.gpus.bit_count() * (1000 if worker.share_milli is None else worker.share_milli)
        for worker in job.run.workers
        if nodes is None or worker.node in nodes
    )


def _used(scenario: Scenario, there: Iterable[Job], mine: Sequence[Window], at: int) -> int:
    """What those who may use the window hold of its type beyond their guarantee, less what other windows of theirs hold."""
    first = mine[0]
    types = {node.name: node.quota_type for node in scenario.nodes}
    quotas = {quota.name: quota for quota in scenario.quotas}
    others = sum(
        one.gpus
        for one in scenario.windows
        if one not in mine and one.lasts(at) and (one.quota, one.class_rank, one.gpu_type) == (first.quota, first.class_rank, first.gpu_type)
    )
    held: dict[str, int] = {}
    for job in there:
        if first.class_rank is None and first.quota is not None and not (job.quota == first.quota or job.quota.startswith(f"{first.quota}/")):
            continue
        if first.class_rank is not None and job.kind.class_rank != first.class_rank:
            continue
        milli = sum(1000 * worker.gpus.bit_count() for worker in job.run.workers if types.get(worker.node) == first.gpu_type)
        held[job.quota] = held.get(job.quota, 0) + milli
    if first.quota is not None:
        return max(0, sum(held.values()) - _promised(quotas.get(first.quota), first.gpu_type, sum(held.values())) - others)
    beyond = sum(max(0, milli - _promised(quotas.get(path), first.gpu_type, milli)) for path, milli in held.items())
    return max(0, beyond - others)


def _promised(quota: Quota | None, gpu_type: str | None, held: int) -> int:
    if quota is None or gpu_type is None:
        return 0
    stated = quota.guaranteed.of(gpu_type)
    return held if quota.guaranteed.unlimited else stated or 0


def _asking(mine: Sequence[Window], kinds: Kinds, milli: int, at: int) -> tuple[list[Job], Quota]:
    """The jobs that ask for all of it, and the leaf in whose name they do."""
    first = mine[0]
    gpus = milli // 1000
    if first.quota is not None:
        path = f"{first.quota}/{TOP}"
        leaf = Quota(path, first.quota, Amount(by_type=((first.gpu_type or "", milli),)), Amount(), 1000, 100, 0, 0, 0, ())
    else:
        path = TOP
        leaf = Quota(path, None, Amount(by_type=((first.gpu_type or "", 0),)), Amount(), 0, 100, 0, 0, 0, ())
    gangs: Sequence[tuple[int, int, str | None]]
    if first.level == "node":
        each = first.gpus // 1000
        gangs = [(1, each, None)] * (gpus // each if each else 0)
    elif first.level is not None:
        gangs = [(gpus, 1, first.level)] if gpus else []
    elif gpus <= SINGLY:
        gangs = [(1, 1, None)] * gpus
    else:
        gangs = [(GANG, 1, None)] * (gpus // GANG) + [(1, 1, None)] * (gpus % GANG)
    rank = first.class_rank if first.class_rank is not None else len(CLASSES) - 1
    made = [Job(f"{ASKS}-{number:04}", path, _kind(kinds, gang, rank, first.gpu_type), at, run=QUEUED) for number, gang in enumerate(gangs)]
    return made, leaf


def _kind(kinds: Kinds, gang: tuple[int, int, str | None], rank: int, gpu_type: str | None) -> Kind:
    workers, gpus, level = gang
    document = {
        "class": CLASSES[rank],
        "priority": 1_000_000,
        "preemptible": True,
        "grace_s": 0,
        "roles": [{"name": "worker", "min": workers, "max": workers, "gpus": gpus, "gpu_types": [gpu_type]}],
    }
    if level is not None:
        document["topology"] = {"required": level}
    found = kinds.kind(document)
    assert isinstance(found, Kind), found
    return found


def _lost(job: Job, at: int) -> int:
    since = job.run.started or at
    if job.checkpoint is not None and job.checkpoint.last is not None:
        since = max(since, job.checkpoint.last)
    return max(0, at - since)


def _displaced(scenario: Scenario, there: Iterable[Job], mine: Sequence[Window], leavers: Iterable[Leaver]) -> tuple[str, ...]:
    """Those of the others that hold most of the window's GPU type and stay: they are shown first, and not killed for it."""
    first, gone = mine[0], {one.job for one in leavers}
    nodes = {node.name for node in scenario.nodes if first.gpu_type in (None, node.quota_type)}
    staying = [
        (-milli, job.name)
        for job in there
        if job.name not in gone
        and not (job.kind.class_rank == first.class_rank if first.class_rank is not None else f"{job.quota}/".startswith(f"{first.quota}/"))
        and (milli := held_milli(job, nodes))
    ]
    return tuple(name for _, name in sorted(staying)[:8])
