"""The packing experiment on the openb trace: 1,213 nodes of seven types, and jobs of which many ask for parts of GPUs. None leaves.

The lists are not part of gpufleet. The protocol is that of Weng et al., USENIX ATC 2023: the list of jobs is shuffled, then filled up with jobs drawn
from it until 130 % of the GPUs are asked for; jobs arrive one at a time, and none leaves.
"""

import random
from pathlib import Path
from typing import Any

from scheduler.benchmarks.cases import NOW
from scheduler.traces import openb
from scheduler.traces.openb import Pod
from scheduler.traces.rows import File, TraceFault

NODES = "openb_node_list_gpu_node.csv"
LISTS = {"openb": "openb_pod_list_default.csv", "gpuspec33": "openb_pod_list_gpuspec33.csv"}
ARRIVED_MILLI = 1300  # of each GPU, in thousandths
FOR_EVER_S = 10**9


def _file(folder: Path, name: str) -> File:
    path = folder / name
    try:
        return File(str(path), path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise TraceFault(
            f"{path} cannot be read: {reason}. Name the folder with the openb lists (cluster-trace-gpu-v2023, csv) by --traces."
        ) from None


def replayed(folder: Path, case: str, seed: int, **settings: Any) -> dict[str, Any]:
    """The whole replay as plain data: jobs a second apart, in one queue without a limit, on nodes of one quota type."""
    chance = random.Random(seed)
    nodes = openb.machines(_file(folder, NODES))
    listed = sorted((pod for _, pod in openb.pods(_file(folder, LISTS[case]))), key=lambda pod: pod.name)
    chance.shuffle(nodes)
    arrived = inflated(listed, ARRIVED_MILLI * sum(machine.gpus for machine in nodes), chance)
    return {
        "format": "gpufleet-scenario/1",
        "now": NOW,
        "settings": {"forecast": "none", "max_moves": 0, "sharing_trust": "any", **settings},
        "nodes": [openb.node(machine) | {"name": f"{place:04}-{machine.name}"} for place, machine in enumerate(nodes)],
        "quotas": [{"name": "all", "guaranteed": None}],
        "demand": openb.usual(listed),
        "jobs": [_job(place, pod) for place, pod in enumerate(arrived)],
    }


def inflated(listed: list[Pod], most_milli: int, chance: random.Random) -> list[Pod]:
    """All jobs in a drawn order, and after them drawn ones until the next would ask for more than that."""
    arrived = list(listed)
    chance.shuffle(arrived)
    asked = sum(pod.milli for pod in arrived)
    while True:
        pod = chance.choice(listed)
        asked += pod.milli
        if asked > most_milli:
            return arrived
        arrived.append(pod)


def _job(place: int, pod: Pod) -> dict[str, Any]:
    return openb.job(pod, "all") | {"name": f"{place:05}-{pod.name}", "preemptible": False, "submitted": place + 1, "work_s": FOR_EVER_S}
