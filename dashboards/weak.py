"""Which signal stands for how busy GPUs are: SM activity, or where a GPU has no such counter the driver's utilization, which is weaker.

The driver counts a GPU as utilized while any kernel runs on it, however few of its multiprocessors compute: a loop of one thread reads 100%. So what
is shown of such GPUs is marked, on pages, in files and in the API.
"""

from collections.abc import Collection

import numpy as np
from django.db.models import QuerySet
from numpy.typing import NDArray

from dashboards.models import TelemetryFrame
from scheduler.models import Gpu
from scheduler.selectors.clusters import has_gpus

SM_ACTIVITY, DRIVER_UTILIZATION = "sm_activity", "driver_utilization"
# How the source of a frame ends in which at least one GPU has the weaker signal (`nvml-driver`).
WEAK_ENDING = "-driver"


def weak_of(source: str, gpu_ids: bytes | memoryview, weak_ids: bytes | memoryview) -> NDArray[np.uint32]:
    """Those GPUs of a frame that have the weaker signal. A frame that names none and has it is of an older version: all of them."""
    if not source.endswith(WEAK_ENDING):
        return np.zeros(0, np.uint32)
    return np.frombuffer(bytes(weak_ids) or bytes(gpu_ids), "<u4")


def _frames() -> QuerySet[TelemetryFrame]:
    """Those with the weaker signal. The last one of a cluster whose GPUs are gone says nothing of the fleet."""
    return TelemetryFrame.objects.filter(has_gpus(), source__endswith=WEAK_ENDING)


def weak_gpus(clusters: Collection[int] | None = None) -> set[int]:
    """Keys of the GPUs of which the newest reading is the weaker signal. One query."""
    rows = _frames()
    if clusters is not None:
        rows = rows.filter(cluster_id__in=clusters)
    return {key for row in rows.values_list("source", "gpu_ids", "weak_ids") for key in weak_of(*row).tolist()}


def weak_clusters() -> dict[int, str]:
    """Names by key of the clusters of which the newest reading of any GPU has the weaker signal. One query."""
    return dict(_frames().order_by("cluster__name").values_list("cluster_id", "cluster__name"))


def weak_told() -> list[str]:
    """The same in words, with how many GPUs of a cluster it is where it is not all of them. One query."""
    found = []
    rows = _frames().order_by("cluster__name")
    for name, source, gpu_ids, weak_ids in rows.values_list("cluster__name", "source", "gpu_ids", "weak_ids"):
        weak, every = len(weak_of(source, gpu_ids, weak_ids)), len(bytes(gpu_ids)) // 4
        found.append(name if weak == every else f"{name} ({weak:,} of {every:,} GPUs)")
    return found


def signal_of(gpus: Collection[int], weak: Collection[int]) -> str:
    """The signal of what was read from some GPUs, by their keys: the weaker one where any of them has it."""
    return DRIVER_UTILIZATION if any(gpu in weak for gpu in gpus) else SM_ACTIVITY


def nodes_signal(nodes: Collection[str]) -> str:
    """The same of some nodes, by their ids. One query, and another where there is a weaker signal at all."""
    weak = weak_gpus() if nodes else set()
    if not weak:
        return SM_ACTIVITY
    return signal_of(list(Gpu.objects.filter(node__public_id__in=sorted(nodes), removed_at__isnull=True).values_list("pk", flat=True)), weak)
