"""The scheduler over HTTP, for those who see the whole fleet."""

from datetime import datetime
from typing import Any, Literal

from django.http import HttpRequest, HttpResponse
from ninja import Router, Schema
from pydantic import Field

from gpufleet.core.taken import Taken
from gpufleet.core.times import now
from gpufleet.web import Can, access_of
from scheduler.api.lists import answered, listed, parameters_of
from scheduler.jobs.lists import PLANS
from scheduler.models import PlanRecord
from scheduler.presenters.plans import PlanLine, plan_lines, total_ms
from scheduler.selectors.loop import (
    job_counts,
    leadership,
    orders_open,
    phase_times,
    plan_for,
    plan_scenario,
    plan_unpacked,
    plans_listed,
    scenario_now,
)
from scheduler.selectors.overrun import overrun_told
from scheduler.selectors.spreads import Spread
from scheduler.services.jobs.steering import scheduler_pause, scheduler_resume

router = Router(tags=["Scheduler"])


class PhaseOut(Schema):
    phase: str
    median_ms: float
    p95_ms: float
    longest_ms: float


class OrdersOut(Schema):
    cluster: str
    backend: str
    due: int
    later: int
    failing: int
    oldest: datetime | None
    fault: str | None


class OverrunOut(Schema):
    """By how much plans multiply the estimates of jobs without a time limit, and what was learned of it."""

    factor: float = Field(description="In use now.", examples=[0.83])
    estimates: Literal["learned", "stated"] = Field(description="The fleet-wide rule: `stated` leaves the learned factor out.", examples=["learned"])
    learned: float | None = Field(description="The learned factor, bounded; null: nothing was learned yet.", examples=[0.83])
    median: float | None = Field(description="Run time divided by estimate, in the median of the jobs.", examples=[0.827])
    jobs: int = Field(description="Completed jobs that it was learned from; with too few it is 1.", examples=[214])
    since: datetime | None = Field(description="When the first of these jobs ended.", examples=["2026-02-02T10:00:00Z"])
    learned_at: datetime | None = Field(description="When it was learned last; it is learned once an hour.", examples=["2026-03-02T10:00:00Z"])


class SchedulerOut(Schema):
    """`state`: deciding, watching, paused, overdue or never. `unseen` counts the events that no plan has seen yet."""

    state: str
    holder: str | None
    epoch: int
    unseen: int
    next_wake_at: datetime | None
    paused_at: datetime | None
    paused_by: str | None
    paused_reason: str | None
    waiting: int
    holding: int
    phases: list[PhaseOut]
    orders: list[OrdersOut]
    overrun: OverrunOut = Field(description="How estimates of run times count.")


class PlanOut(Schema):
    id: int
    at: datetime
    epoch: int
    phases: dict[str, float]
    total_ms: float
    decided: int
    dropped: int
    waiting: int
    next_wake_at: datetime | None
    fault: str | None


class PlansOut(Schema):
    """One page of plans, the latest first. `next` and `previous` go into `after` and `before`; null where there is nothing more."""

    items: list[PlanOut]
    next: str | None
    previous: str | None


class PlanDetailOut(Schema):
    id: int
    at: datetime
    epoch: int
    phases: dict[str, float]
    decisions: list[dict[str, Any]]
    dropped: list[dict[str, Any]]
    waiting: int
    metrics: dict[str, Any]
    next_wake_at: datetime | None
    fault: str | None


@router.get("/scheduler", response=SchedulerOut, url_name="scheduler", summary="State of the scheduler")
def scheduler_state(request: HttpRequest) -> HttpResponse:
    access_of(request).must_everywhere(Can.SEE)
    moment = now()
    lead = leadership(moment)
    lease, (_, phases) = lead.lease, phase_times()
    return answered(
        {
            "state": lead.state,
            "holder": lease.holder or None if lease else None,
            "epoch": lease.epoch if lease else 0,
            "unseen": lead.unseen,
            "next_wake_at": lease.next_wake_at if lease else None,
            "paused_at": lease.paused_at if lease else None,
            "paused_by": lease.paused_by or None if lease else None,
            "paused_reason": lease.paused_reason or None if lease else None,
            **job_counts(),
            "phases": [_phase(name, taken) for name, taken in phases.items()],
            "orders": [
                {
                    "cluster": row.cluster.name,
                    "backend": row.cluster.backend,
                    "due": row.due,
                    "later": row.later,
                    "failing": row.failing,
                    "oldest": row.oldest,
                    "fault": row.fault or None,
                }
                for row in orders_open(moment)
            ],
            "overrun": _overrun(),
        }
    )


@router.get("/scheduler/scenario", response=dict[str, Any], url_name="scenario", summary="Everything that a plan made now would depend on")
def scenario(request: HttpRequest) -> HttpResponse:
    """A scenario file of this moment, for `gpufleet plan` and `gpufleet simulate`. It names jobs of all teams; commands and secrets are not in it."""
    return HttpResponse(scenario_now(access_of(request), now()), content_type="application/json")


class PauseIn(Taken):
    reason: str = Field(min_length=1, max_length=280, description="Shown to all users while nothing starts.")


class ResumeIn(Taken):
    reason: str = Field("", max_length=280)


class PausedOut(Schema):
    state: str
    paused_at: datetime | None
    paused_by: str | None
    paused_reason: str | None


@router.post("/scheduler/pause", response=PausedOut, url_name="scheduler_pause", summary="Decide nothing new")
def pause(request: HttpRequest, body: PauseIn) -> HttpResponse:
    """What runs goes on, ends and is accounted. 409 where it is paused already."""
    scheduler_pause(access=access_of(request), reason=body.reason, now=now())
    return _paused()


@router.post("/scheduler/resume", response=PausedOut, url_name="scheduler_resume", summary="Decide again")
def resume(request: HttpRequest, body: ResumeIn) -> HttpResponse:
    scheduler_resume(access=access_of(request), reason=body.reason, now=now())
    return _paused()


def _paused() -> HttpResponse:
    lead = leadership(now())
    lease = lead.lease
    assert lease is not None, "it was just written"
    told = {"paused_at": lease.paused_at, "paused_by": lease.paused_by or None, "paused_reason": lease.paused_reason or None}
    return answered({"state": lead.state, **told})


@router.get("/scheduler/plans", response=PlansOut, url_name="plans", openapi_extra=parameters_of(PLANS), summary="Plans")
def plans(request: HttpRequest) -> HttpResponse:
    return listed(request, PLANS, plans_listed(access_of(request)), _row, plan_lines)


@router.get("/scheduler/plans/{pk}", response=PlanDetailOut, url_name="plan", summary="A plan with its decisions and why")
def plan(request: HttpRequest, pk: int) -> HttpResponse:
    found = plan_for(access_of(request), pk)
    told = {"decisions": found.decisions, "dropped": found.dropped, "metrics": found.metrics}
    return answered(_facts(found) | told)


@router.get("/scheduler/plans/{pk}/scenario", response=dict[str, Any], url_name="plan_scenario", summary="What a plan was made from")
def plan_source(request: HttpRequest, pk: int) -> HttpResponse:
    """A scenario file: `gpufleet plan` makes the same plan of it. Kept for hours; then 404."""
    return HttpResponse(plan_unpacked(plan_scenario(access_of(request), pk)), content_type="application/json")


def _overrun() -> dict[str, Any]:
    told = overrun_told()
    figures = {name: getattr(told, name) for name in ("factor", "learned", "median", "jobs", "since", "learned_at")}
    return figures | {"estimates": "stated" if told.as_stated else "learned"}


def _phase(name: str, taken: Spread) -> dict[str, Any]:
    return {"phase": name, "median_ms": taken.median, "p95_ms": taken.p95, "longest_ms": taken.longest}


def _facts(found: PlanRecord) -> dict[str, Any]:
    return {
        "id": found.pk,
        "at": found.at,
        "epoch": found.epoch,
        "phases": found.phases,
        "waiting": found.waiting,
        "next_wake_at": found.next_wake_at,
        "fault": found.fault or None,
    }


def _row(line: PlanLine) -> dict[str, Any]:
    counted = {"decided": line.plan.decided, "dropped": line.plan.refused}  # type: ignore[attr-defined]
    return _facts(line.plan) | {"total_ms": total_ms(line.plan), **counted}
