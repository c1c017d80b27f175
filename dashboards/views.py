"""The overview and the fleet map."""

from functools import partial
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from django.views.decorators.http import require_GET

from dashboards.history import DEFAULT_HOURS, RANGES, history
from dashboards.lists import CELLS, cells, cells_listed
from dashboards.presenters import fleet_chart, overview_own, overview_page, overview_shared
from dashboards.selectors import SEVERITY, fleet_size, levels_deep, owners_named, rates_visible
from dashboards.weak import weak_clusters
from gpufleet.core.charts import chart_response
from gpufleet.core.live.feed import feed_revision
from gpufleet.core.times import now
from gpufleet.web import Can, access_of, requires


def _asked_hours(request: HttpRequest) -> int:
    """The hours of `?range=6h`; anything else than what is offered is the default."""
    asked = request.GET.get("range", "").removesuffix("h")
    return int(asked) if asked.isascii() and asked.isdigit() and int(asked) in RANGES else DEFAULT_HOURS


def overview(request: HttpRequest, **frame: Any) -> HttpResponse:
    """The fleet with its gap; `frame` is what the page around it shows."""
    moment = now()
    access = access_of(request)
    version = feed_revision()
    shared = overview_shared(now=moment)
    owners = owners_named(access)
    own = overview_own(owners=owners, rates=rates_visible(access, now=moment))
    hours, gpu_type = _asked_hours(request), request.GET.get("type", "")
    gpu_type = gpu_type if gpu_type in shared["types"] else ""
    series = history(hours=hours, gpu_type=gpu_type, now=moment)
    context = {
        **overview_page(shared, own, owners),
        "live": {"version": version, "rows": shared, "own": own},
        "ranges": list(RANGES),
        "hours": hours,
        "gpu_type": gpu_type,
        "chart": fleet_chart(series, hours=hours),
        "healths": SEVERITY,
        "weak": list(weak_clusters().values()),
        "may_import": access.can_everywhere(Can.OPERATE),
        **frame,
    }
    return render(request, "dashboards/overview.html", context)


@require_GET
@requires(Can.SEE)
def overview_history(request: HttpRequest) -> HttpResponseBase:
    """The chart for another range or type, or a minute later."""
    hours = _asked_hours(request)
    series = history(hours=hours, gpu_type=request.GET.get("type", ""), now=now())
    answer = chart_response(request, fleet_chart(series, hours=hours), name="utilization")
    answer["Cache-Control"] = "no-store"
    return answer


@require_GET
@requires(Can.SEE)
def fleet_map(request: HttpRequest) -> HttpResponseBase:
    """Every GPU as a cell, or with `?view=table` as a row. The map's own data is the snapshot of the topic `gpus`."""
    access = access_of(request)
    gpus, nodes, types = fleet_size()
    context: dict[str, Any] = {"gpus": gpus, "nodes": nodes, "may_import": access.can_everywhere(Can.OPERATE)}
    context["weak"] = list(weak_clusters().values())
    if request.GET.get("view") == "table":
        listed = {**context, "heading": "Fleet map", "can_add": context["may_import"]}
        return CELLS.respond(request, cells_listed(), "dashboards/fleet_table.html", listed, presented=partial(cells, access))
    context |= {"types": types, "levels": levels_deep(), "healths": SEVERITY}
    return render(request, "dashboards/fleet_map.html", context)
