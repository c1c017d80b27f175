"""A small trace that the tests make themselves: a few jobs of two queues that come one after another, and what `gpufleet trace` would make of it."""

import json
from typing import Any

TYPE = "v100"


def scenario(*, jobs: int = 6, nodes: int = 1, work_s: float = 5400, every_s: float = 1800, gpus: int = 4) -> dict[str, Any]:
    """On nodes of 8 GPUs. Each job takes half of one, for longer than it takes until the third comes: the queue grows."""
    rows = [
        {
            "name": f"job-{place}",
            "quota": ("red", "blue")[place % 2],
            "submitted": place * every_s,
            "work_s": work_s,
            "roles": [{"name": "worker", "gpus": gpus, "gpu_types": [TYPE]}],
        }
        for place in range(jobs)
    ]
    fleet = [{"name": f"n{place}", "gpu_type": TYPE, "gpus": 8} for place in range(nodes)]
    quotas = [{"name": "red"}, {"name": "blue"}]
    return {"format": "gpufleet-scenario/1", "now": "2024-01-01T00:00:00Z", "nodes": fleet, "quotas": quotas, "jobs": rows}


def document(**asked: Any) -> str:
    return json.dumps(scenario(**asked))


def openb(*, pods: int = 6, work_s: int = 5400, every_s: int = 1800) -> tuple[str, str]:
    """A list of nodes and one of pods, as openb has them; the last pod never started."""
    nodes = "sn,cpu_milli,memory_mib,gpu,model\nnode-0,64000,262144,8,V100M32\n"
    head = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
    rows = [f"pod-{n},4000,8192,4,1000,,LS,Running,{n * every_s},{n * every_s + work_s},{n * every_s}\n" for n in range(pods)]
    return nodes, head + "".join(rows) + f"pod-late,4000,8192,1,1000,,LS,Pending,{pods * every_s},,\n"


# A point of a sweep that was played, and what its sweep knows of the trace.
POINT = {
    "state": "completed",
    "figures": {
        "allocation": 0.5,
        "allocation_by_type": {TYPE: 0.5},
        "utilization": 0.5,
        "utilization_by_type": {TYPE: 0.5},
        "fragmentation": 0.0,
        "wait_s": {"p50": 0.0, "p95": 60.0},
        "wait_s_by_class": {},
        "completion_s": {"mean": 5400.0},
        "finish_time_fairness": {"mean": 1.0, "max": 1.0},
        "preemptions": 0,
    },
}
TERMS = {"gpu_types": [TYPE], "step": 0, "warm_up": 3_600_000, "until": 14_400_000}
