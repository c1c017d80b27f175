"""Why a job waits, over HTTP."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from ninja import Router, Schema

from gpufleet.core.times import now
from gpufleet.web import access_of
from scheduler.api.jobs import NowOut, now_told
from scheduler.api.lists import answered
from scheduler.models import Outlook
from scheduler.selectors.discretion import Discretion
from scheduler.selectors.jobs import job_for, job_rows, job_waits_for
from scheduler.selectors.limits import LimitHolders, limit_holders

router = Router(tags=["Jobs"])


class LimitHolderOut(Schema):
    """A job that counts against a limit; `id`, `name` and `quota` are empty where the caller may not know them."""

    id: str
    name: str
    quota: str
    gpus: float
    ends_at: datetime | None


class LimitHoldersOut(Schema):
    """Who holds what a limit allows, who leaves first in front; `others` counts further jobs. `enough_at`: when enough is given back by estimates."""

    jobs: list[LimitHolderOut]
    others: int
    enough_at: datetime | None


class ReasonOut(Schema):
    code: str
    detail: str
    holders: LimitHoldersOut | None = None


class PromiseOut(Schema):
    after: list[str]
    until: datetime


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
    would_start_if: dict[str, Any] | None
    promise: PromiseOut | None
    waits_for: list[str]


@router.get("/jobs/{public_id}/why", response=WhyOut, url_name="job_why", summary="Why a job waits")
def job_why(request: HttpRequest, public_id: str) -> HttpResponse:
    """What is said of other teams names them only where the caller may see them."""
    access = access_of(request)
    found = job_for(access, public_id)
    row = job_rows(access, [found])[0]
    outlook, promise = row.outlook, row.promise
    told = Discretion(access, [outlook.reasons, outlook.would_start_if] if outlook else [])
    return answered(
        {
            "id": found.public_id,
            "state": found.state,
            "now": now_told(row),
            "looked_at": outlook.at if outlook else None,
            "reasons": _reasons(outlook, told, limit_holders(access, outlook, now())),
            "predicted_start": outlook.predicted_start if outlook else None,
            "earliest_start": outlook.earliest_start if outlook else None,
            "latest_start": outlook.latest_start if outlook else None,
            "would_start_if": told.value(outlook.would_start_if) if outlook else None,
            "promise": {"after": row.discretion.value(promise.after), "until": promise.until} if promise else None,
            "waits_for": [one.job.public_id for one in job_waits_for(access, found) if one.named],
        }
    )


def _reasons(outlook: Outlook | None, told: Discretion, holders: Sequence[LimitHolders | None]) -> list[dict[str, Any]]:
    if outlook is None:
        return []
    return [
        {**told.value(reason), "holders": _holders_out(held)} if held else told.value(reason)
        for reason, held in zip(outlook.reasons, holders, strict=True)
    ]


def _holders_out(held: LimitHolders) -> dict[str, Any]:
    jobs = [{"id": one.job_id, "name": one.job_name, "quota": one.quota, "gpus": one.gpus_milli / 1000, "ends_at": one.ends_at} for one in held.first]
    return {"jobs": jobs, "others": held.others, "enough_at": held.enough_at}
