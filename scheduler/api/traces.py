"""Traces of the what-if lab over HTTP: added from the text of files or from this fleet's past, listed, downloaded and removed."""

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Literal

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from ninja import Query, Router, Schema, Status
from pydantic import Field

from gpufleet.core.audit import audit_record
from gpufleet.core.taken import SAID, Taken
from gpufleet.core.times import now
from gpufleet.web import access_of
from scheduler.api.lists import listed, parameters_of
from scheduler.models import Trace
from scheduler.selectors.traces import queues_seen, trace_file, trace_for, traces_listed
from scheduler.services.forecasts.own_traces import own_past_file, own_trace_ask
from scheduler.services.forecasts.traces import trace_add, trace_remove
from scheduler.services.forecasts.what_ifs import must_ask
from scheduler.tasks import own_trace
from scheduler.traces import MOST_OWN_DAYS
from scheduler.traces.rows import File, Shape
from scheduler.whatifs.lists import TRACES
from scheduler.whatifs.traces import MOST_FILES, MOST_JOBS, MOST_NODES, OWN
from scheduler.whatifs.wanted import USUAL_DAYS

router = Router(tags=["What-if"])


class TraceFileIn(Taken):
    name: str = Field(max_length=80, description="What the file is called where a row of it is wrong.", json_schema_extra=SAID)
    text: str = Field(description="The file as it is.")


class TraceNodesIn(Taken):
    """So many nodes of one size, for traces without a list of nodes."""

    nodes: int = Field(ge=1, le=MOST_NODES, description="How many.")
    gpus: int = Field(ge=1, le=64, description="GPUs of each.")
    gpu_type: str | None = Field(None, max_length=60, description="Their type; of Gavel one of its throughputs.")
    cpus: Annotated[int, Field(ge=1, le=100_000)] | None = Field(None, description="CPUs of each; null: CPUs are not scarce.")


class TraceIn(Taken):
    """The files of a trace, at most 16 MiB in all, or a scenario as `gpufleet trace` writes it."""

    title: str = Field(max_length=80, description="Name in lists.", json_schema_extra=SAID)
    kind: Literal["scenario", "gavel", "helios", "openb", "philly"] = Field(description="The format of the files.")
    files: list[TraceFileIn] = Field(min_length=1, max_length=MOST_FILES, description="In any order.")
    nodes: list[TraceNodesIn] = Field([], max_length=64, description="Nodes of traces without a list of nodes.")
    limit: Annotated[int, Field(ge=1, le=MOST_JOBS)] | None = Field(None, description="Only the first jobs; null: all.")


class OwnTraceIn(Taken):
    """So many of the last days of this fleet."""

    days: int = Field(USUAL_DAYS, ge=1, le=MOST_OWN_DAYS, description="How many days.")
    title: str = Field("", max_length=80, description="Name in lists; empty: the days and today's date.")


class OwnPastQuery(Schema):
    days: int = Field(USUAL_DAYS, ge=1, le=MOST_OWN_DAYS, description="How many of the last days.")


class LeftOutOut(Schema):
    why: str = Field(description="Why they cannot be replayed.")
    rows: int = Field(description="How many rows.")


class TraceOut(Schema):
    """A trace that what-ifs can replay."""

    id: str
    title: str = Field(description="Name in lists.")
    kind: str = Field(description="The format of its files; `own` of this fleet's past.")
    state: str = Field(description="`done`, or of this fleet's past `waiting`, `writing` or `failed`. Only one that is done has jobs.")
    days: int | None = Field(description="Of this fleet's past: how many days.")
    files: list[str] = Field(description="The names of its files.")
    jobs: int = Field(description="How many jobs.")
    queues: list[str] = Field(description="The queues that its jobs are in, as far as the caller sees them.")
    nodes: int = Field(description="How many nodes its own fleet has.")
    gpus: int = Field(description="How many GPUs these have.")
    hours: int = Field(description="Until its last job would have ended, had none waited.")
    left_out: list[LeftOutOut] = Field(description="Rows that cannot be replayed.")
    fault: str = Field(description="Why it could not be written.")
    created_at: datetime
    created_by: str | None


class TracesOut(Schema):
    items: list[TraceOut]
    next: str | None
    previous: str | None


@router.get("/traces", response=TracesOut, url_name="traces", openapi_extra=parameters_of(TRACES), summary="Traces for what-ifs")
def trace_list(request: HttpRequest) -> HttpResponse:
    access = access_of(request)
    seen = queues_seen(access)
    return listed(request, TRACES, traces_listed(access), lambda found: _facts(found, seen))


@router.post("/traces", response={201: TraceOut}, url_name="traces", summary="Add a trace")
def trace_make(request: HttpRequest, body: TraceIn) -> Status[dict[str, Any]]:
    """What is wrong in its files is told at `files`, with file and line. `POST /what-ifs` replays it."""
    access = access_of(request)
    must_ask(access)
    files = [File(file.name, file.text) for file in body.files]
    shapes = [Shape(one.nodes, one.gpus, one.gpu_type or None, one.cpus) for one in body.nodes]
    made = trace_add(access=access, title=body.title, kind=body.kind, files=files, shapes=shapes, limit=body.limit, now=now())
    return Status(201, _facts(made, queues_seen(access)))


@router.get("/traces/own", response=dict[str, Any], url_name="traces_own", summary="File of this fleet's past")
def own_past(request: HttpRequest, query: Query[OwnPastQuery]) -> HttpResponse:
    """A scenario of the last days, for `gpufleet simulate`: ids of jobs, paths of quotas and names of nodes, without commands and secrets. For
    callers who see every subtree and may start what-ifs. If more than 5,000 jobs came, it is 409: `POST /traces/own` has them written in the
    background. Each download is in the audit log."""
    access = access_of(request)
    content = own_past_file(access=access, days=query.days, now=now())
    audit_record(actor=access.actor, action="export", kind="trace", object_id=OWN, after={"days": query.days})
    return HttpResponse(content, content_type="application/json")


@router.post("/traces/own", response={202: TraceOut}, url_name="traces_own", summary="Add this fleet's past as a trace")
def own_trace_make(request: HttpRequest, body: OwnTraceIn, response: HttpResponse) -> Status[dict[str, Any]]:
    """Written in the background, one at a time; `Location` is where its state is read until it is `done`. It has the jobs of all queues, as a
    what-if of the last days has."""
    access = access_of(request)
    made = own_trace_ask(access=access, days=body.days, title=body.title, now=now(), begin=own_trace.delay)
    response["Location"] = reverse("api:trace", args=[made.public_id])
    return Status(202, _facts(trace_for(access, made.public_id), queues_seen(access)))


@router.get("/traces/{public_id}", response=TraceOut, url_name="trace", summary="A trace")
def trace_get(request: HttpRequest, public_id: str) -> dict[str, Any]:
    access = access_of(request)
    return _facts(trace_for(access, public_id), queues_seen(access))


@router.get("/traces/{public_id}/file", response=dict[str, Any], url_name="trace_file", summary="File of a trace")
def trace_file_get(request: HttpRequest, public_id: str) -> HttpResponse:
    """Its scenario, for `gpufleet simulate`; for callers who see every subtree. Each download is in the audit log."""
    access = access_of(request)
    content = trace_file(access, public_id)
    audit_record(actor=access.actor, action="export", kind="trace", object_id=public_id)
    return HttpResponse(content, content_type="application/json")


@router.delete("/traces/{public_id}", response={204: None}, url_name="trace", summary="Remove a trace")
def trace_delete(request: HttpRequest, public_id: str) -> HttpResponse:
    """What-ifs of it keep their results."""
    access = access_of(request)
    trace_remove(access=access, trace=trace_for(access, public_id))
    return HttpResponse(status=204)


def _facts(found: Trace, seen: Callable[[str], bool]) -> dict[str, Any]:
    same = ("title", "kind", "days", "files", "jobs", "nodes", "gpus", "hours", "created_at")
    facts = {name: getattr(found, name) for name in same} | {"state": found.outcome, "fault": found.why_failed}
    by = found.created_by.username if found.created_by is not None else None
    return {"id": found.public_id, **facts, "queues": list(filter(seen, found.queues)), "left_out": found.rows_left_out, "created_by": by}
