"""Traces of the what-if lab over HTTP: added from the text of files, listed, and removed."""

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Literal

from django.http import HttpRequest, HttpResponse
from ninja import Router, Schema, Status
from pydantic import Field

from gpufleet.core.taken import SAID, Taken
from gpufleet.core.times import now
from gpufleet.web import access_of
from scheduler.api.lists import listed, parameters_of
from scheduler.models import Trace
from scheduler.selectors.traces import queues_seen, trace_for, traces_listed
from scheduler.services.forecasts.traces import trace_add, trace_remove
from scheduler.services.forecasts.what_ifs import must_ask
from scheduler.traces.rows import File, Shape
from scheduler.whatifs.lists import TRACES
from scheduler.whatifs.traces import MOST_FILES, MOST_JOBS, MOST_NODES

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


class LeftOutOut(Schema):
    why: str = Field(description="Why they cannot be replayed.")
    rows: int = Field(description="How many rows.")


class TraceOut(Schema):
    """A trace that what-ifs can replay."""

    id: str
    title: str = Field(description="Name in lists.")
    kind: str = Field(description="The format of its files.")
    files: list[str] = Field(description="The names of its files.")
    jobs: int = Field(description="How many jobs.")
    queues: list[str] = Field(description="The queues that its jobs are in, as far as the caller sees them.")
    nodes: int = Field(description="How many nodes its own fleet has.")
    gpus: int = Field(description="How many GPUs these have.")
    hours: int = Field(description="Until its last job would have ended, had none waited.")
    left_out: list[LeftOutOut] = Field(description="Rows that cannot be replayed.")
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


@router.get("/traces/{public_id}", response=TraceOut, url_name="trace", summary="A trace")
def trace_get(request: HttpRequest, public_id: str) -> dict[str, Any]:
    access = access_of(request)
    return _facts(trace_for(access, public_id), queues_seen(access))


@router.delete("/traces/{public_id}", response={204: None}, url_name="trace", summary="Remove a trace")
def trace_delete(request: HttpRequest, public_id: str) -> HttpResponse:
    """What-ifs of it keep their results."""
    access = access_of(request)
    trace_remove(access=access, trace=trace_for(access, public_id))
    return HttpResponse(status=204)


def _facts(found: Trace, seen: Callable[[str], bool]) -> dict[str, Any]:
    same = ("title", "kind", "files", "jobs", "nodes", "gpus", "hours", "created_at")
    facts = {name: getattr(found, name) for name in same}
    by = found.created_by.username if found.created_by is not None else None
    return {"id": found.public_id, **facts, "queues": list(filter(seen, found.queues)), "left_out": found.rows_left_out, "created_by": by}
