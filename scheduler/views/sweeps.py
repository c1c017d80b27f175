"""Sweeps: asked for, followed, cancelled, and read."""

from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from gpufleet.core.charts import chart_response
from gpufleet.core.faults import Conflict
from gpufleet.core.live.feed import feed_revision
from gpufleet.core.times import now
from gpufleet.web import Can, access_of, requires
from scheduler.models import Sweep, TraceState
from scheduler.selectors.sweeps import sweep_for, sweeps_listed
from scheduler.selectors.traces import trace_ready, traces_listed
from scheduler.services.forecasts.sweeps import sweep_ask, sweep_cancel
from scheduler.services.forecasts.what_ifs import may_ask, must_ask
from scheduler.tasks import sweep
from scheduler.whatifs.forms import SweepForm
from scheduler.whatifs.lists import SWEEPS
from scheduler.whatifs.sweeps import CHARTS, chart_of, failed_told, file_of, knees, rows_told, table_told


@require_safe
@requires(Can.SEE)
def sweeps(request: HttpRequest) -> HttpResponseBase:
    access = access_of(request)
    context: dict[str, Any] = {"heading": "Sweeps", "sub": "How many more jobs the fleet can take, and how many nodes it needs."}
    context |= {"version": feed_revision(), "can_add": may_ask(access)}
    return SWEEPS.respond(request, sweeps_listed(access), "scheduler/sweeps.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.SEE)
def sweep_new(request: HttpRequest) -> HttpResponse:
    """A new one; `?trace=` begins with a trace, `?like=` as another was asked for."""
    access = access_of(request)
    must_ask(access)
    like = sweep_for(access, request.GET["like"]) if request.GET.get("like") else None
    ready = traces_listed(access).filter(state=TraceState.DONE).order_by("-created_at", "-id")
    traces = [(one.public_id, f"{one.title} ({one.jobs:,} jobs)") for one in ready]
    given = request.POST if request.method == "POST" else None
    form, status = SweepForm(given, traces=traces, initial=_initial(request, like)), 200
    if request.method == "POST":
        status = 422
        if form.is_valid():
            trace = trace_ready(access, form.cleaned_data["trace"])
            try:
                made = sweep_ask(access=access, trace=trace, asked=form.asked, now=now(), begin=sweep.delay)
            except ValidationError as fault:
                for field, texts in fault.message_dict.items():
                    form.add_error(field, texts)
            except Conflict as fault:
                form.add_error(None, str(fault))
                status = 409
            else:
                return redirect("sweep", made.public_id)
    return render(request, "scheduler/sweep_new.html", {"form": form, "traces": traces}, status=status)


def _initial(request: HttpRequest, like: Sweep | None) -> dict[str, Any]:
    if like is None:
        return {"trace": request.GET.get("trace", "")}
    trace = like.trace.public_id if like.trace is not None else ""
    return {**like.asked, "trace": trace, "axis": like.axis, "values": like.values_told}


@require_safe
@requires(Can.SEE)
def sweep_page(request: HttpRequest, public_id: str) -> HttpResponse:
    access, version = access_of(request), feed_revision()
    found = sweep_for(access, public_id)
    context: dict[str, Any] = {"found": found, "version": version, "may_ask": may_ask(access)}
    if found.results:
        rows = rows_told(found)
        charts = [(name, chart_of(name, found, rows), reverse("sweep-chart", args=[public_id, name])) for name in CHARTS]
        context |= {"knees": knees(found, rows), "failed": failed_told(found), "charts": charts, "titles": CHARTS, **table_told(found, rows)}
    return render(request, "scheduler/sweep.html", context)


@require_safe
@requires(Can.SEE)
def sweep_chart(request: HttpRequest, public_id: str, name: str) -> HttpResponseBase:
    """One chart, as its page shows it or as a file."""
    found = sweep_for(access_of(request), public_id)
    if name not in CHARTS or not found.results:
        raise Http404
    answer = chart_response(request, chart_of(name, found, rows_told(found)), name=f"{public_id}-{name}")
    answer["Cache-Control"] = "no-store"
    return answer


@require_safe
@requires(Can.SEE)
def sweep_file(request: HttpRequest, public_id: str) -> HttpResponse:
    """Charts and table as one page, as `gpufleet sweep` writes it."""
    found = sweep_for(access_of(request), public_id)
    if not found.results:
        raise Http404
    return HttpResponse(file_of(found), headers={"Content-Disposition": f'attachment; filename="sweep-{public_id}.html"'})


@require_POST
@requires(Can.SEE)
def sweep_end(request: HttpRequest, public_id: str) -> HttpResponse:
    """Cancel one that goes on; of one that has ended nothing changes."""
    access = access_of(request)
    if not sweep_cancel(access=access, found=sweep_for(access, public_id), now=now()):
        messages.info(request, "The sweep has ended already.")
    return redirect("sweep", public_id)
