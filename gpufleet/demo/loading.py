"""The demo's hardware, read from rows."""

from collections import defaultdict

from gpufleet.core.times import millis
from gpufleet.demo.fleet import SLICED_BOARD, Plan
from gpufleet.demo.hardware import Hardware, Machine, Share, SliceOf
from quotas.models import NodeKind, QuotaShare
from scheduler.models import Gpu, Health, MigInstance, Node

DRIVER = "demo"


def hardware_now(*, plan: Plan) -> Hardware:
    well: dict[int, list[int]] = defaultdict(list)
    every: dict[int, list[int]] = defaultdict(list)
    for gpu, node, health in Gpu.objects.filter(removed_at__isnull=True).order_by("node_id", "index").values_list("id", "node_id", "health"):
        every[node].append(gpu)
        if health == Health.HEALTHY:
            well[node].append(gpu)
    parts = {profile.name: SLICED_BOARD.charge_milli(profile) for profile in SLICED_BOARD.profiles}
    slices = tuple(
        SliceOf(key, gpu, node, profile, parts.get(profile, 0))
        for key, gpu, node, profile in MigInstance.objects.filter(removed_at__isnull=True)
        .order_by("id")
        .values_list("id", "gpu_id", "gpu__node_id", "profile")
    )
    sliced = {part.node for part in slices}
    machines = {}
    for key, name, cluster, path, gpu_type, spare, health, since in (
        Node.objects.filter(removed_at__isnull=True)
        .order_by("id")
        .values_list("id", "name", "cluster_id", "domain__path", "gpu_type_id", "spare", "health", "health_since")
    ):
        spine, _, leaf = (path or "").partition("/")
        gpus = tuple(every[key])
        machines[key] = Machine(key, name, cluster, spine, leaf, gpu_type or "", spare, key in sliced, health, millis(since), gpus, tuple(well[key]))
    return Hardware(machines=machines, slices=slices, shares=_shares(), stretch=plan.stretch, pressure=plan.pressure)


def _shares() -> dict[tuple[str, str], Share]:
    return {
        (path, gpu_type): Share((1 << 60) if guaranteed is None else guaranteed, limit)
        for path, gpu_type, guaranteed, limit in QuotaShare.objects.filter(node__kind=NodeKind.TEAM, node__archived_at__isnull=True)
        .order_by("node__path", "gpu_type")
        .values_list("node__path", "gpu_type", "guaranteed_milli", "limit_milli")
    }
