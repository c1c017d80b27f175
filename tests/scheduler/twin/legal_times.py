"""Time: what a reservation was promised is free when it comes."""

from datetime import datetime
from typing import Any

from .world import Job, World

Json = dict[str, Any]


def time_violations(world: World, plan: Json, final: World) -> list[str]:
    return _reservations(world, plan, final) + _backfilled(world, plan)


def when(world: World, text: str) -> int:
    return round((datetime.fromisoformat(text) - world.now).total_seconds() * 1000)


def end_of(world: World, job: Job, *, start: int) -> int | None:
    """When the job is gone at the latest by what is known: limit, else estimate times the learned overrun; None: never."""
    if job.limit is not None:
        return max(0, start + job.limit)
    if job.estimate is not None:
        return max(0, start + round(job.estimate * world.settings["overrun"]))
    return None


def expected_end(world: World, job: Job, *, start: int) -> int | None:
    """The sooner of limit and estimate: what a reservation may be built on."""
    ends = [end for end in (end_of(world, job, start=start), None if job.estimate is None else start + job.estimate) if end is not None]
    return max(0, min(ends)) if ends else None


def may_yield(world: World, job: Job) -> bool:
    """Backfilled work that can be off its place within the notice."""
    return job.preemptible is not False and job.grace <= world.settings["backfill_notice_s"] * 1000


def _reservations(world: World, plan: Json, final: World) -> list[str]:
    """At the time of each reservation enough GPUs of its nodes are free by the estimates, or held by work that yields to it."""
    found = []
    promised = sorted(((when(world, d["at"]), d["job"], d) for d in plan["decisions"] if d["action"] == "reserve"), key=lambda row: row[:2])
    for number, (at, name, decision) in enumerate(promised):
        if at < 0:
            found.append(f"reserve {name}: at a time that has passed")
        job = world.jobs[name]
        for node in sorted({raw["node"] for raw in decision["workers"]}):
            wanted = _comes(job, decision, node)
            free, holders = _free_at(world, final, node, at, but=name)
            for start, other, earlier in promised[:number]:
                one = world.jobs[other]
                # A gang that waits for workers it has lost ends with those that run; these are counted where they stand.
                end = expected_end(world, one, start=(one.started or 0) if one.holds else start)
                mine = _comes(one, earlier, node)
                if mine and (end is None or end > at):
                    free, holders = free - mine, [*holders, f"{other} (reserved)"]
            if wanted > free:
                found.append(f"reserve {name} at {decision['at']}: {wanted} GPUs of {node}, {free} are free then; held by {', '.join(holders)}")
    return found


def _comes(job: Job, reserve: Json, node: str) -> int:
    """GPUs that a reservation adds on a node to what its holder has."""
    kept = {worker.key for worker in job.workers} if job.holds else set()
    return sum(job.roles[raw["role"]].gpus for raw in reserve["workers"] if raw["node"] == node and (raw["role"], raw["index"]) not in kept)


def _free_at(before: World, world: World, node: str, at: int, *, but: str) -> tuple[int, list[str]]:
    """Whole GPUs of a node that are free at a time to come, and who still holds some."""
    held: set[int] = set()
    holders = []
    for job in world.jobs.values():
        if not job.holds or job.name == but:
            continue
        gpus = {gpu for worker in job.workers if worker.node == node for gpu in worker.gpus}
        # By the estimates of what ran before the plan: who is moved by it keeps his date.
        started = before.jobs[job.name].started if job.last_moved == 0 else job.started
        end = expected_end(world, job, start=started or 0)
        if gpus and (end is None or end > at) and not (job.backfilled and job.preemptible is not False):
            held |= gpus
            holders.append(job.name)
    return len(set(world.nodes[node].good_gpus()) - held), holders


def _backfilled(world: World, plan: Json) -> list[str]:
    """Who is marked as backfilled can be off its place within the notice."""
    marked = [world.jobs[d["job"]] for d in plan["decisions"] if d["action"] == "start" and d["backfilled"]]
    return [f"start {job.name}: marked backfilled, but it can't be off its place in time" for job in marked if not may_yield(world, job)]
