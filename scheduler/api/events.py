"""What happened to a job, over HTTP."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from ninja import Query, Router, Schema
from pydantic import AwareDatetime, Field

from gpufleet.core.times import whole_millis
from gpufleet.web import access_of
from scheduler.api.lists import answered
from scheduler.models import JobEvent
from scheduler.selectors.discretion import Discretion
from scheduler.selectors.jobs import job_events_page, job_for

router = Router(tags=["Jobs"])


class EventOut(Schema):
    """One step of a job's life, or a note about it. Of a note both states are null."""

    at: datetime
    from_state: str | None
    to_state: str | None
    cause: str
    by: str
    attempt: int | None = Field(description="Number of the run that it belongs to.")


class EventsOut(Schema):
    """The latest first. `next` goes into `after`; null where nothing older is kept, or nothing since the moment that was asked for."""

    items: list[EventOut]
    next: str | None


class EventsQuery(Schema):
    limit: int = Field(100, ge=1, le=1000, description="How many, the latest first.")
    after: str = Field("", max_length=2000, description="The `next` of the page before.")
    since: AwareDatetime | None = Field(None, description="Only what happened then or later.")


@router.get("/jobs/{public_id}/events", response=EventsOut, url_name="job_events", summary="What happened to a job")
def job_history(request: HttpRequest, public_id: str, asked: Query[EventsQuery]) -> HttpResponse:
    """Kept for 400 days. To follow a job ask again with the `at` of the newest as `since`: the events of that very moment are told again."""
    access = access_of(request)
    since = whole_millis(asked.since) if asked.since else None
    page = job_events_page(job_for(access, public_id), size=asked.limit, after=asked.after, since=since)
    told = Discretion(access, [event.cause for event in page.rows])
    return answered({"items": [_event(event, told) for event in page.rows], "next": page.after or None})


def _event(event: JobEvent, told: Discretion) -> dict[str, Any]:
    return {
        "at": event.at,
        "from_state": event.from_state or None,
        "to_state": event.to_state or None,
        "cause": told.text(event.cause),
        "by": event.actor_name,
        "attempt": event.attempt.number if event.attempt else None,
    }
