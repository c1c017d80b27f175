"""Why a job waits, over HTTP."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from ninja import Router, Schema
from pydantic import Field

from gpufleet.core.times import now
from gpufleet.web import access_of
from scheduler.api.job_told import NowOut, now_told
from scheduler.api.lists import answered
from scheduler.models import Outlook, Prediction
from scheduler.presenters.blocking import Blocker, blockers_now
from scheduler.presenters.queue import why_there
from scheduler.selectors.blocking import Holders
from scheduler.selectors.discretion import Discretion
from scheduler.selectors.foreseen import foreseen_start
from scheduler.selectors.jobs import WAITING, job_for, job_rows, job_waits_for, may_steer
from scheduler.selectors.predictions import Record, prediction_of, record_of
from scheduler.services.forecasts.grounds import GROUNDS
from scheduler.services.forecasts.outlooks import outlook_now

router = Router(tags=["Jobs"])


class HolderOut(Schema):
    """A job that holds something of it; `id`, `name` and `quota` are empty where the caller may not know them."""

    id: str
    name: str
    quota: str
    gpus: float
    ends_at: datetime | None


class TeamHoldsOut(Schema):
    """`quota` is empty for all teams together that the caller may not know."""

    quota: str
    gpus: float


class HoldersOut(Schema):
    """Jobs that hold what a reason is about, those that leave first in front; `others` counts further jobs, and `gpus` and `teams` count all.

    `missing_gpus` have to be given back (null where that can't be counted), by estimates at `enough_at`, if nobody else takes them.
    """

    jobs: list[HolderOut]
    others: int
    gpus: float
    teams: list[TeamHoldsOut]
    missing_gpus: float | None
    enough_at: datetime | None


class UnblockOut(Schema):
    """What would end it, in a sentence; `at` is when that comes by itself, as far as it is known."""

    text: str
    at: datetime | None


class ReasonOut(Schema):
    code: str
    detail: str
    unblock: UnblockOut | None = None
    holders: HoldersOut | None = None


class PromiseOut(Schema):
    after: list[str]
    until: datetime


class FirstToldOut(Schema):
    """What the job was told first of its start, `at` that moment; `started_at` is what came of it."""

    at: datetime
    earliest: datetime
    expected: datetime
    latest: datetime
    started_at: datetime | None


class RecordOut(Schema):
    """How good such words were lately. `as_far_ahead`: of starts that were told about as far ahead as this one; else of all.

    `error_s` is the median distance between the start and what was told, `width_s` and `wait_s` are medians of the ranges and of the waits.
    """

    starts: int
    as_far_ahead: bool
    inside_percent: float
    error_s: int
    width_s: int
    wait_s: int


class WhyOut(Schema):
    """All that stands in a job's way, as the last plan saw it. Reasons carry further facts, which depend on their code."""

    id: str
    state: str
    now: NowOut
    looked_at: datetime | None
    reasons: list[ReasonOut]
    predicted_start: datetime | None
    earliest_start: datetime | None
    latest_start: datetime | None
    predicted_at: datetime | None
    late_since: datetime | None
    would_start_if: dict[str, Any] | None
    promise: PromiseOut | None
    waits_for: list[str]
    may_steer: bool
    first_told: FirstToldOut | None = Field(description="Null for a job without a prediction.")
    record: RecordOut | None = Field(description="For a waiting job with a prediction.")


@router.get("/jobs/{public_id}/why", response=WhyOut, url_name="job_why", summary="Why a job waits")
def job_why(request: HttpRequest, public_id: str) -> HttpResponse:
    """What is said of other teams names them only where the caller may see them."""
    access = access_of(request)
    found = job_for(access, public_id)
    moment, waits_for = now(), job_waits_for(access, found)
    row = job_rows(access, [found])[0]
    outlook, promise = outlook_now(found, row.outlook, now=moment), row.promise
    start = foreseen_start(found, outlook)
    queue = GROUNDS.queue_at_hand(moment) if found.state in WAITING else None
    turn = queue.turn_of(found.public_id) if queue else None
    said: list[Any] = [outlook.reasons, outlook.would_start_if] if outlook else []
    first = prediction_of(found)
    record = record_of(first, now=moment) if first and found.state in WAITING else None
    told = Discretion(access, [*said, *([why_there(turn)] if turn else [])])
    return answered(
        {
            "id": found.public_id,
            "state": found.state,
            "now": now_told(row),
            "looked_at": row.outlook.at if row.outlook else None,
            "reasons": _reasons(outlook, told, blockers_now(access, found, outlook, told, waits_for=waits_for, turn=turn, now=moment)),
            "predicted_start": start and start.at,
            "earliest_start": start and start.earliest,
            "latest_start": start and start.latest,
            "predicted_at": start and start.told_at,
            "late_since": start and start.late_since,
            "would_start_if": told.value(outlook.would_start_if) if outlook else None,
            "promise": {"after": row.discretion.value(promise.after), "until": promise.until} if promise else None,
            "waits_for": [one.job.public_id for one in waits_for if one.named],
            "may_steer": may_steer(access, found),
            "first_told": _first_told(first) if first else None,
            "record": _record(record) if record else None,
        }
    )


def _first_told(first: Prediction) -> dict[str, Any]:
    return {key: getattr(first, key) for key in ("at", "earliest", "expected", "latest", "started_at")}


def _record(record: Record) -> dict[str, Any]:
    score = record.score
    lengths = {"error_s": score.error_seconds, "width_s": score.width_seconds, "wait_s": score.wait_seconds}
    return {"starts": score.starts, "as_far_ahead": record.as_far, "inside_percent": round(score.inside_percent, 1), **lengths}


def _reasons(outlook: Outlook | None, told: Discretion, found: Sequence[Blocker]) -> list[dict[str, Any]]:
    return [told.value(reason) | _blocker(one) for reason, one in zip(outlook.reasons, found, strict=True)] if outlook else []


def _blocker(one: Blocker) -> dict[str, Any]:
    unblock = {"unblock": {"text": one.unblock, "at": one.at}} if one.unblock else {}
    return unblock | ({"holders": _holders_out(one.holders)} if one.holders else {})


def _holders_out(held: Holders) -> dict[str, Any]:
    jobs = [{"id": one.job_id, "name": one.job_name, "quota": one.quota, "gpus": one.gpus_milli / 1000, "ends_at": one.ends_at} for one in held.first]
    return {
        "jobs": jobs,
        "others": held.others,
        "gpus": held.gpus_milli / 1000,
        "teams": [{"quota": team, "gpus": milli / 1000} for team, milli in held.teams],
        "missing_gpus": None if held.missing_milli is None else held.missing_milli / 1000,
        "enough_at": held.enough_at,
    }
