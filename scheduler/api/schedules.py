"""Schedules over HTTP: jobs that are submitted again and again, and what came of each time."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from ninja import Query, Router, Schema, Status
from pydantic import Field

from gpufleet.core.etags import IF_MATCH, revision_wanted, stamped
from gpufleet.core.taken import Taken
from gpufleet.core.times import now
from gpufleet.web import Access, Can, access_of
from quotas.api.lists import ReasonQuery
from scheduler.api.lists import IdempotencyKey, answered, listed, parameters_of
from scheduler.models import Schedule, ScheduleRun
from scheduler.schedules.lists import RUNS, SCHEDULES
from scheduler.schedules.schema import ScheduleIn
from scheduler.selectors.schedules import description_told, may_steer_schedule, schedule_for, schedule_runs, schedules_listed, times_ahead
from scheduler.services.schedules.schedules import (
    schedule_change,
    schedule_create,
    schedule_pause,
    schedule_remove,
    schedule_resume,
    schedule_run_now,
)

router = Router(tags=["Schedules"])


class ScheduleOut(Schema):
    """`state`: active, paused, or ended (no due time lies ahead). Times are due in `zone`, and told in UTC."""

    id: str
    name: str
    quota: str
    owner: str | None
    state: str
    cron: str
    zone: str
    overlap: str
    catch_up: str
    start_within_s: int | None
    starts_at: datetime | None
    ends_at: datetime | None
    paused_at: datetime | None
    paused_by: str
    paused_reason: str
    next_due: datetime | None
    last_due: datetime | None
    revision: int
    created_at: datetime


class SchedulesOut(Schema):
    items: list[ScheduleOut]
    next: str | None
    previous: str | None


class ScheduleDetailOut(ScheduleOut):
    times_ahead: list[datetime] = Field(description="The next five times at which it is due.")
    description: dict[str, Any] = Field(description="The job; `launch` only for readers who may steer the schedule.")
    may_steer: bool


class ScheduleChange(Taken):
    """What is not named stays; null takes a bound away."""

    name: str | None = Field(None, max_length=200)
    description: dict[str, Any] | None = Field(None, description="All of the job. For its owner alone.")
    cron: str | None = Field(None, max_length=200)
    zone: str | None = Field(None, max_length=100)
    overlap: str | None = Field(None, max_length=20)
    catch_up: str | None = Field(None, max_length=20)
    start_within_s: int | None = None
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    take_over: bool = Field(False, description="Become its owner: it is submitted with the caller's rights from now on.")
    reason: str = Field("", max_length=280)


class RunOut(Schema):
    """`outcome`: submitted, skipped (an earlier run had not ended), missed or refused. Times that were missed together are one row:
    `times` of them (1,000 stands for more) from `first_due` to `due_at`. Of an array `jobs` has the first and the last."""

    due_at: datetime
    at: datetime
    outcome: str
    jobs: list[str]
    job_count: int
    note: str
    errors: list[dict[str, str]]
    first_due: datetime | None
    times: int
    by: str


class RunsOut(Schema):
    items: list[RunOut]
    next: str | None
    previous: str | None


class ScheduleReason(Taken):
    reason: str = Field("", max_length=280, description="Kept in the audit log. The reason of a pause is shown to all readers of the schedule.")


OPTIONAL = ("start_within_s", "starts_at", "ends_at")
NEW = {
    "nightly": {
        "summary": "Each night at half past two in Berlin, one at a time",
        "value": {
            "name": "nightly",
            "cron": "30 2 * * *",
            "zone": "Europe/Berlin",
            "overlap": "skip",
            "catch_up": "last",
            "start_within_s": 14400,
            "description": {"quota": "acme/research/nlp", "gpus": 1, "launch": {"command": ["python", "evaluate.py"]}},
        },
    }
}
CHANGE = {"later": {"summary": "An hour later, and in time or not at all", "value": {"cron": "30 3 * * *", "catch_up": "none"}}}


def _examples(examples: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"content": {"application/json": {"examples": examples}}}}


@router.get("/schedules", response=SchedulesOut, url_name="schedules", openapi_extra=parameters_of(SCHEDULES), summary="Schedules")
def schedules(request: HttpRequest) -> HttpResponse:
    return listed(request, SCHEDULES, schedules_listed(access_of(request)), _facts)


@router.post("/schedules", response={201: ScheduleDetailOut}, url_name="schedules", openapi_extra=_examples(NEW), summary="A new schedule")
def schedule_make(request: HttpRequest, body: ScheduleIn) -> HttpResponse:
    """Its job is submitted as the caller, with the rights that he has then. All faults are told at once; those of the job below `description`."""
    access = access_of(request)
    access.must_somewhere(Can.SUBMIT)
    return _told(access, schedule_create(access=access, given=body.model_dump(), now=now()), status=201)


@router.get("/schedules/{public_id}", response=ScheduleDetailOut, url_name="schedule", summary="A schedule with its next due times")
def schedule(request: HttpRequest, public_id: str) -> HttpResponse:
    access = access_of(request)
    return _told(access, schedule_for(access, public_id))


@router.patch(
    "/schedules/{public_id}",
    response=ScheduleDetailOut,
    url_name="schedule",
    openapi_extra=IF_MATCH | _examples(CHANGE),
    summary="Change a schedule",
)
def schedule_update(request: HttpRequest, public_id: str, body: ScheduleChange) -> HttpResponse:
    """With `If-Match` only if nothing has changed. Runs that were submitted are not touched."""
    access = access_of(request)
    given = {key: value for key, value in body.dict(exclude_unset=True).items() if value is not None or key in OPTIONAL}
    found = schedule_for(access, public_id)
    return _told(access, schedule_change(access=access, schedule=found, given=given, revision=revision_wanted(request), now=now()))


@router.delete("/schedules/{public_id}", response={204: None}, url_name="schedule", openapi_extra=IF_MATCH, summary="Remove a schedule")
def schedule_delete(request: HttpRequest, public_id: str, query: Query[ReasonQuery]) -> Status[None]:
    """With what is known of its runs. Its jobs stay, and go on."""
    access = access_of(request)
    schedule_remove(access=access, schedule=schedule_for(access, public_id), reason=query.reason, revision=revision_wanted(request))
    return Status(204, None)


@router.post(
    "/schedules/{public_id}/pause",
    response=ScheduleDetailOut,
    url_name="schedule_pause",
    openapi_extra=IF_MATCH,
    summary="Submit nothing for a while",
)
def schedule_hold(request: HttpRequest, public_id: str, body: ScheduleReason) -> HttpResponse:
    """What runs goes on. Times that pass meanwhile are missed."""
    return _steered(request, public_id, schedule_pause, body)


@router.post(
    "/schedules/{public_id}/resume", response=ScheduleDetailOut, url_name="schedule_resume", openapi_extra=IF_MATCH, summary="Go on with a schedule"
)
def schedule_go_on(request: HttpRequest, public_id: str, body: ScheduleReason) -> HttpResponse:
    return _steered(request, public_id, schedule_resume, body)


@router.post(
    "/schedules/{public_id}/run",
    response={201: RunOut, 200: RunOut},
    url_name="schedule_run",
    openapi_extra=IF_MATCH,
    summary="Submit it once now",
)
def schedule_run(request: HttpRequest, public_id: str, body: ScheduleReason, key: IdempotencyKey) -> HttpResponse:
    """Due now, besides its own times, with its owner's rights. 409 where it skips what overlaps and an earlier run has not ended.

    With an `Idempotency-Key` it may be repeated after a time-out: the same key tells the run of the first request again, with status 200. A key that
    was used for something else is answered with 409.
    """
    access = access_of(request)
    found = schedule_for(access, public_id)
    ran = schedule_run_now(access=access, schedule=found, reason=body.reason, revision=revision_wanted(request), key=key, now=now())
    answer = answered(_run(ran.run))
    answer.status_code = 200 if ran.repeated else 201
    return answer


@router.get(
    "/schedules/{public_id}/runs", response=RunsOut, url_name="schedule_runs", openapi_extra=parameters_of(RUNS), summary="What came of each due time"
)
def runs(request: HttpRequest, public_id: str) -> HttpResponse:
    """Kept for 90 days."""
    return listed(request, RUNS, schedule_runs(schedule_for(access_of(request), public_id)), _run)


def _steered(request: HttpRequest, public_id: str, service: Callable[..., Schedule], body: ScheduleReason) -> HttpResponse:
    access = access_of(request)
    found = schedule_for(access, public_id)
    return _told(access, service(access=access, schedule=found, reason=body.reason, revision=revision_wanted(request), now=now()))


def _told(access: Access, found: Schedule, status: int = 200) -> HttpResponse:
    detail = {
        "times_ahead": times_ahead(found, now()),
        "description": description_told(access, found),
        "may_steer": may_steer_schedule(access, found),
    }
    answer = stamped(answered(_facts(found) | detail), found.revision)
    answer.status_code = status
    return answer


PLAIN = (
    *("name", "state", "cron", "zone", "overlap", "catch_up", "start_within_s", "starts_at", "ends_at"),
    *("paused_at", "paused_by", "paused_reason", "next_due", "last_due", "revision", "created_at"),
)


def _facts(found: Schedule) -> dict[str, Any]:
    own = {"id": found.public_id, "quota": found.quota.path, "owner": found.owner.username if found.owner else None}
    return own | {name: getattr(found, name) for name in PLAIN}


def _run(run: ScheduleRun) -> dict[str, Any]:
    errors = [{"path": path, "message": message} for path, messages in run.faults.items() for message in messages]
    plain = ("due_at", "at", "outcome", "jobs", "job_count", "note", "first_due", "times", "by")
    return {name: getattr(run, name) for name in plain} | {"errors": errors}
