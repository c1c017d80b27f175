"""When a job was taken off its GPUs and what that cost, over HTTP."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from ninja import Router, Schema
from pydantic import Field

from gpufleet.web import access_of
from scheduler.api.lists import answered
from scheduler.presenters.evictions import EvictionLine, evictions_said, evictions_told
from scheduler.selectors.discretion import Discretion
from scheduler.selectors.evictions import job_evictions
from scheduler.selectors.jobs import job_attempts, job_for

router = Router(tags=["Jobs"])


class ServedOut(Schema):
    """The job that it was done for; all empty where the caller may not know it."""

    id: str
    name: str
    quota: str


class EvictionOut(Schema):
    at: datetime
    kind: str = Field(description="evicted, moved, shrunk, grown, repaired (both by moving it) or restarted (by a person).")
    attempt: int
    text: str = Field(description="All of it in a few sentences.")
    served: ServedOut | None = Field(alias="for", description="Null where it was for no other job, or that is not known any more.")
    code: str | None = Field(description="Of the reason; null of what happened before codes were kept, and of what people did.")
    cause: str
    plan: int | None = Field(description="Which decided it, while it is kept, for those who see the whole fleet.")
    by: str | None = Field(description="The person who restarted it.")
    grace_s: float | None = Field(description="How long it had to leave.")
    left_s: float | None = Field(description="How long it took.")
    gave_back_milli: int | None = Field(description="Of a gang that shrank and went on with the rest.")
    lost_s: float | None = Field(description="The work that has to be done again, null while it is not known, and of a gang that went on.")
    lost_gpu_hours: float | None
    saved_step: int | None = Field(description="The last that this attempt saved whole.")
    saved_in_time: bool = Field(description="It saved this step during its grace period: nothing is lost.")
    then: str = Field(description="leaving, waiting, starting, again, completed, ended or went_on.")
    resumed_step: int | None = Field(description="Null: from the beginning, or not yet.")
    resumed_at: datetime | None = Field(description="When it ran again.")
    waited_s: float | None = Field(description="From having gone to running again.")


class EvictionsOut(Schema):
    """The latest first. The sums are of what is known."""

    items: list[EvictionOut]
    counts: dict[str, int]
    lost_s: float
    lost_gpu_hours: float


EXAMPLE = {
    "responses": {
        200: {
            "content": {
                "application/json": {
                    "examples": {
                        "reclaimed": {
                            "summary": "Preempted once, for a job of a team that reclaimed its GPUs",
                            "value": {
                                "items": [
                                    {
                                        "at": "2026-11-20T13:00:00Z",
                                        "kind": "evicted",
                                        "attempt": 1,
                                        "text": "Evicted for j-18 (reclaim). Lost: 1.6 GPU-hours, 12 min of work since step 1,200. "
                                        "It went on from step 1,200 after 40 min.",
                                        "for": {"id": "j-18", "name": "fine-tune", "quota": "acme/research/nlp"},
                                        "code": "reclaim",
                                        "cause": "Acme/research takes back 8 GPUs.",
                                        "plan": None,
                                        "by": None,
                                        "grace_s": 60.0,
                                        "left_s": 20.0,
                                        "gave_back_milli": None,
                                        "lost_s": 720.0,
                                        "lost_gpu_hours": 1.6,
                                        "saved_step": 1200,
                                        "saved_in_time": False,
                                        "then": "again",
                                        "resumed_step": 1200,
                                        "resumed_at": "2026-11-20T13:40:20Z",
                                        "waited_s": 2400.0,
                                    }
                                ],
                                "counts": {"evicted": 1},
                                "lost_s": 720.0,
                                "lost_gpu_hours": 1.6,
                            },
                        }
                    }
                }
            }
        }
    }
}


@router.get(
    "/jobs/{public_id}/evictions",
    response=EvictionsOut,
    by_alias=True,
    url_name="job_evictions",
    openapi_extra=EXAMPLE,
    summary="Preemptions of a job: for which job, why, and what was lost",
)
def evictions(request: HttpRequest, public_id: str) -> HttpResponse:
    """Every time that it was evicted, moved or shrunk. Jobs of other teams are named only where the caller may see them."""
    access = access_of(request)
    job = job_for(access, public_id)
    found = job_evictions(access, job, job_attempts(job))
    told = evictions_told(found, Discretion(access, evictions_said(found)))
    return answered(
        {
            "items": [_eviction(line) for line in told.lines],
            "counts": found.counts,
            "lost_s": found.lost.milliseconds / 1000,
            "lost_gpu_hours": round(found.lost.gpu_hours, 6),
        }
    )


def _eviction(line: EvictionLine) -> dict[str, Any]:
    row, job = line.eviction, line.served
    served = {"id": job.public_id, "name": job.name, "quota": job.quota.path} if job else {"id": "", "name": "", "quota": ""}
    return {
        "at": row.at,
        "kind": row.kind,
        "attempt": row.attempt,
        "text": line.text,
        "for": served if row.served is not None else None,
        "code": row.code or None,
        "cause": line.why,
        "plan": row.plan,
        "by": row.by or None,
        "grace_s": row.grace_seconds,
        "left_s": row.left_seconds,
        "gave_back_milli": row.gave_back_milli,
        "lost_s": row.loss.milliseconds / 1000 if row.loss is not None else None,
        "lost_gpu_hours": round(row.loss.gpu_hours, 6) if row.loss is not None else None,
        "saved_step": row.saved_step,
        "saved_in_time": row.saved_in_time,
        "then": row.then,
        "resumed_step": row.resumed_step,
        "resumed_at": row.resumed_at,
        "waited_s": row.waited_seconds,
    }
