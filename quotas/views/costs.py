"""The cost report of a month or another period, its lines down to the ledger, its files, its closing, and its invoice."""

from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.core.handlers.asgi import ASGIRequest
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, QueryDict, StreamingHttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from gpufleet.core.charts import chart_response
from gpufleet.core.faults import Conflict
from gpufleet.core.live.feed import feed_revision
from gpufleet.core.times import now
from gpufleet.web import Can, access_of, requires
from quotas.chargeback.days import day_range, day_ranges, days_chart, report_chart
from quotas.chargeback.files import TITLES, File, file_of
from quotas.chargeback.forms import BilledForms, CloseForm, InvoiceForm, billed_typed, invoice_typed
from quotas.chargeback.months import Span, month_at, month_close, why_not_closed
from quotas.chargeback.periods import Period, period_read, presets
from quotas.chargeback.reconciling import account_of, is_outdated, month_reconcile, month_to_reconcile, newest_of, reconciliations_of, steps_of
from quotas.chargeback.report import (
    BY,
    RULES,
    closed_after,
    idle_shown,
    idle_unknown,
    labels_known,
    line_for,
    lines_of,
    month_read,
    months_known,
    pieces_of,
    report,
    rows_shown,
)
from quotas.forms import show_faults
from quotas.models import ChargeMonth, RateCard
from quotas.services.cost_exports import DIRECT_LINES
from scheduler.services.costs import idle_between

ROWS, LINES = 250, 300
RECONCILIATIONS = 50


def period_asked(asked: QueryDict) -> Period:
    """By `month`, or from the day `from` to the day `to`; this month if neither is said."""
    if "from" in asked or "to" in asked:
        return period_read(asked.get("from", ""), asked.get("to", ""))
    said = asked.get("month", "")
    current = month_at(now())
    return Period.of(Span(current).before if said == "last" else month_read(said[:10]) if said else current)


def address_of(period: Period) -> dict[str, str]:
    return {"month": f"{period}"} if period.month else {"from": f"{period.first}", "to": f"{period.last}"}


def _asked(request: HttpRequest) -> tuple[str, str]:
    by, rule = request.GET.get("by", "team")[:80], request.GET.get("idle", "apart")[:20]
    if (by not in BY and not by.startswith("label:")) or rule not in RULES:
        raise Http404(f"A report is by {', '.join(BY)} or label:KEY.")
    return by, rule


def _period(request: HttpRequest) -> Period:
    try:
        return period_asked(request.GET)
    except ValidationError as fault:
        raise Http404(" ".join(fault.messages)) from None


@require_safe
@requires(Can.SEE_COSTS)
def costs(request: HttpRequest) -> HttpResponseBase:
    access, version, moment, faults = access_of(request), feed_revision(), now(), list[str]()
    by, rule = _asked(request)
    if request.GET.get("chart"):
        return _chart(request, _period(request), moment)
    try:
        found = report(access, period_asked(request.GET), by=by, rule=rule, most=ROWS, now=moment)
    except ValidationError as fault:
        faults = fault.messages
        found = report(access, Period.of(month_at(moment)), by=by, rule=rule, most=ROWS, now=moment)
    period = found.period
    ranges = day_ranges(period, moment)
    chosen = day_range(request.GET.get("range", ""), ranges)
    current = month_at(moment)
    months = {current, *(month.first for month in months_known()), *([period.first] if period.month else [])}
    labels = {f"label:{key}" for key in labels_known(access, period)} | ({by} if by not in BY else set())
    more = {"by": by} | ({"idle": rule} if rule != "apart" else {})
    given = {name: request.GET.get(name, "")[:20] for name in ("from", "to")} if faults else {"from": f"{period.first}", "to": f"{period.last}"}
    context = {
        "version": version,
        "report": found,
        "rows": rows_shown(found.rows, found.total),
        "idle": idle_shown(found),
        "chart": report_chart(found) if chosen == ranges[-1] else days_chart(access, period, chosen, moment),
        "range": chosen,
        "ranges": ranges,
        "kept": [*address_of(period).items(), *more.items()],
        "faults": faults,
        "given": given,
        "presets": [(label, urlencode(address_of(one) | more), one == period) for label, one in presets(moment)],
        "months": [(one, urlencode({"month": f"{one:%Y-%m}"} | more), one == period.month) for one in sorted(months, reverse=True)],
        "by": [(key, label) for key, (label, _) in BY.items()] + [(key, f"Label {key.removeprefix('label:')}") for key in sorted(labels)],
        "by_label": BY[by][0] if by in BY else by.removeprefix("label:"),
        "rule": rule,
        "rules": RULES.items(),
        "address": urlencode(address_of(period) | {"by": by}),
        "may_close": access.can_everywhere(Can.MANAGE_COSTS),
        "may_be_closed": found.month is not None and found.is_estimate and moment >= period.end and not closed_after(period.last),
        "currency": found.currency or settings.CURRENCY,
        "no_cards": not RateCard.objects.filter(state="active").exists(),
        "sees_all": access.can_everywhere(Can.SEE_COSTS),
        "idle_unknown": idle_unknown(access, period),
        "reconciled": newest_of(access, period.first) if period.month else None,
        "files": [(key, title) for key, title in TITLES.items() if not (period.parts and key.startswith("focus"))],
        "in_background": found.lines > DIRECT_LINES,
    }
    return render(request, "quotas/costs.html", context, status=422 if faults else 200)


def _chart(request: HttpRequest, period: Period, moment: datetime) -> HttpResponseBase:
    """The chart for another range of days, or a minute later."""
    chosen = day_range(request.GET.get("range", ""), day_ranges(period, moment))
    answer = chart_response(request, days_chart(access_of(request), period, chosen, moment), name=f"costs-{period}")
    answer["Cache-Control"] = "no-store"
    return answer


@require_safe
@requires(Can.SEE_COSTS)
def cost_lines(request: HttpRequest) -> HttpResponse:
    """Those behind one row of the report. An address that names no row leads to the report."""
    access = access_of(request)
    period, (by, _) = _period(request), _asked(request)
    if "key" not in request.GET:
        return redirect(f"{reverse('costs')}?{urlencode(address_of(period) | {'by': by})}")
    key = request.GET["key"][:500]
    rows = lines_of(access, period, by, key).select_related("corrects")
    address = address_of(period)
    context = {
        "rows": rows.order_by("-effective_nanos", "id")[:LINES],
        "count": rows.count(),
        "most": LINES,
        "period": period,
        "address": urlencode(address),
        "by": by,
        "by_label": BY[by][0] if by in BY else by.removeprefix("label:"),
        "key": key or "(none)",
        "ledger": _ledger(period, by, key),
        "statement": by in ("team", "department", "project") and bool(key),
        "back": f"{reverse('costs')}?{urlencode(address | {'by': by})}",
    }
    return render(request, "quotas/cost_lines.html", context)


# What the ledger calls what a report is by.
IN_LEDGER = {"department": "team", "project": "team", "gpu_type": "type", "share_class": "class"}


def _ledger(period: Period, by: str, key: str) -> str:
    """The ledger's entries of the same period, as near to the row as its filters come."""
    asked = {"from": f"{period.first}", "to": f"{period.last}"}
    if by == "day":
        asked = {"from": key, "to": key}
    elif by in BY and key:
        asked[IN_LEDGER.get(by, by)] = key
    return urlencode(asked)


@require_safe
@requires(Can.SEE_COSTS)
def cost_line(request: HttpRequest, pk: int) -> HttpResponse:
    line = line_for(access_of(request), pk)
    pieces = pieces_of(line)
    context = {"line": line, "pieces": pieces, "sum": sum(piece.milli_millis for piece in pieces)}
    return render(request, "quotas/cost_line.html", context)


@require_safe
@requires(Can.SEE_COSTS)
def cost_file(request: HttpRequest) -> HttpResponseBase:
    """The period as a file; `users=1` with the names of people."""
    period, (by, _) = _period(request), _asked(request)
    kind, team = request.GET.get("format", "csv")[:20], request.GET.get("team", "")[:500]
    try:
        found = file_of(access_of(request), period, kind, by=by, users=request.GET.get("users") == "1", team=team, now=now())
    except ValidationError as fault:
        raise Http404(" ".join(fault.messages)) from None
    return streamed(request, found)


def streamed(request: HttpRequest, found: File) -> StreamingHttpResponse:
    first = next(found.pieces, b"")

    def pieces() -> Iterator[bytes]:
        yield first
        yield from found.pieces

    async def later() -> AsyncIterator[bytes]:
        yield first
        while piece := await sync_to_async(lambda: next(found.pieces, b""))():
            yield piece

    body = later() if isinstance(request, ASGIRequest) else pieces()
    headers = {"Content-Disposition": f'attachment; filename="{found.name}"'}
    return StreamingHttpResponse(body, content_type=found.content_type, headers=headers)


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.MANAGE_COSTS, everywhere=True)
def cost_close(request: HttpRequest, month: str) -> HttpResponse:
    access = access_of(request)
    first = month_read(month)
    if not ChargeMonth.objects.filter(first=first).exists():
        raise Http404(f"{month} has not been rated.")
    last = ChargeMonth.objects.filter(closed_at__isnull=False).order_by("-first").first()
    form = CloseForm(request.POST if request.method == "POST" else None, initial={"mode": last.mode} if last else None)
    status = 200
    if request.method == "POST":
        status = 422
        if form.is_valid():
            try:
                mode, reason = form.cleaned_data["mode"], form.cleaned_data["reason"]
                month_close(access=access, first=first, mode=mode, reason=reason, now=now(), idle=idle_between)
            except Conflict as fault:
                form.add_error(None, str(fault))
                status = 409
            else:
                messages.success(request, f"{first:%B %Y} is closed.")
                return redirect(f"{reverse('costs')}?month={first:%Y-%m}")
    closing = report(access, Period.of(first), by="team", most=None, now=now())
    found: dict[str, Any] = {
        "form": form,
        "refused": why_not_closed(first, now()) if request.method != "POST" else None,
        "report": closing,
        "teams": sum(row.milli_millis > 0 for row in closing.rows),
        "heading": f"Close {first:%B %Y}",
        "send": "Close month",
        "back": f"{reverse('costs')}?month={first:%Y-%m}",
    }
    return render(request, "quotas/cost_close.html", found, status=status)


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.SEE_COSTS, everywhere=True)
def cost_invoice(request: HttpRequest, month: str) -> HttpResponse:
    """The month against its supplier's invoice: the newest table or one of before (`?id=`), and the form of the next."""
    access, version = access_of(request), feed_revision()
    first = month_read(month)
    row = month_to_reconcile(access, first)
    made = list(reconciliations_of(access, first)[:RECONCILIATIONS])
    shown = next((one for one in made if one.public_id == request.GET.get("id")), made[0] if made else None)
    types = sorted(account_of(row).types)
    posted = request.POST if request.method == "POST" else None
    form = InvoiceForm(posted, currency=row.currency, initial=invoice_typed(shown) if shown else None)
    lines = BilledForms(posted, initial=billed_typed(types, shown) if posted is None else None, prefix="line")
    status = 200
    if posted is not None:
        status = 422
        if form.is_valid() and lines.is_valid():
            given = form.given() | {"lines": [line for one in lines if (line := one.line()) is not None]}
            try:
                month_reconcile(access=access, first=first, given=given, now=now())
            except ValidationError as fault:
                show_faults(form, fault)
            else:
                return redirect("cost_invoice", f"{first:%Y-%m}")
    context = {
        "month": row,
        "version": version,
        "shown": shown,
        "steps": steps_of(shown) if shown else [],
        "outdated": shown is not None and is_outdated(shown),
        "made": made,
        "form": form,
        "lines": lines,
        "may_reconcile": access.can_everywhere(Can.MANAGE_COSTS),
    }
    return render(request, "quotas/cost_invoice.html", context, status=status)
