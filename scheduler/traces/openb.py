"""openb (Alibaba, cluster-trace-gpu-v2023): nodes of seven GPU types, and pods of which many ask for parts of GPUs or for CPUs alone.

Times are seconds from the beginning of the trace. The trace names no users and no gangs: one queue, and each pod is a job.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
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
    header_of,
    nodes_of,
    once,
    run_time,
    table,
)

NAME = "openb"
NODE_COLUMNS = frozenset({"sn", "cpu_milli", "memory_mib", "gpu", "model"})
POD_COLUMNS = frozenset({"name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"})
TIMES = frozenset({"creation_time", "scheduled_time", "deletion_time"})
USUAL_SHARE = 0.95  # of the pods, whose shapes are the usual demand


@dataclass(frozen=True, slots=True)
class Machine:
    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    model: str


@dataclass(frozen=True, slots=True)
class Pod:
    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    gpu_milli: int  # of each GPU
    spec: str = ""  # the models that it accepts, apart by |; empty: any

    @property
    def milli(self) -> int:
        return self.gpus * self.gpu_milli


def machines(file: File) -> list[Machine]:
    known: set[str] = set()
    return [_machine(row, known) for row in table(file, NODE_COLUMNS, NAME)]


def _machine(row: Row, known: set[str]) -> Machine:
    name = once(known, row.text("sn"), row.bad(f"sn {row.values['sn']} is given twice"))
    gpus = row.whole("gpu")
    # Nodes without GPUs name no model.
    return Machine(name, row.whole("cpu_milli"), row.whole("memory_mib"), gpus, row.text("model") if gpus else row.values["model"].strip() or "none")


def pods(file: File, *, columns: frozenset[str] = POD_COLUMNS) -> list[tuple[Row, Pod]]:
    known: set[str] = set()
    return [(row, _pod(row, known)) for row in table(file, columns, NAME)]


def _pod(row: Row, known: set[str]) -> Pod:
    name = once(known, row.text("name"), row.bad(f"name {row.values['name']} is given twice"))
    gpus = row.whole("num_gpu")
    milli = row.whole("gpu_milli", 1 if gpus else 0) if gpus or row.values["gpu_milli"].strip() else 0
    if milli > 1000 or (gpus > 1 and milli != 1000):
        raise row.bad(f"gpu_milli is {milli} with {gpus} GPUs; 1000 is a whole GPU, and less is of one GPU alone")
    return Pod(name, row.whole("cpu_milli"), row.whole("memory_mib"), gpus, milli, row.values.get("gpu_spec", "").strip())


def usual(listed: Sequence[Pod]) -> list[dict[str, Any]]:
    """The commonest shapes, up to those that cover most of the pods."""
    counts = Counter((pod.cpu_milli, pod.gpus, pod.gpu_milli, pod.spec) for pod in listed)
    found, covered = [], 0
    for (cpu, gpus, milli, spec), count in sorted(counts.items(), key=lambda one: (-one[1], tuple(map(str, one[0])))):
        if covered >= USUAL_SHARE * len(listed):
            break
        covered += count
        found.append({"share": count / len(listed), **asked(Pod("", cpu, 0, gpus, milli, spec))})
    return found


def node(machine: Machine) -> dict[str, Any]:
    return {
        "name": machine.name,
        "gpu_type": machine.model,
        "quota_type": NAME,
        "gpus": machine.gpus,
        "cpus": machine.cpu_milli / 1000,
        "host_memory_gb": machine.memory_mib / 1024,
    }


def asked(pod: Pod) -> dict[str, Any]:
    """What a pod asks for of a node, but for its memory."""
    found: dict[str, Any] = {"cpus": pod.cpu_milli / 1000}
    if pod.spec:
        found["gpu_types"] = pod.spec.split("|")
    return found | ({"gpu_share": pod.gpu_milli / 1000} if pod.gpus == 1 and pod.gpu_milli < 1000 else {"gpus": pod.gpus})


def job(pod: Pod, quota: str) -> dict[str, Any]:
    wanted = {"name": "worker", **asked(pod), "host_memory_gb": pod.memory_mib / 1024}
    return {"name": pod.name, "quota": quota, "roles": [wanted], **({"sharing": "mps"} if "gpu_share" in wanted else {})}


def imported(files: Sequence[File], shapes: Sequence[Shape]) -> Imported:
    """The nodes are those of the list `sn, cpu_milli, …`, where it is among the files."""
    lists: list[File] = [file for file in files if "sn" not in header_of(file)]
    fleets: list[File] = [file for file in files if "sn" in header_of(file)]
    if not lists:
        raise TraceFault("No list of pods is among the files: its columns are name, cpu_milli, memory_mib, num_gpu, gpu_milli and times.")
    if bool(fleets) == bool(shapes):
        raise TraceFault("Nodes are either those of a list (sn, cpu_milli, memory_mib, gpu, model) or those of --nodes.")
    nodes = [node(machine) for file in fleets for machine in machines(file)] or [one | {"quota_type": NAME} for one in nodes_of(shapes, "GPU")]
    found = Imported(nodes, [{"name": NAME, "guaranteed": None}], settings={"sharing_trust": "any"})
    listed = [pair for file in lists for pair in pods(file, columns=POD_COLUMNS | TIMES)]
    found.demand = usual([pod for _, pod in listed])
    for row, pod in listed:
        created = row.number("creation_time")
        if why := _unplayable(row, pod):
            found.left_out[why] += 1
            continue
        began, ended = row.number("scheduled_time"), row.number("deletion_time")
        best_effort = row.values.get("qos", "").strip() == "BE"
        entry = job(pod, NAME) | {"preemptible": best_effort, "work_s": run_time(began, ended)}
        found.jobs.append((created, entry))
    return found


def _unplayable(row: Row, pod: Pod) -> str | None:
    if not pod.gpus and not pod.cpu_milli:
        return NOTHING_ASKED
    if not row.values["scheduled_time"].strip():
        return NEVER_RAN
    if not row.values["deletion_time"].strip():
        return STILL_RUNS
    return BACKWARDS if row.number("deletion_time") < row.number("scheduled_time") else None
