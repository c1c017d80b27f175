"""Fleets that the dashboards' tests look at."""

from collections.abc import Mapping
from datetime import datetime, timedelta

import numpy as np

from dashboards.models import NO_READING, FleetSample, TelemetryFrame
from scheduler.models import Cluster, Gpu, JobState, Node, Placement
from tests import builders


def readings(percents: Mapping[Gpu, int | None], *, at: datetime) -> None:
    """A frame for each cluster of these GPUs; None is a GPU without a reading."""
    by_cluster: dict[int, list[tuple[int, int]]] = {}
    for gpu, percent in percents.items():
        by_cluster.setdefault(gpu.node.cluster_id, []).append((gpu.pk, NO_READING if percent is None else percent))
    for cluster, pairs in by_cluster.items():
        blank = np.zeros(len(pairs), dtype=np.uint8).tobytes()
        columns = {
            "gpu_ids": np.array([pk for pk, _ in pairs], dtype="<u4").tobytes(),
            "sm_active": np.array([percent for _, percent in pairs], dtype=np.uint8).tobytes(),
            "memory_used": blank,
            "temperature_c": blank,
            "power_watts": np.zeros(len(pairs), dtype="<u2").tobytes(),
        }
        TelemetryFrame.objects.update_or_create(cluster_id=cluster, defaults={"at": at, "source": "simulated", **columns})


def gpus_of(node: Node) -> list[Gpu]:
    return list(node.gpus.select_related("node").order_by("index"))


def minutes(count: int, *, end: datetime, capacity: int = 8, allocated: int = 6, active: int = 3, unread: int = 0) -> None:
    """`count` recorded minutes of H100s that end at `end`, in GPUs."""
    FleetSample.objects.bulk_create(
        FleetSample(
            at=end - timedelta(minutes=number + 1),
            gpu_type="H100-SXM-80GB",
            capacity_milli=capacity * 1000,
            healthy_milli=capacity * 1000,
            allocated_milli=allocated * 1000,
            active_milli=active * 1000,
            unread_milli=unread * 1000,
        )
        for number in range(count)
    )


def large_fleet(nodes: int, *, at: datetime) -> Cluster:
    """`nodes` nodes of 8 GPUs under leaves of 16, three quarters of them handed out to twelve teams, all read."""
    cluster = builders.cluster(levels=("spine", "leaf"))
    kind = builders.gpu_type()
    teams = [builders.quota(f"team-{number}", parent=builders.quota("research", parent=builders.quota())) for number in range(12)]
    made = []
    for number in range(nodes):
        place = builders.domain(f"spine-{number // 64 + 1}/leaf-{number // 16 % 4 + 1}", of=cluster)
        made.append(Node(public_id=f"n-big-{number}", cluster=cluster, domain=place, name=f"node-{number:04}", gpu_type=kind))
    Node.objects.bulk_create(made)
    Gpu.objects.bulk_create(
        (
            Gpu(public_id=f"g-big-{number}-{index}", node=node, index=index, gpu_type=kind, memory_mib=kind.memory_mib)
            for number, node in enumerate(made)
            for index in range(8)
        ),
        batch_size=1000,
    )
    gpus = list(Gpu.objects.filter(node__cluster=cluster).select_related("node").order_by("node_id", "index"))
    placements = []
    for number in range(0, len(gpus), 8):
        if number // 8 % 4 != 3:
            run = builders.attempt(builders.job(f"job-{number}", state=JobState.RUNNING, on=teams[number // 8 % 12]))
            placements += [Placement(attempt=run, job=run.job, node=gpu.node, gpu=gpu, since=at) for gpu in gpus[number : number + 8]]
    Placement.objects.bulk_create(placements, batch_size=1000)
    readings({gpu: (gpu.pk * 7) % 101 for gpu in gpus}, at=at)
    return cluster
