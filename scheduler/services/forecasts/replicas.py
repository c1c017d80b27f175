"""Why a replica that is wanted of a service has no place yet: one more is tried on the fleet of a moment, as a job of its own."""

from datetime import datetime

from scheduler.engine.model.values import QUEUED
from scheduler.engine.model.values import Job as Planned
from scheduler.jobs.stored import PARTS, role_named
from scheduler.models import HOLDING, Job
from scheduler.selectors.loop import pause_now
from scheduler.services.forecasts.grounds import GROUNDS, PAUSED, Side

ONLY_IDLE = "No GPUs are idle for it. Replicas above the minimum take idle GPUs and the surplus of elastic jobs only."
SOON = "GPUs are free for it. It is placed once no waiting job needs them for its minimum."
BESIDE = "It needs idle GPUs beside its other workers, in the same"
NOT_RUNNING = "The job does not run yet."
TRIED = ("gpus", *PARTS, "devices", "gpu_types", "cpus", "host_memory_gb", "topology", "name")


class _Unread(Exception):
    """The engine cannot be shown it, as a level of the fleet that it names has gone, say."""


def replica_awaited(job: Job, role: str, *, now: datetime) -> str:
    """In words, which may name other jobs; empty where the fleet is not at hand."""
    if job.state not in HOLDING:
        return NOT_RUNNING
    if pause_now():
        return PAUSED
    if not GROUNDS.at_hand(now):
        return ""
    try:
        answer = GROUNDS.trial(lambda side: _one_more(job, role, side), now, dated=False)
    except _Unread:
        return ""
    if answer is None:
        return ""
    found, _ = answer
    if found.stands:
        if level := _level_of(job, role):
            return f"{BESIDE} {level}."
        return ONLY_IDLE if found.others or found.after else SOON
    return found.reasons[0].detail if found.reasons else ""


def _level_of(job: Job, role: str) -> str:
    """The level of the fleet in one domain of which all its workers stand; empty: anywhere. Of one more alone a trial does not know that."""
    stated = (one.get("topology") or {} for one in (role_named(job.spec, role), job.spec))
    return next((str(placing["required"]) for placing in stated if placing.get("required")), "")


def _one_more(job: Job, role: str, side: Side) -> Planned:
    """As many workers as a step has: fewer are not added."""
    one, spec = role_named(job.spec, role), dict(job.spec)
    spec["roles"] = [{key: one[key] for key in TRIED if key in one} | {"min": int(one.get("step", 1))}]
    if not any(one.get(part) for part in PARTS):
        spec.pop("sharing", None)  # which was said of another role
    asks = side.snapshots.kinds.asks(spec, job.job_class, job.priority, job.preemptible)
    if isinstance(asks, str):
        raise _Unread(asks)
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
