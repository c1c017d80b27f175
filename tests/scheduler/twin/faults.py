"""Broken scenarios: one fault each, with the JSON path that has to be named. `None` where the document as a whole is meant."""

import copy
import json
from collections.abc import Callable
from typing import Any

from .builders import at, job, node, quota, running, scenario

Json = dict[str, Any]
Path = tuple[str | int, ...]


def sound() -> Json:
    """A scenario that has a bit of everything, and no fault."""
    shared = job("p", "org/b", sharing="mps", roles=[{"name": "worker", "gpu_share": 0.5}])
    sliced = job("s", "org/b", sharing="mig", roles=[{"name": "worker", "mig": "1g.10gb"}])
    waiting = job("w", "org/a", workers=2, most=4, topology={"required": "rack", "preferred": "node"}, checkpoint={"interval_s": 60})
    document = scenario(
        levels=["rack"],
        nodes=[
            node("n1", path={"rack": "r1"}, mig=[{"gpu": 7, "instances": [{"profile": "3g.40gb", "start": 4}]}]),
            node("n2", path={"rack": "r1"}, islands=[[0, 1, 2, 3], [4, 5, 6, 7]], unhealthy_gpus=[7]),
        ],
        quotas=[quota("org", 16), quota("org/a", 8, parent="org"), quota("org/b", 4, parent="org", limit=8)],
        jobs=[waiting, running("r", at("n1", 0, 1), quota="org/a"), running("t", at("n2", 0), quota="org/b"), shared, sliced],
        max_moves=4,
        fairness={"usage_weight": 0.5},
    )
    document["reservations"] = [{"name": "f", "quota": "org/a", "gpus": 4, "gpu_type": "H100-SXM-80GB", "start": 3600, "end": 7200}]
    document["demand"] = [{"share": 0.5, "gpus": 1}]
    return document


def put(*path: str | int, value: Any) -> Callable[[Json], Path]:
    """Write a bad value; the path of the value is the one to name."""

    def break_it(document: Json) -> Path:
        place: Any = document
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value
        return path

    return break_it


def drop(*path: str | int) -> Callable[[Json], Path]:
    def break_it(document: Json) -> Path:
        place: Any = document
        for step in path[:-1]:
            place = place[step]
        del place[path[-1]]
        return path

    return break_it


def twice(name: str) -> Callable[[Json], Path]:
    """Repeat the first row of a list."""

    def break_it(document: Json) -> Path:
        document[name].append(copy.deepcopy(document[name][0]))
        return (name, len(document[name]) - 1)

    return break_it


def _on_an_instance(where: str, gpu: int) -> Callable[[Json], Path]:
    """Let a job run on a MIG instance that the node does not have."""

    def break_it(document: Json) -> Path:
        document["jobs"][4].update(state="running", started=-60, workers=[at(where, gpu, mig={"profile": "1g.10gb", "start": 0})])
        return ("jobs", 4, "workers", 0, "mig")

    return break_it


NAN = float("nan")
BREAKS: dict[str, Callable[[Json], Path]] = {
    "format of another time": put("format", value="gpufleet-scenario/9"),
    "no now": drop("now"),
    "now without a zone": put("now", value="2026-11-20T09:00:00"),
    "unknown key at the top": put("colour", value=1),
    "unknown setting": put("settings", "max_move", value=4),
    "unknown key of a node": put("nodes", 0, "gpu", value=8),
    "unknown key of a quota": put("quotas", 0, "guarantee", value=8),
    "unknown key of a job": put("jobs", 0, "limit", value=60),
    "unknown key of a role": put("jobs", 0, "roles", 0, "gpu", value=1),
    "unknown key of a checkpoint": put("jobs", 0, "checkpoint", "every_s", value=1),
    "unknown pass": put("settings", "passes", value=["allocate", "evict"]),
    "a setting of the wrong kind": put("settings", "backfill", value="yes"),
    "a length below zero": put("settings", "hysteresis_s", value=-1),
    "a level named twice": put("topology", "levels", value=["rack", "rack"]),
    "a node outside the levels": drop("nodes", 0, "path", "rack"),
    "GPUs below zero": put("nodes", 0, "gpus", value=-8),
    "half a GPU in a node": put("nodes", 0, "gpus", value=7.5),
    "not a number": put("nodes", 0, "gpu_memory_gb", value=NAN),
    "unknown health": put("nodes", 0, "health", value="fine"),
    "an unhealthy GPU that is not there": put("nodes", 0, "unhealthy_gpus", value=[8]),
    "islands that share a GPU": put("nodes", 1, "islands", value=[[0, 1], [1, 2]]),
    "two nodes of one name": twice("nodes"),
    "a MIG layout that can't exist": put("nodes", 0, "mig", 0, "instances", value=[{"profile": "4g.40gb", "start": 4}]),
    "MIG instances that overlap": put(
        "nodes", 0, "mig", 0, "instances", value=[{"profile": "3g.40gb", "start": 4}, {"profile": "1g.10gb", "start": 5}]
    ),
    "a MIG profile of another board": put("nodes", 0, "mig", 0, "instances", value=[{"profile": "1g.5gb", "start": 0}]),
    "a cycle in the tree": put("quotas", 0, "parent", value="org/a"),
    "a parent that is not there": put("quotas", 1, "parent", value="dept"),
    "numbers and maps in one tree": put("quotas", 1, "guaranteed", value={"H100-SXM-80GB": 4}),
    "a weight below zero": put("quotas", 1, "weight", value=-1),
    "an infinite guarantee": put("quotas", 1, "guaranteed", value=float("inf")),
    "two quotas of one name": twice("quotas"),
    "a window of nobody": put("reservations", 0, "quota", value="org/z"),
    "a window that ends before it starts": put("reservations", 0, "end", value=60),
    "a window of a type that is not there": put("reservations", 0, "gpu_type", value="B200-180GB"),
    "demand on a level that is not there": put("demand", 0, "required", value="hall"),
    "two jobs of one name": twice("jobs"),
    "a job in an unknown queue": put("jobs", 0, "quota", value="org/z"),
    "a job in an inner queue": put("jobs", 0, "quota", value="org"),
    "an unknown class": put("jobs", 0, "class", value="urgent"),
    "a job without roles": put("jobs", 0, "roles", value=[]),
    "a minimum above the maximum": put("jobs", 0, "roles", 0, "max", value=1),
    "workers below zero": put("jobs", 0, "roles", 0, "min", value=-2),
    "a part of a GPU as gpus": put("jobs", 0, "roles", 0, "gpus", value=0.5),
    "a step of zero": put("jobs", 0, "roles", 0, "step", value=0),
    "a level that is not there": put("jobs", 0, "topology", "required", value="hall"),
    "an unknown state": put("jobs", 1, "state", value="lost"),
    "a worker on a node that is not there": put("jobs", 1, "workers", 0, "node", value="n9"),
    "a worker on a GPU that is not there": put("jobs", 1, "workers", 0, "gpus", value=[0, 8]),
    "a worker of an unknown role": put("jobs", 1, "workers", 0, "role", value="boss"),
    "two placements on one GPU": put("jobs", 2, "workers", 0, value=at("n1", 1)),
    "a placement on a split GPU": put("jobs", 2, "workers", 0, value=at("n1", 7)),
    "an instance on a GPU that is not split": _on_an_instance("n1", 6),
    "an instance that its split GPU does not have": _on_an_instance("n1", 7),
    "one GPU twice": put("jobs", 1, "workers", 0, "gpus", value=[0, 0]),
    "a time that is none": put("jobs", 0, "submitted", value="yesterday"),
    "a list where an object belongs": put("jobs", 0, "checkpoint", value=[1]),
    "a share above the whole": put("jobs", 3, "roles", 0, "gpu_share", value=1.5),
    "time slices for batch": put("jobs", 3, "sharing", value="timeslice"),
    "a slice that is asked for exclusively": put("jobs", 4, "sharing", value="exclusive"),
    "an object where a list belongs": put("nodes", value={}),
}


def broken(name: str) -> tuple[str, Path]:
    """The broken document as text, and the path of its fault."""
    document = sound()
    path = BREAKS[name](document)
    return json.dumps(document), path


def named(path: Path, faults: list[str]) -> bool:
    """Whether a fault stands at the path, or at the row or the value that holds it."""
    spelt = _spell(path)
    near = _spell(path[:-1]) if len(path) > 2 else spelt
    return any(fault == near or fault.startswith(spelt) or spelt == fault for fault in faults)


def _spell(path: Path) -> str:
    return "$" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
