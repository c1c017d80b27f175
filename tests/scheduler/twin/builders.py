"""Small scenarios and plans by hand: everything has a default, so that a test names only what it is about."""

from typing import Any

Json = dict[str, Any]
H100 = "H100-SXM-80GB"


def node(name: str, gpus: int = 8, **more: Any) -> Json:
    return {"name": name, "gpu_type": H100, "gpus": gpus, "gpu_memory_gb": 80, **more}


def quota(name: str, guaranteed: Any = 0, **more: Any) -> Json:
    return {"name": name, "parent": None, "guaranteed": guaranteed, "created": -86400, **more}


def job(name: str, quota: str = "a", *, workers: int = 1, gpus: int = 1, **more: Any) -> Json:
    roles = [{"name": "worker", "min": workers, "max": more.pop("most", workers), "step": more.pop("step", 1), "gpus": gpus}]
    return {"name": name, "quota": quota, "submitted": -600, "roles": roles, **more}


def at(node: str, *gpus: int, index: int = 0, role: str = "worker", **part: Any) -> Json:
    return {"role": role, "index": index, "node": node, "gpus": list(gpus), **part}


def running(name: str, *workers: Json, quota: str = "a", started: float = -3600, **more: Any) -> Json:
    """A job that runs, of as many workers as are listed unless `roles` says otherwise."""
    placed = [{**worker, "index": index} if "mig" not in worker else worker for index, worker in enumerate(workers)]
    asked = job(name, quota, workers=len(workers), gpus=len(workers[0]["gpus"]), **more)
    return {**asked, "state": "running", "since": started, "started": started, "submitted": started, "workers": placed}


def scenario(*, nodes: list[Json], quotas: list[Json], jobs: list[Json] | None = None, levels: list[str] | None = None, **settings: Any) -> Json:
    return {
        "format": "gpufleet-scenario/1",
        "now": "2026-11-20T09:00:00Z",
        "settings": settings,
        "topology": {"levels": levels or []},
        "nodes": nodes,
        "quotas": quotas,
        "reservations": [],
        "jobs": jobs or [],
    }


def start(name: str, *workers: Json, after: list[str] | None = None, **more: Any) -> Json:
    return {"action": "start", "job": name, "workers": list(workers), "after": after or [], "backfilled": False, "why": {"code": "fits"}, **more}


def evict(name: str, code: str, asker: str) -> Json:
    return {"action": "evict", "job": name, "why": {"code": code, "for": asker, "detail": f"makes room for {asker}"}, "grace_s": 0}


def plan(*decisions: Json, waiting: tuple[str, ...] = ()) -> Json:
    return {
        "format": "gpufleet-plan/1",
        "now": "2026-11-20T09:00:00Z",
        "decisions": list(decisions),
        "waiting": [{"job": name, "reasons": [{"code": "capacity", "detail": "too few GPUs are free"}]} for name in waiting],
        "shares": [],
        "next_wake": None,
        "metrics": {},
    }
