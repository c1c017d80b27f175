"""What it means to remove a cluster, told before it is done."""

from gpufleet.core.previews import Preview
from gpufleet.core.templatetags.shell import plural
from scheduler.models import Cluster
from scheduler.services.hardware.removing import Leaves


def removal_preview(cluster: Cluster, leaves: Leaves | None, *, fault: str) -> Preview:
    if fault or leaves is None:
        return Preview(sentences=(), faults=(fault,))
    sentences = [
        f"{cluster.name} leaves the fleet with {plural(leaves.nodes, 'node')} and {plural(leaves.gpus, 'GPU')}.",
        "Its jobs, their logs, history, costs and the audit log stay readable.",
    ]
    if leaves.stranded:
        sentences.append(f"{plural(leaves.stranded, 'waiting job')} {'fits' if leaves.stranded == 1 else 'fit'} no other cluster and will not start.")
    if leaves.planned:
        sentences.append(f"{plural(leaves.planned, 'planned drain or change', 'planned drains or changes')} of its nodes will not begin.")
    if leaves.folder:
        outside = "Kubernetes and its pods" if cluster.backend == "kubernetes" else "Slurm and its jobs"
        sentences.append(f"{outside} outside gpufleet keep running. gpufleet no longer reads them.")
        sentences.append(f"Checkpoints and logs in {leaves.folder} stay there. gpufleet no longer deletes anything there.")
    return Preview(sentences=sentences)
