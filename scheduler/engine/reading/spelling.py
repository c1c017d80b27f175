"""A typed scenario as plain data again: reading the result gives the same scenario, and so the same plan."""

import json
from typing import Any
from zlib import crc32

from ..model.plan import seconds
from ..model.values import (
    CLASSES,
    QUEUED,
    UNSTATED_CPU_MILLI,
    UNSTATED_MEMORY_MIB,
    Amount,
    ByClass,
    Checkpoint,
    Demand,
    Job,
    Kind,
    Node,
    Placed,
    Placing,
    Preemptible,
    Quota,
    Role,
    Scenario,
    Settings,
    Topology,
    Window,
)
from ..state.fleet import bits_of
from .checkers import spell_instant, thousandths

MILLION = 1_000_000
_PREEMPTIBLE = {Preemptible.ALWAYS: True, Preemptible.NEVER: False, Preemptible.WHEN_BORROWED: "when_borrowed"}


def spelt(scenario: Scenario) -> dict[str, Any]:
    return {
        "format": "gpufleet-scenario/1",
        "now": spell_instant(scenario.now),
        "settings": _settings(scenario.settings),
        "topology": _topology(scenario.topology),
        "nodes": [_node(node, scenario.topology) for node in scenario.nodes],
        "quotas": [_quota(quota) for quota in scenario.quotas],
        "reservations": [_window(window) for window in scenario.windows],
        "demand": [_demand(part) for part in scenario.demand],
        "jobs": [_job(job) for job in scenario.jobs],
    }


def _demand(part: Demand) -> dict[str, Any]:
    asked: dict[str, Any] = {"gpus": part.gpus} if part.share_milli is None else {"gpu_share": part.share_milli / 1000}
    if part.cpu_milli:
        asked["cpus"] = thousandths(part.cpu_milli)
    if part.gpu_types:
        asked["gpu_types"] = list(part.gpu_types)
    return {"share": part.share / MILLION, **asked, "workers": part.workers, "required": part.required}


def _time(instant: int | None) -> str | None:
    return None if instant is None else spell_instant(instant)


def _length(milliseconds: int | None) -> int | float | None:
    return None if milliseconds is None else seconds(milliseconds)


def _by_class(values: ByClass) -> dict[str, int | float | None]:
    return {name: _length(values.of(rank)) for rank, name in enumerate(CLASSES)}


def _settings(settings: Settings) -> dict[str, Any]:
    return {
        "placement": settings.placement,
        "passes": list(settings.passes),
        "max_moves": settings.max_moves,
        "preempt_min_runtime_s": _length(settings.preempt_min_runtime_ms),
        "reclaim_min_runtime_s": _length(settings.reclaim_min_runtime_ms),
        "stale_grace_s": _length(settings.stale_grace_ms),
        "hysteresis_s": _length(settings.hysteresis_ms),
        "backfill_depth": settings.backfill_depth,
        "backfill_notice_s": _length(settings.backfill_notice_ms),
        "overrun": settings.overrun_millionths / MILLION,
        "window_horizon_s": _length(settings.window_horizon_ms),
        "repartition_per_hour": settings.repartition_per_hour,
        "max_wait_s": _by_class(settings.max_wait_ms),
        "worth": _by_class(settings.worth_gpu_ms),
        "fairness": {
            "half_life_s": _length(settings.fairness.half_life_ms),
            "usage_weight": settings.fairness.usage_weight_millionths / MILLION,
            "step_s": _length(settings.fairness.step_ms),
        },
        "sharing_trust": settings.sharing_trust,
        "forecast": settings.forecast,
    }


def _topology(topology: Topology) -> dict[str, Any]:
    return {
        "levels": list(topology.levels),
        "rails": topology.rails,
        "bandwidth_gbps": {name: value / MILLION for name, value in topology.bandwidth_gbps},
        "oversubscription": {name: value / MILLION for name, value in topology.oversubscription},
    }


def _node(node: Node, topology: Topology) -> dict[str, Any]:
    document: dict[str, Any] = {
        "name": node.name,
        "gpu_type": node.gpu_type,
        "quota_type": node.quota_type,
        "gpus": node.gpus,
        "gpu_memory_gb": node.gpu_memory_mib / 1024,
        "cluster": node.path[0],
        "path": dict(zip(topology.levels, node.path[1:], strict=True)),
        "island": node.island,
        "islands": [list(bits_of(mask)) for mask in node.islands] or None,
        "health": node.health,
        "unhealthy_gpus": list(bits_of(node.unhealthy)),
        "spare": node.spare,
        "labels": dict(node.labels),
        "attributes": {name: value / MILLION for name, value in node.attributes},
        "mig": [
            {"gpu": gpu, "instances": [{"profile": one.profile, "start": one.start} for one in node.mig if one.gpu == gpu]}
            for gpu in bits_of(node.split)
        ],
    }
    if node.repartitioned:
        document["repartitioned"] = [spell_instant(at) for at in node.repartitioned]
    if node.cpu_milli != UNSTATED_CPU_MILLI:
        document["cpus"] = thousandths(node.cpu_milli)
    if node.host_memory_mib != UNSTATED_MEMORY_MIB:
        document["host_memory_gb"] = node.host_memory_mib / 1024
    return document


def _amount(amount: Amount) -> Any:
    if amount.by_type is not None:
        return {name: value / 1000 for name, value in amount.by_type}
    return None if amount.total is None else amount.total / 1000


def _quota(quota: Quota) -> dict[str, Any]:
    return {
        "name": quota.name,
        "parent": quota.parent,
        "guaranteed": _amount(quota.guaranteed),
        "limit": _amount(quota.limit),
        "weight": {name: weight / 1000 for name, weight in quota.weights} if quota.weights else quota.weight / 1000,
        "priority": dict(quota.priorities) if quota.priorities else quota.priority,
        "preempt_min_runtime_s": _length(quota.preempt_min_runtime_ms),
        "reclaim_min_runtime_s": _length(quota.reclaim_min_runtime_ms),
        "created": _time(quota.created),
        "usage": {name: value / MILLION for name, value in quota.usage},
    }


def _window(window: Window) -> dict[str, Any]:
    return {
        "name": window.name,
        "quota": window.quota,
        "class": None if window.class_rank is None else CLASSES[window.class_rank],
        "gpus": window.gpus / 1000,
        "gpu_type": window.gpu_type,
        "level": window.level,
        "start": _time(window.start),
        "end": _time(window.end),
        "notice_s": _length(window.notice_ms),
        "decay_s": _length(window.decay_ms),
    }


def _placing(placing: Placing) -> dict[str, Any]:
    return {
        "required": placing.required,
        "preferred": placing.preferred,
        "tp_group": placing.tp_group,
        "span_clusters": placing.span_clusters,
    }


def _role(role: Role) -> dict[str, Any]:
    document: dict[str, Any] = {
        "name": role.name,
        "min": role.least,
        "max": role.most,
        "step": role.step,
        "desired": role.desired,
        "gpu_types": list(role.gpu_types) or None,
        "cpus": thousandths(role.cpu_milli),
        "host_memory_gb": role.host_memory_mib / 1024,
        "topology": None if role.placing is None else _placing(role.placing),
    }
    if role.mig is not None:
        document |= {"mig": role.mig, "devices": role.devices}
    elif role.memory_mib is not None:
        document |= {"gpu_memory_gb": role.memory_mib / 1024, "devices": role.devices}
    elif role.share_milli is not None:
        document |= {"gpu_share": role.share_milli / 1000, "devices": role.devices}
    else:
        document["gpus"] = role.gpus
    return {key: value for key, value in document.items() if value is not None}


def _worker(worker: Placed, kind: Kind) -> dict[str, Any]:
    document: dict[str, Any] = {
        "role": kind.roles[worker.role].name,
        "index": worker.index,
        "node": worker.node,
        "gpus": list(bits_of(worker.gpus)),
    }
    if worker.mig:
        document["mig"] = [{"profile": profile, "start": start} for _, profile, start in worker.mig]
    elif worker.share_milli is not None and kind.roles[worker.role].share_milli is not None:
        document["gpu_share"] = worker.share_milli / 1000
    return document


def _checkpoint(checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "interval_s": _length(checkpoint.interval_ms),
        "last": _time(checkpoint.last),
        "save_s": _length(checkpoint.save_ms),
        "restore_s": _length(checkpoint.restore_ms),
    }


def _job(job: Job) -> dict[str, Any]:
    kind, run = job.kind, job.run
    document: dict[str, Any] = {
        "name": job.name,
        "quota": job.quota,
        "class": CLASSES[kind.class_rank],
        "priority": kind.priority,
        "preemptible": _PREEMPTIBLE[kind.preemptible],
        "submitted": _time(job.submitted),
        "roles": [_role(role) for role in kind.roles],
        "topology": _placing(kind.placing),
        "sharing": kind.sharing,
        "node_labels": dict(kind.labels),
        "needs": {name: value / MILLION for name, value in kind.needs},
        "tolerates_suspect": kind.tolerates_suspect,
        "preemption_delay_s": _length(kind.preemption_delay_ms),
        "estimate_s": _length(job.estimate_ms),
        "limit_s": _length(job.limit_ms),
        "deadline": _time(job.deadline),
        "not_before": _time(job.not_before),
        "grace_s": _length(kind.grace_ms),
        "throughput": {name: value / MILLION for name, value in kind.throughput},
        "work_s": _length(job.work_ms),
    }
    document = {key: value for key, value in document.items() if value is not None and value != {}}
    if job.checkpoint is not None:
        document["checkpoint"] = _checkpoint(job.checkpoint)
    elif not job.movable:
        document["checkpoint"] = None
    if run != QUEUED:
        standing = {
            "state": run.state,
            "since": _time(run.since),
            "started": _time(run.started),
            "until": _time(run.until),
            "workers": [_worker(worker, kind) for worker in run.workers],
            "leaving": [_worker(worker, kind) for worker in run.leaving],
            "backfilled": run.backfilled,
            "degraded_since": _time(run.degraded_since),
            "last_evicted": _time(run.last_evicted),
            "last_moved": _time(run.last_moved),
            "evictions": run.evictions,
            "reclaimed": _time(run.reclaimed),
        }
        document |= {key: value for key, value in standing.items() if value is not None and value != []}
    return document


JOBS_A_BLOCK = 256


class Speller:
    """Scenarios as bytes of JSON, one after the other. What is the same object as last time is not spelt again."""

    def __init__(self) -> None:
        self._jobs: dict[str, tuple[Job, bytes, bool]] = {}
        self._fixed: tuple[tuple[Any, ...], bytes] = ((), b"")

    def spell(self, scenario: Scenario) -> bytes:
        return b"".join(self.blocks(scenario))

    def blocks(self, scenario: Scenario) -> list[bytes]:
        """The document in parts, most of which are the same bytes as last time: a part ends where a job's name says so, not after so many jobs."""
        jobs: dict[str, tuple[Job, bytes, bool]] = {}
        head = {"format": "gpufleet-scenario/1", "now": spell_instant(scenario.now), "settings": _settings(scenario.settings)}
        found, part = [_bytes(head)[:-1] + b",", self._rest(scenario) + b',"jobs":['], list[bytes]()
        for job in scenario.jobs:
            known = self._jobs.get(job.name)
            if known is None or known[0] is not job:
                known = (job, _bytes(_job(job)), not crc32(job.name.encode()) % JOBS_A_BLOCK)
            jobs[job.name] = known
            part.append(known[1])
            if known[2]:
                found.append(b",".join(part) + b",")
                part.clear()
        self._jobs = jobs
        if not part and jobs:
            found[-1] = found[-1][:-1]
        return [*found, b",".join(part) + b"]}"]

    def _rest(self, scenario: Scenario) -> bytes:
        """What changes seldom: nodes, quotas and what belongs to them."""
        parts = (scenario.topology, scenario.nodes, scenario.quotas, scenario.windows, scenario.demand)
        if len(self._fixed[0]) != len(parts) or any(one is not other for one, other in zip(self._fixed[0], parts, strict=True)):
            document = spelt(Scenario(scenario.now, scenario.settings, *parts, ()))
            for key in ("format", "now", "settings", "jobs"):
                del document[key]
            self._fixed = (parts, _bytes(document)[1:-1])
        return self._fixed[1]


def _bytes(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
