"""The openb trace (Alibaba, cluster-trace-gpu-v2023) as a scenario: 1,213 nodes of seven types, and jobs of which many ask for parts of GPUs.

The lists are not part of gpufleet. The protocol is that of Weng et al., USENIX ATC 2023: the list of jobs is shuffled, then filled up with jobs drawn
from it until 130 % of the GPUs are asked for; jobs arrive one at a time, and none leaves.
"""

import csv
import random
from collections import Counter
from pathlib import Path
from typing import Any

from scheduler.benchmarks.cases import NOW

NODES = "openb_node_list_gpu_node.csv"
LISTS = {"openb": "openb_pod_list_default.csv", "gpuspec33": "openb_pod_list_gpuspec33.csv"}
ARRIVED_MILLI = 1300  # of each GPU, in thousandths
USUAL_SHARE = 0.95  # of the jobs, whose shapes are the usual demand
FOR_EVER_S = 10**9
POOL = "openb"

Row = dict[str, str]


class NoTrace(Exception):
    """A file of the trace is missing or is not one."""


def rows_of(folder: Path, name: str, columns: frozenset[str]) -> list[Row]:
    path = folder / name
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            reader = csv.DictReader(lines)
            missing = columns - frozenset(reader.fieldnames or ())
            if missing:
                raise NoTrace(f"{path} is not a list of the openb trace: it has no column {min(missing)}.")
            return list(reader)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise NoTrace(f"{path} cannot be read: {reason}. Name the folder with the openb lists (cluster-trace-gpu-v2023, csv) by --traces.") from None


NODE_COLUMNS = frozenset({"sn", "cpu_milli", "memory_mib", "gpu", "model"})
JOB_COLUMNS = frozenset({"name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"})


def replayed(folder: Path, case: str, seed: int, **settings: Any) -> dict[str, Any]:
    """The whole replay as plain data: jobs a second apart, in one queue without a limit, on nodes of one quota type."""
    chance = random.Random(seed)
    nodes = rows_of(folder, NODES, NODE_COLUMNS)
    listed = sorted(rows_of(folder, LISTS[case], JOB_COLUMNS), key=lambda row: row["name"])
    chance.shuffle(nodes)
    arrived = inflated(listed, ARRIVED_MILLI * sum(int(row["gpu"]) for row in nodes), chance)
    return {
        "format": "gpufleet-scenario/1",
        "now": NOW,
        "settings": {"forecast": "none", "max_moves": 0, "sharing_trust": "any", **settings},
        "nodes": [_node(place, row) for place, row in enumerate(nodes)],
        "quotas": [{"name": "all", "guaranteed": None}],
        "demand": usual(listed),
        "jobs": [_job(place, row) for place, row in enumerate(arrived)],
    }


def milli_of(row: Row) -> int:
    return int(row["num_gpu"]) * int(row["gpu_milli"] or 0)


def inflated(listed: list[Row], most_milli: int, chance: random.Random) -> list[Row]:
    """All jobs in a drawn order, and after them drawn ones until the next would ask for more than that."""
    arrived = list(listed)
    chance.shuffle(arrived)
    asked = sum(milli_of(row) for row in arrived)
    while True:
        row = chance.choice(listed)
        asked += milli_of(row)
        if asked > most_milli:
            return arrived
        arrived.append(row)


def usual(listed: list[Row]) -> list[dict[str, Any]]:
    """The commonest shapes, up to those that cover most of the jobs."""
    counts = Counter((row["cpu_milli"], row["num_gpu"], row["gpu_milli"], row.get("gpu_spec") or "") for row in listed)
    found, covered = [], 0
    for (cpu, gpus, milli, spec), count in sorted(counts.items(), key=lambda one: (-one[1], one[0])):
        if covered >= USUAL_SHARE * len(listed):
            break
        covered += count
        found.append({"share": count / len(listed), **_asked({"cpu_milli": cpu, "num_gpu": gpus, "gpu_milli": milli, "gpu_spec": spec})})
    return found


def _node(place: int, row: Row) -> dict[str, Any]:
    return {
        "name": f"{place:04}-{row['sn']}",
        "gpu_type": row["model"],
        "quota_type": POOL,
        "gpus": int(row["gpu"]),
        "cpus": int(row["cpu_milli"]) / 1000,
        "host_memory_gb": int(row["memory_mib"]) / 1024,
    }


def _asked(row: Row) -> dict[str, Any]:
    """What one worker asks for of a node, but for its memory."""
    found: dict[str, Any] = {"cpus": int(row["cpu_milli"]) / 1000}
    if row.get("gpu_spec"):
        found["gpu_types"] = row["gpu_spec"].split("|")
    if int(row["num_gpu"]) == 1 and int(row["gpu_milli"]) < 1000:
        return found | {"gpu_share": int(row["gpu_milli"]) / 1000}
    return found | {"gpus": int(row["num_gpu"])}


def _job(place: int, row: Row) -> dict[str, Any]:
    role = {"name": "worker", **_asked(row), "host_memory_gb": int(row["memory_mib"]) / 1024}
    return {
        "name": f"{place:05}-{row['name']}",
        "quota": "all",
        "preemptible": False,
        "submitted": place + 1,
        "roles": [role],
        "work_s": FOR_EVER_S,
        **({"sharing": "mps"} if "gpu_share" in role else {}),
    }
