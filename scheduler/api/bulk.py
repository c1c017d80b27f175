"""One action on many jobs over HTTP, with the preview that the console shows."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Literal

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import HttpRequest, HttpResponse, QueryDict
from ninja import Query, Router, Schema, Status
from pydantic import Field

from gpufleet.core.taken import AskedMoment, Taken
from gpufleet.core.times import now
from gpufleet.web import Access, access_of
from scheduler.api.lists import IdempotencyKey, answered
from scheduler.jobs.lists import JOBS
from scheduler.jobs.view_queries import QUERY_LENGTH, Parameters
from scheduler.models import JobBatch
from scheduler.presenters.bulk import preview_sentences, weightiest_first
from scheduler.selectors.batches import batch_for, verdicts_seen
from scheduler.selectors.jobs import jobs_listed
from scheduler.selectors.planned_changes import PlannedSeen, plan_for, plans_seen
from scheduler.services.beginnings import begins_checked
from scheduler.services.jobs.bulk import (
    LEAST_PRIORITY,
    MOST,
    MOST_PRIORITY,
    Consequence,
    Preview,
    asked_checked,
    batch_repeated,
    effects_counted,
    jobs_judged,
    jobs_preview,
    jobs_steer,
    must_steer_something,
    verdict_told,
)
from scheduler.services.jobs.planned_changes import Planned, jobs_plan, plan_call_off, plan_repeated
from scheduler.services.jobs.undoing import batch_undo

router = Router(tags=["Jobs"])


class MeantIn(Taken):
    id: str = Field(max_length=24)
    revision: int | None = Field(None, ge=0, le=2_147_483_647, description="That was read: a job at another one is left alone.")


class BulkIn(Taken):
    action: Literal["cancel", "hold", "release", "priority", "checkpoint"]
    jobs: list[MeantIn] = Field(default_factory=list, max_length=MOST)
    matching: Parameters | None = Field(
        None, description="Instead: the parameters of `GET /jobs`, of which the first 500 in the list's order are meant."
    )
    priority: int | None = Field(None, ge=LEAST_PRIORITY, le=MOST_PRIORITY, description="With the action priority.")
    reason: str = Field("", max_length=280, description="Kept in the history of each job and in the audit log.")
    begins: AskedMoment | None = Field(
        None, description="When it begins; null: at once. Each job is looked at again then, with the rights that the caller has by then."
    )


class BulkVerdict(Schema):
    """`effect`: changes (it was, or would be, done), same (it is so already), refused (not in its state), stale (at another revision), not_allowed,
    unknown. State and revision are those after it, or those of now in a dry run."""

    id: str
    name: str
    state: str
    revision: int | None
    effect: str
    detail: str


class StartsOut(Schema):
    """Jobs that would start at once by that; `others` are of teams that the caller can't see."""

    as_of: datetime
    jobs: list[str]
    others: int


class ConsequenceOut(Schema):
    """What the change does to a job that the caller may see."""

    job: str
    name: str
    path: str
    gpus_milli: int
    effect: str = Field(
        description="preempted, shrinks, waits (does not start yet), later (waits longer), moves, starts, grows, or stays (is not preempted)."
    )
    detail: str
    lost_seconds: int = Field(description="Work that it repeats, since its last checkpoint.")


class ForeseenOut(Schema):
    """What a dry run tells besides the verdicts, as the console's preview does. Null where something was done."""

    sentences: list[str] | None = Field(description="The preview in words, as the console shows it.")
    freed_milli: dict[str, int] | None = Field(description="What comes free, in milli-GPU by type.")
    freed_micros_per_hour: int | None = Field(description="At the guaranteed rate; null where nothing comes free or the caller may not view costs.")
    currency: str
    lost_micros: int | None = Field(
        description="What the repeated work cost at the guaranteed rate; null where there is none or the caller may not view costs."
    )
    cancelled_along: int | None = Field(description="Other jobs that end too, as they need one of these completed.")
    notified: int | None = Field(description="Jobs with an owner who is notified; the caller's own not counted.")
    starts: StartsOut | None = Field(description="Those that would start at once by it.")
    effects: list[ConsequenceOut] | None = Field(description="The weightiest first; null also where they cannot be computed now.")
    hidden_effects: int | None = Field(description="Effects on jobs that the caller may not see.")
    more_effects: int | None = Field(description="Further effects that are not listed.")


class PlannedChangeOut(Schema):
    """An action on jobs that begins later."""

    id: str
    begins: datetime = Field(description="When it is done to the jobs that take it then.")
    action: str
    priority: int | None = Field(description="The new one, with the action priority.")
    reason: str
    author: str = Field(description="Whose rights it begins with.")
    made_at: datetime
    jobs: list[str] = Field(description="Ids of its jobs, as far as the caller may see them.")
    others: int = Field(description="Jobs of teams that the caller cannot see.")


class PlannedChangesOut(Schema):
    """Those that begin next come first."""

    items: list[PlannedChangeOut]
    more: bool = Field(description="There are later ones that are not listed.")


class PlannedQuery(Schema):
    job: str = Field("", max_length=24, description="Only those of this job.")


class CallOffQuery(Schema):
    job: str = Field("", max_length=24, description="Only for this job; the change begins for the others.")
    reason: str = Field("", max_length=280, description="Kept in the audit log.")


class BulkOut(ForeseenOut):
    """`counts` has how many verdicts there are of each effect. With `begins` they say what would become of each job now."""

    batch: str | None
    planned: PlannedChangeOut | None = Field(description="What was planned, where it begins later.")
    dry_run: bool
    repeated: bool
    action: str
    more: bool = Field(description="More jobs match than were meant.")
    counts: dict[str, int]
    verdicts: list[BulkVerdict]


class UndoneOut(Schema):
    done: int = Field(description="Jobs that are as they were.", examples=[2])
    left: int = Field(description="Jobs that have changed since and stay as they are.", examples=[1])
    changed: list[str] = Field(description="Names of those that stay, as far as the caller may see them.", examples=[["train-llm"]])


class BulkQuery(Schema):
    dry_run: bool = Field(False, description="Say what would become of each, and change nothing.")


EXAMPLES = {
    "by name": {
        "summary": "Cancel two jobs, as they were read",
        "value": {"action": "cancel", "jobs": [{"id": "j-17", "revision": 4}, {"id": "j-18", "revision": 2}], "reason": "wrong data"},
    },
    "by filter": {
        "summary": "Less urgent: all that waits of a team",
        "value": {"action": "priority", "priority": 20, "matching": {"phase": "waiting", "team": "acme/research/nlp"}},
    },
}


@router.post(
    "/jobs/bulk",
    response=BulkOut,
    url_name="jobs_bulk",
    openapi_extra={"requestBody": {"content": {"application/json": {"examples": EXAMPLES}}}},
    summary="Do one thing to many jobs",
)
def jobs_bulk(request: HttpRequest, asked: Query[BulkQuery], body: BulkIn, key: IdempotencyKey) -> HttpResponse:
    """Up to 500 jobs, each with its own verdict: one that may not be touched, or has changed, keeps none of the others back.

    With `?dry_run=true` it says what would happen: to which jobs, what it costs, and how many owners are notified. With an `Idempotency-Key` it may
    be repeated after a time-out: it is done once, and the same is answered again. With `begins` nothing is done yet: what is planned is answered as
    `planned`, with the jobs that have not ended and that the caller may change.
    """
    access = access_of(request)
    must_steer_something(access)
    said = body.dict()
    if not asked.dry_run and (known := batch_repeated(access=access, key=key, said=said)) is not None:
        return answered(_told(known, verdicts_seen(access, known), repeated=True))
    if not asked.dry_run and (plan := plan_repeated(access=access, key=key, said=said)) is not None:
        named = [(job.id, job.revision) for job in body.jobs] or [
            (name, None) for name in plan.jobs.order_by("pk").values_list("public_id", flat=True)
        ]
        meant = asked_checked(action=body.action, jobs=named, priority=body.priority)
        return answered(_planned_told(access, Planned(plan, jobs_judged(access=access, asked=meant).verdicts, repeated=True), False))
    named, more = _meant(access, body)
    meant = asked_checked(action=body.action, jobs=named, priority=body.priority)
    if asked.dry_run:
        if body.begins is not None:
            begins_checked(begins_at=body.begins, now=now())
        return answered(_previewed(jobs_preview(access=access, asked=meant, now=now()), more, begins=body.begins))
    if body.begins is not None:
        with transaction.atomic():  # so that it is still there when it is told
            planned = jobs_plan(access=access, asked=meant, begins_at=body.begins, reason=body.reason, now=now(), key=key, said=said)
            told = _planned_told(access, planned, more)
        return answered(told)
    steered = jobs_steer(access=access, asked=meant, reason=body.reason, now=now(), key=key, said=said)
    verdicts = verdicts_seen(access, steered.batch) if steered.repeated else steered.batch.verdicts
    return answered(_told(steered.batch, verdicts, more=more, repeated=steered.repeated))


@router.get("/jobs/batches/{public_id}", response=BulkOut, url_name="job_batch", summary="What became of each of many jobs")
def job_batch_told(request: HttpRequest, public_id: str) -> HttpResponse:
    """For whoever took the action; kept 90 days. The audit log has an entry for each job, with the id of the batch.

    A job that the caller may not see now is `unknown`, whatever became of it.
    """
    access = access_of(request)
    batch = batch_for(access, public_id)
    return answered(_told(batch, verdicts_seen(access, batch)))


@router.post("/jobs/batches/{public_id}/undo", response=UndoneOut, url_name="job_batch_undo", summary="Undo what was done to many jobs")
def job_batch_undone(request: HttpRequest, public_id: str) -> UndoneOut:
    """For whoever took the action: jobs that nobody has changed since are held, released, or at their priority as before.

    409 where none is left as the action left it, or where it cannot be undone: a job that was cancelled stays so.
    """
    access = access_of(request)
    batch = batch_for(access, public_id)
    must_steer_something(access)
    undone = batch_undo(access=access, batch=batch, now=now())
    return UndoneOut(done=undone.done, left=undone.left, changed=list(undone.names))


@router.get("/jobs/planned-changes", response=PlannedChangesOut, url_name="job_plans", summary="Planned changes of jobs")
def job_plans(request: HttpRequest, query: Query[PlannedQuery]) -> HttpResponse:
    """Actions on jobs that begin later, as far as the caller planned them or may see their jobs; the next 100."""
    found, more = plans_seen(access_of(request), job=query.job)
    return answered({"items": [_planned(one) for one in found], "more": more})


@router.get("/jobs/planned-changes/{public_id}", response=PlannedChangeOut, url_name="job_plan", summary="A planned change of jobs")
def job_plan(request: HttpRequest, public_id: str) -> HttpResponse:
    """404 once it has begun or was called off."""
    return answered(_planned(plan_for(access_of(request), public_id)))


@router.delete("/jobs/planned-changes/{public_id}", response={204: None}, url_name="job_plan", summary="Call a planned change of jobs off")
def job_plan_call_off(request: HttpRequest, public_id: str, query: Query[CallOffQuery]) -> Status[None]:
    """Its author calls off all of it; owners of its jobs and managers of a team's jobs do so for these jobs."""
    access = access_of(request)
    plan = plan_for(access, public_id).plan
    plan_call_off(access=access, plan=plan.public_id, jobs=[query.job] if query.job else None, reason=query.reason, now=now())
    return Status(204, None)


def _planned_told(access: Access, planned: Planned, more: bool) -> dict[str, Any]:
    told = _answer(planned.plan.action, [verdict_told(one) for one in planned.verdicts], more)
    return told | {"planned": _planned(plan_for(access, planned.plan.public_id)), "repeated": planned.repeated}


def _planned(found: PlannedSeen) -> dict[str, Any]:
    plan = found.plan
    facts = {"id": plan.public_id, "begins": plan.begins_at, "action": plan.action, "priority": plan.priority, "reason": plan.reason}
    jobs = {"jobs": [job.public_id for job in found.jobs], "others": found.others}
    return facts | {"author": plan.author.username, "made_at": plan.made_at} | jobs


def _meant(access: Access, body: BulkIn) -> tuple[list[tuple[str, int | None]], bool]:
    if body.matching is None:
        return [(job.id, job.revision) for job in body.jobs], False
    if body.jobs:
        raise ValidationError({"matching": ["Name jobs or say what they match, not both."]})
    known = {"q", "sort", *(item.key for item in JOBS.filters)}
    if unknown := [name for name in body.matching if name not in known]:
        raise ValidationError({f"matching.{name}": [f"Unknown parameter; there are {', '.join(sorted(known))}."] for name in unknown})
    parameters = QueryDict(mutable=True)
    for name, value in body.matching.items():
        parameters.setlist(name, value if isinstance(value, list) else [value])
    if len(parameters.urlencode()) > QUERY_LENGTH:
        raise ValidationError({"matching": [f"It says more than {QUERY_LENGTH:,} characters."]})
    rows, more, problems = JOBS.matching(parameters, jobs_listed(access), MOST)
    if problems:
        raise ValidationError({"matching": problems})
    if not rows:
        raise ValidationError({"matching": ["No job matches."]})
    return [(job.public_id, job.revision) for job in rows], more


def _previewed(preview: Preview, more: bool, *, begins: datetime | None) -> dict[str, Any]:
    told = _answer(preview.asked.action, [verdict_told(one) for one in preview.verdicts], more)
    return told | foreseen(preview, begins=begins) | {"dry_run": True}


def foreseen(preview: Preview | None, *, begins: datetime | None = None) -> dict[str, Any]:
    """What is told besides the verdicts of a preview; None: something was done, and nothing is foreseen."""
    if preview is None:
        return dict.fromkeys(ForeseenOut.model_fields) | {"currency": settings.CURRENCY}
    following = preview.following
    starts = {"as_of": following.as_of, "jobs": [job.public_id for job in following.jobs], "others": following.others} if following else None
    return {
        "sentences": preview_sentences(preview, begins=begins),
        "freed_milli": preview.freed,
        "freed_micros_per_hour": preview.freed_micros,
        "currency": settings.CURRENCY,
        "lost_micros": following.repeated.micros if following else None,
        "cancelled_along": preview.along,
        "notified": preview.notified,
        "starts": starts,
        "effects": [_consequence(one) for one in weightiest_first(following)] if following else None,
        "hidden_effects": following.unseen if following else None,
        "more_effects": following.cut if following else None,
    }


def _consequence(one: Consequence) -> dict[str, Any]:
    facts = {"job": one.job.public_id, "name": one.job.name, "path": one.job.quota.path, "gpus_milli": one.job.gpus_milli}
    return facts | {"effect": one.effect, "detail": one.detail, "lost_seconds": one.lost_seconds}


def _told(batch: JobBatch, verdicts: Iterable[Mapping[str, Any]], *, more: bool = False, repeated: bool = False) -> dict[str, Any]:
    return _answer(batch.action, verdicts, more) | {"batch": batch.public_id, "repeated": repeated}


def _answer(action: str, verdicts: Iterable[Mapping[str, Any]], more: bool) -> dict[str, Any]:
    told = list(verdicts)
    empty: dict[str, Any] = {"batch": None, "planned": None, "dry_run": False, "repeated": False, **foreseen(None)}
    return empty | {"action": str(action), "more": more, "counts": effects_counted(told), "verdicts": told}
