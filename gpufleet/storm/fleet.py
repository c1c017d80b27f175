"""What the storm passes over: sixteen nodes, three teams, and the jobs that they hand in."""

from dataclasses import dataclass
from datetime import datetime
from random import Random
from typing import Any

from gpufleet.core.audit import SYSTEM
from gpufleet.core.ids import public_id, public_ids
from quotas.models import NodeKind, QuotaNode, QuotaShare
from quotas.permissions import Access, Can, Grant
from scheduler.models import Cluster, Domain, Gpu, GpuType, JobClass, Node, TopologyLevel

NODES, GPUS_PER_NODE, LEAVES = 16, 4, 4
TYPE = "H100-SXM-80GB"
SLICES = {"1g.10gb": 1, "2g.20gb": 2, "3g.40gb": 4, "4g.40gb": 4, "7g.80gb": 8}  # of the eight that a GPU's memory has
TEAMS = {"nlp": 24, "vision": 20, "robots": 12}
EVERYTHING = Access(actor=SYSTEM, grants=(Grant("", frozenset(Can)),))


@dataclass(frozen=True)
class Fleet:
    cluster: Cluster
    nodes: tuple[Node, ...]
    teams: tuple[QuotaNode, ...]


def fleet_make(*, now: datetime) -> Fleet:
    """The rows, in an empty database."""
    kind = GpuType.objects.create(name=TYPE, board="H100-80", memory_mib=81_559)
    cluster = Cluster.objects.create(public_id=public_id("c"), name="storm", created_at=now)
    level = TopologyLevel.objects.create(cluster=cluster, depth=0, name="leaf")
    leaves = [
        Domain.objects.create(public_id=public_id("d"), cluster=cluster, level=level, name=f"leaf-{number}", path=f"leaf-{number}")
        for number in range(LEAVES)
    ]
    nodes = [
        Node.objects.create(
            public_id=public_id("n"),
            cluster=cluster,
            domain=leaves[number % LEAVES],
            name=f"n{number:02}",
            gpu_type=kind,
            cpus=96,
            host_memory_mib=1_048_576,
            health_since=now,
            created_at=now,
        )
        for number in range(NODES)
    ]
    ids = iter(public_ids("g", NODES * GPUS_PER_NODE))
    Gpu.objects.bulk_create(
        Gpu(public_id=next(ids), node=node, index=index, gpu_type=kind, memory_mib=kind.memory_mib, health_since=now, created_at=now)
        for node in nodes
        for index in range(GPUS_PER_NODE)
    )
    top = QuotaNode.objects.create(public_id=public_id("q"), name="org", path="org", kind=NodeKind.ORG, created_at=now)
    teams = [
        QuotaNode.objects.create(public_id=public_id("q"), parent=top, name=name, path=f"org/{name}", depth=1, kind=NodeKind.TEAM, created_at=now)
        for name in TEAMS
    ]
    QuotaShare.objects.create(node=top, gpu_type=TYPE, guaranteed_milli=1000 * NODES * GPUS_PER_NODE)
    for team, gpus in zip(teams, TEAMS.values(), strict=True):
        QuotaShare.objects.create(node=team, gpu_type=TYPE, guaranteed_milli=1000 * gpus)
    return Fleet(cluster, tuple(nodes), tuple(teams))


def job_drawn(rng: Random, *, large: bool) -> dict[str, Any]:
    """What somebody hands in, as keyword arguments of the service. Every job can run on the whole fleet, and none runs for ever."""
    job_class = JobClass.BATCH if large else rng.choices([JobClass.BATCH, JobClass.INTERACTIVE, JobClass.INFERENCE], [70, 22, 8])[0]
    workers, gpus = rng.choice([(1, 4), (2, 4), (2, 4), (4, 2), (4, 4)] if large else [(1, 1), (1, 1), (1, 2), (1, 4), (2, 2), (2, 4)])
    if job_class != JobClass.BATCH:
        workers, gpus = 1, rng.choice([1, 1, 2])
    elastic = job_class == JobClass.BATCH and workers > 1 and rng.random() < 0.3
    role: dict[str, Any] = {"name": "worker", "min": workers, "gpus": gpus, "max": workers * 2 if elastic else workers}
    work = rng.choice([2400, 3600, 5400] if large else [600, 1800, 3600, 5400] if job_class == JobClass.BATCH else [300, 1200, 3600])
    spec: dict[str, Any] = {"roles": [role], "grace_s": rng.choice([15, 30, 120]), "work_s": work}
    if rng.random() < 0.7:
        spec["checkpoint"] = {"interval_s": rng.choice([3600, 7200]), "save_s": 20, "restore_s": 40}
    if gpus == GPUS_PER_NODE and workers <= LEAVES and rng.random() < 0.3:
        spec["topology"] = {"required": "leaf"}
    play = {"load_s": rng.choice([2, 15, 60]), "fails": rng.choice([0, 0, 0, 0.3]), "stubborn": rng.random() < 0.1}
    return {
        "job_class": job_class,
        "priority": rng.choice([30, 50, 50, 70]),
        "preemptible": rng.choices(["yes", "when_borrowed", "no"], [85, 10, 5])[0] if gpus * workers <= 2 else "yes",
        "spec": spec,
        "gpus_milli": 1000 * workers * gpus,
        "launch": {"simulated": play},
        "estimate_seconds": work if rng.random() < 0.6 else None,
        "limit_seconds": work * rng.choice([2, 3]) + 600 if rng.random() < 0.5 else None,
        "retry_limit": rng.choice([0, 1, 3]),
    }


def part_drawn(rng: Random, facts: dict[str, Any]) -> dict[str, Any]:
    """The same job, but each worker asks for a part of one GPU: an instance, or a share."""
    workers = rng.choice([1, 1, 2, 3])
    role: dict[str, Any] = {"name": "worker", "min": workers}
    if rng.random() < 0.7:
        profile = rng.choice(list(SLICES))
        role["mig"], milli = profile, 125 * SLICES[profile]
    else:
        milli = rng.choice([250, 500])
        role["gpu_share"] = milli / 1000
    spec = {name: value for name, value in facts["spec"].items() if name != "topology"}
    shared = rng.choice(["mps", "timeslice"]) if facts["job_class"] == JobClass.INTERACTIVE else "mps"  # only people take turns
    spec |= {"roles": [role], "sharing": "mig" if "mig" in role else shared}
    return facts | {"spec": spec, "gpus_milli": milli * workers}
