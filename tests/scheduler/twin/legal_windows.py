"""Windows to come: when they begin there must be room for all of them at once, each in a block of its own, beside what can't be gone by then."""

from collections.abc import Iterator
from itertools import product
from typing import Any

from .places import accepts
from .world import ALL, Job, Window, World, read

Json = dict[str, Any]
FRESH = ("start", "grow", "repair", "move")
MANY = 3000  # ways to give windows their blocks: with more the twin does not judge


def window_violations(world: World, plan: Json, final: World) -> list[str]:
    """What a plan starts takes no room from windows to come that they would all have had without it, whichever blocks they get."""
    touched = {d["job"] for d in plan["decisions"] if d["action"] in FRESH}
    horizon = world.settings["window_horizon_s"] * 1000
    promised = [one for one in world.windows if (one.end is None or one.end > 0) and one.start <= horizon]
    found = []
    for kind in sorted({str(one.gpu_type) for one in promised}):
        windows = [one for one in promised if str(one.gpu_type) == kind]
        ahead = [one for one in windows if one.start > 0]
        fresh = [job for name, job in final.jobs.items() if name in touched and any(_bound(final, job, one) for one in ahead)]
        if not fresh or _ways(world, windows) > MANY:
            continue
        before = final
        for job in fresh:
            before = before.with_job(world.jobs[job.name])
        if windows_have_room(world, before, windows) and not _room(final, windows):
            found.append(f"no room for {', '.join(one.name for one in windows)} beside {', '.join(sorted(job.name for job in fresh))}")
    return found


def windows_have_room(world: World, before: World, windows: list[Window]) -> bool:
    """Without what the plan starts; and where blocks are to be kept, also as it begins, for that is when they are chosen."""
    return _room(before, windows) and (all(window.level is None for window in windows) or _room(world, windows))


def _bound(world: World, job: Job, window: Window) -> bool:
    """Whether it must keep out of a window's way."""
    return not entitled(world, job, window) and stuck(world, job, window) and bool(_held(world, job, set(world.nodes), window))


def without_released(scenario: Json) -> Json:
    """The scenario without the windows that nobody had claimed in time: they add to no guarantee and no limit, and are kept from nobody.

    That is so as the plan begins: what it starts, ends or moves claims none of them and drops no claim.
    """
    world = read(scenario)
    gone = {window.name for window in world.windows if _released(world, window)}
    return {**scenario, "reservations": [raw for raw in scenario["reservations"] if raw["name"] not in gone]} if gone else scenario


def _released(world: World, window: Window) -> bool:
    if window.decay is None or window.start > 0 or window.start + window.decay > 0:
        return False
    return not any(
        _came(job) < window.start + window.decay and entitled(world, job, window) and _claims(world, job, window) for job in world.jobs.values()
    )


def _came(job: Job) -> int:
    """When it was first to be served, as far as it shows."""
    times = [max(job.submitted, job.not_before or job.submitted)]
    return min(times if job.started is None else [*times, job.started])


def _claims(world: World, job: Job, window: Window) -> bool:
    """Whether it stands on GPUs of its type, or accepts them and wants no more than there are."""
    if standing := job.workers or job.leaving:
        return any(world.nodes[worker.node].quota_type == window.gpu_type for worker in standing)
    roles = [role for role in job.roles.values() if role.gpus or not role.whole]
    if not roles:
        return False
    of_type = [node for node in world.nodes.values() if node.quota_type == window.gpu_type]
    enough = sum(role.min * role.gpus for role in roles) <= sum(node.gpus for node in of_type)
    return enough and any(all(accepts(job, role, node) for role in roles) for node in of_type)


def entitled(world: World, job: Job, window: Window) -> bool:
    return job.cls == window.cls if window.quota is None else window.quota in world.ancestry(job.quota)


def stuck(world: World, job: Job, window: Window) -> bool:
    """Whether the job could still run when it begins: by limit, not evictable within the notice, or protected by minimum run time."""
    if not job.holds:
        return False
    started = job.started or 0
    if job.limit is not None and started + job.limit <= window.start:
        return False
    safe = max(_nearest(world, job, what) for what in ("preempt_min_runtime", "reclaim_min_runtime"))
    return job.preemptible is not True or job.grace > window.notice or started + safe > window.start


def _nearest(world: World, job: Job, what: str) -> int:
    stated = (getattr(world.quotas[name], what) for name in world.ancestry(job.quota))
    return int(next((value for value in stated if value is not None), world.settings[f"{what}_s"] * 1000))


def _ways(world: World, windows: list[Window]) -> int:
    count = 1
    for window in windows:
        count *= len(_blocks(world, window))
    return count


def _blocks(world: World, window: Window) -> list[frozenset[str]]:
    """Where its GPUs could be: in any domain of its level."""
    if window.level is None:
        return [frozenset(world.nodes)]
    domains: dict[tuple[str, ...], set[str]] = {}
    for name in world.nodes:
        domains.setdefault(world.domain(name, window.level), set()).add(name)
    return [frozenset(names) for names in domains.values()]


def _room(world: World, windows: list[Window]) -> bool:
    """Whether some choice of blocks leaves room for each window when it begins."""
    ahead = [place for place, window in enumerate(windows) if window.start > 0]
    choices = (blocks for blocks in product(*(_blocks(world, window) for window in windows)) if _large_enough(world, windows, blocks))
    return any(all(_fits(world, place, windows, blocks) for place in ahead) for blocks in choices)


def _large_enough(world: World, windows: list[Window], blocks: tuple[frozenset[str], ...]) -> bool:
    """Whether the blocks would hold those that have begun, if nobody were there."""
    open_now = [(one, block) for one, block in zip(windows, blocks, strict=True) if one.open_at(0)]
    for window, region in open_now:
        room = sum(1000 * len(node.good_gpus()) for node in _serving(world, region, window))
        if sum(one.milli for one, block in open_now if block <= region) > room:
            return False
    return True


def _fits(world: World, place: int, windows: list[Window], blocks: tuple[frozenset[str], ...]) -> bool:
    """Whether there is room when one of them begins in its block, and in those of others around it, for all that last then."""
    window = windows[place]
    lasting = [(one, block) for one, block in zip(windows, blocks, strict=True) if one.start <= window.start and one.open_at(window.start)]
    for region in {block for _, block in lasting if blocks[place] <= block}:
        inside = [one for one, block in lasting if block <= region]
        room = sum(1000 * len(node.good_gpus()) for node in _serving(world, region, window))
        there = [(job, milli) for job in _others(world, window) if (milli := _held(world, job, set(region), window))]
        taken = sum(milli for _, milli in there) - _in_windows(world, inside, there)
        if sum(one.milli for one in inside) + taken > room:
            return False
    return True


def _others(world: World, window: Window) -> list[Job]:
    """Who could still be there when it begins, and may not use it."""
    return [job for job in world.jobs.values() if stuck(world, job, window) and not entitled(world, job, window)]


def _in_windows(world: World, windows: list[Window], there: list[tuple[Job, int]]) -> int:
    """The most of it that can stand in windows that may be used for it: the smallest cut between jobs and windows."""
    return min(
        sum(one.milli for one in some) + sum(milli for job, milli in there if any(entitled(world, job, one) for one in windows if one not in some))
        for some in _subsets(windows)
    )


def _subsets(windows: list[Window]) -> Iterator[list[Window]]:
    for chosen in product((False, True), repeat=len(windows)):
        yield [window for window, yes in zip(windows, chosen, strict=True) if yes]


def _serving(world: World, names: frozenset[str] | set[str], window: Window) -> list[Any]:
    nodes = (world.nodes[name] for name in sorted(names))
    return [node for node in nodes if node.alive and not node.spare and window.gpu_type in (None, ALL, node.quota_type)]


def _held(world: World, job: Job, names: set[str], window: Window) -> int:
    serving = {node.name for node in _serving(world, names, window)}
    return sum(world.charge(worker, job.roles[worker.role]) for worker in job.workers if worker.node in serving)
