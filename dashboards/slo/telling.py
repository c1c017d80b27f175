"""What is told of breaches, on the page Activity and by webhooks. It names no job of others."""

from dashboards.slo.causes import Cause
from dashboards.slo.models import BreachEnd, ServiceBreach, ServiceLevel
from dashboards.slo.words import ms_told
from dashboards.telling import Event
from gpufleet.core.templatetags.shell import duration
from scheduler.notify.happenings import FleetEvent


def breach_begins(level: ServiceLevel, breach: ServiceBreach, cause: Cause) -> Event:
    job = level.job
    return Event(
        kind=FleetEvent.SERVICE_BREACHED,
        title=f"{job.name} is over its objective",
        text=f"{level.title} {ms_told(breach.worst_ms)}, objective {ms_told(breach.objective_ms)}. {cause.publicly}",
        path=job.quota.path,
        job=job.public_id,
        link=f"/jobs/{job.public_id}/",
        subject={"job": job.public_id, "latency_ms": breach.worst_ms, "objective_ms": breach.objective_ms, "cause": str(cause.kind)},
    )


def breach_ends(breach: ServiceBreach, *, by: str = "gpufleet") -> Event:
    assert breach.until is not None, "it has ended"
    job, lasted = breach.job, breach.until - breach.since
    why = BreachEnd(breach.end).label
    return Event(
        kind=FleetEvent.SERVICE_RESOLVED,
        title=f"{job.name} {'meets its objective again' if breach.end == BreachEnd.MET else 'is no longer watched'}",
        text=f"{why} after {duration(lasted.total_seconds())}. Worst latency {ms_told(breach.worst_ms)}, objective {ms_told(breach.objective_ms)}.",
        path=job.quota.path,
        job=job.public_id,
        link=f"/jobs/{job.public_id}/",
        subject={"job": job.public_id, "worst_ms": breach.worst_ms, "objective_ms": breach.objective_ms, "end": str(breach.end)},
        by=by,
    )
