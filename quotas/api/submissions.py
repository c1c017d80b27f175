"""The limits on submissions of a node of the quota tree for programs, as its page tells them."""

from typing import Any

from django.conf import settings
from django.http import HttpRequest
from ninja import Router, Schema
from pydantic import Field

from gpufleet.core.times import now
from gpufleet.web import access_of
from quotas.permissions import Can
from quotas.selectors.nodes import node_for
from scheduler.selectors.submission_limits import submission_use

router = Router(tags=["Quotas"])


class SubmitterOut(Schema):
    username: str = Field(description="The person who submits.", examples=["sam"])
    jobs: int = Field(description="How many jobs.", examples=[400])


class SubmissionsOut(Schema):
    """A node with all below it. A limit of null is none."""

    rate_per_minute: int | None = Field(description="Jobs that may be submitted in a minute.", examples=[600])
    rate_stated_at: str | None = Field(description="Path of the node that states the rate.", examples=["acme/research"])
    room: int | None = Field(description="Jobs that the rate lets pass at once now.", examples=[5577])
    person_rate_per_minute: int | None = Field(description="Jobs that each person may submit in a minute.", examples=[1000])
    submitted: int = Field(description="Jobs of the last 10 minutes.", examples=[423])
    busiest: list[SubmitterOut] = Field(description="Five people at most, the one with most jobs of the last 10 minutes first.")
    waiting: int = Field(description="Jobs that wait.", examples=[1204])
    waiting_limit: int | None = Field(description="Jobs that may wait at once.", examples=[20000])
    waiting_stated_at: str | None = Field(
        description="Path of the node that states that limit; null: it is the setting's, for each queue.", examples=["acme/research"]
    )


@router.get(
    "/quotas/{public_id}/submissions", response=SubmissionsOut, url_name="quota_submissions", summary="Submission limits of a node, and their use"
)
def quota_submissions(request: HttpRequest, public_id: str) -> dict[str, Any]:
    access = access_of(request)
    access.must_somewhere(Can.SEE)
    use = submission_use(node_for(access, public_id), now=now())
    return {
        "rate_per_minute": use.rate.most if use.rate else None,
        "rate_stated_at": use.rate.path if use.rate else None,
        "room": use.room if use.rate else None,
        "person_rate_per_minute": settings.SUBMITS_PER_MINUTE or None,
        "submitted": use.submitted,
        "busiest": [{"username": one.username, "jobs": one.jobs} for one in use.busiest],
        "waiting": use.waiting,
        "waiting_limit": use.waiting_limit.most if use.waiting_limit else use.each_waiting or None,
        "waiting_stated_at": use.waiting_limit.path if use.waiting_limit else None,
    }
