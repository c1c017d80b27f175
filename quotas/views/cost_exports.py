"""Files of a month or of another period that a worker writes: asked for, followed, downloaded until they expire."""

from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_safe

from gpufleet.core.faults import Conflict
from gpufleet.core.live.feed import feed_revision
from gpufleet.core.times import now
from gpufleet.web import Can, access_of, requires
from quotas.chargeback.files import TITLES
from quotas.models import CostExport
from quotas.services.cost_exports import export_ask, export_file, exports_listed, is_ready, key_of, period_of
from quotas.tasks import cost_export_write
from quotas.views.costs import period_asked, streamed

MOST = 50


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.SEE_COSTS)
def cost_exports(request: HttpRequest) -> HttpResponse:
    access, version, moment = access_of(request), feed_revision(), now()
    if request.method == "POST":
        asked = request.POST
        kind, by, users = asked.get("format", "")[:20], asked.get("by", "team")[:80], asked.get("users") == "1"
        try:
            export_ask(access=access, period=period_asked(asked), kind=kind, by=by, users=users, now=moment, begin=cost_export_write.delay)
        except ValidationError as fault:
            raise Http404(" ".join(fault.messages)) from None
        except Conflict as fault:
            messages.error(request, str(fault))
        return redirect("cost_exports")
    rows: list[tuple[CostExport, str, str, str]] = [
        (export, period_of(export).title, TITLES[export.format], key_of(export) if is_ready(export, moment) else "")
        for export in exports_listed(access)[:MOST]
    ]
    context: dict[str, Any] = {"rows": rows, "version": version}
    return render(request, "quotas/cost_exports.html", context)


@require_safe
@requires(Can.SEE_COSTS)
def cost_export_file(request: HttpRequest, public_id: str) -> HttpResponseBase:
    """By the signed link of the list or of the API."""
    return streamed(request, export_file(access_of(request), public_id, request.GET.get("key", "")[:100], now=now()))
