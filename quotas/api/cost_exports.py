"""Files of a month or of another period that a worker writes, over HTTP: asked for, followed, downloaded."""

from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.http.response import StreamingHttpResponse
from django.urls import reverse
from ninja import Query, Router, Schema, Status
from pydantic import Field

from gpufleet.core.audit import audit_record
from gpufleet.core.taken import Taken
from gpufleet.core.times import now
from gpufleet.web import access_of
from quotas.api.costs import FILE
from quotas.chargeback.files import KINDS
from quotas.chargeback.periods import Period, period_read
from quotas.chargeback.report import month_read
from quotas.models import CostExport
from quotas.services.cost_exports import export_ask, export_file, export_for, exports_listed, is_ready, key_of, period_of
from quotas.tasks import cost_export_write
from quotas.views.costs import streamed

router = Router(tags=["Costs"])
MOST = 50


class CostExportIn(Taken):
    format: str = Field("csv", max_length=20, description="What it is written as.", json_schema_extra={"enum": list(KINDS)})
    by: str = Field("team", max_length=80, description="Of a summary: what it is by.")
    users: bool = Field(False, description="Whether names of people are in the file.")


class PeriodExportIn(CostExportIn):
    from_: str = Field(alias="from", max_length=20, description="The first day, as YYYY-MM-DD.")
    to: str = Field(max_length=20, description="The last day, as YYYY-MM-DD; it is in the period.")


class CostExportOut(Schema):
    id: str
    month: str | None
    from_: str = Field(alias="from")
    to: str
    format: str
    state: str
    lines: int
    of_lines: int
    size: int
    fault: str
    asked_at: datetime
    ended_at: datetime | None
    expires_at: datetime | None
    file: str | None


class CostExportsOut(Schema):
    items: list[CostExportOut]


class ExportFileQuery(Schema):
    key: str = Field("", max_length=100, description="The signature of the link.")


@router.post(
    "/costs/{month}/exports", response={202: CostExportOut}, by_alias=True, url_name="costs_exports", summary="Export a month in the background"
)
def cost_export_make(request: HttpRequest, month: str, body: CostExportIn, response: HttpResponse) -> Status[dict[str, Any]]:
    """For large months. `Location` is where its state is read until it is `done`; `file` is then where it is downloaded until it expires."""
    return _made(request, Period.of(month_read(month)), body, response)


@router.post("/cost-exports", response={202: CostExportOut}, by_alias=True, url_name="cost_exports", summary="Export a period in the background")
def cost_export_make_of_period(request: HttpRequest, body: PeriodExportIn, response: HttpResponse) -> Status[dict[str, Any]]:
    """As of a month."""
    return _made(request, period_read(body.from_, body.to), body, response)


def _made(request: HttpRequest, period: Period, body: CostExportIn, response: HttpResponse) -> Status[dict[str, Any]]:
    access = access_of(request)
    made = export_ask(access=access, period=period, kind=body.format, by=body.by, users=body.users, now=now(), begin=cost_export_write.delay)
    response["Location"] = reverse("api:cost_export", args=[made.public_id])
    return Status(202, _told(export_for(access, made.public_id)))


@router.get("/cost-exports", response=CostExportsOut, by_alias=True, url_name="cost_exports", summary="Exports of costs")
def cost_exports(request: HttpRequest) -> dict[str, Any]:
    """The caller's own, the newest first."""
    return {"items": [_told(one) for one in exports_listed(access_of(request))[:MOST]]}


@router.get("/cost-exports/{public_id}", response=CostExportOut, by_alias=True, url_name="cost_export", summary="An export of costs")
def cost_export(request: HttpRequest, public_id: str) -> dict[str, Any]:
    """One of the caller's own."""
    return _told(export_for(access_of(request), public_id))


@router.get("/cost-exports/{public_id}/file", url_name="cost_export_file", openapi_extra=FILE, summary="File of an export of costs")
def cost_export_file(request: HttpRequest, public_id: str, query: Query[ExportFileQuery]) -> StreamingHttpResponse:
    """By the signed link that the export has as `file`. The caller still has to see all costs in it. Each download is in the audit log."""
    access = access_of(request)
    found = export_file(access, public_id, query.key, now=now())
    audit_record(actor=access.actor, action="export", kind="cost_export", object_id=public_id)
    return streamed(request, found)


def _told(export: CostExport) -> dict[str, Any]:
    names = ("format", "state", "lines", "of_lines", "size", "fault", "asked_at", "ended_at", "expires_at")
    link, period = None, period_of(export)
    if is_ready(export, now()):
        link = f"{reverse('api:cost_export_file', args=[export.public_id])}?{urlencode({'key': key_of(export)})}"
    return {name: getattr(export, name) for name in names} | {
        "id": export.public_id,
        "month": str(period) if period.month else None,
        "from": f"{period.first}",
        "to": f"{period.last}",
        "file": link,
    }
