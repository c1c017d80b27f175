"""Windows of classes as queues of their own: what stands in them is charged to them, and who asks may ask in their name."""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from .shares import guarantee_of, least, place_in_line
from .world import ALL, Job, Quota, Window, World

MARK = "window:"


def views(world: World, asker: str) -> Iterator[World]:
    """The world with class windows charged, and the one in which the asker asks in the name of a window of his class."""
    windows = [window for window in world.windows if window.cls is not None and window.open_at(0)]
    if not windows:
        return
    quotas = {**world.quotas, **{MARK + window.name: _quota(world, window) for window in windows}}
    charged = _claimed(replace(world, quotas=quotas), windows)
    for window in windows:
        charged = _asked(charged, window)
    yield charged
    job = charged.jobs[asker]
    for window in windows:
        if job.cls == window.cls and not job.holds:
            yield charged.with_job(replace(job, quota=MARK + window.name))


def both_may(world: World, window: str, asker: Job, other: Job, division: str, kind: str) -> bool:
    """Whether another job of the class may ask in the name of the same window: then their own queues decide who is served first."""
    stated = world.quotas[window].limit
    most = sum(amount or 0 for amount in stated.values()) if isinstance(stated, dict) else stated or 0
    used = sum(world.held(job, division) for job in world.jobs.values() if job.quota == window)
    return other.cls == asker.cls and used + least(world, other, kind) <= most


def _quota(world: World, window: Window) -> Quota:
    """No share of the surplus, and no more than the window's GPUs."""
    amount = {str(window.gpu_type): window.milli} if world.by_type else window.milli
    limit = {**dict.fromkeys(world.divisions(), 0), **amount} if isinstance(amount, dict) else amount
    return Quota(MARK + window.name, None, amount, limit, Fraction(0), 100, None, None, window.start, 0)


def _claimed(world: World, windows: list[Window]) -> World:
    """What does not stand inside the guarantees of its own queue is charged to a window of its class, first come first served."""
    beyond = [job for job in world.jobs.values() if job.name in _beyond_guarantees(world, windows)]
    for window in windows:
        room = window.milli
        for job in sorted(beyond, key=lambda job: (job.started or 0, job.reclaimed is None, job.submitted, job.name)):
            held = _asks(world, window, job)
            if not world.jobs[job.name].quota.startswith(MARK) and _fits_class(world, window, job) and held <= room:
                room -= held
                world = world.with_job(replace(job, quota=MARK + window.name))
    return world


def _beyond_guarantees(world: World, windows: list[Window]) -> set[str]:
    """Who is borrowed at a node above him where work is lined up, but for what windows can hold."""
    found: set[str] = set()
    line: list[Job] = []
    for job in sorted((job for job in world.jobs.values() if job.holds), key=place_in_line):
        line.append(job)
        here = [division for division in world.divisions() if world.held(job, division)]
        borrowed = any(
            promise is not None and sum(world.held(other, division) for other in line if name in world.ancestry(other.quota)) > promise
            for division in here
            for name in world.ancestry(job.quota)
            for promise in [guarantee_of(world, name, division)]
        )
        theirs = [window for window in windows if _fits_class(world, window, job)]
        if borrowed and theirs:
            found.add(job.name)
            if any(_asks(world, window, job) <= window.milli for window in theirs):
                line.pop()
    return found


def _asks(world: World, window: Window, job: Job) -> int:
    """What it holds, and what its minimum lacks."""
    return world.held(job, _division(world, window)) + least(world, job, str(window.gpu_type))


def _fits_class(world: World, window: Window, job: Job) -> bool:
    return job.cls == window.cls and _type_of(world, job) == window.gpu_type


def _division(world: World, window: Window) -> str:
    return str(window.gpu_type) if world.by_type else ALL


def _asked(world: World, window: Window) -> World:
    """Who waits and would fit into the window asks for it as well as for the share of his own queue."""
    for job in [one for one in world.jobs.values() if one.state == "queued" and one.cls == window.cls and not one.quota.startswith(MARK)]:
        if least(world, job, str(window.gpu_type)) <= window.milli:
            world = world.with_job(replace(job, name=f"{MARK}{window.name}/{job.name}", quota=MARK + window.name))
    return world


def _type_of(world: World, job: Job) -> str | None:
    return next((world.nodes[worker.node].quota_type for worker in job.workers), None)
