"""The usage ledger: what each job held, when and in which class, with sums that add up to the entries."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse, HttpResponseBase, QueryDict
from django.template.loader import render_to_string
from django.views.decorators.http import require_safe

from gpufleet.core.live.feed import feed_revision
from gpufleet.core.tables import Page
from gpufleet.core.times import now
from gpufleet.web import Can, access_of, requires
from quotas.lists import LEDGER
from quotas.models import LedgerClock, LedgerEntry
from quotas.selectors.ledger import LedgerLine, Span, ledger_lines, ledger_list, ledger_sums, milli_hours, span_of

# What an address without parameters shows: the sums of years are for those who ask for them.
FIRST_SHOWN = timedelta(days=7)


@require_safe
@requires(Can.SEE)
def ledger(request: HttpRequest) -> HttpResponseBase:
    access, version, at = access_of(request), feed_revision(), now()
    if not request.GET:
        request.GET = QueryDict(urlencode({"from": f"{at - FIRST_SHOWN:%Y-%m-%d}"}))
    entries = ledger_list(access)
    asked = LEDGER.page_asked(request.GET, entries)
    span = span_asked(asked)

    def presented(rows: list[LedgerEntry]) -> Sequence[LedgerLine]:
        return ledger_lines(rows, span)

    def sums() -> dict[str, Any]:
        return sums_shown(asked, span)

    context = {
        "heading": "Usage ledger",
        "sub": "What each job held, when and in which class.",
        "version": version,
        "sums": sums,
        "began": began,
    }
    answer = LEDGER.respond(request, entries, "quotas/ledger.html", context, presented=presented)
    if isinstance(answer, HttpResponse) and getattr(request, "htmx", False) and "rows" not in request.GET:
        # The list alone is exchanged; its sums stand outside of it and come along.
        answer.write(render_to_string("quotas/_ledger_sums.html", {"sums": sums(), "apart": True}, request))
    return answer


def began() -> datetime | None:
    """Since when usage is written down; None before the first. What a demo's past is made of is older than its clock."""
    clock = LedgerClock.objects.values_list("began_at", flat=True).first()
    first = LedgerEntry.objects.order_by("since").values_list("since", flat=True).first()
    return min((at for at in (clock, first) if at is not None), default=None)


def span_asked(asked: Page) -> Span:
    moments = {item.key: item.moment for item in asked.filters}
    return span_of(moments["from"], moments["to"], now())


def sums_shown(asked: Page, span: Span) -> dict[str, Any]:
    found = ledger_sums(asked.queryset, span)
    grid = milli_hours(found)
    hrefs = [asked.href(type=one.gpu_type) for one in found]
    whole = [sum(column) for column in zip(*grid, strict=True)]
    return {"rows": list(zip(found, grid, hrefs, strict=True)), "whole": whole, "span": span}
