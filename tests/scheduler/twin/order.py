"""Which of two jobs the fleet serves first: the order of queues, level by level, then the order inside one queue."""

from fractions import Fraction
from typing import Any

from .shares import Figures, least
from .world import Job, World

Table = dict[tuple[str, str], Figures]


def ratio(part: int, whole: int) -> tuple[int, Fraction]:
    """A ratio that can be compared: x/0 is above every number for x > 0, and 0 for x = 0."""
    if whole == 0:
        return (1, Fraction(0)) if part > 0 else (0, Fraction(0))
    return (0, Fraction(part, whole))


def queue_key(entry: Figures, request: int) -> tuple[Any, ...]:
    """The order of sibling queues for a job that asks `request`; smaller is served first."""
    within = entry.guaranteed is None or entry.allocated + request <= entry.guaranteed
    return (
        entry.allocated > entry.fair,
        not within,
        -entry.priority,
        entry.counted_on == 0,
        ratio(entry.allocated + request, entry.counted_on),
        ratio(entry.allocated, entry.counted_on),
        entry.counted_on,
        entry.created,
        entry.quota,
    )


def need_of(job: Job) -> int:
    """Below its minimum, at it, or above: everyone's minimum comes before anyone's surplus."""
    if job.state == "queued" or job.missing:
        return 0
    return 1 if all(job.count(role.name) == role.min for role in job.roles.values()) else 2


def job_key(job: Job) -> tuple[Any, ...]:
    """The order of jobs inside one queue (class windows left aside)."""
    cls, number = job.rank
    return (need_of(job), -cls, -number, job.submitted, job.name)


def fork(world: World, one: str, other: str) -> tuple[str, str] | None:
    """The two nodes just below the lowest common ancestor of two leaves; None where the leaf is the same."""
    left, right = world.ancestry(one)[::-1], world.ancestry(other)[::-1]
    for ours, theirs in zip(left, right, strict=False):
        if ours != theirs:
            return ours, theirs
    return None


def serves_first(world: World, table: Table, division: str, job: Job, other: Job, kind: str | None = None) -> bool:
    """Whether the job is served before the other where both ask for their minimum, in one type of the division if that is stated."""
    if need_of(job) != need_of(other):
        return need_of(job) < need_of(other)
    pair = fork(world, job.quota, other.quota)
    if pair is None:
        return job_key(job) < job_key(other)
    ours, theirs = (table[name, division] for name in pair)
    return queue_key(ours, least(world, job, kind or division)) < queue_key(theirs, least(world, other, kind or division))


def first_in_queue(world: World, table: Table, division: str, jobs: list[Job]) -> Job | None:
    """The job that is served first: descend from the top, each subtree standing in with its best job."""
    if not jobs:
        return None
    soonest = min(need_of(job) for job in jobs)
    return _best(world, table, division, None, [job for job in jobs if need_of(job) == soonest])


def _best(world: World, table: Table, division: str, parent: str | None, jobs: list[Job]) -> Job:
    here = [job for job in jobs if job.quota == parent]
    if here:
        return min(here, key=job_key)
    champions = []
    for child in world.children(parent):
        inside = [job for job in jobs if child in world.ancestry(job.quota)]
        if inside:
            best = _best(world, table, division, child, inside)
            champions.append((queue_key(table[child, division], least(world, best, division)), best))
    return min(champions, key=lambda pair: pair[0])[1]
