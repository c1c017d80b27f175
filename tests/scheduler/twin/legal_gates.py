"""Gates that a job ahead holds: a later job waits though it fits, as it would be in that one's way when its time has come.

semantics.md: a later job "may start only if at the holder's date it has ended, or may be evicted for the holder, so that neither A + r <= L
(and <= F where that rule applies) nor N + r <= D of any node on the holder's way is broken by it". Where nothing tells the holder's date nothing is
kept, unless it has waited `max_wait_s`: then that is as soon as anything ends.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from .legal_rights import held_of, preempt_protection
from .legal_times import end_of
from .shares import below, figures, guarantee_of, least, limit_of
from .world import ALL, Job, World


@dataclass(frozen=True)
class Gate:
    quota: str
    rule: str  # limit, guarantee or share
    kind: str  # the quota type that counts, or all of them
    most: int


def a_gate_is_kept(world: World, job: Job, kind: str) -> bool:
    """Whether a job ahead holds a gate that this one, started in a type, would break."""
    passes, settings = world.settings["passes"], world.settings
    if not settings["backfill"] or not settings["backfill_depth"] or (passes is not None and "backfill" not in passes):
        return False
    return any(
        _breaks(world, holder, asked, division, job, kind)
        for holder in world.jobs.values()
        if _comes_before(holder, job) and _asks(holder)
        for division in sorted({node.quota_type for node in world.nodes.values()})
        if (asked := least(world, holder, division))
    )


def _comes_before(holder: Job, job: Job) -> bool:
    """By class, number, age and name."""
    (cls, number), (other_cls, other_number) = holder.rank, job.rank
    return (-cls, -number, holder.submitted, holder.name) < (-other_cls, -other_number, job.submitted, job.name)


def _asks(holder: Job) -> bool:
    """Who waits, and was not put out just now: for him nothing is kept yet."""
    return holder.state == "queued" and (holder.not_before or 0) <= 0 and holder.submitted <= 0 and holder.last_evicted != 0


def _breaks(world: World, holder: Job, asked: int, division: str, job: Job, kind: str) -> bool:
    if holder.quota != job.quota and _inside(world, job, kind) and not _inside(world, holder, division):
        return False  # what stays within its guarantees waits for no job above its own
    gates = [*_gates(world, holder, asked, division)]
    mine = [gate for gate in gates if gate.quota in world.ancestry(job.quota) and gate.kind in (ALL, kind) and _counts(gate, job)]
    if not mine:
        return False
    at, preempts = _opens(world, holder, asked, gates, division)
    if not at:  # nobody knows, or they are open and no place has a date
        if not _overdue(world, holder) or any(asked + _services(world, gate) > gate.most for gate in gates):
            return False
        at = 0
    end = end_of(world, job, start=0)
    if at and end is not None and end <= at:
        return False
    if preempts and _lower(world, holder, job) and preempt_protection(world, job) <= at:
        return False
    return any(asked + least(world, job, kind) + _left(world, holder, gate, at, preempts=preempts) > gate.most for gate in mine)


def _gates(world: World, holder: Job, asked: int, division: str) -> Iterator[Gate]:
    for name in world.ancestry(holder.quota):
        kind = division if isinstance(world.quotas[name].limit, dict) else ALL
        limit = limit_of(world, name, kind)
        if limit is not None:
            yield Gate(name, "limit", kind, limit)
        promised = guarantee_of(world, name, division if world.by_type else ALL)
        if holder.preemptible is False and promised is not None:
            yield Gate(name, "guarantee", division if world.by_type else ALL, promised)
    share = Gate(holder.quota, "share", division if world.by_type else ALL, _fair(world, holder, division))
    if _reclaims(world) and asked > _idle(world, division) and asked + _before(world, holder, share) <= share.most:
        yield share


def _opens(world: World, holder: Job, asked: int, gates: list[Gate], division: str) -> tuple[int | None, bool]:
    """When enough of what counts against its gates has gone, by limits and estimates or as the holder may preempt it; and whether it may then."""
    share = Gate(holder.quota, "share", division if world.by_type else ALL, _fair(world, holder, division))
    at = None
    for preempts in (True, False):
        times = sorted({0, *(end for one in world.jobs.values() if one.holds and (end := _gone(world, holder, one, preempts=preempts)) is not None)})
        at = next((t for t in times if all(asked + _left(world, holder, gate, t, preempts=preempts) <= gate.most for gate in gates)), None)
        if at is not None and asked + _left(world, holder, share, at, preempts=preempts) <= share.most:
            return at, preempts  # inside a leaf nobody is preempted for what is beyond the fair share
    return at, False


def _left(world: World, holder: Job, gate: Gate, at: int, *, preempts: bool) -> int:
    """What still counts against a gate at an instant."""
    here = [one for one in below(world, gate.quota) if one.holds and _counts(gate, one)]
    ends = [(one, _gone(world, holder, one, preempts=preempts)) for one in here]
    return sum(held_of(world, one, gate.kind) for one, end in ends if end is None or end > at)


def _gone(world: World, holder: Job, one: Job, *, preempts: bool) -> int | None:
    """When a running job has ended, or may be evicted for the holder."""
    started = one.started or 0
    end = end_of(world, one, start=started)
    if end is not None and one.limit is None and one.estimate:
        length = round(one.estimate * world.settings["overrun"])
        while started + length <= 0:
            length *= 2  # an estimate that was outlived is doubled as often as needed
        end = started + length
    if preempts and _lower(world, holder, one):
        free = max(0, started + preempt_protection(world, one))
        end = free if end is None else min(end, free)
    return 0 if one.backfilled and one.preemptible is not False else end


def _lower(world: World, holder: Job, one: Job) -> bool:
    """Whether the holder may preempt it, once its minimum run time is over."""
    passes = world.settings["passes"]
    on = world.settings["preemption"] and (passes is None or "preempt" in passes)
    return bool(on and one.quota == holder.quota and one.rank < holder.rank and one.preemptible is True)


def _counts(gate: Gate, one: Job) -> bool:
    return gate.rule != "guarantee" or one.preemptible is False


def _services(world: World, gate: Gate) -> int:
    """What services use that never end."""
    here = [one for one in below(world, gate.quota) if one.cls == "inference" and end_of(world, one, start=0) is None and _counts(gate, one)]
    return sum(held_of(world, one, gate.kind) for one in here)


def _before(world: World, holder: Job, share: Gate) -> int:
    """What the leaf uses, without later work of no higher class and number."""
    return sum(held_of(world, one, share.kind) for one in below(world, share.quota) if not _comes_before(holder, one))


def _fair(world: World, holder: Job, division: str) -> int:
    return figures(world)[holder.quota, division if world.by_type else world.divisions()[0]].fair


def _inside(world: World, job: Job, kind: str) -> bool:
    """Whether it would stay within its guarantees in a type."""
    table, division = figures(world), kind if world.by_type else world.divisions()[0]
    line = [table[name, division] for name in world.ancestry(job.quota)]
    return all(entry.guaranteed is None or entry.allocated + least(world, job, kind) <= entry.guaranteed for entry in line)


def _overdue(world: World, job: Job) -> bool:
    longest = world.settings["max_wait_s"].get(job.cls)
    return longest is not None and -job.submitted >= longest * 1000


def _reclaims(world: World) -> bool:
    return world.settings["passes"] is None or "reclaim" in world.settings["passes"]


def _idle(world: World, division: str) -> int:
    """Whole idle GPUs of a type, in milli-GPU."""
    held = {(worker.node, gpu) for one in world.jobs.values() for worker in (*one.workers, *one.leaving) for gpu in worker.gpus}
    nodes = [node for node in world.nodes.values() if node.alive and node.quota_type == division]
    return 1000 * sum((node.name, gpu) not in held for node in nodes for gpu in node.good_gpus())
