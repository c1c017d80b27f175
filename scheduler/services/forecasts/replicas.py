"""Why a replica that is wanted of a service has no place yet: one more is tried on the fleet of a moment, as a job of its own."""

from datetime import datetime

from scheduler.engine.model.values import QUEUED
from scheduler.engine.model.values import Job as Planned
from scheduler.jobs.stored import name_of, roles_of
from scheduler.models import HOLDING, Job
from scheduler.selectors.loop import pause_now
from scheduler.services.forecasts.fitting import GROUNDS, PAUSED, Side

ONLY_IDLE = "No GPUs are idle for it. Replicas above the minimum take idle GPUs and the surplus of elastic jobs only."
SOON = "GPUs are free for it. It is placed once no waiting job needs them for its minimum."
NOT_RUNNING = "The job does not run yet."


def replica_awaited(job: Job, role: str, *, now: datetime) -> str:
    """In words, which may name other jobs; empty where the fleet is not at hand."""
    if job.state not in HOLDING:
        return NOT_RUNNING
    if pause_now():
        return PAUSED
    if not GROUNDS.at_hand(now):
        return ""
    answer = GROUNDS.trial(lambda side: _one_more(job, role, side), now, dated=False)
    if answer is None:
        return ""
    found, _ = answer
    if found.stands:
        return ONLY_IDLE if found.others or found.after else SOON
    return found.reasons[0].detail if found.reasons else ""


def _one_more(job: Job, role: str, side: Side) -> Planned:
    spec = dict(job.spec)
    kept = ("gpus", "mig", "gpu_memory_gb", "gpu_share", "devices", "gpu_types", "cpus", "host_memory_gb", "topology", "name")
    spec["roles"] = [{key: one[key] for key in kept if key in one} | {"min": 1} for one in roles_of(job.spec) if name_of(one) == role]
    asks = side.snapshots.kinds.asks(spec, job.job_class, job.priority, job.preemptible)
    assert not isinstance(asks, str), asks
    side.kinds += 1
    assert side.ground is not None
    return Planned(
        name=side.ground.name,
        quota=job.quota.path,
        kind=asks.kind,
        submitted=side.ground.scenario.now,
        estimate_ms=None if job.estimate_seconds is None else 1000 * job.estimate_seconds,
        limit_ms=None if job.limit_seconds is None else 1000 * job.limit_seconds,
        deadline=None,
        not_before=None,
        checkpoint=asks.saving,
        movable=asks.movable,
        work_ms=None,
        run=QUEUED,
    )
