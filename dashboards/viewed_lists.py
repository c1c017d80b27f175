"""The lists of which views are kept, as people see them: with what telemetry adds to their columns and filters."""

from dashboards.gpu_list import GPUS
from dashboards.job_list import JOBS
from dashboards.node_list import NODES
from scheduler.hardware.lists import CLUSTERS
from scheduler.jobs.lists import QUEUE
from scheduler.jobs.view_queries import Viewed
from scheduler.models import Cluster, Gpu, Job, Node, ViewedList

VIEWED: dict[str, Viewed] = {
    ViewedList.JOBS: Viewed(JOBS, Job),
    ViewedList.QUEUE: Viewed(QUEUE, Job),
    ViewedList.NODES: Viewed(NODES, Node),
    ViewedList.GPUS: Viewed(GPUS, Gpu),
    ViewedList.CLUSTERS: Viewed(CLUSTERS, Cluster),
}
