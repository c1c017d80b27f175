"""Jobs over HTTP: the list, a job by itself, and what people do with jobs. How a job is told: job_told.py."""

from collections.abc import Callable
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
from scheduler.api.job_told import JobDetailOut, JobOut, JobsOut, job_brief, job_detail, line_row, lines_of
from scheduler.api.lists import IdempotencyKey, answered, inlined, listed, parameters_of
from scheduler.jobs.lists import JOBS
from scheduler.jobs.reading import Faults, change_read
from scheduler.jobs.schema import JobChange, JobDescription
from scheduler.jobs.writing import description_of
from scheduler.models import Job
from scheduler.selectors.jobs import job_for, jobs_listed, must_steer
from scheduler.services.jobs.bulk import Preview
from scheduler.services.jobs.connecting import job_connect
from scheduler.services.jobs.deferring import job_start_now
from scheduler.services.jobs.edit_previews import job_edit_preview
from scheduler.services.jobs.edits import job_clone, job_edit, job_enqueue, job_restart, job_save_now
from scheduler.services.jobs.repeats import Submitted, Verdict, submission_once, submissions_dry, submissions_each
from scheduler.services.jobs.steering import job_cancel, job_hold_back, job_release_hold
from scheduler.services.jobs.submission import Checked, submissions_check

router = Router(tags=["Jobs"])


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
    return listed(request, JOBS, jobs_listed(access), line_row, partial(lines_of, access))


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
    answer = answered({"verdicts": [_verdict(verdict) for verdict in verdicts]})
    if waits := [verdict.wait_seconds for verdict in verdicts if verdict.wait_seconds]:
        answer["Retry-After"] = str(max(waits))
    return answer


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
