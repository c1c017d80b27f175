"""Carrying a plan out on paper: on the scenario's own JSON, decision by decision."""

import copy
from collections.abc import Iterator
from typing import Any

from .world import Reader, Worker, World, read

CHANGES = ("evict", "shrink", "start", "repair", "grow", "move")
Json = dict[str, Any]


def _job(scenario: Json, name: str) -> Json:
    return next(job for job in scenario["jobs"] if job["name"] == name)


def spelt(worker: Worker) -> Json:
    """A worker as a plan writes it."""
    raw: Json = {"role": worker.role, "index": worker.index, "node": worker.node, "gpus": list(worker.gpus)}
    if worker.share is not None:
        raw["gpu_share"] = worker.share / 1000
    if worker.mig is not None:
        raw["mig"] = [{"profile": profile, "start": start} for profile, start in worker.mig]
    return raw


def apply_decision(scenario: Json, decision: Json) -> None:
    """Carry one decision out at once: who is evicted waits again, who is started runs."""
    action = decision["action"]
    if action == "reserve":
        return
    if action == "repartition":
        node = next(node for node in scenario["nodes"] if node["name"] == decision["node"])
        others = [gpu for gpu in node.get("mig") or [] if gpu["gpu"] != decision["gpu"]]
        split = [{"gpu": decision["gpu"], "instances": decision["instances"]}] if decision["instances"] else []
        node["mig"] = sorted(others + split, key=lambda gpu: gpu["gpu"])
        node["repartitioned"] = [*(node.get("repartitioned") or []), 0]
        return
    job = _job(scenario, decision["job"])
    if action == "evict":
        job.update(state="queued", workers=[], leaving=[], started=None, until=None, since=0, backfilled=False, degraded_since=None, reclaimed=None)
        job.update(last_evicted=0, evictions=job.get("evictions", 0) + 1)
        return
    job["workers"] = copy.deepcopy(decision["workers"])
    if action in ("start", "repair", "grow") and decision["why"]["code"] == "reclaim":
        job["reclaimed"] = 0
    if action == "start":
        job.update(state="running", since=0, started=0, until=None, backfilled=decision.get("backfilled", False))
    elif action == "move":
        job.update(started=0, last_moved=0, backfilled=decision.get("backfilled", False))
    elif action == "repair":
        job.update(degraded_since=None)


def apply_plan(scenario: Json, plan: Json) -> Json:
    """The world after the plan, settled: what a decision waited for is gone, everything else is untouched."""
    after = copy.deepcopy(scenario)
    for decision in plan["decisions"]:
        apply_decision(after, decision)
    waited_for = {name for decision in plan["decisions"] for name in decision.get("after") or []}
    reader = Reader(scenario)
    after["jobs"] = [job for job in after["jobs"] if reader.as_of_now(job).get("state") != "stopping" or job["name"] not in waited_for]
    for job in after["jobs"]:
        if job["name"] in waited_for and job.get("leaving"):
            job["leaving"] = []
    return after


def apply_in_transit(scenario: Json, plan: Json, *, patience_s: int = 900) -> Json:
    """The world a moment after the plan was accepted: victims are stopping, starters hold what was promised to them.

    Boards are shown with their new layout only where nobody had to leave first.
    """
    after = copy.deepcopy(scenario)
    promised, reader = _being_left(scenario), Reader(scenario)
    for decision in plan["decisions"]:
        action = decision["action"]
        if action == "repartition":
            if not decision.get("after"):
                apply_decision(after, decision)
            else:
                node = next(one for one in after["nodes"] if one["name"] == decision["node"])
                node["repartitioned"] = [*(node.get("repartitioned") or []), 0]
            continue
        if action == "reserve":
            continue
        job = _job(after, decision["job"])
        before = copy.deepcopy(job)
        if action == "evict":
            job.update(state="stopping", since=0, until=job.get("grace_s") or 0, last_evicted=0, evictions=job.get("evictions", 0) + 1)
            continue
        apply_decision(after, decision)
        if action == "start":
            job.update(state="reserved", since=0, started=None, until=patience_s)
        kept = [_place(worker) for worker in job["workers"]]
        gone = [worker for worker in before.get("workers") or [] if _place(worker) not in kept]
        gone = [worker for worker in gone if not promised & {(worker["node"], gpu) for gpu in worker["gpus"]}]  # it was never there
        if reader.as_of_now(before).get("state", "queued") != "queued":
            passing = before.get("leaving") or []
            away = {(worker.get("role"), worker.get("index")) for worker in passing}  # who is on his way has not been where he goes
            job["leaving"] = [*passing, *(worker for worker in gone if (worker.get("role"), worker.get("index")) not in away)]
    return after


def _being_left(scenario: Json) -> set[tuple[str, int]]:
    """The GPUs that somebody is on his way out of: who holds them beside him was promised them, and is not there yet."""
    passing = [
        w for job in scenario["jobs"] for w in [*(job.get("leaving") or []), *((job.get("workers") or []) if job.get("state") == "stopping" else [])]
    ]
    return {(worker["node"], gpu) for worker in passing for gpu in worker["gpus"]}


def _place(worker: Json) -> tuple[Any, ...]:
    return (worker["role"], worker["index"], worker["node"], tuple(worker["gpus"]), repr(worker.get("mig")))


def steps(scenario: Json, plan: Json) -> Iterator[tuple[Json, World]]:
    """Each decision with the world just before it."""
    current = copy.deepcopy(scenario)
    for decision in plan["decisions"]:
        yield decision, read(current)
        apply_decision(current, decision)
