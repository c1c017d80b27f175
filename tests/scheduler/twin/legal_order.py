"""Order: where a plan only starts jobs, nobody waits whom the order of queues serves before one that is started, and who fits.

Judged where it is beyond doubt: one division, nobody leaves, nothing is kept free, and every start needs only idle GPUs.
"""

from typing import Any

from .legal_rights import gates
from .order import first_in_queue, need_of
from .places import Occupancy, Undecided, gang_fits, occupancy
from .replay import spelt, steps
from .shares import figures
from .world import Job, World, read

Json = dict[str, Any]


def order_violations(scenario: Json, plan: Json) -> list[str]:
    actions = {decision["action"] for decision in plan["decisions"]}
    if actions != {"start"} or any(decision["after"] for decision in plan["decisions"]):
        return []
    jobs = read(scenario).jobs
    if any(len(d["workers"]) > sum(role.min for role in jobs[d["job"]].roles.values()) for d in plan["decisions"]):
        return []  # who grew as well was placed twice, and stands where it grew
    walk = Walk()
    for decision, world in steps(scenario, plan):
        if world.windows or len({node.quota_type for node in world.nodes.values()}) > 1 or _pausing(world):
            return []
        job = world.jobs[decision["job"]]
        firsts = _firsts(world, walk)
        if firsts and not any(first.name in {d["job"] for d in plan["decisions"]} for first in firsts):
            return [f"{job.name} is started before {firsts[0].name}, which the order serves first and which fits"]
    return []


def _pausing(world: World) -> bool:
    """Whether somebody may be held back by a recent eviction."""
    return any(job.last_evicted is not None for job in world.jobs.values())


class Walk:
    """A walk along the queue without places kept: who does not fit when he becomes the head of his queue makes room for the next one there, by whom
    it is then compared; who fitted then stands for his queue until his turn has come (docs/engine.md)."""

    def __init__(self) -> None:
        self.heads: dict[str, str] = {}
        self.refused: set[str] = set()

    def next(self, world: World, ready: list[Job], fitting: set[str]) -> Job | None:
        table, division = figures(world), world.divisions()[0]
        while True:
            left = [job for job in ready if job.name not in self.refused]
            for leaf in sorted({job.quota for job in left}):
                queue = [job for job in left if job.quota == leaf]
                if self.heads.get(leaf) not in {job.name for job in queue}:
                    while (head := first_in_queue(world, table, division, queue)) is not None and head.name not in fitting:
                        queue.remove(head)
                        self.refused.add(head.name)
                    self.heads[leaf] = "" if head is None else head.name
            best = first_in_queue(world, table, division, [job for job in left if self.heads[job.quota] == job.name])
            if best is None or best.name in fitting:
                return best
            self.refused.add(best.name)


def _firsts(world: World, walk: Walk) -> list[Job]:
    """Who is served first: among those that fit; and when those that do not fit stand in for their queues until their turn has come.

    A queue's best job may be one for which only a place is kept, so both are in order.
    """
    taken = occupancy(world)
    ready = [job for job in world.jobs.values() if job.state == "queued" and need_of(job) == 0 and (job.not_before or 0) <= 0]
    fitting = {job.name for job in ready if _fits(world, taken, job)}
    table, division = figures(world), world.divisions()[0]
    among = first_in_queue(world, table, division, [job for job in ready if job.name in fitting])
    walked = walk.next(world, ready, fitting)
    while (best := first_in_queue(world, table, division, ready)) is not None and best.name not in fitting:
        ready.remove(best)
    return [job for job in (among, best, walked) if job is not None]


def _fits(world: World, taken: Occupancy, job: Job) -> bool:
    if (job.not_before or 0) > 0:
        return False
    try:
        found = gang_fits(taken, job)
    except Undecided:
        return False
    return bool(found) and not gates(world, {"action": "start", "job": job.name, "workers": [spelt(worker) for worker in found or []]})
