"""Helios (SenseTime, 2020): `cluster_log.csv`, a row for each job, and `cluster_gpu_number.csv`, the GPUs of each virtual cluster by day.

`gpu_num` and `cpu_num` are of the whole job, which lay on `node_num` nodes. Nodes of Helios have eight GPUs.
"""

from collections.abc import Sequence
from typing import Any

from .rows import (
    BACKWARDS,
    NEVER_RAN,
    NOTHING_ASKED,
    STILL_RUNS,
    File,
    Imported,
    Row,
    Shape,
    TraceFault,
    gang,
    header_of,
    largest_of,
    nodes_of,
    once,
    quotas_of,
    role,
    run_time,
    table,
)

NAME = "helios"
COLUMNS = frozenset({"job_id", "vc", "gpu_num", "cpu_num", "node_num", "submit_time", "start_time", "end_time"})
NOT_CLUSTERS = ("date", "total")
NODE_GPUS = 8


def imported(files: Sequence[File], shapes: Sequence[Shape]) -> Imported:
    """Nodes are those of --nodes, else as many as the virtual clusters had GPUs for on their largest day, which is also what each is guaranteed."""
    sizes = [file for file in files if {"date", "total"} <= header_of(file)]
    logs = [file for file in files if file not in sizes]
    if not logs:
        raise TraceFault("No cluster_log.csv is among the files.")
    clusters = [_largest_day(file) for file in sizes]
    guaranteed = {name: gpus for one in clusters for name, gpus in one.items()}
    whole, rest = divmod(sum(guaranteed.values()), NODE_GPUS)
    nodes = nodes_of(shapes or [Shape(count, gpus) for count, gpus in ((whole, NODE_GPUS), (1, rest)) if count and gpus], "GPU")
    if not nodes:
        raise TraceFault("Nodes are those of --nodes, or those that cluster_gpu_number.csv has GPUs for.")
    rows = [row for file in logs for row in table(file, COLUMNS, NAME)]
    found = Imported(nodes, quotas_of([row.text("vc") for row in rows], guaranteed), dated=True)
    known: set[str] = set()
    largest = largest_of(nodes)
    for row in rows:
        _read(row, largest, known, found)
    return found


def _read(row: Row, largest: int, known: set[str], found: Imported) -> None:
    name = once(known, row.text("job_id"), row.bad(f"job_id {row.values['job_id']} is given twice"))
    submitted, start, end = row.moment("submit_time"), row.moment("start_time"), row.moment("end_time")
    if submitted is None:
        raise row.bad("submit_time is empty")
    roles = _roles(row, largest)
    if start is None or end is None or end < start or not roles:
        why = NEVER_RAN if start is None else STILL_RUNS if end is None else BACKWARDS if end < start else NOTHING_ASKED
        found.left_out[why] += 1
        return
    job = {"name": name, "quota": row.text("vc"), "roles": roles, "work_s": run_time(start.timestamp(), end.timestamp())}
    found.jobs.append((submitted.timestamp(), job))


def _roles(row: Row, largest: int) -> list[dict[str, Any]]:
    """As many workers as it had nodes, where they are alike and fit; nothing where it asks for nothing."""
    gpus, cpus, nodes = row.whole("gpu_num"), row.number("cpu_num"), max(1, row.whole("node_num"))
    if not gpus and not cpus:
        return []
    workers, each = (nodes, gpus // nodes) if not gpus % nodes and gpus // nodes <= largest else gang(gpus, largest)
    return [role(workers, gpus=each, cpus=round(cpus / workers, 3))]


def _largest_day(file: File) -> dict[str, int]:
    """The GPUs of each virtual cluster on the day on which all together had most, the first of such days."""
    best: dict[str, int] = {}
    for row in table(file, frozenset(NOT_CLUSTERS), NAME):
        day = {name: row.whole(name) for name in row.values if name not in NOT_CLUSTERS}
        if sum(day.values()) > sum(best.values()) or not best:
            best = day
    return best
