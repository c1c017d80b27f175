"""Which signal stands for how busy GPUs are: SM activity, or where a GPU has no such counter the driver's utilization, which is weaker.

The driver counts a GPU as utilized while any kernel runs on it, however few of its multiprocessors compute: a loop of one thread reads 100%. So what
is shown of such GPUs is marked, on pages, in files and in the API.
"""

from collections.abc import Collection

from dashboards.models import TelemetryFrame

SM_ACTIVITY, DRIVER_UTILIZATION = "sm_activity", "driver_utilization"
# How the source of a frame ends in which at least one GPU has the weaker signal (`nvml-driver`).
WEAK_ENDING = "-driver"


def weak_clusters(clusters: Collection[int] | None = None) -> dict[int, str]:
    """Names by key of the clusters of which the newest reading has the weaker signal. One query."""
    rows = TelemetryFrame.objects.filter(source__endswith=WEAK_ENDING).order_by("cluster__name")
    if clusters is not None:
        rows = rows.filter(cluster_id__in=clusters)
    return dict(rows.values_list("cluster_id", "cluster__name"))


def signal_of(cluster: int, weak: Collection[int]) -> str:
    return DRIVER_UTILIZATION if cluster in weak else SM_ACTIVITY


def nodes_signal(nodes: Collection[str]) -> str:
    """The signal of what was read from some nodes, by their ids: the weaker one where any of them has it. One query."""
    if not nodes:
        return SM_ACTIVITY
    weak = TelemetryFrame.objects.filter(source__endswith=WEAK_ENDING, cluster__nodes__public_id__in=sorted(nodes)).exists()
    return DRIVER_UTILIZATION if weak else SM_ACTIVITY
