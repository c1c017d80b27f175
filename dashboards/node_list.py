"""The list of nodes as people see it: the inventory's own, with what the GPUs of a node do now and which jobs run there."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dashboards.gpu_list import AGAIN_MS, READING
from dashboards.readings import NOT_READ, Reading, reading_of_all, readings_now
from gpufleet.core.tables import Column
from gpufleet.core.times import now
from quotas.permissions import Access
from scheduler.hardware.lists import NODES as INVENTORY
from scheduler.models import Node
from scheduler.selectors.holders import HoldingJob, nodes_jobs
from scheduler.selectors.nodes import NodeRow, node_rows


@dataclass(frozen=True, slots=True)
class NodeLine:
    """A node of the list with the newest readings of its GPUs and the jobs on it, the largest first."""

    row: NodeRow
    reading: Reading
    jobs: Sequence[HoldingJob]

    @property
    def more_jobs(self) -> Sequence[HoldingJob]:
        """All but the one that the list names."""
        return self.jobs[1:]

    @property
    def jobs_told(self) -> str:
        """Names for a file; jobs that the reader may not know are another team's."""
        return ", ".join(f"{job.holder.job_id} {job.holder.quota}" if job.holder.named else job.holder.label for job in self.jobs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.row, name)


def nodes_now(access: Access, nodes: Sequence[Node]) -> list[NodeLine]:
    """Four queries, however many nodes."""
    read, jobs = readings_now(now=now()), nodes_jobs(access, [node.pk for node in nodes])
    return [NodeLine(row, reading_of_all(read.get(key, NOT_READ) for key in row.gpu_keys), jobs.get(row.node.pk, ())) for row in node_rows(nodes)]


_HINTS = {
    "sm": "SM activity, newest reading; the mean of the node's GPUs",
    "memory_used": "Mean of the node's GPUs",
    "celsius": "Of its hottest GPU",
}
_JOBS = Column("jobs", "Jobs", "jobs_told", cell="scheduler/_node_jobs.html", hint="The largest first")
_ALLOCATED = """{{ row.taken_milli|gpus_tenths }} <span class="soft">of {{ row.gpus }}</span>"""
_CHANGED: dict[str, dict[str, Any]] = {
    "allocated": {"cell": _ALLOCATED, "hint": "Allocated GPUs of all that it has"},
    **{key: {"optional": True} for key in ("since", "cluster", "pool", "gpus", "heartbeat")},
}


def _columns() -> tuple[Column, ...]:
    columns: list[Column] = []
    for column in INVENTORY.columns:
        columns.append(replace(column, **_CHANGED.get(column.key, {})))
        if column.key == "health":
            columns += [replace(reading, hint=_HINTS[reading.key]) for reading in READING]
        elif column.key == "allocated":
            columns.append(_JOBS)
    return tuple(columns)


NODES = replace(INVENTORY, columns=_columns(), example="health:suspect gpu:h100 use:no", again_ms=AGAIN_MS)
