"""Budgets over HTTP: how they stand, and for those who set them to set, change, except and remove them."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from ninja import Query, Router, Schema, Status
from pydantic import Field

from gpufleet.core.etags import IF_MATCH, revision_wanted, stamped
from gpufleet.core.taken import Taken
from gpufleet.core.times import now
from gpufleet.web import Access, Can, access_of
from quotas.api.lists import ReasonQuery
from quotas.models import Budget
from quotas.selectors.budgets import Standing, budget_for, budgets_listed, may_budget, standings
from quotas.selectors.rates import price_book
from quotas.services.budgets import budget_change, budget_create, budget_remove, exception_end, exception_grant

router = Router(tags=["Budgets"])
MOST = 500


class ExceptionOut(Schema):
    extra: int | None
    until: datetime
    reason: str
    granted_by: str


class BudgetOut(Schema):
    """Amounts are thousandths of a GPU-hour, or micro-units of money. `state`: within, warned, stopped, excepted or ended."""

    id: str
    name: str
    quota: str
    gpu_type: str
    unit: str
    amount: int
    period: str
    zone: str
    period_start: datetime
    period_end: datetime
    warn_percent: int
    stop_percent: int | None
    at_stop: str
    state: str
    used: int
    used_percent: int
    forecast: int
    forecast_percent: int
    out_at: datetime | None
    exception: ExceptionOut | None
    revision: int
    may_change: bool


class BudgetsOut(Schema):
    items: list[BudgetOut]


class BudgetIn(Taken):
    name: str = Field(max_length=200)
    quota: str = Field(max_length=600)
    unit: str = Field("gpu_hours", max_length=20, json_schema_extra={"enum": ["gpu_hours", "money"]})
    amount: int = Field(description="In thousandths of a GPU-hour, or in micro-units of money.")
    period: str = Field("month", max_length=20, json_schema_extra={"enum": ["month", "quarter", "year", "custom"]})
    zone: str = Field("UTC", max_length=100)
    starts_at: datetime | None = Field(None, description="Of a custom period.")
    ends_at: datetime | None = Field(None, description="Of a custom period.")
    gpu_type: str = Field("", max_length=100, description="Empty: all types together.")
    warn_percent: int = 80
    stop_percent: int | None = 100
    at_stop: str = Field("nothing_new", max_length=20, json_schema_extra={"enum": ["nothing_new", "wind_down"]})


class BudgetChange(Taken):
    """What is not named stays; a `stop_percent` of null only warns."""

    name: str | None = Field(None, max_length=200)
    amount: int | None = Field(None, description="In thousandths of a GPU-hour, or in micro-units of money.")
    period: str | None = Field(None, max_length=20)
    zone: str | None = Field(None, max_length=100)
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    gpu_type: str | None = Field(None, max_length=100)
    warn_percent: int | None = None
    stop_percent: int | None = None
    at_stop: str | None = Field(None, max_length=20)
    reason: str = Field("", max_length=280)


class ExceptionIn(Taken):
    extra: int | None = Field(None, description="In the unit of the budget; null: it does not stop.")
    until: datetime
    reason: str = Field(max_length=400)


OPTIONAL = ("stop_percent", "starts_at", "ends_at")


@router.get("/budgets", response=BudgetsOut, url_name="budgets", summary="Budgets and how they stand")
def budgets(request: HttpRequest) -> dict[str, Any]:
    """Budgets of money only for those who may see costs there."""
    access = access_of(request)
    found = list(budgets_listed(access).select_related("quota__parent").order_by("quota__path", "public_id")[:MOST])
    return {"items": [budget_told(access, one) for one in standings(found, price_book(), now())]}


@router.post("/budgets", response={201: BudgetOut}, url_name="budgets", summary="Set a budget")
def budget_make(request: HttpRequest, body: BudgetIn) -> Status[dict[str, Any]]:
    """By those who manage the quota of the node above."""
    access = access_of(request)
    access.must_somewhere(Can.EDIT_QUOTA)
    made = budget_create(access=access, given=body.dict(), now=now())
    return Status(201, _facts(access, made))


@router.get("/budgets/{public_id}", response=BudgetOut, url_name="budget", summary="A budget and how it stands")
def budget(request: HttpRequest, public_id: str, response: HttpResponse) -> dict[str, Any]:
    access = access_of(request)
    found = budget_for(access, public_id)
    stamped(response, found.revision)
    return _facts(access, found)


@router.patch("/budgets/{public_id}", response=BudgetOut, url_name="budget", openapi_extra=IF_MATCH, summary="Change a budget")
def budget_update(request: HttpRequest, public_id: str, body: BudgetChange, response: HttpResponse) -> dict[str, Any]:
    access = access_of(request)
    given = {key: value for key, value in body.dict(exclude_unset=True).items() if value is not None or key in OPTIONAL}
    found = budget_change(access=access, budget=budget_for(access, public_id), given=given, revision=revision_wanted(request), now=now())
    stamped(response, found.revision)
    return _facts(access, found)


@router.delete("/budgets/{public_id}", response={204: None}, url_name="budget", openapi_extra=IF_MATCH, summary="Remove a budget")
def budget_delete(request: HttpRequest, public_id: str, query: Query[ReasonQuery]) -> Status[None]:
    access = access_of(request)
    budget_remove(access=access, budget=budget_for(access, public_id), reason=query.reason, revision=revision_wanted(request), now=now())
    return Status(204, None)


@router.post("/budgets/{public_id}/exception", response={201: BudgetOut}, url_name="budget_exception", summary="Let a budget be exceeded for a time")
def budget_except(request: HttpRequest, public_id: str, body: ExceptionIn) -> Status[dict[str, Any]]:
    """It takes the place of the exception before."""
    access = access_of(request)
    found = budget_for(access, public_id)
    exception_grant(access=access, budget=found, extra=body.extra, until=body.until, reason=body.reason, now=now())
    return Status(201, _facts(access, found))


@router.delete("/budgets/{public_id}/exception", response={204: None}, url_name="budget_exception", summary="End an exception")
def budget_exception_over(request: HttpRequest, public_id: str, query: Query[ReasonQuery]) -> Status[None]:
    access = access_of(request)
    exception_end(access=access, budget=budget_for(access, public_id), reason=query.reason, now=now())
    return Status(204, None)


def _facts(access: Access, found: Budget) -> dict[str, Any]:
    fresh = budgets_listed(access).select_related("quota__parent").get(pk=found.pk)
    return budget_told(access, standings([fresh], price_book(), now())[0])


def budget_told(access: Access, standing: Standing) -> dict[str, Any]:
    found, exception = standing.budget, standing.exception
    plain = ("name", "gpu_type", "unit", "amount", "period", "zone", "warn_percent", "stop_percent", "at_stop", "revision")
    return {name: getattr(found, name) for name in plain} | {
        "id": found.public_id,
        "quota": found.quota.path,
        "period_start": standing.period.start,
        "period_end": standing.period.end,
        "state": standing.state,
        "used": standing.used,
        "used_percent": standing.percent,
        "forecast": standing.forecast,
        "forecast_percent": standing.forecast_percent,
        "out_at": standing.out_at,
        "exception": exception
        and {"extra": exception.extra, "until": exception.until, "reason": exception.reason, "granted_by": exception.granted_name},
        "may_change": may_budget(access, found.quota),
    }
