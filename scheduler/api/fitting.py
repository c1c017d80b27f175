"""Asking before submitting, over HTTP."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from ninja import Body, Query, Router, Schema
from pydantic import Field

from gpufleet.core.times import now
from gpufleet.web import Can, access_of
from scheduler.api.job_told import DeferralOut
from scheduler.api.jobs import SUBMISSION
from scheduler.api.lists import answered
from scheduler.api.why import ReasonOut
from scheduler.presenters.fitting import fit_facts
from scheduler.services.forecasts.fitting import fit_of
from scheduler.services.forecasts.grounds import AGAIN_SECONDS

router = Router(tags=["Jobs"])


class PlaceOut(Schema):
    node: str
    gpus: int


class ChangeOut(Schema):
    """`to` is null where the key is better left out."""

    path: str
    to: Any
    at: datetime
    now: bool
    text: str


class OnTypeOut(Schema):
    """How it would run on one type. `cut`: its limit ends it before its work is done. `chosen`: what the rest of the answer speaks of."""

    gpu_type: str
    speed: float
    run_s: int | None
    cut: bool
    cost_micros: int | None
    chosen: bool


class FitOut(Schema):
    """`verdict`: now, soon (once others have left), later, held, never or unknown. `earliest` and `latest` are the range around `at`.

    `as_of` is the moment of the fleet that was looked at. Money is null for those who may not see costs, and where there is no rate or no length.
    """

    verdict: str
    at: datetime | None
    earliest: datetime | None
    latest: datetime | None
    as_of: datetime
    reasons: list[ReasonOut]
    waits_for: list[str]
    places: list[PlaceOut]
    gpu_type: str | None
    gpus_milli: int
    count: int
    quota: str
    guaranteed: bool
    quota_text: str
    preemptible: str
    takers_text: str
    others: list[str]
    notes: list[str] = Field(description="What else narrows where it may run, in words.")
    run_s: int | None
    cost_micros: int | None
    limit_cost_micros: int | None
    all_gpus_milli: int = Field(description="Of all jobs of an array together.")
    all_cost_micros: int | None
    on_types: list[OnTypeOut] = Field(
        description="The types that it accepts, as they are tried: of a job that states speeds, or is not tried on the fastest first."
    )
    types_text: list[str] = Field(description="Which type is tried first and why, and where it never runs, in words.")
    speeds_of: str | None = Field(description="The template whose speeds it was given, as it states none.")
    speeds_number: int | None = Field(description="Which speeds of that template: they are numbered.")
    deferral: DeferralOut | None = Field(description="Of a job that states `defer` and is not held back: to which hour it would be deferred.")
    changes: list[ChangeOut]


class FitReadingOut(Schema):
    """The fleet is being read: the first time, or after nobody asked for minutes. Ask again after `retry_after_s`."""

    detail: str
    retry_after_s: int


def being_read() -> HttpResponse:
    answer = answered({"detail": "The fleet is being read. Ask again in a moment.", "retry_after_s": AGAIN_SECONDS})
    answer.status_code = 202
    answer["Retry-After"] = str(AGAIN_SECONDS)
    return answer


class FitQuery(Schema):
    changes: bool = Field(True, description="Whether to look for changes that start it sooner.")


@router.post(
    "/fit",
    response={200: FitOut, 202: FitReadingOut},
    url_name="job_fit",
    openapi_extra=SUBMISSION,
    summary="Whether, when and where a job would start",
)
def job_fit(request: HttpRequest, asked: Query[FitQuery], body: Body[dict[str, Any]]) -> HttpResponse:
    """Nothing is submitted. The description is checked as a submission is; of an array the first job is looked at.

    202 says that the console is still reading the fleet, which takes some seconds where thousands of jobs wait: ask again, as `Retry-After` says.
    """
    access = access_of(request)
    access.must_somewhere(Can.SUBMIT)
    fit = fit_of(access=access, description=body, now=now(), changes=asked.changes)
    if fit is None:
        return being_read()
    return answered(fit_facts(fit, access))
