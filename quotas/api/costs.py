"""Costs of a month over HTTP: the report, its files, closing it, and holding it against an invoice."""

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
from quotas.chargeback.months import month_close
from quotas.chargeback.reconciling import month_reconcile, reconciliations_of, steps_of
from quotas.chargeback.report import RULES, Report, Row, month_read, report
from quotas.chargeback.variance import Basis
from quotas.models import Reconciliation
from quotas.views.costs import streamed

router = Router(tags=["Costs"])
MOST = 50
_BYTES = {"schema": {"type": "string", "format": "binary"}}
FILE: dict[str, Any] = {
    "responses": {
        200: {
            "description": "The file.",
            "content": {"text/csv": _BYTES, "application/pdf": _BYTES, "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": _BYTES},
        }
    }
}


class CostRow(Schema):
    """Use is thousandths of a GPU times milliseconds, money is nano-units of the currency: both exact."""

    key: str
    milli_millis: int
    borrowed_milli_millis: int
    unpriced_milli_millis: int
    list_nanos: int
    contracted_nanos: int
    effective_nanos: int
    last_month_nanos: int
    idle_nanos: int
    measured_milli_millis: int
    computing_milli_millis: int
    reserved_unused_milli_millis: int


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


class ClosedOut(Schema):
    month: str
    mode: str
    digest: str
    effective_nanos: int


class CostsQuery(Schema):
    by: str = Field("team", max_length=80, description="What the report is by: team, department, project, owner, job, ... or label:KEY.")
    idle: str = Field("apart", max_length=20, description="How idle cost is distributed.", json_schema_extra={"enum": list(RULES)})


class FileQuery(Schema):
    format: str = Field("csv", max_length=20, description="What it is written as.", json_schema_extra={"enum": list(KINDS)})
    by: str = Field("team", max_length=80, description="Of a summary: what it is by.")
    users: bool = Field(False, description="Whether names of people are in the file.")
    team: str = Field("", max_length=500, description="Path of a subtree: the file is of it alone.")


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


@router.get("/costs/{month}", response=CostsOut, url_name="costs", summary="Costs of a month")
def costs_read(request: HttpRequest, month: str, query: Query[CostsQuery]) -> dict[str, Any]:
    """Inside the subtrees whose costs the caller may see: the 500 most expensive rows. An open month is an estimate."""
    return _told(report(access_of(request), month_read(month), by=query.by, rule=query.idle, now=now()))


@router.get("/costs/{month}/file", url_name="costs_file", openapi_extra=FILE, summary="Costs of a month as a file")
def costs_file(request: HttpRequest, month: str, query: Query[FileQuery]) -> StreamingHttpResponse:
    """CSV, XLSX, PDF or FOCUS, streamed. Each file is in the audit log."""
    access = access_of(request)
    found = file_of(access, month_read(month), query.format, by=query.by, users=query.users, team=query.team, now=now())
    facts = {"format": query.format, "users": query.users} | ({"team": query.team} if query.team else {})
    audit_record(actor=access.actor, action="export", kind="charge_month", object_id=month, after=facts)
    return streamed(request, found)


@router.post("/costs/{month}/close", response=ClosedOut, url_name="costs_close", summary="Close a month")
def costs_close(request: HttpRequest, month: str, body: CloseIn) -> dict[str, Any]:
    """It never changes again; what is found later goes into the next open month."""
    access = access_of(request)
    first: date = month_read(month)
    found = month_close(access=access, first=first, mode=body.mode, reason=body.reason, now=now())
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
    return {
        "month": f"{found.span.first:%Y-%m}",
        "by": found.by,
        "closed": closed,
        "mode": month.mode if month is not None and closed else None,
        "digest": month.digest if month is not None and closed else None,
        "currency": month.currency if month is not None else None,
        "rated_to": month.rated_to if month is not None else None,
        "total": _row(found.total),
        "rows": [_row(row) for row in found.rows],
        "more": found.more,
        "idle": [
            {"gpu_type": one.gpu_type, "cause": one.cause, "milli_millis": one.milli_millis, "effective_nanos": one.effective_nanos}
            for one in found.idle
        ],
    }


def _row(row: Row) -> dict[str, Any]:
    plain = ("key", "milli_millis", "list_nanos", "contracted_nanos", "effective_nanos", "idle_nanos")
    more = {"borrowed_milli_millis": row.borrowed, "unpriced_milli_millis": row.unpriced, "last_month_nanos": row.before_nanos}
    more |= {"measured_milli_millis": row.measured, "computing_milli_millis": row.computing, "reserved_unused_milli_millis": row.reserved_unused}
    return {name: getattr(row, name) for name in plain} | more
