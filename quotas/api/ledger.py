"""The usage ledger over HTTP: its entries, their sums, and both as a file."""

from datetime import datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.http.response import StreamingHttpResponse
from ninja import Router, Schema
from pydantic import Field

from gpufleet.core.list_parameters import parameters_of
from gpufleet.navigation import access_of
from quotas.api.lists import listed
from quotas.lists import LEDGER
from quotas.models import LedgerEntry
from quotas.selectors.ledger import LedgerLine, LedgerSum, ledger_lines, ledger_list, ledger_sums
from quotas.views.ledger import span_asked

router = Router(tags=["Ledger"])
_FILE: dict[str, Any] = {
    "responses": {200: {"description": "The file.", "content": {"text/csv": {"schema": {"type": "string", "format": "binary"}}}}}
}
_FILTERS = {"parameters": [one for one in parameters_of(LEDGER)["parameters"] if one["name"] not in ("sort", "size", "after", "before")]}


class LedgerEntryOut(Schema):
    """What one worker held for a time in which nothing about it changed. `milli_millis` is its use within the span that was asked for."""

    id: int
    job: str
    attempt_number: int
    role: str
    worker: int
    quota_path: str
    owner: str
    cost_centre: str
    cluster: str
    node: str
    pool: str
    gpu_type: str
    tier: str
    gpu_milli: int
    share_class: str
    phase: str
    since: datetime
    until: datetime | None
    milli_millis: int


class LedgerPage(Schema):
    items: list[LedgerEntryOut]
    next: str = Field(description="Send it as `after` to get the next page; empty at the end.")


class LedgerSumOut(Schema):
    """Use of one GPU type by class: thousandths of a GPU times milliseconds, exact."""

    gpu_type: str
    guaranteed_milli_millis: int
    reserved_milli_millis: int
    borrowed_milli_millis: int
    milli_millis: int


class LedgerSumsOut(Schema):
    counted_to: datetime = Field(description="What goes on is counted up to this moment.")
    items: list[LedgerSumOut]


@router.get("/ledger", response=LedgerPage, url_name="ledger", openapi_extra=parameters_of(LEDGER), summary="The usage ledger")
def ledger_entries(request: HttpRequest) -> LedgerPage:
    """The newest first, of the subtrees that the caller may see. With `from` and `to`: what was held in that time, and how much of it."""
    entries = ledger_list(access_of(request))
    page = listed(LEDGER, request, entries)
    span = span_asked(page)
    return LedgerPage(items=[_entry(line) for line in ledger_lines(page.slice.rows, span)], next=page.slice.after or "")


@router.get("/ledger/sums", response=LedgerSumsOut, url_name="ledger_sums", openapi_extra=_FILTERS, summary="Sums of the usage ledger")
def ledger_added_up(request: HttpRequest) -> LedgerSumsOut:
    """By GPU type and class, of all entries that match. They equal the sum of the entries exactly."""
    asked = LEDGER.page_asked(request.GET, ledger_list(access_of(request)))
    if asked.faults:
        raise ValidationError(asked.faults)
    span = span_asked(asked)
    return LedgerSumsOut(counted_to=span.end, items=[_sum(one) for one in ledger_sums(asked.queryset, span)])


@router.get("/ledger/file", url_name="ledger_file", openapi_extra=_FILTERS | _FILE, summary="The usage ledger as a file")
def ledger_file(request: HttpRequest) -> StreamingHttpResponse:
    """CSV, streamed, all entries that match."""
    page = listed(LEDGER, request, ledger_list(access_of(request)))
    span = span_asked(page)

    def presented(rows: list[LedgerEntry]) -> list[LedgerLine]:
        return ledger_lines(rows, span)

    page.presented = presented
    return page.csv(request)


def _entry(line: LedgerLine) -> LedgerEntryOut:
    names = set(LedgerEntryOut.model_fields) - {"milli_millis"}
    return LedgerEntryOut(milli_millis=line.milli_millis, **{name: getattr(line.entry, name) for name in names})


def _sum(one: LedgerSum) -> LedgerSumOut:
    parts = {f"{name}_milli_millis": getattr(one, name) for name in ("guaranteed", "reserved", "borrowed")}
    return LedgerSumOut(gpu_type=one.gpu_type, milli_millis=one.total, **parts)
