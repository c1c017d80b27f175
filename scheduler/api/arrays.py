"""Arrays as a whole over HTTP."""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Literal

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from ninja import Query, Router, Schema
from pydantic import Field

from gpufleet.core.taken import AskedMoment, Taken
from gpufleet.core.times import now
from gpufleet.web import access_of
from scheduler.api.bulk import ForeseenOut, foreseen
from scheduler.api.lists import IdempotencyKey, answered
from scheduler.selectors.arrays import array_for, array_rows, array_spent, facts_of, failed_of
from scheduler.services.beginnings import begins_checked
from scheduler.services.jobs.arrays import FIRST, array_plan, array_preview, array_steer
from scheduler.services.jobs.bulk import LEAST_PRIORITY, MOST, MOST_PRIORITY, Verdict, effects_counted

router = Router(tags=["Jobs"])


class ArrayOut(Schema):
    """All of an array that the caller may see. `counts` are by state; `failed` names the first of those that failed."""

    id: str
    name: str
    quota: str
    owner: str | None
    submitted_at: datetime
    size: int
    counts: dict[str, int]
    held: int
    holding_milli: int = Field(description="What its jobs hold now, in milli-GPU.")
    gpu_hours: float = Field(description="What its jobs were charged until now, all attempts.")
    cost_micros: int | None = Field(description="What that cost; null without a rate, or where the caller may not see the costs of all its jobs.")
    currency: str
    ended_percent: int
    ended_at: datetime | None = Field(description="When the last job ended; null as long as one has not.")
    foreseen_end: datetime | None = Field(description="Predicted end of the last job; null where unknown.")
    foreseen_by: str | None = Field(description="starts: each job's start and length are known; pace: as quickly as until now.")
    failed: list[str]


class ArrayActIn(Taken):
    action: Literal["cancel", "hold", "release", "priority", "checkpoint"]
    priority: int | None = Field(None, ge=LEAST_PRIORITY, le=MOST_PRIORITY, description="With the action priority.")
    reason: str = Field("", max_length=280, description="Kept in the history of each job and in the audit log.")
    after: int = Field(FIRST, ge=FIRST, le=2_147_483_647, description="The `next` of the answer before: jobs behind that element are meant.")
    size: int = Field(MOST, ge=1, le=MOST, description="So many jobs at most.")
    begins: AskedMoment | None = Field(None, description="When it begins; null: at once. Each job is looked at again then.")


class ArrayActOut(ForeseenOut):
    """`counts`: how many jobs of this part had which effect, as `POST /jobs/bulk` has it. `next` goes into `after`; null: all is done."""

    array: str
    action: str
    dry_run: bool
    counts: dict[str, int]
    batch: str | None = Field(description="`GET /jobs/batches/{id}` says what became of each job of this part.")
    planned: str | None = Field(description="With `begins`: the id of what is planned for this part, as `GET /jobs/planned-changes` has it.")
    next: int | None


class ArrayActQuery(Schema):
    dry_run: bool = Field(False, description="Say what it would come to for the whole array, and change nothing.")


EXAMPLES = {
    "all": {"summary": "Cancel what is left of an array", "value": {"action": "cancel", "reason": "wrong data"}},
    "less urgent": {"summary": "The next part of a change of priority", "value": {"action": "priority", "priority": 20, "after": 499}},
}


@router.get("/arrays/{public_id}", response=ArrayOut, url_name="array", summary="An array as a whole")
def array(request: HttpRequest, public_id: str) -> HttpResponse:
    """Its jobs are those of `GET /jobs?array=`."""
    access = access_of(request)
    moment = now()
    found, spent = array_for(access, public_id, moment), array_spent(access, public_id, moment)
    failed = failed_of(array_rows(access, public_id)) if found.counts.get("failed") else []
    return answered(
        facts_of(found) | {"gpu_hours": round(spent.gpu_hours, 6), "cost_micros": spent.cost_micros, "currency": settings.CURRENCY, "failed": failed}
    )


@router.post(
    "/arrays/{public_id}/bulk",
    response=ArrayActOut,
    url_name="array_act",
    openapi_extra={"requestBody": {"content": {"application/json": {"examples": EXAMPLES}}}},
    summary="Do one thing to all jobs of an array",
)
def array_act(request: HttpRequest, public_id: str, asked: Query[ArrayActQuery], body: ArrayActIn, key: IdempotencyKey) -> HttpResponse:
    """In parts of 500 jobs at most, each in a transaction of its own: send `next` as `after` until it is null. Jobs that have ended are not meant.

    It may be repeated from any place: what is so already stays as it is. With `begins` each part is planned; under an `Idempotency-Key` once.
    """
    access = access_of(request)
    empty: dict[str, Any] = {"array": public_id, "action": body.action, "batch": None, "planned": None, "next": None}
    empty |= {"dry_run": asked.dry_run, **foreseen(None)}
    given: dict[str, Any] = {"access": access, "array": public_id, "action": body.action, "priority": body.priority, "now": now()}
    if asked.dry_run:
        if body.begins is not None:
            begins_checked(begins_at=body.begins, now=given["now"])
        preview = array_preview(**given)
        return answered(empty | foreseen(preview, begins=body.begins) | {"counts": _counted(preview.verdicts)})
    if body.begins is not None:
        part = array_plan(**given, begins_at=body.begins, reason=body.reason, after=body.after, size=body.size, key=key)
        told = {"counts": _counted(part.planned.verdicts), "planned": part.planned.plan.public_id}
        return answered(empty | told | {"next": part.after})
    done = array_steer(**given, reason=body.reason, after=body.after, size=body.size)
    return answered(empty | {"counts": done.counts, "batch": done.batch, "next": done.after})


def _counted(verdicts: Iterable[Verdict]) -> Counter[str]:
    return effects_counted({"effect": str(one.effect)} for one in verdicts)
