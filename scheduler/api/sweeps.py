"""Sweeps over HTTP: a trace at several arrival rates or fleet sizes, followed until it has ended."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from ninja import Router, Schema, Status
from pydantic import Field

from gpufleet.core.taken import Taken
from gpufleet.core.times import now
from gpufleet.web import access_of
from scheduler.api.lists import listed, parameters_of
from scheduler.models import Sweep
from scheduler.selectors.sweeps import sweep_for, sweeps_listed
from scheduler.selectors.traces import trace_ready
from scheduler.services.forecasts.sweeps import sweep_ask, sweep_cancel
from scheduler.services.forecasts.what_ifs import must_ask
from scheduler.sweeps.asking import MOST_HOURS, MOST_POLICIES, MOST_SEEDS, MOST_VALUES, OFFERED, USUAL_POLICIES, USUAL_SEEDS, Asked
from scheduler.sweeps.telling import Row
from scheduler.tasks import sweep
from scheduler.whatifs.lists import SWEEPS
from scheduler.whatifs.sweeps import knees, rows_told

router = Router(tags=["What-if"])
PolicyName = Annotated[str, Field(json_schema_extra={"enum": list(OFFERED)})]


class SweepIn(Taken):
    """Each policy is played at each value with each seed: at most 200 simulations."""

    trace: str = Field(max_length=24, description="Id of the trace whose jobs come.")
    axis: Literal["load", "nodes"] = Field("load", description="What is varied: the arrival rate or the number of nodes.")
    values: list[float] = Field(
        min_length=2, max_length=MOST_VALUES, description="Arrival rates, 1 being that of the trace, 0.01 to 100; or numbers of nodes, 1 to 10,000."
    )
    policies: list[PolicyName] = Field(
        list(USUAL_POLICIES), min_length=1, max_length=MOST_POLICIES, description="As `gpufleet sweep --list-policies` explains them."
    )
    seeds: int = Field(USUAL_SEEDS, ge=1, le=MOST_SEEDS, description="Draws of the order of jobs for each value.")
    hours: Annotated[int, Field(ge=1, le=MOST_HOURS)] | None = Field(
        None, description="That are simulated, of which the first and the last quarter do not count; null: as long as jobs of the trace come."
    )
    minutes: Literal[1, 5, 15, 60] = Field(5, description="How long it may take. The result is what was simulated by then.")
    exact: bool = Field(
        False, description="A plan whenever something happens; else plans are a tenth of the mean run time apart, from 10 s to 5 minutes."
    )


class SweepOut(Schema):
    """What was asked for, and how far it is."""

    id: str
    state: str
    trace: str = Field(description="Title of the trace.")
    axis: str = Field(description="`load` or `nodes`.")
    values: list[float] = Field(description="The smallest first.")
    policies: list[str]
    seeds: int
    hours: int | None
    minutes: int
    exact: bool
    simulated: int = Field(description="Points so far.")
    of: int = Field(description="Points in all.")
    asked_by: str | None
    asked_at: datetime
    ended_at: datetime | None
    fault: str = Field(description="Why it failed.")


class SweepsOut(Schema):
    items: list[SweepOut]
    next: str | None
    previous: str | None


class SpreadOut(Schema):
    """Over seeds."""

    mean: float
    least: float
    most: float


class SweepPointOut(Schema):
    """A policy at one value. Lengths are in seconds, shares from 0 to 1."""

    policy: str
    value: float
    states: dict[str, int] = Field(description="How many seeds are `completed`, `saturated` or `failed`.")
    figures: dict[str, SpreadOut | None] = Field(description="By name; of classes and GPU types as `name:class`. null: not measured.")


class SweepDetailOut(SweepOut):
    step_s: float = Field(description="How far apart plans are; 0: one whenever something happens.")
    knees: list[str] = Field(description="Of each policy, where its queue times begin to grow.")
    points: list[SweepPointOut]


@router.get("/sweeps", response=SweepsOut, url_name="sweeps", openapi_extra=parameters_of(SWEEPS), summary="Sweeps")
def sweep_list(request: HttpRequest) -> HttpResponse:
    """They are kept for a quarter."""
    return listed(request, SWEEPS, sweeps_listed(access_of(request)), _facts)


@router.post("/sweeps", response={202: SweepOut}, url_name="sweeps", summary="A new sweep")
def sweep_make(request: HttpRequest, body: SweepIn, response: HttpResponse) -> Status[dict[str, Any]]:
    """Simulated in the background, one at a time; `Location` is where its state is read until it is `done`. Nothing of the fleet changes."""
    access = access_of(request)
    must_ask(access)
    values, policies = tuple(sorted(set(body.values))), tuple(dict.fromkeys(body.policies))
    if len(values) < len(body.values) or len(policies) < len(body.policies):
        name = "values" if len(values) < len(body.values) else "policies"
        raise ValidationError({name: ["One of them is named twice."]})
    asked = Asked(body.axis, values, policies, body.seeds, body.hours, body.minutes, body.exact)
    made = sweep_ask(access=access, trace=trace_ready(access, body.trace), asked=asked, now=now(), begin=sweep.delay)
    response["Location"] = reverse("api:sweep", args=[made.public_id])
    return Status(202, _facts(made))


@router.get("/sweeps/{public_id}", response=SweepDetailOut, url_name="sweep", summary="A sweep and its points")
def sweep_get(request: HttpRequest, public_id: str) -> dict[str, Any]:
    """Points are there as soon as they were simulated."""
    found = sweep_for(access_of(request), public_id)
    rows = rows_told(found)
    return _facts(found) | {"step_s": found.step_s, "knees": knees(found, rows) if rows else [], "points": list(map(_point, rows))}


@router.delete("/sweeps/{public_id}", response={204: None}, url_name="sweep", summary="Cancel a sweep")
def sweep_stop(request: HttpRequest, public_id: str) -> HttpResponse:
    """If it has ended, nothing happens. What was simulated is kept."""
    access = access_of(request)
    sweep_cancel(access=access, found=sweep_for(access, public_id), now=now())
    return HttpResponse(status=204)


def _facts(found: Sweep) -> dict[str, Any]:
    return {
        "id": found.public_id,
        "state": found.outcome,
        "trace": found.trace_title,
        "axis": found.axis,
        **found.asked,
        "simulated": found.played,
        "of": found.points,
        "asked_by": found.asked_by and found.asked_by.username,
        "asked_at": found.asked_at,
        "ended_at": found.ended_at,
        "fault": found.why_failed,
    }


def _point(row: Row) -> Mapping[str, Any]:
    figures = {name: of and {"mean": of.mean, "least": of.least, "most": of.most} for name, of in row.figures.items()}
    return {"policy": row.policy, "value": row.value, "states": dict(row.states), "figures": figures}
