"""The fleet as columns, read in a handful of queries however large it is.

No row becomes an object: 4,000 of those cost more than all else together.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
import numpy.typing as npt
from django.db.models import Count, Min

from dashboards.models import NO_READING, FleetSample, TelemetryFrame
from dashboards.weak import weak_of
from gpufleet.core.ranking import natural
from gpufleet.core.times import millis
from quotas.models import NodeKind, QuotaNode
from quotas.permissions import Access, Can
from quotas.selectors.rates import rates_now
from scheduler.models import IN_SERVICE, Domain, Gpu, Health, Job, JobState, Node, Placement, TopologyLevel
from scheduler.selectors.holders import outside_seats

# An older frame says nothing about now: its GPUs count as without a reading. Three rounds of the slowest source, which is read each fifteen seconds.
FRESH = timedelta(seconds=45)
# From fine to worst: a GPU is as well as it and its node are.
SEVERITY = (Health.HEALTHY, Health.SUSPECT, Health.DRAINING, Health.BURN_IN, Health.DRAINED, Health.REPAIRING, Health.DOWN)
WAITING = (JobState.QUEUED, JobState.PREEMPTED)

NOBODY = 0
SEVERAL = -1
OUTSIDE = -2  # of a job that is not ours
UNREAD = -1

NO_POOL = "No pool"
OTHER_TEAMS, OUTSIDE_TEAMS, NOBODYS = NOT_TEAMS = ("Other teams", "Outside gpufleet", "Not allocated")

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Holds:
    """Open placements by GPU: how much of it is taken, since when (ms, 0: free), and by which quota node: `SEVERAL` where they differ, `OUTSIDE` of a
    job that is not ours."""

    milli: dict[int, int]
    owner: dict[int, int]
    since: dict[int, int]
    jobs: dict[int, set[int]]  # by node


@dataclass(frozen=True, slots=True)
class Frame:
    """The newest readings of one cluster, aligned with `ids`. `sm` is in percent, `NO_READING` for none; `weak`: GPUs of the weaker signal."""

    cluster: int
    name: str
    weak: npt.NDArray[np.uint32]
    at: datetime
    ids: npt.NDArray[np.uint32]
    sm: npt.NDArray[np.uint8]

    @property
    def is_weak(self) -> bool:
        return bool(len(self.weak))

    def is_fresh(self, now: datetime) -> bool:
        return now - self.at <= FRESH


@dataclass(frozen=True, slots=True)
class Fleet:
    """Every GPU that has not been removed, one column a fact, in the order of primary keys."""

    ids: Ints
    node_ids: Ints
    types: tuple[str, ...]
    type_of: Ints
    severity: Ints
    held: Ints
    owner: Ints
    sm: Ints  # percent, UNREAD where there is no fresh reading
    spare: npt.NDArray[np.bool_]
    frames: tuple[Frame, ...]
    holds: Holds

    @property
    def out(self) -> npt.NDArray[np.bool_]:
        return ~np.isin(self.severity, [SEVERITY.index(health) for health in IN_SERVICE])


def frames_newest(clusters: Sequence[int] | None = None) -> list[Frame]:
    columns = ("cluster_id", "cluster__name", "source", "at", "gpu_ids", "weak_ids", "sm_active")
    rows = TelemetryFrame.objects.order_by("cluster_id").values_list(*columns)
    if clusters is not None:
        rows = rows.filter(cluster_id__in=clusters)
    return [
        Frame(
            cluster,
            name,
            weak_of(source, gpu_ids, weak_ids),
            at,
            np.frombuffer(bytes(gpu_ids), dtype="<u4"),
            np.frombuffer(bytes(sm_active), dtype=np.uint8),
        )
        for cluster, name, source, at, gpu_ids, weak_ids, sm_active in rows
    ]


def holds_open(gpu_ids: Sequence[int] | None = None, *, with_times: bool = True) -> Holds:
    """What is held now. A MIG slice counts for the GPU that it is cut from. Times cost half of it all, so they are left out where nobody asks."""
    rows = Placement.objects.filter(until__isnull=True, gpu__isnull=False)
    if gpu_ids is not None:
        rows = rows.filter(gpu__in=gpu_ids)
    holds = Holds({}, {}, {}, {})
    for gpu, milli, quota, job, node in rows.values_list("gpu_id", "gpu_milli", "job__quota_id", "job_id", "node_id"):
        holds.milli[gpu] = min(1000, holds.milli.get(gpu, 0) + milli)
        holds.owner[gpu] = quota if holds.owner.get(gpu, quota) == quota else SEVERAL
        holds.jobs.setdefault(node, set()).add(job)
    if with_times:
        earliest = rows.order_by().values_list("gpu_id").annotate(Min("since"))
        holds.since.update((gpu, millis(since)) for gpu, since in earliest)
    outside = outside_seats() if gpu_ids is None else outside_seats().filter(gpu__in=gpu_ids)
    for gpu, since in outside.values_list("gpu_id", "job__since"):
        holds.milli[gpu], holds.owner[gpu] = 1000, OUTSIDE
        holds.since.setdefault(gpu, millis(since))
    return holds


def fleet_read(*, now: datetime) -> Fleet:
    """The whole fleet as it is now, in three queries."""
    rows = list(
        Gpu.objects.filter(removed_at__isnull=True, node__removed_at__isnull=True)
        .order_by("pk")
        .values_list("pk", "node_id", "gpu_type_id", "health", "node__health", "node__spare")
    )
    ids = _ints(row[0] for row in rows)
    types = tuple(sorted({row[2] for row in rows}))
    position = {name: number for number, name in enumerate(types)}
    rank: dict[str, int] = {health: number for number, health in enumerate(SEVERITY)}
    holds = holds_open(with_times=False)
    frames = tuple(frames_newest())
    sm = np.full(len(ids), UNREAD, dtype=np.int64)
    for frame in frames:
        if frame.is_fresh(now) and len(ids):
            place = np.minimum(np.searchsorted(ids, frame.ids), len(ids) - 1)
            known = (ids[place] == frame.ids) & (frame.sm != NO_READING)
            sm[place[known]] = np.minimum(frame.sm[known], 100)
    return Fleet(
        ids=ids,
        node_ids=_ints(row[1] for row in rows),
        types=types,
        type_of=_ints(position[row[2]] for row in rows),
        severity=_ints(max(rank[row[3]], rank[row[4]]) for row in rows),
        held=_ints(holds.milli.get(row[0], 0) for row in rows),
        owner=_ints(holds.owner.get(row[0], NOBODY) for row in rows),
        sm=sm,
        spare=np.fromiter((row[5] for row in rows), dtype=np.bool_),
        frames=frames,
        holds=holds,
    )


def _ints(values: Iterable[int]) -> Ints:
    return np.fromiter(values, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Owner:
    """Whom a quota node's GPUs are said to belong to: the team it is part of, or the node itself above and beside teams."""

    team: int
    name: str


def owners_named(access: Access) -> dict[int, Owner | None]:
    """For every quota node whom to name for it; None where this viewer may not know. Archived nodes may still hold GPUs.

    Of several with one title, and of one that is called as those are whom nobody may know, the path is named, too.
    """
    nodes = list(QuotaNode.objects.order_by("path").values_list("pk", "path", "kind", "title", "name"))
    teams = {path: Owner(pk, title or name) for pk, path, kind, title, name in nodes if kind == NodeKind.TEAM}
    named: dict[int, Owner | None] = {}
    for pk, path, _, title, name in nodes:
        if not access.can(Can.SEE, path):
            named[pk] = None
            continue
        steps = path.split("/")
        above = ("/".join(steps[:depth]) for depth in range(len(steps), 0, -1))
        named[pk] = next((teams[step] for step in above if step in teams), Owner(pk, title or name))
    seen = {owner.team: owner.name for owner in named.values() if owner is not None}
    called = Counter([*seen.values(), *NOT_TEAMS])
    paths = {pk: path for pk, path, *_ in nodes if called[seen.get(pk, "")] > 1}
    told = {pk: Owner(pk, f"{seen[pk]} ({path})") for pk, path in paths.items()}
    return {pk: owner and told.get(owner.team, owner) for pk, owner in named.items()}


@dataclass(frozen=True, slots=True)
class SickNode:
    """A node that needs somebody: it, or one of its GPUs, is not healthy."""

    pk: int
    public_id: str
    name: str
    health: str
    reason: str
    since: datetime
    gpus_hurt: int
    jobs: int
    node_health: str = ""  # of the node itself, where `health` is that of its worst GPU


def nodes_needing_attention(fleet: Fleet) -> list[SickNode]:
    """The worst first: most GPUs out or hurt, then most jobs on them, then the longest."""
    hurt_ids, counts = np.unique(fleet.node_ids[fleet.severity > 0], return_counts=True)
    hurt = dict(zip(hurt_ids.tolist(), counts.tolist(), strict=True))
    worst_gpu = _worst_gpus()
    found = []
    rows = (Node.objects.filter(removed_at__isnull=True).exclude(health=Health.HEALTHY) | Node.objects.filter(pk__in=list(worst_gpu))).values_list(
        "pk", "public_id", "name", "health", "health_reason", "health_since"
    )
    for pk, public_id, name, health, reason, since in rows:
        own = health
        if health == Health.HEALTHY:
            health, reason, since = worst_gpu[pk]
        found.append(SickNode(pk, public_id, name, health, reason, since, hurt.get(pk, 0), len(fleet.holds.jobs.get(pk, ())), own))
    return sorted(found, key=lambda node: (-node.gpus_hurt, -node.jobs, node.since, node.pk))


def _worst_gpus() -> dict[int, tuple[str, str, datetime]]:
    """For each healthy node with a GPU that is not: the health, the reason and the since of its worst one."""
    rows = (
        Gpu.objects.filter(removed_at__isnull=True, node__removed_at__isnull=True, node__health=Health.HEALTHY)
        .exclude(health=Health.HEALTHY)
        .order_by("node_id", "index")
        .values_list("node_id", "index", "health", "health_reason", "health_since")
    )
    worst: dict[int, tuple[str, str, datetime]] = {}
    for node, index, health, reason, since in rows:
        if node not in worst or SEVERITY.index(Health(health)) > SEVERITY.index(Health(worst[node][0])):
            worst[node] = (health, f"GPU {index}: {reason}" if reason else f"GPU {index}", since)
    return worst


def jobs_waiting() -> list[tuple[str, int, datetime]]:
    """Class, milli-GPU asked for, and waiting since, of every job in the queue."""
    return list(Job.objects.filter(state__in=WAITING).values_list("job_class", "gpus_milli", "state_since"))


def samples_between(start: datetime, end: datetime, gpu_type: str = "") -> list[tuple[datetime, str, int, int, int, int, int]]:
    """Minutes of the past: time, type, capacity, healthy, allocated, active and unread milli-GPU."""
    rows = FleetSample.objects.filter(at__gte=start, at__lt=end)
    if gpu_type:
        rows = rows.filter(gpu_type=gpu_type)
    return list(
        rows.order_by("at", "gpu_type").values_list(
            "at", "gpu_type", "capacity_milli", "healthy_milli", "allocated_milli", "active_milli", "unread_milli"
        )
    )


@dataclass(frozen=True, slots=True)
class Place:
    """A node as the map has it."""

    pk: int
    public_id: str
    name: str
    cluster: str
    domains: tuple[str, ...]
    pool: str
    health: str
    spare: bool


def places_all() -> list[Place]:
    """Every node in the order of the topology: cluster, domain, name."""
    paths = dict(Domain.objects.values_list("pk", "path"))
    rows = (
        Node.objects.filter(removed_at__isnull=True)
        .order_by("cluster__name", "name")
        .values_list("pk", "public_id", "name", "cluster__name", "domain_id", "pool__name", "health", "spare")
    )
    places = [
        Place(pk, public_id, name, cluster, tuple(paths[domain].split("/")) if domain else (), pool or "", health, spare)
        for pk, public_id, name, cluster, domain, pool, health, spare in rows
    ]
    return sorted(places, key=lambda place: (place.cluster, [natural(step) for step in place.domains], natural(place.name), place.pk))


def level_names() -> dict[str, list[str]]:
    """The names of each cluster's topology levels, wide to narrow."""
    names: dict[str, list[str]] = {}
    for cluster, name in TopologyLevel.objects.order_by("cluster__name", "depth").values_list("cluster__name", "name"):
        names.setdefault(cluster, []).append(name)
    return names


def levels_deep() -> list[str]:
    """What the map can be grouped by: the cluster, then each depth of the topology by the names that clusters give it."""
    found: list[list[str]] = []
    for names in level_names().values():
        for depth, name in enumerate(names):
            if depth == len(found):
                found.append([])
            if name not in found[depth]:
                found[depth].append(name)
    return ["cluster", *("/".join(names) for names in found)]


def fleet_size() -> tuple[int, int, list[str]]:
    """How many GPUs and nodes there are, and of which types."""
    rows = Gpu.objects.filter(removed_at__isnull=True, node__removed_at__isnull=True)
    counts = rows.order_by("gpu_type").values_list("gpu_type").annotate(Count("pk"))
    by_type = dict(counts)
    return sum(by_type.values()), Node.objects.filter(removed_at__isnull=True).count(), list(by_type)


def gpus_facts(gpu_ids: Sequence[int] | None = None) -> list[tuple[int, str, int, int, str, str, str, str]]:
    """Key, public id, node, index, type, mode, own health and the node's, of GPUs that are there."""
    rows = Gpu.objects.filter(removed_at__isnull=True, node__removed_at__isnull=True)
    if gpu_ids is not None:
        rows = rows.filter(pk__in=gpu_ids)
    return list(rows.order_by("node_id", "index").values_list("pk", "public_id", "node_id", "index", "gpu_type_id", "mode", "health", "node__health"))


def gpus_of_nodes(node_ids: Sequence[int]) -> list[int]:
    return list(Gpu.objects.filter(node_id__in=node_ids).order_by("pk").values_list("pk", flat=True))


def rates_visible(access: Access, *, now: datetime) -> Mapping[str, int] | None:
    """The rates, for those who may see costs somewhere; None for others, which is not the same as no rates."""
    return rates_now(now=now) if access.can_somewhere(Can.SEE_COSTS) else None
