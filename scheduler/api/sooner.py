"""What would start a waiting job sooner, over HTTP."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from ninja import Router, Schema

from gpufleet.core.times import now
from gpufleet.web import access_of
from scheduler.api.fitting import FitReadingOut, being_read
from scheduler.api.lists import answered
from scheduler.jobs.writing import description_again
from scheduler.presenters.sooner import proposals
from scheduler.selectors.jobs import job_for
from scheduler.services.forecasts.sooner import job_sooner

router = Router(tags=["Jobs"])


class ProposalOut(Schema):
    """One change; `to` is null where the key is better left out.

    `in_place`: the job can be changed so as it stands; else it is meant as submitted again so, and this one cancelled.
    """

    path: str
    to: Any
    at: datetime
    now: bool
    in_place: bool
    text: str


class SoonerOut(Schema):
    """Up to three changes that start it sooner, tried on the fleet of `as_of`. `at` is when it starts as it is; `note` says why nothing was tried."""

    id: str
    as_of: datetime
    at: datetime | None
    note: str
    changes: list[ProposalOut]


@router.get(
    "/jobs/{public_id}/sooner",
    response={200: SoonerOut, 202: FitReadingOut},
    url_name="job_sooner",
    summary="What would start a waiting job sooner",
)
def job_earlier(request: HttpRequest, public_id: str) -> HttpResponse:
    """For those who may steer the job. Nothing is changed by asking; each change was tried, with the job at its place in the queue.

    202 says that the console is still reading the fleet: ask again, as `Retry-After` says.
    """
    access = access_of(request)
    found = job_for(access, public_id)
    sooner = job_sooner(access=access, job=found, description=description_again(found, with_launch=True), now=now())
    if sooner is None:
        return being_read()
    keys = ("path", "to", "at", "now", "in_place", "text")
    changes = [{key: getattr(one, key) for key in keys} for one in proposals(found, sooner)]
    return answered({"id": found.public_id, "as_of": sooner.as_of, "at": sooner.at, "note": sooner.idle, "changes": changes})
