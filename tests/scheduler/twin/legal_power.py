"""Power caps: what every job that stands may draw at each instant, added up one by one."""

from typing import Any

from .world import Job, Reader, World

Json = dict[str, Any]


def cap_violations(scenario: Json, world: World, final: World) -> list[str]:
    """Caps that a plan exceeds, at an instant at which anything changes, by more than was so before it."""
    power = scenario.get("power") or {}
    reader, watts, found = Reader(scenario), power.get("gpu_watts") or {}, []
    ends = {(job.started or 0) + job.limit for one in (world, final) for job in one.jobs.values() if job.limit is not None}
    caps = [(cap.get("pool"), cap["watts"], reader.time(cap.get("start")) or 0, reader.time(cap.get("end"))) for cap in power.get("caps") or []]
    instants = sorted({0, *(start for _, _, start, _ in caps), *ends})
    for pool, most, start, end in caps:
        for at in instants:
            if at >= 0 and start <= at and (end is None or at < end):
                after = drawn(final, watts, pool, at)
                if after > max(1000 * most, drawn(world, watts, pool, at)):
                    found.append(f"{pool or 'the fleet'} draws {after / 1000:g} W of {most} W {at / 1000:g} s from now")
    return found


def drawn(world: World, watts: dict[str, int], pool: str | None, at: int) -> int:
    """Milliwatts in a pool at an instant, by limits: who is over his is there now, and gone in the next instant."""
    total = 0
    for job in world.jobs.values():
        for worker in job.workers if job.holds and _there(job, at) else ():
            node = world.nodes[worker.node]
            if pool is None or node.labels.get("pool") == pool:
                total += world.charge(worker, job.roles[worker.role]) * watts[node.gpu_type]
    return total


def _there(job: Job, at: int) -> bool:
    return at == 0 or job.limit is None or (job.started or 0) + job.limit > at
