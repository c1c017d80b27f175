"""What-ifs: asked for, followed, cancelled, and read side by side."""

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
from gpufleet.web import Access, Can, access_of, requires
from quotas.models import OPEN_STATES
from quotas.selectors.changes import change_for, change_list
from scheduler.models import QuotaReplay, Trace, TraceState
from scheduler.selectors.traces import node_paths, trace_ready, traces_listed
from scheduler.selectors.what_ifs import what_if_for, what_ifs_listed
from scheduler.services.forecasts.traces import trace_present
from scheduler.services.forecasts.what_ifs import as_of, may_ask, must_ask, present, replay_teams, team_waits, what_if_ask, what_if_cancel
from scheduler.tasks import quota_replay
from scheduler.whatifs.forms import WhatIfForm, initial_of
from scheduler.whatifs.lists import WHAT_IFS
from scheduler.whatifs.telling import CHARTS, chart_of, measures, summary

MOST_CHANGES = 100


@require_safe
@requires(Can.SEE)
def what_ifs(request: HttpRequest) -> HttpResponseBase:
    access = access_of(request)
    context: dict[str, Any] = {"heading": "What-if", "sub": "Replays of the last days under other quotas, another policy or another fleet."}
    context |= {"version": feed_revision(), "can_add": may_ask(access)}
    return WHAT_IFS.respond(request, what_ifs_listed(access), "scheduler/what_ifs.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.SEE)
def what_if_new(request: HttpRequest) -> HttpResponse:
    """A new one; `?like=` begins as another was asked for, `?change=` with a draft of the tree, `?trace=` with a trace (`&here=1`: on this fleet)."""
    access, at = access_of(request), now()
    must_ask(access)
    like = what_if_for(access, request.GET["like"]) if request.GET.get("like") else None
    trace, here = _replayed(request, access, like)
    there = trace_present(trace) if trace is not None and not here else None
    settings, fleet = there or present(at)
    changes = list(change_list(access).filter(state__in=OPEN_STATES).order_by("-changed_at", "-id")[:MOST_CHANGES])
    given = request.POST if request.method == "POST" else None
    form = WhatIfForm(
        given,
        settings=settings,
        fleet=fleet,
        changes=changes,
        initial=_initial(request, like),
        trace=trace.public_id if trace else "",
        here=here,
        paths=node_paths(access) if here else (),
    )
    status = 200
    if request.method == "POST":
        status = 422
        if form.is_valid():
            chosen = form.cleaned_data.get("change")
            change = change_for(access, chosen) if chosen else None
            try:
                made = what_if_ask(access=access, wanted=form.wanted, change=change, now=at, begin=quota_replay.delay, trace=trace, there=there)
            except ValidationError as fault:
                form.show(fault)
            except Conflict as fault:
                form.add_error(None, str(fault))
                status = 409
            else:
                return redirect("what-if", made.public_id)
    ready = traces_listed(access).filter(state=TraceState.DONE).order_by("-created_at", "-id")
    context = {"form": form, "trace": trace, "here": here, "traces": ready}
    return render(request, "scheduler/what_if_new.html", context, status=status)


def _replayed(request: HttpRequest, access: Access, like: QuotaReplay | None) -> tuple[Trace | None, bool]:
    """The trace that is replayed, and whether on this fleet. None: the last days. Of one that was removed nothing is left to begin with."""
    asked = request.POST if request.method == "POST" else request.GET
    name = asked.get("trace", "")
    if name:
        return trace_ready(access, name), asked.get("here") == "1"
    if like is not None and like.trace_id is not None and "trace" not in asked:
        return trace_ready(access, like.asked["trace"]), not like.on_own_fleet
    return None, False


def _initial(request: HttpRequest, like: QuotaReplay | None) -> dict[str, Any]:
    if like is not None:
        return initial_of(like.asked) | {"change": like.change.public_id if like.change else ""}
    return {"change": request.GET.get("change", "")}


@require_safe
@requires(Can.SEE)
def what_if(request: HttpRequest, public_id: str) -> HttpResponse:
    access, at, version = access_of(request), now(), feed_revision()
    found = as_of(what_if_for(access, public_id), at)
    context: dict[str, Any] = {
        "version": version,
        "found": found,
        "may_ask": may_ask(access),
        "is_old": found.change is not None and found.change_revision != found.change.revision,
    }
    if found.state == "done":
        context |= _result(request, access, found)
    return render(request, "scheduler/what_if.html", context)


def _result(request: HttpRequest, access: Access, found: QuotaReplay) -> dict[str, Any]:
    """Of one that was made before there were figures, the teams alone."""
    teams = replay_teams(access, found)
    if not found.figures:
        return {"teams": teams}
    waits = team_waits(teams)
    compared = measures(found.figures, found.hours)
    classes = [name for name in found.figures["after"]["waits"] if name != "all"]
    chosen = asked if (asked := request.GET.get("class", "")) in classes else "all"
    source = reverse("what-if-chart", args=[found.public_id, "waits"])
    return {
        "teams": teams,
        "measures": compared,
        "summary": summary(compared, waits, base=found.base),
        "charts": {
            name: chart_of(name, found.figures, waits, of_class=chosen, base=found.base) for name in CHARTS if name != "teams" or len(waits) > 1
        },
        "classes": classes if len(classes) > 1 else [],
        "of_class": chosen,
        "waits_source": f"{source}?class={chosen}",
        "step_s": found.figures["step"] / 1000,
        "overrun": found.figures.get("overrun"),
    }


@require_safe
@requires(Can.SEE)
def what_if_chart(request: HttpRequest, public_id: str, name: str) -> HttpResponseBase:
    """One chart of a result, as its page shows it or as a file."""
    access = access_of(request)
    found = what_if_for(access, public_id)
    of_class = request.GET.get("class", "all")
    if name not in CHARTS or not found.figures or of_class not in found.figures["after"]["waits"]:
        raise Http404
    waits = team_waits(replay_teams(access, found)) if name == "teams" else []
    answer = chart_response(request, chart_of(name, found.figures, waits, of_class=of_class, base=found.base), name=f"{public_id}-{name}")
    answer["Cache-Control"] = "no-store"
    return answer


@require_POST
@requires(Can.SEE)
def what_if_end(request: HttpRequest, public_id: str) -> HttpResponse:
    """Cancel one that goes on; of one that has ended nothing changes."""
    access = access_of(request)
    found = what_if_for(access, public_id)
    if not what_if_cancel(access=access, found=found, now=now()):
        messages.info(request, "The simulation has ended already.")
    return redirect("what-if", public_id)
