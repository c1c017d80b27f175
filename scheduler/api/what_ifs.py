"""What-ifs over HTTP: what can be changed, ask for one, follow it, cancel it, and all that its page shows."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from ninja import Router, Schema, Status
from pydantic import Field

from gpufleet.core.taken import Taken
from gpufleet.core.times import now
from gpufleet.web import Access, access_of
from quotas.api.replays import TeamWeekOut, teams_told
from quotas.selectors.changes import change_for
from scheduler.api.lists import listed, parameters_of
from scheduler.models import QuotaReplay
from scheduler.selectors.traces import trace_ready
from scheduler.selectors.what_ifs import what_if_for, what_ifs_listed
from scheduler.services.forecasts.traces import trace_present
from scheduler.services.forecasts.what_ifs import as_of, must_ask, present, replay_teams, team_waits, what_if_ask, what_if_cancel
from scheduler.simulation.span import WAIT_EDGES
from scheduler.tasks import quota_replay
from scheduler.whatifs.lists import WHAT_IFS
from scheduler.whatifs.telling import SIDES, measures, summary
from scheduler.whatifs.wanted import (
    HEAVIEST_USAGE,
    LEAST_OVERRUN,
    LONGEST_SECONDS,
    MOST_KINDS,
    MOST_NODES,
    MOST_OVERRUN,
    MOST_TRACE_HOURS,
    RULES,
    SHORTEST_HALF_LIFE_S,
    NodeKind,
    Wanted,
)

router = Router(tags=["What-if"])
Length = Annotated[int, Field(ge=0, le=LONGEST_SECONDS)]
EXAMPLES: dict[str, Any] = {
    "policy": {
        "summary": "The last week with placement by fragmentation and without reclaim",
        "value": {"policy": {"placement": "fgd", "reclaim": False}},
    },
    "draft": {
        "summary": "A draft of the quota tree with four more nodes",
        "value": {"days": 3, "change": "qc-3", "nodes": [{"cluster": "alpha", "gpu_type": "H100-SXM-80GB", "gpus": 8, "count": 4}]},
    },
    "trace": {
        "summary": "The first day of a trace on its own fleet, first come, first served",
        "value": {"trace": "tr-5", "fleet": "trace", "first_hours": 24, "policy": {"order": "fifo"}},
    },
}
EXAMPLE = {"requestBody": {"content": {"application/json": {"examples": EXAMPLES}}}}


class WhatIfPolicyIn(Taken):
    """Settings that differ from today; what is not named, or null, is as today."""

    order: Literal["tree", "fifo"] | None = None
    placement: Literal["pack", "spread", "fgd"] | None = None
    type_choice: Literal["fastest", "cheapest", "stated"] | None = None
    backfill: bool | None = None
    reclaim: bool | None = None
    preemption: bool | None = None
    consolidation: bool | None = None
    usage_weight: Annotated[float, Field(ge=0, le=HEAVIEST_USAGE)] | None = None
    half_life_s: Annotated[int, Field(ge=SHORTEST_HALF_LIFE_S, le=LONGEST_SECONDS)] | None = None
    min_runtime_s: Length | None = None
    overrun: Annotated[float, Field(ge=LEAST_OVERRUN, le=MOST_OVERRUN)] | None = None
    max_wait_inference_s: Length | None = None
    max_wait_interactive_s: Length | None = None
    max_wait_batch_s: Length | None = None


class NodesIn(Taken):
    """More nodes like those of a cluster that have so many GPUs of a type, or fewer."""

    cluster: str = Field(max_length=120)
    gpu_type: str = Field(max_length=120)
    gpus: int = Field(ge=1, le=1024)
    count: int = Field(ge=-MOST_NODES, le=MOST_NODES)


class WhatIfIn(Taken):
    """At least one of a change, a setting and nodes differs from today, or from the trace."""

    days: Literal[1, 3, 7, 14, 28] = Field(7, description="How many days are simulated. Not of a trace.")
    trace: str | None = Field(None, max_length=24, description="Id of the trace that is replayed; null: the last days.")
    fleet: Literal["trace", "today"] = Field(
        "trace", description="Of a trace: `trace` for its own nodes and queues, `today` for this fleet and its quotas, which a draft needs."
    )
    queue: str | None = Field(
        None, max_length=500, description="With `today`: path of the quota node for queues of the trace that have none of their name."
    )
    from_hour: int = Field(0, ge=0, le=MOST_TRACE_HOURS, description="Hour of the trace at which it begins.")
    first_hours: Annotated[int, Field(ge=1, le=MOST_TRACE_HOURS)] | None = Field(None, description="So many hours from there on; null: all.")
    minutes: Literal[1, 5, 15] = Field(1, description="How long it may take: with more time, more hours are simulated and plans are closer together.")
    change: str | None = Field(None, max_length=24)
    policy: WhatIfPolicyIn = WhatIfPolicyIn()
    nodes: list[NodesIn] = Field([], max_length=MOST_KINDS)
    return_nodes: bool = False


class NodesThereOut(Schema):
    cluster: str
    gpu_type: str
    gpus: int
    nodes: int
    away: int


class WhatIfOptionsOut(Schema):
    """What a what-if can change, as it is today."""

    policy: dict[str, str | bool | int | float]
    nodes: list[NodesThereOut]


class NodesChangedOut(Schema):
    cluster: str
    gpu_type: str
    gpus: int
    count: int


class WhatIfOut(Schema):
    """What was asked for, and how far it is. `policy` has the settings that differ from today."""

    id: str
    state: str
    days: int
    trace: str | None = Field(description="Id of the trace that is replayed; null: the last days.")
    fleet: str = Field(description="`trace` where a trace is replayed on its own nodes and queues, else `today`.")
    queue: str | None = Field(description="Path of the quota node for queues of the trace that have none of their name.")
    from_hour: int = Field(description="Hour of the trace at which it begins.")
    first_hours: int | None = Field(description="So many hours from there on were wanted; null: all.")
    minutes: int = Field(description="How long it may take.")
    change: str | None
    policy: dict[str, str | bool | int | float]
    nodes: list[NodesChangedOut]
    return_nodes: bool
    changes: list[str]
    asked_by: str | None
    asked_at: datetime
    ended_at: datetime | None
    hours: int
    of_hours: int
    skipped_hours: int
    fault: str


class WhatIfsOut(Schema):
    items: list[WhatIfOut]
    next: str | None
    previous: str | None


class MeasureOut(Schema):
    key: str
    name: str
    unit: str
    before: float | None
    after: float | None


class WaitsOut(Schema):
    """How many jobs of a class waited so long, in the gaps between `wait_edges_s`: before and after."""

    job_class: str
    before: list[int]
    after: list[int]


class CourseOut(Schema):
    """By hour: before and after."""

    before: list[int]
    after: list[int]


class FactorsOut(Schema):
    """Before and after."""

    before: float
    after: float


class ResultOut(Schema):
    """Of the whole fleet. `step_s` is the time between plans; 0: whenever something happens."""

    summary: list[str]
    measures: list[MeasureOut]
    begins_at: datetime
    step_s: float
    allocated_milli: CourseOut
    waiting_milli: CourseOut
    wait_edges_s: list[int]
    waits: list[WaitsOut]
    overrun: FactorsOut | None


class WhatIfDetailOut(WhatIfOut):
    result: ResultOut | None
    teams: list[TeamWeekOut]


@router.get("/what-ifs", response=WhatIfsOut, url_name="what-ifs", openapi_extra=parameters_of(WHAT_IFS), summary="What-ifs")
def what_ifs(request: HttpRequest) -> HttpResponse:
    """They are kept for a month."""
    return listed(request, WHAT_IFS, what_ifs_listed(access_of(request)), _facts)


@router.post("/what-ifs", response={201: WhatIfDetailOut}, url_name="what-ifs", openapi_extra=EXAMPLE, summary="A new what-if")
def what_if_make(request: HttpRequest, body: WhatIfIn) -> Status[dict[str, Any]]:
    """Takes at most `minutes`, of which one that is longer than a minute runs at a time; read it until its state is `done`. Nothing of the fleet
    changes."""
    access = access_of(request)
    must_ask(access)
    kinds: dict[NodeKind, int] = {}
    for place, row in enumerate(body.nodes):
        kind = NodeKind(row.cluster, row.gpu_type, row.gpus)
        if kind in kinds:
            raise ValidationError({f"nodes.{place}": ["These nodes are named twice."]})
        kinds[kind] = row.count
    wanted = Wanted(body.days, body.policy.model_dump(exclude_none=True), kinds, body.return_nodes, minutes=body.minutes)
    trace, there = None, None
    if body.trace is not None:
        trace, here = trace_ready(access, body.trace), body.fleet == "today"
        hours: dict[str, Any] = {"from_hour": body.from_hour, "first_hours": body.first_hours}
        wanted = replace(wanted, trace=trace.public_id, here=here, queue=body.queue or "", **hours)
        there = None if here else trace_present(trace)
    change = change_for(access, body.change) if body.change is not None else None
    made = what_if_ask(access=access, wanted=wanted, change=change, now=now(), begin=quota_replay.delay, trace=trace, there=there)
    return Status(201, _told(access, what_if_for(access, made.public_id)))


@router.get("/what-ifs/options", response=WhatIfOptionsOut, url_name="what-if-options", summary="What a what-if can change")
def what_if_options(request: HttpRequest) -> dict[str, Any]:
    """The settings and nodes of today."""
    must_ask(access_of(request))
    settings, fleet = present(now())
    nodes = [
        {"cluster": one.kind.cluster, "gpu_type": one.kind.gpu_type, "gpus": one.kind.gpus, "nodes": one.nodes, "away": one.away} for one in fleet
    ]
    return {"policy": {name: rule.read(settings) for name, rule in RULES.items()}, "nodes": nodes}


@router.get("/what-ifs/{public_id}", response=WhatIfDetailOut, url_name="what-if", summary="A what-if and its result")
def what_if(request: HttpRequest, public_id: str) -> dict[str, Any]:
    """The result is there once its state is `done`; of teams those that the caller may see."""
    access = access_of(request)
    return _told(access, what_if_for(access, public_id))


@router.delete("/what-ifs/{public_id}", response={204: None}, url_name="what-if", summary="Cancel a what-if")
def what_if_end(request: HttpRequest, public_id: str) -> HttpResponse:
    """Where it has ended nothing happens. What was simulated is kept."""
    access = access_of(request)
    what_if_cancel(access=access, found=what_if_for(access, public_id), now=now())
    return HttpResponse(status=204)


def _facts(found: QuotaReplay) -> dict[str, Any]:
    found = as_of(found, now())
    asked = found.asked
    return {
        "id": found.public_id,
        "state": found.state,
        "days": found.days,
        "trace": asked.get("trace"),
        "fleet": "trace" if found.on_own_fleet else "today",
        "queue": asked.get("queue") or None,
        "from_hour": asked.get("from_hour", 0),
        "first_hours": asked.get("first_hours"),
        "minutes": found.minutes,
        "change": found.change and found.change.public_id,
        "policy": asked.get("policy", {}),
        "nodes": asked.get("nodes", []),
        "return_nodes": asked.get("return_nodes", False),
        "changes": found.changes,
        "asked_by": found.asked_by and found.asked_by.username,
        "asked_at": found.asked_at,
        "ended_at": found.ended_at,
        "hours": found.hours,
        "of_hours": found.of_hours,
        "skipped_hours": found.skipped_hours,
        "fault": found.fault,
    }


def _told(access: Access, found: QuotaReplay) -> dict[str, Any]:
    facts = _facts(found)
    teams = replay_teams(access, found) if found.state == "done" else []
    result = None
    if found.figures:
        compared, figures = measures(found.figures, found.hours), found.figures
        result = {
            "summary": summary(compared, team_waits(teams), base=found.base),
            "measures": [{"key": one.key, "name": one.name, "unit": one.kind, "before": one.before, "after": one.after} for one in compared],
            "begins_at": datetime.fromtimestamp(figures["from"] / 1000, UTC),
            "step_s": figures["step"] / 1000,
            "allocated_milli": _both(figures, "held"),
            "waiting_milli": _both(figures, "waiting"),
            "wait_edges_s": [edge // 1000 for edge in WAIT_EDGES],
            "waits": _waits(figures),
            "overrun": figures.get("overrun"),
        }
    return facts | {"result": result, "teams": teams_told(teams)}


def _both(figures: Mapping[str, Any], key: str) -> dict[str, list[int]]:
    return {side: figures[side]["course"][key] for side in SIDES}


def _waits(figures: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    none = [0] * (len(WAIT_EDGES) + 1)
    names = dict.fromkeys(name for side in SIDES for name in figures[side]["waits"])
    return [{"job_class": name, **{side: figures[side]["waits"].get(name, {}).get("counts", none) for side in SIDES}} for name in names]
