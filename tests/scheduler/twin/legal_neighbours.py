"""Neighbours of services: nobody comes to where he may not be one, node by node and GPU by GPU. Who stood there before may stay."""

from .neighbours import clash, serves
from .world import World


def neighbour_violations(world: World, final: World) -> list[str]:
    if final.settings["colocation"] == "any":
        return []
    found = []
    stand = [(job, worker) for job in final.jobs.values() if job.holds for worker in job.workers]
    for job, worker in stand:
        before = world.jobs[job.name]
        if before.holds and worker in before.workers:
            continue
        for other, its in stand:
            if its.node == worker.node and other.name != job.name:
                fault = clash(final, job, other, final.nodes[worker.node])
                found += [f"{job.name} came beside {other.name}: {fault}"] if fault else []
                if set(its.gpus) & set(worker.gpus) and job.sharing == other.sharing == "mps" and serves(job) is not serves(other):
                    found.append(f"{job.name} came onto a GPU that it shares by MPS with {other.name}, and one of them serves")
    return found
