"""Builders of scenarios as plain data: what a test mentions is what it is about."""

from typing import Any

from scheduler.engine.cycle import make_plan
from scheduler.scenarios.reading import parse

H100 = "H100-SXM-80GB"
A100 = "A100-SXM-40GB"
NOW = "2026-11-20T09:00:00Z"


def node(name: str, gpus: int = 8, **fields: Any) -> dict[str, Any]:
    return {"name": name, "gpu_type": H100, "gpus": gpus, "gpu_memory_gb": 80, **fields}


def leafed(count: int, per_leaf: int = 2, gpus: int = 8, **fields: Any) -> list[dict[str, Any]]:
    """Nodes under the level `leaf`, so many to each."""
    return [node(f"n{i:03d}", gpus, path={"leaf": f"l{i // per_leaf:03d}"}, **fields) for i in range(count)]


def quota(name: str, guaranteed: Any = 0, **fields: Any) -> dict[str, Any]:
    return {"name": name, "guaranteed": guaranteed, **fields}


def job(name: str, quota_name: str = "q", gpus: int = 1, workers: int = 1, **fields: Any) -> dict[str, Any]:
    role = {"min": workers, "max": fields.pop("most", workers), "gpus": gpus, **fields.pop("role", {})}
    return {"name": name, "quota": quota_name, "submitted": -100, "roles": [role], **fields}


def at(node_name: str, *gpus: int, index: int = 0, **fields: Any) -> dict[str, Any]:
    return {"role": "worker", "index": index, "node": node_name, "gpus": list(gpus), **fields}


def running(name: str, places: list[dict[str, Any]], quota_name: str = "q", **fields: Any) -> dict[str, Any]:
    gpus = len(places[0]["gpus"])
    workers = [{**place, "index": index} for index, place in enumerate(places)]
    fields.setdefault("started", -50)
    made = job(name, quota_name, gpus, fields.pop("least", len(places)), state="running", **fields)
    return {**made, "workers": workers}


def scene(nodes: list[dict[str, Any]], quotas: list[dict[str, Any]], jobs: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    if any("leaf" in one.get("path", {}) for one in nodes):
        fields.setdefault("topology", {"levels": ["leaf"]})
    return {"format": "gpufleet-scenario/1", "now": NOW, "nodes": nodes, "quotas": quotas, "jobs": jobs, **fields}


def plan_of(scenario: dict[str, Any]) -> dict[str, Any]:
    return make_plan(parse(scenario)).as_json()


def actions(plan: dict[str, Any]) -> dict[str, str]:
    """What the plan does to each job; keeping a place is not doing."""
    return {one["job"]: one["action"] for one in plan["decisions"] if one["action"] not in ("reserve", "repartition")}


def reasons(plan: dict[str, Any], name: str) -> set[str]:
    return {one["code"] for waiting in plan["waiting"] if waiting["job"] == name for one in waiting["reasons"]}


def placed(plan: dict[str, Any], name: str) -> list[str]:
    """The nodes of a job's workers in rank order."""
    return [worker["node"] for one in plan["decisions"] if one.get("job") == name for worker in one.get("workers", [])]
