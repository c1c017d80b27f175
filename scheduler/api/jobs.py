"""Jobs over HTTP: what the pages show, and what people do with jobs."""

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Annotated, Any

from django.http import HttpRequest, HttpResponse
from ninja import Body, Query, Router, Schema
from pydantic import Field

from gpufleet.core.etags import IF_MATCH, revision_wanted, stamped
from gpufleet.core.taken import Taken
from gpufleet.core.times import now
from gpufleet.web import Access, Can, access_of
from scheduler.api.bulk import ForeseenOut, foreseen
from scheduler.api.lists import IdempotencyKey, answered, inlined, listed, parameters_of
from scheduler.jobs.lists import JOBS
from scheduler.jobs.reading import Faults, change_read
from scheduler.jobs.schema import JobChange, JobDescription
from scheduler.jobs.writing import description_of
from scheduler.models import Attempt, Job
from scheduler.presenters.deferring import deferral_facts
from scheduler.presenters.jobs import JobLine, Life, job_lines, life_of, line_of
from scheduler.selectors.alignment import alignment_of
from scheduler.selectors.discretion import Discretion
from scheduler.selectors.energy import sees_prices
from scheduler.selectors.jobs import (
    JobRow,
    SavedState,
    Sitting,
    attempt_sittings,
    job_attempts,
    job_checkpoints,
    job_for,
    job_rows,
    job_wait,
    job_waits_for,
    jobs_listed,
    may_steer,
    must_steer,
)
from scheduler.selectors.readiness import Readiness, readiness_of
from scheduler.selectors.templates import template_of
from scheduler.services.jobs.bulk import Preview
from scheduler.services.jobs.connecting import job_connect
from scheduler.services.jobs.deferring import Deferral, job_start_now
from scheduler.services.jobs.edit_previews import job_edit_preview
from scheduler.services.jobs.edits import job_clone, job_edit, job_enqueue, job_restart, job_save_now
from scheduler.services.jobs.repeats import Submitted, Verdict, submission_once, submissions_dry, submissions_each
from scheduler.services.jobs.steering import job_cancel, job_hold_back, job_release_hold
from scheduler.services.jobs.submission import Checked, submissions_check

router = Router(tags=["Jobs"])


class NowOut(Schema):
    """What a job does or waits for, in one sentence; `at` belongs to it, and `before` says how. `more` counts further reasons, which `/why` tells."""

    text: str
    at: datetime | None
    before: str
    more: int


class JobOut(Schema):
    id: str
    name: str
    state: str
    since: datetime
    revision: int
    quota: str
    owner: str | None
    job_class: str = Field(alias="class")
    priority: int
    gpus_milli: int
    submitted_at: datetime
    ended_at: datetime | None
    held_at: datetime | None
    array: str | None
    array_index: int | None
    template: str | None = Field(description="Of the template that it began with the id, or the name of a shipped one.")
    template_version: int | None
    schedule: str | None = Field(description="Which submitted it.")
    due_at: datetime | None = Field(description="When that schedule was due.")
    now: NowOut
    nodes: list[str]


class JobsOut(Schema):
    """One page of jobs. `next` and `previous` go into `after` and `before`; null where there is nothing more."""

    items: list[JobOut]
    next: str | None
    previous: str | None


class WorkerOut(Schema):
    role: str
    index: int
    node: str
    gpu: int | None
    gpu_milli: int
    mig: str | None
    leaving: bool
    ready: bool | None = Field(description="Whether it can serve; null where it is not asked (`launch.ready`), or that is unknown.", examples=[True])
    ready_since: datetime | None = Field(description="Since when it is ready, or is not.", examples=["2026-03-02T10:02:15Z"])


class AttemptOut(Schema):
    number: int
    outcome: str | None
    cause: str
    started_at: datetime
    running_at: datetime | None
    ended_at: datetime | None
    exit_code: int | None
    resumed_from_step: int | None
    stop_asked_at: datetime | None
    stop_until: datetime | None
    workers: list[WorkerOut]


class CheckpointOut(Schema):
    step: int
    attempt: int
    state: str
    shards: int
    shards_expected: int
    location: str
    reported_at: datetime
    verified_at: datetime | None


class LifeOut(Schema):
    """Seconds of a job's life until now or its end. `aside`: held by a person, not due, backing off or behind other jobs."""

    waited_for_quota_s: float
    waited_for_gpus_s: float
    aside_s: float
    starting_s: float
    running_s: float


class AlignmentOut(Schema):
    """How close together the nodes of the newest attempt stand."""

    nodes: int = Field(description="How many nodes it is on.", examples=[4])
    level: str | None = Field(description="Level of the narrowest domain that has all of them; null where none has.", examples=["leaf"])
    domain: str | None = Field(description="That domain.", examples=["spine-1/leaf-2"])
    rail_level: str | None = Field(description="The level on whose domains rails end; null where its cluster has no rails.", examples=["leaf"])
    rail_domains: dict[str, int] = Field(description="Nodes by domain of that level.", examples=[{"spine-1/leaf-2": 4}])
    rail_aligned: bool | None = Field(description="Whether all of them are in one such domain; null where there are no rails.", examples=[True])


class DeferralOut(Schema):
    """The hour to which a job is deferred (`to`), chosen by the mean rates of energy over its run. Null: it is not deferred, and `text` says why.

    Prices and savings in money are null for those who may not see them.
    """

    by: str = Field(description="price or carbon.", examples=["price"])
    to: datetime | None = Field(description="It starts then at the earliest.")
    latest_start: datetime | None = Field(description="A start that still ends by its deadline.")
    pool: str = Field(description="The pool whose rates it was chosen by; empty: the whole fleet.", examples=[""])
    price_micros: int | None = Field(description="Of a kWh then, in millionths of the currency.", examples=[110000])
    price_now_micros: int | None = Field(description="Of a kWh if it started at once.", examples=[240000])
    saved_micros: int | None = Field(description="By estimate, in millionths of the currency.", examples=[1456000])
    grams: int | None = Field(description="CO2 for each kWh then.")
    grams_now: int | None = Field(description="CO2 for each kWh if it started at once.")
    saved_grams: int | None = Field(description="CO2, by estimate.")
    watt_hours: int | None = Field(description="That its GPUs take, by their rated power and its estimate.", examples=[11200])
    text: str


class JobDetailOut(JobOut):
    preemptible: str
    labels: dict[str, Any]
    cost_centre: str
    estimate_s: int | None
    limit_s: int | None
    not_before: datetime | None
    deadline: datetime | None
    defer: str | None = Field(description="By what it may be deferred: price or carbon.", examples=["price"])
    deferral: DeferralOut | None = Field(description="Null of a job that may not be deferred, or is still to be judged.")
    retry_limit: int
    failures: int
    evictions: int = Field(
        description="How often the scheduler evicted it for other jobs; its back-off grows with this. `/evictions` lists every kind."
    )
    life: LifeOut
    spec: dict[str, Any]
    launch: dict[str, Any] | None = Field(description="What is started; null for readers who may not steer the job.")
    parameters: dict[str, str] | None = Field(description="Variables of this array element; null for readers who may not steer the job.")
    waits_for: list[str]
    attempts: list[AttemptOut] = Field(description="Newest first. Workers receive the newest alone.")
    checkpoints: list[CheckpointOut]
    alignment: AlignmentOut | None = Field(description="Null of a job on fewer than two nodes.")
    may_steer: bool
    template_speeds: int | None = Field(description="Which speeds of its template it was given; null where it states its own, or has none.")
    template_ref: str | None = Field(description="As a description names that version: org/nlp:serve@3. Null where the caller may not begin with it.")


CHANGE: dict[str, Any] = {
    "requestBody": {
        "content": {
            "application/json": {
                "schema": inlined(JobChange.model_json_schema()),
                "examples": {
                    "urgent": {
                        "summary": "More urgent, up to eight workers",
                        "value": {"priority": 80, "workers": {"worker": {"min": 2, "max": 8}}},
                    }
                },
            }
        },
        "required": True,
    }
}


@router.get("/jobs", response=JobsOut, by_alias=True, url_name="jobs", openapi_extra=parameters_of(JOBS), summary="Jobs")
def jobs(request: HttpRequest) -> HttpResponse:
    access = access_of(request)
    return listed(request, JOBS, jobs_listed(access), _line_row, partial(_lines, access))


@router.get("/jobs/{public_id}", response=JobDetailOut, by_alias=True, url_name="job", summary="A job with its attempts, places and checkpoints")
def job(request: HttpRequest, public_id: str) -> HttpResponse:
    """Its `ETag` names the revision: sent as `If-Match` with a write, the write is done only if nothing has changed since (412 otherwise)."""
    access = access_of(request)
    found = job_for(access, public_id)
    return stamped(answered(job_detail(access, found)), found.revision)


class SubmittedJob(Schema):
    id: str
    name: str
    state: str
    array: str | None


class SubmittedOut(Schema):
    """`repeated`: the key had been used, so these are the jobs of the first request. A dry run lists none and counts what it would submit."""

    jobs: list[SubmittedJob]
    count: int
    gpus_milli: int
    dry_run: bool
    repeated: bool


class SubmitQuery(Schema):
    dry_run: bool = Field(False, description="Check everything and submit nothing.")


SUBMISSION = {
    "requestBody": {
        "content": {
            "application/json": {
                "schema": inlined(JobDescription.model_json_schema()),
                "examples": {
                    "fine-tune": {
                        "summary": "Eight GPUs of one node for a training",
                        "value": {
                            "name": "fine-tune",
                            "quota": "acme/research/nlp",
                            "gpus": 8,
                            "gpu_types": ["H100-SXM-80GB"],
                            "estimate_s": 7200,
                            "launch": {"command": ["torchrun", "train.py"], "workdir": "/data/nlp"},
                        },
                    }
                },
            }
        },
        "required": True,
    }
}


@router.post(
    "/jobs",
    response={201: SubmittedOut, 200: SubmittedOut},
    url_name="job_submit",
    openapi_extra=SUBMISSION,
    summary="Submit a job, or an array of them",
)
def job_submit(request: HttpRequest, asked: Query[SubmitQuery], body: Body[dict[str, Any]], key: IdempotencyKey) -> HttpResponse:
    """All faults of a description are told at once, each with its path.

    With an `Idempotency-Key` it may be repeated after a time-out: the same key gives the same jobs, and makes none twice. A key that was used for
    something else is answered with 409.
    """
    access = access_of(request)
    access.must_somewhere(Can.SUBMIT)
    if asked.dry_run:
        (checked,) = submissions_check(access=access, descriptions=[body], now=now())
        milli = checked.count * checked.gpus_milli
        return answered({"jobs": [], "count": checked.count, "gpus_milli": milli, "dry_run": True, "repeated": False})
    return _submitted(submission_once(access=access, description=body, key=key, now=now()))


def _submitted(done: Submitted) -> HttpResponse:
    told = [{"id": job.public_id, "name": job.name, "state": job.state, "array": job.array or None} for job in done.jobs]
    milli = sum(job.gpus_milli for job in done.jobs)
    answer = answered({"jobs": told, "count": len(told), "gpus_milli": milli, "dry_run": False, "repeated": done.repeated})
    answer.status_code = 200 if done.repeated else 201
    return answer


class WishIn(Taken):
    key: str = Field("", description="As the header Idempotency-Key of a single submission: at most 100 printable characters.")
    description: Any = Field(description="A job, as `POST /jobs` takes it.")


class BatchIn(Taken):
    jobs: list[WishIn] = Field(min_length=1, max_length=500)


class FaultOut(Schema):
    path: str
    message: str


class VerdictOut(Schema):
    """`errors` is empty for what was submitted, or would be. A dry run lists no jobs and counts what it would submit."""

    jobs: list[SubmittedJob]
    errors: list[FaultOut]
    repeated: bool
    count: int
    gpus_milli: int


class BatchOut(Schema):
    verdicts: list[VerdictOut]


BATCH_EXAMPLE = {
    "two jobs": {
        "summary": "Two jobs, each under a key of its own",
        "value": {
            "jobs": [
                {"key": "sweep-7-a", "description": {"name": "a", "quota": "acme/research/nlp", "gpus": 1}},
                {"key": "sweep-7-b", "description": {"name": "b", "quota": "acme/research/nlp", "gpus": 2}},
            ]
        },
    }
}


@router.post(
    "/submissions",
    response=BatchOut,
    url_name="job_batch",
    openapi_extra={"requestBody": {"content": {"application/json": {"examples": BATCH_EXAMPLE}}}},
    summary="Submit many jobs in one request",
)
def job_batch(request: HttpRequest, asked: Query[SubmitQuery], body: BatchIn) -> HttpResponse:
    """Up to 500 descriptions, each with its own key and verdict in their order: one that is refused keeps none of the others back.

    Repeated after a time-out, those with a key that had been submitted are told again and made only once.
    """
    access = access_of(request)
    if asked.dry_run:
        judged = submissions_dry(access=access, wishes=[wish.description for wish in body.jobs], now=now())
        return answered({"verdicts": [_judged(one) for one in judged]})
    verdicts = submissions_each(access=access, wishes=[(wish.key, wish.description) for wish in body.jobs], now=now())
    return answered({"verdicts": [_verdict(verdict) for verdict in verdicts]})


def _verdict(verdict: Verdict) -> dict[str, Any]:
    jobs = [{"id": job.public_id, "name": job.name, "state": job.state, "array": job.array or None} for job in verdict.jobs]
    milli = sum(job.gpus_milli for job in verdict.jobs)
    return {"jobs": jobs, "errors": _errors(verdict.faults or {}), "repeated": verdict.repeated, "count": len(jobs), "gpus_milli": milli}


def _judged(one: Checked | Faults) -> dict[str, Any]:
    good = isinstance(one, Checked)
    count, milli = (one.count, one.count * one.gpus_milli) if isinstance(one, Checked) else (0, 0)
    return {"jobs": [], "errors": [] if good else _errors(one), "repeated": False, "count": count, "gpus_milli": milli}


def _errors(faults: Any) -> list[dict[str, str]]:
    return [{"path": path, "message": message} for path, messages in faults.items() for message in messages]


class SteerIn(Taken):
    reason: str = Field("", max_length=280, description="Kept in the job's history and in the audit log.")


# A reason is not asked for, so neither is a body that holds nothing else.
MaybeSteerIn = Annotated[SteerIn, Body(default_factory=SteerIn)]


@router.post("/jobs/{public_id}/cancel", response=JobOut, by_alias=True, url_name="job_cancel", openapi_extra=IF_MATCH, summary="End a job for good")
def job_end(request: HttpRequest, public_id: str, body: MaybeSteerIn) -> HttpResponse:
    """What waits is cancelled at once; what runs is told to save its work and is cancelled when it has gone, at the latest after its grace."""
    return _steered(request, public_id, job_cancel, body)


class ConnectStepOut(Schema):
    label: str = Field(description="What it opens, and where it is entered.")
    line: str = Field(description="The command line.")


class ConnectOut(Schema):
    """How to get into a running job."""

    host: str = Field(description="The machine of its first worker.")
    steps: list[ConnectStepOut]
    port: int | None = Field(description="That the job listens on; null: it states none.")
    url: str = Field(description="Where its service answers once the port is forwarded; empty without a port.")
    token: str = Field(description="What the job has in GPUFLEET_ACCESS_TOKEN; empty without a port.")


@router.post("/jobs/{public_id}/connect", response=ConnectOut, url_name="job_connect", summary="Connect to a running job")
def job_connected(request: HttpRequest, public_id: str) -> HttpResponse:
    """For those who may steer it. 409 while it does not run. Who asked for the token is in the audit log."""
    access = access_of(request)
    found = job_connect(access=access, job=job_for(access, public_id))
    steps = [{"label": step.label, "line": step.line} for step in found.steps]
    return answered({"host": found.host, "steps": steps, "port": found.port, "url": found.url, "token": found.token})


@router.post("/jobs/{public_id}/hold", response=JobOut, by_alias=True, url_name="job_hold", openapi_extra=IF_MATCH, summary="Hold a waiting job back")
def job_held(request: HttpRequest, public_id: str, body: MaybeSteerIn) -> HttpResponse:
    """It keeps its place in the queue and is not started. 409 for a job that has its GPUs."""
    return _steered(request, public_id, job_hold_back, body)


@router.post("/jobs/{public_id}/release", response=JobOut, by_alias=True, url_name="job_release", openapi_extra=IF_MATCH, summary="Let a held job go")
def job_released(request: HttpRequest, public_id: str, body: MaybeSteerIn) -> HttpResponse:
    return _steered(request, public_id, job_release_hold, body)


@router.post(
    "/jobs/{public_id}/start-now", response=JobOut, by_alias=True, url_name="job_start_now", openapi_extra=IF_MATCH, summary="End a deferral"
)
def job_undeferred(request: HttpRequest, public_id: str, body: MaybeSteerIn) -> HttpResponse:
    """It waits as any other job from now on and is not deferred again. 409 for a job that is not deferred."""
    return _steered(request, public_id, job_start_now, body)


@router.post(
    "/jobs/{public_id}/enqueue",
    response=JobOut,
    by_alias=True,
    url_name="job_enqueue",
    openapi_extra=IF_MATCH,
    summary="Put a draft in the queue",
)
def job_queued(request: HttpRequest, public_id: str, body: MaybeSteerIn) -> HttpResponse:
    """It is checked as a submission is, and counts as submitted now. 409 for a job that is no draft."""
    return _steered(request, public_id, job_enqueue, body)


@router.post(
    "/jobs/{public_id}/checkpoint",
    response=JobOut,
    by_alias=True,
    url_name="job_checkpoint",
    openapi_extra=IF_MATCH,
    summary="Let a job save its work now",
)
def job_save(request: HttpRequest, public_id: str, body: MaybeSteerIn) -> HttpResponse:
    """It is told to, and goes on. 409 for a job that does not run."""
    return _steered(request, public_id, job_save_now, body)


@router.post(
    "/jobs/{public_id}/restart",
    response={200: JobOut, 201: JobOut},
    by_alias=True,
    url_name="job_restart",
    openapi_extra=IF_MATCH,
    summary="Restart a job",
)
def job_again(request: HttpRequest, public_id: str, body: MaybeSteerIn, key: IdempotencyKey) -> HttpResponse:
    """What runs saves its work, leaves its GPUs and waits for its next start. Of what has ended the same is submitted as a new job (201).

    409 for a job that waits already.
    """
    access = access_of(request)
    found = job_for(access, public_id)
    begun = job_restart(access=access, job=found, reason=body.reason, now=now(), key=key, revision=revision_wanted(request))
    return _told_of(access, begun.public_id, status=200 if begun.pk == found.pk else 201)


class CloneIn(Taken):
    changes: dict[str, Any] = Field(default_factory=dict, description="Keys of the description with other values; null takes a key away.")


MaybeCloneIn = Annotated[CloneIn, Body(default_factory=CloneIn)]


@router.get("/jobs/{public_id}/description", response=dict[str, Any], url_name="job_description", summary="A job as it could be submitted again")
def job_said(request: HttpRequest, public_id: str) -> HttpResponse:
    """For those who may steer the job, as it says what is started."""
    access = access_of(request)
    found = job_for(access, public_id)
    must_steer(access, found)
    return answered(description_of(found, now()))


@router.post("/jobs/{public_id}/clone", response={201: SubmittedOut, 200: SubmittedOut}, url_name="job_clone", summary="Submit the same again")
def job_copy(request: HttpRequest, public_id: str, body: MaybeCloneIn, key: IdempotencyKey) -> HttpResponse:
    """With some keys of the description changed. With an `Idempotency-Key` as often as you like, and once in effect."""
    access = access_of(request)
    access.must_somewhere(Can.SUBMIT)
    return _submitted(job_clone(access=access, job=job_for(access, public_id), changes=body.changes, key=key, now=now()))


@router.patch("/jobs/{public_id}", response=JobOut, by_alias=True, url_name="job", openapi_extra=IF_MATCH | CHANGE, summary="Change a job")
def job_change(request: HttpRequest, public_id: str, body: Body[dict[str, Any]]) -> HttpResponse:
    """Priority, limits, times, labels, the range of an elastic job; what is not named stays. With `If-Match` only if nothing has changed."""
    access = access_of(request)
    found = job_for(access, public_id)
    change = change_read(body)
    job_edit(access=access, job=found, change=change, now=now(), revision=revision_wanted(request))
    return _told_of(access, public_id)


class JobPriceOut(Schema):
    """Micro-units at the guaranteed rate, before and after the change."""

    least_per_hour: list[int] = Field(description="An hour on its fewest GPUs, of the cheapest type that it may have.")
    most_per_hour: list[int] = Field(description="An hour on its most GPUs, of the dearest type that it may have.")
    until_limit: list[int | None] = Field(description="The most until its time limit; null where it has none.")


class JobChangePreviewOut(ForeseenOut):
    """What a change would do, as the console's preview has it."""

    price: JobPriceOut | None = Field(description="Null where the caller may not view costs, or where a type that it may have has no price.")


@router.post(
    "/jobs/{public_id}/preview",
    response=JobChangePreviewOut,
    url_name="job_change_preview",
    openapi_extra=CHANGE,
    summary="Preview a change of a job",
)
def job_change_look(request: HttpRequest, public_id: str, body: Body[dict[str, Any]]) -> HttpResponse:
    """What `PATCH` with the same body would do now, to the job and to others, and what it costs. Nothing is written."""
    found = job_edit_preview(access=(access := access_of(request)), job=job_for(access, public_id), change=change_read(body), now=now())
    return answered(change_foreseen(found))


def change_foreseen(found: Preview) -> dict[str, Any]:
    price = found.price
    told = None
    if price is not None:
        least, most = zip(*price.hourly, strict=True)
        told = {"least_per_hour": least, "most_per_hour": most, "until_limit": price.limit}
    return foreseen(found) | {"price": told}


def _steered(request: HttpRequest, public_id: str, service: Callable[..., Job], body: SteerIn) -> HttpResponse:
    access = access_of(request)
    service(access=access, job=job_for(access, public_id), reason=body.reason, now=now(), revision=revision_wanted(request))
    return _told_of(access, public_id)


def _told_of(access: Access, public_id: str, status: int = 200) -> HttpResponse:
    found = job_for(access, public_id)
    answer = stamped(answered(job_brief(access, found)), found.revision)
    answer.status_code = status
    return answer


def job_brief(access: Access, found: Job) -> dict[str, Any]:
    """A job as the list has it."""
    return _line_row(_lines(access, [found])[0])


def _lines(access: Access, rows: Any) -> list[JobLine]:
    return job_lines(job_rows(access, rows), now(), every_node=True)


def _line_row(line: JobLine) -> dict[str, Any]:
    return _facts(line.job) | {"now": _line(line), "nodes": [name for _, name in line.nodes]}


def now_told(row: JobRow) -> dict[str, Any]:
    return _told(line_of(row, now()))


def _line(line: JobLine) -> dict[str, Any]:
    return _told(line.line)


def _told(line: Any) -> dict[str, Any]:
    return {"text": line.text, "at": line.at, "before": line.before if line.at else "", "more": line.more}


def _facts(found: Job) -> dict[str, Any]:
    return {
        "id": found.public_id,
        "name": found.name,
        "state": found.state,
        "since": found.state_since,
        "revision": found.revision,
        "quota": found.quota.path,
        "owner": found.owner.username if found.owner else None,
        "class": found.job_class,
        "priority": found.priority,
        "gpus_milli": found.gpus_milli,
        "submitted_at": found.submitted_at,
        "ended_at": found.ended_at,
        "held_at": found.held_at,
        "array": found.array or None,
        "array_index": found.array_index,
        "template": found.template,
        "template_version": found.template_version,
        "schedule": found.schedule,
        "due_at": found.due_at,
    }


def job_detail(access: Access, found: Job) -> dict[str, Any]:
    row = job_rows(access, [found])[0]
    attempts = job_attempts(found)
    told = Discretion(access, [text for attempt in attempts for text in (attempt.cause, attempt.stop_cause)])
    steers = may_steer(access, found)
    sittings = attempt_sittings(attempts[0]) if attempts else []
    readiness = readiness_of(found, attempts[0] if attempts else None)
    return _facts(found) | {
        "now": now_told(row),
        "nodes": [name for _, name in row.nodes],
        "preemptible": found.preemptible,
        "labels": found.labels,
        "cost_centre": found.cost_centre,
        "estimate_s": found.estimate_seconds,
        "limit_s": found.limit_seconds,
        "not_before": found.not_before,
        "deadline": found.deadline,
        "defer": found.defer,
        "deferral": deferral_facts(
            Deferral.kept(found.deferral) if found.defer and found.deferral else None, sees=sees_prices(access, found.quota.path)
        ),
        "retry_limit": found.retry_limit,
        "failures": found.failures,
        "evictions": found.evictions,
        "life": _life(life_of(found, attempts, now(), job_wait(found))),
        "spec": found.spec,
        "launch": found.launch if steers else None,
        "parameters": found.parameters if steers else None,
        "waits_for": [one.job.public_id for one in job_waits_for(access, found) if one.named],
        "attempts": [_attempt(attempt, told, sittings if number == 0 else [], readiness) for number, attempt in enumerate(attempts)],
        "checkpoints": [_checkpoint(saved) for saved in job_checkpoints(found)],
        "alignment": _alignment(attempts[0], sittings) if attempts else None,
        "may_steer": steers,
        "template_speeds": found.template_speeds,
        "template_ref": (origin.exact or None) if (origin := template_of(access, found)) else None,
    }


def _alignment(attempt: Attempt, sittings: list[Sitting]) -> dict[str, Any] | None:
    nodes = {sitting.node_id for sitting in sittings if attempt.ended_at or sitting.until is None}
    found = alignment_of(nodes) if len(nodes) > 1 else None
    if found is None:
        return None
    names = {name: getattr(found, name) or None for name in ("level", "domain", "rail_level")}
    return names | {"nodes": found.nodes, "rail_domains": dict(found.rail_domains), "rail_aligned": found.is_aligned}


def _life(life: Life) -> dict[str, float]:
    seconds = {part.key: part.seconds for part in life.parts}
    keys = {"waited_for_quota_s": "quota", "waited_for_gpus_s": "gpus", "aside_s": "aside", "starting_s": "start", "running_s": "run"}
    return {name: seconds.get(key, 0.0) for name, key in keys.items()}


def _attempt(attempt: Attempt, told: Discretion, sittings: list[Sitting], readiness: Readiness | None) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "outcome": attempt.outcome or None,
        "cause": told.text(attempt.cause or attempt.stop_cause),
        "started_at": attempt.started_at,
        "running_at": attempt.running_at,
        "ended_at": attempt.ended_at,
        "exit_code": attempt.exit_code,
        "resumed_from_step": attempt.resumed_from.step if attempt.resumed_from else None,
        "stop_asked_at": attempt.stop_asked_at,
        "stop_until": attempt.stop_until,
        "workers": [_worker(sitting, readiness) for sitting in sittings if attempt.ended_at or sitting.until is None],
    }


def _worker(sitting: Sitting, readiness: Readiness | None) -> dict[str, Any]:
    known = readiness.of(sitting.role, sitting.worker) if readiness is not None else None
    return {
        "role": sitting.role,
        "index": sitting.worker,
        "node": sitting.node,
        "gpu": sitting.index,
        "gpu_milli": sitting.gpu_milli,
        "mig": sitting.profile or None,
        "leaving": sitting.leaving_since is not None,
        "ready": known.ready if known else None,
        "ready_since": known.since if known and known.ready is not None else None,
    }


def _checkpoint(saved: SavedState) -> dict[str, Any]:
    found = saved.checkpoint
    return {
        "step": found.step,
        "attempt": found.attempt.number,
        "state": saved.state,
        "shards": saved.shards,
        "shards_expected": found.shards_expected,
        "location": found.location,
        "reported_at": found.reported_at,
        "verified_at": found.verified_at,
    }
