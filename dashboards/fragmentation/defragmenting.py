"""What a defragmentation, or another split of a GPU, would open now: the engine plans the fleet as it is, with leave to move so many jobs, and as it
would be once the GPU is split.
"""

import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from dashboards.fragmentation.measure import scattered
from dashboards.fragmentation.snapshot import room_of
from gpufleet.core.previews import Effect, JobEffect, Preview
from gpufleet.core.templatetags.shell import duration, gpus_told, money, plural
from quotas.permissions import Access
from scheduler.engine.cycle import make_plan
from scheduler.engine.model.plan import Decision, Plan, Stand
from scheduler.engine.model.reasons import Reason
from scheduler.engine.model.values import Job as Planned
from scheduler.engine.model.values import Scenario
from scheduler.loop.policy import policy
from scheduler.models import Gpu, GpuMode, Job
from scheduler.presenters.node_changes import moment_told
from scheduler.selectors.jobs import jobs_named
from scheduler.services.hardware.geometry import SplitPlan
from scheduler.services.jobs.prices import repeated_work
from scheduler.simulation.applying import carried_out, split_anew
from scheduler.snapshots import Snapshots

USUAL_MOVES = 16
MOST_REASONS = 5
MOST_OPENED = 20
_guard = threading.Lock()
_snapshots = Snapshots()


@dataclass(frozen=True, slots=True)
class Move:
    """A job that would move. `job` is None where the reader may not see it."""

    public_id: str
    job: Job | None
    for_job: str
    milli: int
    lost_seconds: int
    leaves: tuple[str, ...]
    comes_to: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Opened:
    """A waiting job that would start by the moves."""

    public_id: str
    job: Job | None
    milli: int  # whole GPUs, and parts of them that are told in thousandths
    asked: str


@dataclass(frozen=True, slots=True)
class Stuck:
    """A waiting job for which no jobs are moved, and why."""

    public_id: str
    job: Job | None
    why: str


@dataclass(frozen=True, slots=True)
class Defragmented:
    """`largest` is how many GPUs one gang could start with, now and then, by type and level. `lost_micros`: what the work that is done again costs at
    the guaranteed rate, where the reader may know it."""

    as_of: datetime
    moves: tuple[Move, ...]
    opened: tuple[Opened, ...]
    stuck: tuple[Stuck, ...]
    largest: Mapping[str, Mapping[str, tuple[int, int]]]
    lost_micros: int | None = None

    @property
    def lost_milli_seconds(self) -> int:
        return sum(one.milli * one.lost_seconds for one in self.moves)


def _planned(moves: int, now: datetime) -> tuple[Scenario, Plan, list[Decision]]:
    """The fleet, what would be decided with so many moves, and which of that are the moves."""
    chosen = policy()
    engine = chosen.engine
    if engine.max_moves is not None:
        engine = replace(engine, max_moves=max(moves, engine.max_moves))
    with _guard:
        snapshot = _snapshots.take(settings=engine, now=now, start_timeout=chosen.start_timeout)
        plan = make_plan(snapshot.scenario, _snapshots.kept)
    return snapshot.scenario, plan, [one for one in plan.decisions if _is_move(one)]


def would_move(*, moves: int, now: datetime) -> int:
    """How many jobs would move."""
    return len(_planned(moves, now)[2])


def defragmentation_preview(*, access: Access, moves: int, now: datetime) -> Defragmented:
    """Nothing is written."""
    scenario, plan, mine = _planned(moves, now)
    jobs = {job.name: job for job in scenario.jobs}
    gains = {one.for_job for one in mine if one.for_job}
    stuck = {one.job: why for one in plan.waiting if (why := _why_not(one.reasons)) is not None and one.job not in gains}
    seen = jobs_named(access, [*{one.job for one in mine if one.job}, *gains, *list(stuck)[:MOST_REASONS]])
    moved = tuple(_move(one, jobs[one.job], seen, scenario.now) for one in mine if one.job)
    return Defragmented(
        now,
        moved,
        tuple(_opened(jobs[name], seen) for name in sorted(gains) if name in jobs),
        tuple(Stuck(name, seen.get(name), why) for name, why in list(stuck.items())[:MOST_REASONS]),
        _largest(scenario, carried_out(scenario, replace(plan, decisions=tuple(mine)))),
        _lost_micros(access, moved, now),
    )


@dataclass(frozen=True, slots=True)
class Opening:
    """What another split of a GPU does to waiting jobs: those that would start because of it, those that would start there even without it, those
    that would start only without it; and `largest` as above.
    """

    opened: tuple[Opened, ...]
    served: tuple[Opened, ...]
    closed: tuple[Opened, ...]
    largest: Mapping[str, Mapping[str, tuple[int, int]]]


def split_opening(*, access: Access, gpu: Gpu, split: SplitPlan, now: datetime) -> Opening:
    """What another split of a GPU would open once the jobs have ended that must end first. Nothing is written."""
    chosen = policy()
    with _guard:
        scenario = _snapshots.take(settings=chosen.engine, now=now, start_timeout=chosen.start_timeout).scenario
    over = set(Job.objects.filter(pk__among=split.jobs).values_list("public_id", flat=True)) if split.jobs else set()
    before = replace(scenario, jobs=tuple(job for job in scenario.jobs if job.name not in over))
    name, wanted = f"{gpu.node.cluster.name}/{gpu.node.name}", split.wanted if split.mode == GpuMode.MIG else ()
    nodes = {node.name: node for node in before.nodes}
    if name not in nodes:
        return Opening((), (), (), {})
    split_anew(nodes, Decision("repartition", Reason("repartition", ""), node=name, gpu=gpu.index, instances=wanted), before.now)
    after = replace(before, nodes=tuple(nodes[node.name] for node in before.nodes))
    without, with_it = _starts(before), _starts(after)
    here = {job for job, stands in with_it.items() if any(stand.node == name and stand.gpus >> gpu.index & 1 for stand in stands)}
    jobs = {job.name: job for job in before.jobs}
    groups = (with_it.keys() - without.keys(), here & without.keys(), without.keys() - with_it.keys())
    seen = jobs_named(access, sorted(set().union(*(sorted(group)[:MOST_OPENED] for group in groups))))
    opened, served, closed = (tuple(_opened(jobs[job], seen) for job in sorted(group)) for group in groups)
    return Opening(opened, served, closed, _largest(before, after))


def _starts(scenario: Scenario) -> dict[str, tuple[Stand, ...]]:
    """Which jobs would start, and where."""
    return {one.job: one.workers for one in make_plan(scenario).decisions if one.action == "start" and one.job}


def opening_told(found: Opening, *, waits: bool) -> list[str]:
    """The same in sentences; `waits`: jobs must end first."""
    lines = _opened_told(found.opened)
    lines += [f"{_name(one.job)} with {one.asked} would start here even without the repartition." for one in found.served[:MOST_OPENED]]
    if waits:
        lines = [f"Once they have ended, {line}" for line in lines or ["no waiting job would start because of it."]]
    lines = lines or ["No waiting job would start because of it."]
    lines += [f"{_name(one.job)} with {one.asked} would keep waiting: it would start without the repartition." for one in found.closed[:MOST_OPENED]]
    return [*lines, *_largest_told(found.largest)]


def _opened(job: Planned, seen: Mapping[str, Job]) -> Opened:
    return Opened(job.name, seen.get(job.name), _asked_milli(job), _asked(job))


def _lost_micros(access: Access, moves: Sequence[Move], now: datetime) -> int | None:
    named = {one.job.pk: one for one in moves if one.job is not None}
    if len(named) < len(moves):
        return None
    jobs = {key: one.job for key, one in named.items() if one.job is not None}
    return repeated_work(access, {key: one.lost_seconds for key, one in named.items()}, jobs, now=now).micros


def _is_move(one: Decision) -> bool:
    return one.action == "move" and one.why.code == "consolidate" and one.job is not None


def _why_not(reasons: tuple[Reason, ...]) -> str | None:
    return next((one.detail for one in reasons if one.code == "moves"), None)


def _asked_milli(job: Planned) -> int:
    return sum(role.least * (1000 * role.gpus + role.devices * (role.share_milli or 0)) for role in job.kind.roles)


def _asked(job: Planned) -> str:
    """`8 GPUs`, `2 × 3g.40gb`."""
    slices: Counter[str] = Counter()
    for role in job.kind.roles:
        if role.mig is not None:
            slices[role.mig] += role.least * role.devices
    milli = _asked_milli(job)
    told = [gpus_told(milli)] if milli else []
    return " and ".join([*told, *(f"{count} × {profile}" for profile, count in sorted(slices.items()))]) or "a part of a GPU"


def _nodes(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _largest(before: Scenario, after: Scenario) -> Mapping[str, Mapping[str, tuple[int, int]]]:
    now, then = (scattered(room_of(one), {}, {}).largest for one in (before, after))
    return {kind: {level: (gpus, then[kind][level]) for level, gpus in levels.items()} for kind, levels in now.items()}


def _move(one: Decision, job: Planned, seen: Mapping[str, Job], at: int) -> Move:
    since = job.run.started or at
    if job.checkpoint is not None and job.checkpoint.last is not None:
        since = max(since, job.checkpoint.last)
    return Move(
        job.name,
        seen.get(job.name),
        one.for_job or "",
        sum(worker.gpus.bit_count() * (worker.share_milli or 1000) for worker in job.run.workers),
        max(0, at - since) // 1000,
        _nodes(worker.node for worker in job.run.workers),
        _nodes(stand.node for stand in one.workers),
    )


MOST_NODES = 3


def told(found: Defragmented, *, moves: int, begins: datetime | None = None) -> Preview:
    """The same in sentences, with the jobs that would move. `begins` None: at once."""
    jobs = [
        JobEffect(
            one.public_id,
            one.job.name,
            one.job.quota.path,
            one.job.owner.username if one.job.owner else "",
            one.milli,
            (Effect(f"{_named(one.leaves)} → {_named(one.comes_to)}"), Effect(_lost(one))),
        )
        for one in found.moves
        if one.job is not None
    ]
    unseen = [one for one in found.moves if one.job is None]
    later = [f"It begins at {moment_told(begins)} and is planned again then. This is what it would do now."] if begins is not None else []
    return Preview([*later, *_sentences(found, moves)], ("Moves", "Done again"), jobs, len(unseen), sum(one.milli for one in unseen))


def _sentences(found: Defragmented, moves: int) -> list[str]:
    if not found.moves:
        return [f"No job would move: {plural(moves, 'move')} would make room for no waiting job at an acceptable cost.", *map(_stuck, found.stuck)]
    worth = f", worth {money(found.lost_micros)} at the guaranteed rate" if found.lost_micros else ""
    count = len(found.moves)
    lines = [f"{plural(count, 'job')} would save, move and go on elsewhere; {_worked(found.lost_milli_seconds)} would be done again{worth}."]
    lines.append("Its owner is notified when it moves." if count == 1 else "Their owners are notified when they move.")
    return [*lines, *_opened_told(found.opened), *_largest_told(found.largest), *map(_stuck, found.stuck)]


def _opened_told(opened: Sequence[Opened]) -> list[str]:
    lines = [f"{_name(one.job)} with {one.asked} would start." for one in opened[:MOST_OPENED]]
    more = len(opened) - MOST_OPENED
    return [*lines, *([f"{plural(more, 'more job')} would start."] if more > 0 else [])]


def _largest_told(largest: Mapping[str, Mapping[str, tuple[int, int]]]) -> list[str]:
    return [
        f"The largest gang of {kind} in one {level}: {now} → {then} GPUs."
        for kind, levels in largest.items()
        for level, (now, then) in levels.items()
        if now != then
    ]


def _stuck(one: Stuck) -> str:
    return f"{_name(one.job)} would keep waiting: {one.why}."


def _name(job: Job | None) -> str:
    return job.name if job is not None else "A job of another team"


def _worked(milli_seconds: int) -> str:
    return f"{milli_seconds / 3_600_000:,.1f} GPU-hours"


def _lost(one: Move) -> str:
    return duration(one.lost_seconds) if one.lost_seconds else "nothing"


def _named(nodes: tuple[str, ...]) -> str:
    more = len(nodes) - MOST_NODES
    return ", ".join(nodes[:MOST_NODES]) + (f" and {more} more" if more > 0 else "")
