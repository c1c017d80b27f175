"""Service levels of jobs over HTTP: what the job's page shows, and states."""

from datetime import datetime
from typing import Any, Literal

from django.http import HttpRequest, HttpResponse
from ninja import Query, Router, Schema, Status
from pydantic import Field

from dashboards.courses import job_range, job_ranges, job_time
from dashboards.slo.models import QUERY_LENGTH, TITLE_LENGTH, BreachCause, BreachEnd
from dashboards.slo.selectors import level_course, level_missing, level_told
from dashboards.slo.services import MOST_MS, QUERIES, TITLE, service_level_remove, service_level_set
from dashboards.telemetry.api import JobRangeQuery, OverTime
from gpufleet.core.etags import IF_MATCH, revision_wanted, stamped
from gpufleet.core.taken import Taken
from gpufleet.core.times import now
from gpufleet.web import Access, access_of
from quotas.api.lists import ReasonQuery
from scheduler.models import Job
from scheduler.selectors.jobs import job_attempts, job_for, may_steer

router = Router(tags=["Jobs"])


class ServiceBreachOut(Schema):
    """A time in which its latency was over the objective of then, and why as far as the data says."""

    since: datetime
    until: datetime | None = Field(description="Null as long as it goes on.", examples=["2026-03-02T10:02:11Z"])
    end: str | None = Field(
        description="How it ended; null as long as it goes on.", json_schema_extra={"enum": [*BreachEnd.values, None]}, examples=["met"]
    )
    objective_ms: int = Field(description="What was to be kept to then.", examples=[250])
    worst_ms: float = Field(description="The highest latency of that time.", examples=[412.5])
    cause: str = Field(description="Its cause.", json_schema_extra={"enum": [*BreachCause.values]}, examples=["capacity"])
    text: str = Field(description="The cause in words, as far as the reader may know it.", examples=["Runs 4 of 6 replicas wanted."])


class ServiceApartOut(Schema):
    """A template beside whose jobs the service is predicted to miss its objective."""

    template: str | None = Field(description="Null to readers who may not see it.", examples=["acme/research/nlp:train"])
    where: Literal["gpu", "node"] = Field(description="`node`: on no node together; `gpu`: no MIG instances of both on one node.", examples=["node"])
    predicted_ms: int = Field(description="What its latency would be there.", examples=[310])


class ServiceReliefOut(Schema):
    """What the scheduler does next about a breach because of co-tenants."""

    state: Literal["off", "next", "stays", "gone", "looking"] = Field(
        description="`off`: the fleet-wide rule `relief` asks for nothing; `next`: a job is evicted if the breach lasts; `stays`: no job can be; "
        "`gone`: no co-tenant is left; `looking`: it is not known yet.",
        examples=["next"],
    )
    job: str | None = Field(description="The job that is evicted next; null to readers who may not see it.", examples=["j-17"])
    at: datetime | None = Field(description="When it is evicted, if the breach lasts.", examples=["2026-03-02T10:12:11Z"])
    stays: list[str] = Field(description="Why other jobs beside it are not evicted.", examples=[["j-12 is not preemptible."]])


class ServiceRelievedOut(Schema):
    """A job that was evicted to relieve the service."""

    job: str | None = Field(description="Null to readers who may not see it.", examples=["j-17"])
    at: datetime
    latency_ms: float = Field(description="What its latency was then.", examples=[420.0])
    objective_ms: int = Field(description="What was to be kept to then.", examples=[300])
    lost_gpu_seconds: int = Field(description="Work that it lost, as the plan saw it.", examples=[540])
    until: datetime | None = Field(description="Until when it stays off the nodes of the service; null: while the breach lasts.", examples=[None])


class ServiceLevelOut(Schema):
    """What the newest round read, null where it could not: `faults` says why, by query."""

    title: str = Field(description="What the latency is.", examples=[TITLE])
    state: Literal["new", "met", "over", "breached", "unknown", "stale", "ended"] = Field(
        description="`breached`: over its objective for three rounds; `stale`: not asked for in the last 45 seconds; `ended`: the job has.",
        examples=["met"],
    )
    objective_ms: int = Field(description="What its latency should not exceed.", examples=[250])
    latency_ms: float | None = Field(description="Its latency.", examples=[182.0])
    requests: float | None = Field(description="Requests a second.", examples=[41.5])
    replicas_wanted: float | None = Field(description="Replicas wanted.", examples=[4.0])
    replicas: int = Field(description="Workers that have their place.", examples=[4])
    looked_at: datetime | None = Field(description="When it was asked for last; null before.", examples=["2026-03-02T10:02:11Z"])
    read_at: datetime | None = Field(description="When its latency was read last; null before.", examples=["2026-03-02T10:02:11Z"])
    faults: dict[str, str] = Field(
        description="Why a query gave no number.", examples=[{"wanted": "No series: check the name of the metric and its labels."}]
    )
    queries: dict[str, str] | None = Field(
        description="`latency`, `rate` and `wanted` in PromQL; null to readers who may not steer the job.",
        examples=[{"latency": "max(chat_latency_p99_seconds)", "rate": "", "wanted": ""}],
    )
    breaches: list[ServiceBreachOut] = Field(description="The newest ten, the latest first.")
    apart: list[ServiceApartOut] = Field(description="Kept apart from it where the fleet asks for that, the worst first.")
    relief: ServiceReliefOut | None = Field(description="Null unless a breach goes on because of co-tenants.")
    relieved: list[ServiceRelievedOut] = Field(description="The newest ten jobs that were evicted for it, the latest first.")
    helps: list[str] = Field(
        description="What helps while a breach goes on for missing capacity.", examples=[["Set 4 replicas, or let it follow its metric."]]
    )
    revision: int = Field(description="Counts its changes; the `ETag` for `If-Match`.")


class ServiceLevelIn(Taken):
    """What is not named is empty. Each query must give one number."""

    title: str = Field(TITLE, max_length=TITLE_LENGTH, description="What the latency is, such as p99 latency or time to first token.")
    latency: str = Field(max_length=QUERY_LENGTH, description="PromQL that gives seconds.", examples=["max(chat_latency_p99_seconds)"])
    objective_ms: int = Field(ge=1, le=MOST_MS, description="What its latency should not exceed.", examples=[250])
    rate: str = Field("", max_length=QUERY_LENGTH, description="PromQL that gives requests a second.")
    wanted: str = Field("", max_length=QUERY_LENGTH, description="PromQL that gives the replicas wanted; a replica is a worker.")
    reason: str = Field("", max_length=280)


class ServiceHistoryOut(OverTime):
    """Of each step the highest latency, and the newest of the rest; null where nothing was read."""

    objective_ms: list[int | None] = Field(description="Its objective as it was.", examples=[[250, 250]])
    latency_ms: list[float | None] = Field(description="The highest latency.", examples=[[182.0, 190.5]])
    requests: list[float | None] = Field(description="Requests a second.", examples=[[41.5, 40.0]])
    replicas_wanted: list[float | None] = Field(description="Replicas wanted.", examples=[[4.0, 4.0]])
    replicas: list[int | None] = Field(description="Workers that had their place.", examples=[[4, 4]])


@router.get("/jobs/{public_id}/service-level", response=ServiceLevelOut, url_name="service_level", summary="Latency of a service and its objective")
def service_level_get(request: HttpRequest, public_id: str, response: HttpResponse) -> dict[str, Any]:
    """Of a job of the class inference: what Prometheus says of it beside its objective, and when it was over it. 404 where none is set."""
    access = access_of(request)
    return _out(access, job_for(access, public_id), response)


@router.put(
    "/jobs/{public_id}/service-level",
    response=ServiceLevelOut,
    url_name="service_level",
    openapi_extra=IF_MATCH,
    summary="Set the service level of a job",
)
def service_level_put(request: HttpRequest, public_id: str, body: ServiceLevelIn, response: HttpResponse) -> dict[str, Any]:
    """Queries are sent to the Prometheus servers that an operator allows for it, every 15 seconds. The job's description stays as it is."""
    access = access_of(request)
    job, values = job_for(access, public_id), body.dict(exclude={"reason"})
    service_level_set(access=access, job=job, values=values, now=now(), reason=body.reason, revision=revision_wanted(request))
    return _out(access, job, response)


@router.delete("/jobs/{public_id}/service-level", response={204: None}, url_name="service_level", summary="Remove the service level of a job")
def service_level_delete(request: HttpRequest, public_id: str, query: Query[ReasonQuery]) -> Status[None]:
    """It is not read any more. What was read is kept as other history is."""
    access = access_of(request)
    service_level_remove(access=access, job=job_for(access, public_id), now=now(), reason=query.reason)
    return Status(204, None)


@router.get(
    "/jobs/{public_id}/service-level/history", response=ServiceHistoryOut, url_name="service_level_history", summary="A service level over time"
)
def service_level_history(request: HttpRequest, public_id: str, asked: Query[JobRangeQuery]) -> dict[str, Any]:
    """The last 14 days at most."""
    job, moment = job_for(access_of(request), public_id), now()
    attempts = job_attempts(job)
    chosen = job_range(asked.range, job_ranges(attempts, now=moment))
    since, until = job_time(attempts, now=moment, chosen=chosen)
    course = level_course(job, since=since, until=until)
    return {
        "range": chosen.key,
        "step_seconds": int(course.step.total_seconds()),
        "at": course.at,
        "objective_ms": course.objective_ms,
        "latency_ms": course.latency_ms,
        "requests": course.requests,
        "replicas_wanted": course.wanted,
        "replicas": course.replicas,
    }


def _out(access: Access, job: Job, response: HttpResponse) -> dict[str, Any]:
    told = level_told(access, job, now=now())
    level = told.level
    if level is None:
        raise level_missing(job)
    stamped(response, level.revision)
    return {
        "title": level.title,
        "state": told.state,
        "objective_ms": level.objective_ms,
        "latency_ms": level.latency_ms,
        "requests": level.requests,
        "replicas_wanted": level.replicas_wanted,
        "replicas": level.replicas,
        "looked_at": level.looked_at,
        "read_at": level.read_at,
        "faults": told.faults,
        "queries": {name: getattr(level, name) for name in QUERIES} if may_steer(access, job) else None,
        "breaches": [
            {
                "since": one.since,
                "until": one.until,
                "end": one.end or None,
                "objective_ms": one.objective_ms,
                "worst_ms": one.worst_ms,
                "cause": one.cause,
                "text": one.said,
            }
            for one in told.breaches
        ],
        "apart": [{"template": one.ref or None, "where": one.where, "predicted_ms": one.predicted_ms} for one in told.apart],
        "relief": None
        if told.relief is None
        else {"state": told.relief.state, "job": told.relief.name or None, "at": told.relief.at, "stays": list(told.relief.stays)},
        "relieved": [
            {
                "job": one.name or None,
                "at": one.at,
                "latency_ms": one.latency_ms,
                "objective_ms": one.objective_ms,
                "lost_gpu_seconds": one.lost_gpu_seconds,
                "until": one.until,
            }
            for one in told.relieved
        ],
        "helps": [one.text for one in told.helps],
        "revision": level.revision,
    }
