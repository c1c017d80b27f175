"""Replicas of a service that start anew, over HTTP: begun, looked at, and stopped."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from ninja import Router, Schema
from pydantic import Field

from gpufleet.core.etags import IF_MATCH, revision_wanted, stamped
from gpufleet.core.taken import Taken
from gpufleet.core.times import now
from gpufleet.web import access_of
from scheduler.api.lists import answered
from scheduler.models import Job, ReplacementEnd, StepEnd
from scheduler.selectors.jobs import job_for
from scheduler.selectors.replacing import ReplacementTold, replacements_told
from scheduler.services.jobs.replacing import (
    LONGEST_WITHIN,
    MOST_UNAVAILABLE,
    SHORTEST_WITHIN,
    WITHIN,
    job_replace,
    job_replace_stop,
    replacement_foreseen,
)

router = Router(tags=["Jobs"])


class ReplacedOut(Schema):
    """One replica of a replacement."""

    index: int = Field(description="Its number in the role.", examples=[2])
    began_at: datetime | None = Field(description="When it was taken down; null before.", examples=["2026-03-02T10:02:15Z"])
    over_at: datetime | None = Field(description="When the new one could serve, or its turn ended otherwise.", examples=["2026-03-02T10:02:41Z"])
    end: str | None = Field(description="How its turn ended; null before.", json_schema_extra={"enum": [*StepEnd.values, None]}, examples=["ready"])


class ReplacementOut(Schema):
    """Replicas of a role that start anew, a few at a time, each in its place."""

    role: str = Field(description="Of which role.", examples=["worker"])
    at: datetime
    by: str = Field(description="Name of the person who began it.", examples=["Ada Okafor"])
    reason: str
    max_unavailable: int = Field(description="So many replicas at most are not able to serve at a time because of it.", examples=[1])
    within_s: int = Field(description="A new replica can serve within so many seconds, or the rest stays as it is.", examples=[600])
    over_at: datetime | None = Field(description="When it ended; null as long as it goes on.", examples=["2026-03-02T10:12:15Z"])
    end: str | None = Field(
        description="How it ended; null as long as it goes on.", json_schema_extra={"enum": [*ReplacementEnd.values, None]}, examples=["done"]
    )
    why: str = Field(description="Why it stopped.", examples=[""])
    done: int = Field(description="So many replicas have had their turn.", examples=[3])
    replicas: list[ReplacedOut] = Field(description="Each replica that had its place when it began.")


class ReplacementsOut(Schema):
    """The newest five, the latest first."""

    items: list[ReplacementOut]
    revision: int = Field(description="Of the job; its `ETag` for `If-Match`.")


class ReplaceLookOut(Schema):
    """What a replacement would do now."""

    role: str = Field(description="Of which role.", examples=["worker"])
    replicas: list[int] = Field(description="Numbers of the replicas that would start anew, in this order.", examples=[[0, 1, 2]])
    sentences: list[str] = Field(description="As the page says it.", examples=[["3 replicas of worker start anew on their own GPUs, one at a time."]])


class ReplaceAsked(Taken):
    role: str = Field("", max_length=100, description="Which role; needed only where several have a range.")
    max_unavailable: int = Field(1, ge=1, le=MOST_UNAVAILABLE, description="So many at a time.")
    within_s: int = Field(
        WITHIN, ge=SHORTEST_WITHIN, le=LONGEST_WITHIN, description="A new replica that cannot serve within so many seconds stops the rest."
    )


class ReplaceIn(ReplaceAsked):
    reason: str = Field("", max_length=280, description="Kept in the job's history and in the audit log.")


class ReplaceStopIn(Taken):
    reason: str = Field("", max_length=280, description="Kept in the job's history and in the audit log.")


@router.get("/jobs/{public_id}/replacements", response=ReplacementsOut, url_name="job_replacements", summary="Replacements of a job's replicas")
def job_replacements(request: HttpRequest, public_id: str) -> HttpResponse:
    return _told(job_for(access_of(request), public_id))


@router.post(
    "/jobs/{public_id}/replacements",
    response={201: ReplacementsOut},
    url_name="job_replacements",
    openapi_extra=IF_MATCH,
    summary="Replace the replicas of a service",
)
def job_replacement_begin(request: HttpRequest, public_id: str, body: ReplaceIn) -> HttpResponse:
    """Each replica is signalled, gets its grace period, and starts again on its own GPUs; the next follows once the new one can serve. 409 for a job
    that is no running service, whose back-end starts no single replica anew, or whose replicas are being replaced already."""
    access = access_of(request)
    job_replace(
        access=access,
        job=job_for(access, public_id),
        role=body.role,
        max_unavailable=body.max_unavailable,
        within_seconds=body.within_s,
        reason=body.reason,
        now=now(),
        revision=revision_wanted(request),
    )
    return _told(job_for(access, public_id), 201)


@router.post(
    "/jobs/{public_id}/replacements/preview", response=ReplaceLookOut, url_name="job_replacement_look", summary="Preview a replacement of replicas"
)
def job_replacement_look(request: HttpRequest, public_id: str, body: ReplaceAsked) -> HttpResponse:
    """What `POST` with the same body would do now. Nothing is written."""
    access = access_of(request)
    job = job_for(access, public_id)
    found = replacement_foreseen(access=access, job=job, role=body.role, max_unavailable=body.max_unavailable, within_seconds=body.within_s)
    return answered({"role": found.role, "replicas": list(found.workers), "sentences": found.sentences})


@router.post(
    "/jobs/{public_id}/replacements/stop",
    response=ReplacementsOut,
    url_name="job_replacement_stop",
    openapi_extra=IF_MATCH,
    summary="Stop a replacement of replicas",
)
def job_replacement_stopped(request: HttpRequest, public_id: str, body: ReplaceStopIn) -> HttpResponse:
    """No further replica is taken down; those that are being replaced start again all the same. 409 where none are being replaced."""
    access = access_of(request)
    job_replace_stop(access=access, job=job_for(access, public_id), reason=body.reason, now=now(), revision=revision_wanted(request))
    return _told(job_for(access, public_id))


def _told(found: Job, status: int = 200) -> HttpResponse:
    items = [_replacement(one) for one in replacements_told(found, now=now())]
    answer = stamped(answered({"items": items, "revision": found.revision}), found.revision)
    answer.status_code = status
    return answer


def _replacement(one: ReplacementTold) -> dict[str, Any]:
    row = one.row
    steps = [{"index": step.worker, "began_at": step.began_at, "over_at": step.over_at, "end": step.end or None} for step in one.steps]
    return {
        "role": row.role,
        "at": row.at,
        "by": row.actor_name,
        "reason": row.reason,
        "max_unavailable": row.max_unavailable,
        "within_s": row.within_seconds,
        "over_at": row.over_at,
        "end": row.end or None,
        "why": row.why,
        "done": one.done,
        "replicas": steps,
    }
