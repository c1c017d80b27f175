"""Costs of a month or another period over HTTP: the report, its files, closing it, and holding it against an invoice."""

from collections.abc import Sequence
from datetime import date, datetime
from typing import Any

from django.http import HttpRequest
from django.http.response import StreamingHttpResponse
from ninja import Query, Router, Schema, Status
from pydantic import Field

from gpufleet.core.audit import audit_record
from gpufleet.core.taken import Taken
from gpufleet.core.times import now
from gpufleet.web import access_of
from quotas.chargeback.files import KINDS, file_of
from quotas.chargeback.months import month_at, month_close
from quotas.chargeback.periods import Period, period_read
from quotas.chargeback.reconciling import month_reconcile, reconciliations_of, steps_of
from quotas.chargeback.report import RULES, Report, Row, idle_unknown, month_read, report
from quotas.chargeback.variance import Basis
from quotas.models import ChargeMonth, Reconciliation
from quotas.views.costs import streamed
from scheduler.services.costs import idle_between

router = Router(tags=["Costs"])
MOST = 50
_BYTES = {"schema": {"type": "string", "format": "binary"}}
FILE: dict[str, Any] = {
    "responses": {
        200: {
            "description": "The file.",
            "content": {"text/csv": _BYTES, "application/pdf": _BYTES, "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": _BYTES},
        },
        404: {
            "description": "No usage in the period, no such team, or outside the caller's subtrees",
            "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
        },
    }
}


class _Amounts(Schema):
    key: str
    milli_millis: int
    borrowed_milli_millis: int
    unpriced_milli_millis: int
    list_nanos: int
    contracted_nanos: int
    effective_nanos: int
    idle_nanos: int
    measured_milli_millis: int
    computing_milli_millis: int
    reserved_unused_milli_millis: int


class CostRow(_Amounts):
    """Use is thousandths of a GPU times milliseconds, money is nano-units of the currency: both exact."""

    last_month_nanos: int


class PeriodCostRow(_Amounts):
    """Use is thousandths of a GPU times milliseconds, money is nano-units of the currency: both exact."""

    before_nanos: int


class IdleCost(Schema):
    gpu_type: str
    cause: str
    milli_millis: int
    effective_nanos: int


class CostsOut(Schema):
    month: str
    by: str
    closed: bool
    mode: str | None
    digest: str | None
    currency: str | None
    rated_to: datetime | None
    total: CostRow
    rows: list[CostRow]
    more: int = Field(description="How many further rows there are, each cheaper. They are in the total, and in the files of the month.")
    idle: list[IdleCost]


class MonthInOut(Schema):
    """A month that the period has days of."""

    month: str
    whole: bool
    closed: bool
    mode: str | None
    digest: str | None
    rated_to: datetime | None


class PeriodCostsOut(Schema):
    from_: str = Field(alias="from")
    to: str
    before_from: str
    before_to: str
    by: str
    estimate: bool
    currency: str | None
    months: list[MonthInOut]
    total: PeriodCostRow
    rows: list[PeriodCostRow]
    more: int = Field(description="How many further rows there are, each cheaper. They are in the total, and in the files of the period.")
    idle: list[IdleCost]
    idle_missing: list[str] = Field(
        description="Months whose uncharged time is missing, as they have it only as a whole and the period has some of their days."
    )


class ClosedOut(Schema):
    month: str
    mode: str
    digest: str
    effective_nanos: int


class CostsQuery(Schema):
    by: str = Field("team", max_length=80, description="What the report is by: team, department, project, owner, job, ... or label:KEY.")
    idle: str = Field("apart", max_length=20, description="How uncharged time is distributed.", json_schema_extra={"enum": list(RULES)})


class FileQuery(Schema):
    format: str = Field("csv", max_length=20, description="What it is written as.", json_schema_extra={"enum": list(KINDS)})
    by: str = Field("team", max_length=80, description="Of a summary: what it is by.")
    users: bool = Field(False, description="Whether names of people are in the file.")
    team: str = Field("", max_length=500, description="Path of a subtree: the file is of it alone.")


class PeriodQuery(Schema):
    from_: str = Field("", alias="from", max_length=20, description="The first day, as YYYY-MM-DD. Without `from` and `to` it is this month.")
    to: str = Field("", max_length=20, description="The last day, as YYYY-MM-DD; it is in the period.")


class PeriodCostsQuery(PeriodQuery, CostsQuery):
    pass


class PeriodFileQuery(PeriodQuery, FileQuery):
    pass


class CloseIn(Taken):
    mode: str = Field(max_length=12)
    reason: str = Field("", max_length=280)


class BilledOut(Schema):
    """What the invoice says of a GPU type."""

    gpu_type: str
    milli_millis: int | None
    unit_micros: int | None


class StepOut(Schema):
    """From the books to the invoice: the amounts of all steps add up to the invoice."""

    step: str
    label: str
    part: str
    milli_millis: int
    nanos: int
    note: str


class ReconciliationOut(Schema):
    id: str
    month: str
    reference: str
    currency: str
    amount_nanos: int
    fees_nanos: int
    basis: str
    lines: list[BilledOut]
    steps: list[StepOut]
    left_nanos: int
    note: str
    author: str
    created_at: datetime


class ReconciliationsOut(Schema):
    items: list[ReconciliationOut]


class BilledIn(Taken):
    """Hours, unit price or both of a GPU type on the invoice."""

    gpu_type: str = Field(max_length=60)
    milli_millis: int | None = None
    unit_micros: int | None = None


class ReconciliationIn(Taken):
    amount_nanos: int
    reference: str = Field(max_length=80)
    currency: str = Field("", max_length=3)
    fees_nanos: int = 0
    basis: str = Field("contracted", max_length=12, json_schema_extra={"enum": list(Basis)})
    note: str = Field("", max_length=280)
    lines: list[BilledIn] = Field(default_factory=list, max_length=100)


@router.get("/costs", response=PeriodCostsOut, by_alias=True, url_name="costs_of_period", summary="Costs of a period")
def costs_of_period(request: HttpRequest, query: Query[PeriodCostsQuery]) -> dict[str, Any]:
    """Of any days in UTC, from the first to the last, against the period of the same length before it. Closed months are in it as they were closed,
    open ones are estimates. Corrections count on the first day of the month that charges them."""
    access, period = access_of(request), _period(query)
    return _period_told(report(access, period, by=query.by, rule=query.idle, now=now()), idle_unknown(access, period))


@router.get("/costs/file", url_name="costs_file_of_period", openapi_extra=FILE, summary="Costs of a period as a file")
def costs_file_of_period(request: HttpRequest, query: Query[PeriodFileQuery]) -> StreamingHttpResponse:
    """CSV, XLSX or PDF, streamed; FOCUS of whole months. Each file is in the audit log."""
    return _file(request, _period(query), query)


def _period(query: PeriodQuery) -> Period:
    return period_read(query.from_, query.to) if query.from_ or query.to else Period.of(month_at(now()))


@router.get("/costs/{month}", response=CostsOut, url_name="costs", summary="Costs of a month")
def costs_read(request: HttpRequest, month: str, query: Query[CostsQuery]) -> dict[str, Any]:
    """Inside the subtrees whose costs the caller may see: the 500 most expensive rows. An open month is an estimate."""
    return _told(report(access_of(request), Period.of(month_read(month)), by=query.by, rule=query.idle, now=now()))


@router.get("/costs/{month}/file", url_name="costs_file", openapi_extra=FILE, summary="Costs of a month as a file")
def costs_file(request: HttpRequest, month: str, query: Query[FileQuery]) -> StreamingHttpResponse:
    """CSV, XLSX, PDF or FOCUS, streamed. Each file is in the audit log."""
    return _file(request, Period.of(month_read(month)), query)


def _file(request: HttpRequest, period: Period, query: FileQuery) -> StreamingHttpResponse:
    access = access_of(request)
    found = file_of(access, period, query.format, by=query.by, users=query.users, team=query.team, now=now())
    facts = {"format": query.format, "users": query.users} | ({"team": query.team} if query.team else {})
    audit_record(actor=access.actor, action="export", kind="charge_month", object_id=str(period), after=facts)
    return streamed(request, found)


@router.post("/costs/{month}/close", response=ClosedOut, url_name="costs_close", summary="Close a month")
def costs_close(request: HttpRequest, month: str, body: CloseIn) -> dict[str, Any]:
    """It never changes again; what is found later goes into the next open month."""
    access = access_of(request)
    first: date = month_read(month)
    found = month_close(access=access, first=first, mode=body.mode, reason=body.reason, now=now(), idle=idle_between)
    return {"month": f"{first:%Y-%m}", "mode": found.mode, "digest": found.digest, "effective_nanos": found.effective_nanos}


@router.get("/costs/{month}/reconciliations", response=ReconciliationsOut, url_name="reconciliations", summary="Reconciliations of a month")
def reconciliations(request: HttpRequest, month: str) -> dict[str, Any]:
    """The newest first. For those who see the costs of the whole fleet."""
    return {"items": [_made(one) for one in reconciliations_of(access_of(request), month_read(month))[:MOST]]}


@router.post("/costs/{month}/reconciliations", response={201: ReconciliationOut}, url_name="reconciliations", summary="Reconcile a month")
def reconciliation_make(request: HttpRequest, month: str, body: ReconciliationIn) -> Status[dict[str, Any]]:
    """Hold it against a supplier's invoice. The table is kept; no cost changes."""
    made = month_reconcile(access=access_of(request), first=month_read(month), given=body.model_dump(), now=now())
    return Status(201, _made(made))


def _made(made: Reconciliation) -> dict[str, Any]:
    names = ("reference", "currency", "amount_nanos", "fees_nanos", "basis", "left_nanos", "note", "created_at")
    return {name: getattr(made, name) for name in names} | {
        "id": made.public_id,
        "month": str(made.month),
        "author": made.author_name,
        "lines": [{"gpu_type": one["gpu_type"], "milli_millis": one["milli_millis"], "unit_micros": one["micros"]} for one in made.lines],
        "steps": [
            {"step": one.key, "label": one.label, "part": one.part, "milli_millis": one.milli_millis, "nanos": one.nanos, "note": one.note}
            for one in steps_of(made)
        ],
    }


def _told(found: Report) -> dict[str, Any]:
    month = found.month
    closed = month is not None and month.closed_at is not None
    return _amounts(found) | {
        "month": str(found.period),
        "closed": closed,
        "mode": month.mode if month is not None and closed else None,
        "digest": month.digest if month is not None and closed else None,
        "rated_to": month.rated_to if month is not None else None,
        "total": _row(found.total, "last_month_nanos"),
        "rows": [_row(row, "last_month_nanos") for row in found.rows],
    }


def _period_told(found: Report, missing: Sequence[ChargeMonth]) -> dict[str, Any]:
    period, before, whole = found.period, found.period.before, set(found.period.whole_months)
    months = [
        {"month": str(one), "whole": one.first in whole, "closed": closed, "rated_to": one.rated_to}
        | {"mode": one.mode if closed else None, "digest": one.digest if closed else None}
        for one in found.months
        for closed in [one.closed_at is not None]
    ]
    return _amounts(found) | {
        "from": f"{period.first}",
        "to": f"{period.last}",
        "before_from": f"{before.first}",
        "before_to": f"{before.last}",
        "estimate": found.is_estimate,
        "idle_missing": [str(one) for one in missing],
        "months": months,
        "total": _row(found.total, "before_nanos"),
        "rows": [_row(row, "before_nanos") for row in found.rows],
    }


def _amounts(found: Report) -> dict[str, Any]:
    names = ("gpu_type", "cause", "milli_millis", "effective_nanos")
    idle = [{name: getattr(one, name) for name in names} for one in found.idle]
    return {"by": found.by, "currency": found.currency or None, "more": found.more, "idle": idle}


def _row(row: Row, before: str) -> dict[str, Any]:
    plain = ("key", "milli_millis", "list_nanos", "contracted_nanos", "effective_nanos", "idle_nanos")
    more = {"borrowed_milli_millis": row.borrowed, "unpriced_milli_millis": row.unpriced, before: row.before_nanos}
    more |= {"measured_milli_millis": row.measured, "computing_milli_millis": row.computing, "reserved_unused_milli_millis": row.reserved_unused}
    return {name: getattr(row, name) for name in plain} | more
