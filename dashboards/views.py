"""The overview and the fleet map."""

from dataclasses import asdict
from functools import partial
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from dashboards.history import DEFAULT_HOURS, RANGES, history
from dashboards.lists import CELLS, cells, cells_listed
from dashboards.presenters import overview_own, overview_page, overview_shared, twin_rows
from dashboards.selectors import SEVERITY, fleet_size, levels_deep, owners_named, rates_visible
from gpufleet.core.live.feed import feed_revision
from gpufleet.core.times import now
from gpufleet.web import Can, access_of, requires


def _asked_range(request: HttpRequest) -> int:
    """The hours of the address; anything else than what is offered is the default."""
    asked = request.GET.get("hours", "")
    return int(asked) if asked.isascii() and asked.isdigit() and int(asked) in RANGES else DEFAULT_HOURS


@require_GET
@requires(Can.SEE)
def overview(request: HttpRequest) -> HttpResponse:
    moment = now()
    access = access_of(request)
    version = feed_revision()
    shared = overview_shared(now=moment)
    owners = owners_named(access)
    own = overview_own(owners=owners, rates=rates_visible(access, now=moment))
    hours, gpu_type = _asked_range(request), request.GET.get("type", "")
    gpu_type = gpu_type if gpu_type in shared["types"] else ""
    series = history(hours=hours, gpu_type=gpu_type, now=moment)
    context = {
        **overview_page(shared, own, owners),
        "live": {"version": version, "rows": shared, "own": own, "history": asdict(series)},
        "ranges": list(RANGES),
        "hours": hours,
        "gpu_type": gpu_type,
        "twin": twin_rows(series),
        "healths": SEVERITY,
        "may_import": access.can_everywhere(Can.OPERATE),
    }
    return render(request, "dashboards/overview.html", context)


@require_GET
@requires(Can.SEE)
def overview_history(request: HttpRequest) -> HttpResponse:
    """The chart's series for another range or type, or a minute later."""
    series = history(hours=_asked_range(request), gpu_type=request.GET.get("type", ""), now=now())
    return JsonResponse(asdict(series), headers={"Cache-Control": "no-store"})


@require_GET
@requires(Can.SEE)
def fleet_map(request: HttpRequest) -> HttpResponseBase:
    """Every GPU as a cell, or with `?view=table` as a row. The map's own data is the snapshot of the topic `gpus`."""
    access = access_of(request)
    gpus, nodes, types = fleet_size()
    context: dict[str, Any] = {"gpus": gpus, "nodes": nodes, "may_import": access.can_everywhere(Can.OPERATE)}
    if request.GET.get("view") == "table":
        listed = {**context, "heading": "Fleet map", "can_add": context["may_import"]}
        return CELLS.respond(request, cells_listed(), "dashboards/fleet_table.html", listed, presented=partial(cells, access))
    context |= {"types": types, "levels": levels_deep(), "healths": SEVERITY}
    return render(request, "dashboards/fleet_map.html", context)
