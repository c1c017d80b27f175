"""The fleet as the scheduler sees it, read for fragmentation: room by node, what waits, and what is usually submitted."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any

import numpy as np

from dashboards.fragmentation.measure import Room, Scattered, Shape, SplitGpu, counted, scattered, typical
from dashboards.gap.causes import Reserved
from dashboards.gap.snapshot import reserved_now
from scheduler.engine.model.mig import board_of
from scheduler.engine.model.values import CLASSES, Scenario
from scheduler.engine.model.values import Job as Planned
from scheduler.engine.state.cluster import Cluster
from scheduler.engine.state.fleet import Split
from scheduler.jobs.stored import least_of, roles_of, takes_gpus
from scheduler.loop.policy import policy
from scheduler.models import Job
from scheduler.snapshots import Snapshots

USUAL = timedelta(days=28)
LEARNT_EVERY = timedelta(hours=1)
# The newest jobs of four weeks are enough to know their shapes.
MOST_JOBS = 20_000
WIDEST = "cluster"
# What a worker asks for that takes no whole GPU.


class Fragments:
    """Takes the measure again and again: what has not changed between two snapshots is not read anew. One thread at a time."""

    def __init__(self) -> None:
        self._snapshots = Snapshots()
        self._usual: tuple[datetime, Mapping[Shape, int]] | None = None

    def take(self, *, now: datetime) -> Scattered:
        chosen = policy()
        scenario = self._snapshots.take(settings=chosen.engine, now=now, start_timeout=chosen.start_timeout).scenario
        if self._usual is None or not timedelta(0) <= now - self._usual[0] < LEARNT_EVERY:
            self._usual = now, usual_demand(now=now)
        kept = reserved_now(now)
        usual = {shape._replace(kept=_kept_from(kept)): jobs for shape, jobs in self._usual[1].items()} if kept else self._usual[1]
        return scattered(room_of(scenario), counted(shapes_waiting(scenario.jobs, kept)), usual)


def room_of(scenario: Scenario) -> Room:
    """What is free now, node by node. Nodes that take no new work, and spare ones, have no room."""
    cluster = Cluster(scenario)
    grid, view = cluster.grid, cluster.fleet.now
    may = grid.startable[False]
    parts = np.zeros(grid.size, np.int64)
    splits = []
    for (node, gpu), split in view.splits.items():
        if grid.usable[node] >> gpu & 1:
            parts[node] += _left(split, grid.nodes[node].gpu_type)
            if may[node]:
                splits.append(SplitGpu(node, _left(split, grid.nodes[node].gpu_type), _instances(split, grid.nodes[node].gpu_type)))
    levels = {level.name: np.repeat(np.arange(len(level)), level.sizes) for level in grid.levels}
    host = view.host_np
    return Room(
        [node.quota_type for node in grid.nodes],
        grid.pool_of,
        view.count_np * may,
        parts * may,
        host[0].copy(),
        host[1].copy(),
        levels,
        splits,
        {node.quota_type: frozenset(_charges(node.gpu_type)) for node in grid.nodes},
    )


def _left(split: Split, gpu_type: str) -> int:
    """Milli-GPU of a shared GPU that nobody holds."""
    if split.mode != "mig":
        return max(0, 1000 - split.used)
    charges = _charges(gpu_type)
    return max(0, 1000 - sum(charges[one.profile] for one in split.taken)) if charges else 0


@cache
def _charges(gpu_type: str) -> Mapping[str, int]:
    """What an instance of each MIG profile is charged; nothing where the GPU can't be split."""
    board = board_of(gpu_type)
    return {profile.name: board.charge_milli(profile) for profile in board.profiles} if board else {}


def _instances(split: Split, gpu_type: str) -> tuple[tuple[str, int], ...] | None:
    """Free MIG instances by profile, in milli-GPU; None of a GPU that is shared in another way."""
    if split.mode != "mig":
        return None
    free = Counter(one.profile for one in split.instances)
    free.subtract(one.profile for one in split.taken)
    charges = _charges(gpu_type)
    return tuple((profile, charges[profile] * count) for profile, count in sorted(free.items()) if count > 0)


def _kept_from(kept: Iterable[Reserved], job: Planned | None = None) -> tuple[tuple[str, int], ...]:
    """Free GPUs by type that reservations keep from a job, or from anybody."""
    found: dict[str, int] = defaultdict(int)
    for one in kept:
        if job is None or not _owns(one, job):
            found[one.gpu_type] += -(-one.milli // 1000)
    return tuple(sorted(found.items()))


def _owns(kept: Reserved, job: Planned) -> bool:
    if not kept.path:
        return CLASSES[job.kind.class_rank] == kept.job_class
    return job.quota == kept.path or job.quota.startswith(f"{kept.path}/")


def shapes_waiting(jobs: Iterable[Planned], kept: Sequence[Reserved] = ()) -> Iterable[Shape]:
    """What jobs without a place ask for: of several roles that of the largest workers, as the scheduler counts it, too."""
    for job in jobs:
        if job.run.state != "queued" or job.run.workers or job.run.leaving:
            continue
        role = max((role for role in job.kind.roles if role.least and (role.gpus or role.parted)), key=lambda one: one.gpus, default=None)
        if role is not None:
            placing = job.kind.placing
            level = placing.required or ("" if placing.span_clusters else WIDEST)
            yield Shape(
                role.least,
                role.gpus,
                frozenset(role.gpu_types),
                level,
                role.cpu_milli,
                role.host_memory_mib,
                role.mig or "",
                role.share_milli or 0,
                _kept_from(kept, job) if kept and role.gpus else (),
            )


def usual_demand(*, now: datetime) -> dict[Shape, int]:
    """The commonest shapes of what was submitted in the last four weeks."""
    rows = Job.objects.filter(submitted_at__gt=now - USUAL, submitted_at__lte=now).order_by("-submitted_at", "-pk")
    facts = rows.values_list("spec", flat=True)[:MOST_JOBS]
    return typical(counted(shape for spec in facts.iterator(chunk_size=2000) if (shape := _shape_of(spec)) is not None))


def _shape_of(spec: Mapping[str, Any]) -> Shape | None:
    role = max((role for role in roles_of(spec) if takes_gpus(role)), key=lambda one: int(one.get("gpus") or 0), default=None)
    if role is None or not least_of(role):
        return None
    placing = spec.get("topology") or {}
    level = placing.get("required") or ("" if placing.get("span_clusters") else WIDEST)
    return Shape(
        least_of(role),
        int(role.get("gpus") or 0),
        frozenset(role.get("gpu_types") or ()),
        level,
        round(1000 * (role.get("cpus") or 0)),
        round(1024 * float(role.get("host_memory_gb") or 0)),
        str(role.get("mig") or ""),
        round(1000 * float(role.get("gpu_share") or 0)),
    )
