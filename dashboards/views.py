"""The overview, the fleet map, and how GPUs, nodes and jobs went over time."""

from functools import partial
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from django.views.decorators.http import require_GET

from dashboards.courses import cluster_chart, fleet_chart, gpu_chart, job_chart, job_range, job_ranges, node_chart, node_heat, pool_chart, team_chart
from dashboards.fingerprints.told import ahead_told
from dashboards.home.week import week_tiles
from dashboards.idle.selectors import episodes_listed, idle_rows
from dashboards.lists import CELLS, cells, cells_listed
from dashboards.measures import JOB_MEASURES, measure_of
from dashboards.presenters import overview_own, overview_page, overview_shared
from dashboards.selectors import SEVERITY, fleet_size, levels_deep, owners_named, rates_visible
from dashboards.weak import weak_told
from gpufleet.core.charts import Chart, chart_response
from gpufleet.core.live.feed import feed_revision
from gpufleet.core.ranges import range_of
from gpufleet.core.times import now
from gpufleet.web import Can, access_of, requires
from quotas.selectors.nodes import node_for as quota_for
from scheduler.selectors.clusters import cluster_for, pool_for
from scheduler.selectors.gpus import gpu_for
from scheduler.selectors.jobs import job_attempts, job_for
from scheduler.selectors.nodes import node_for, node_gpus

IDLE_SHOWN = 4


def overview(request: HttpRequest, **frame: Any) -> HttpResponse:
    """The fleet with its gap; `frame` is what the page around it shows."""
    moment = now()
    access = access_of(request)
    version = feed_revision()
    shared = overview_shared(now=moment)
    owners = owners_named(access)
    rates = rates_visible(access, now=moment)
    own = overview_own(owners=owners, rates=rates)
    gpu_type = asked if (asked := request.GET.get("type", "")) in shared["types"] else ""
    chosen = range_of(request.GET)
    idle = episodes_listed(access).filter(ended_at__isnull=True).order_by("-wasted_milli_millis", "id")
    context = {
        **overview_page(shared, own, owners),
        "live": {"version": version, "rows": shared, "own": own},
        "range": chosen,
        "type_names": list(shared["types"]),
        "gpu_type": gpu_type,
        "chart": fleet_chart(gpu_type=gpu_type, access=access, chosen=chosen, now=moment),
        "week": week_tiles(rates=rates, now=moment),
        "idle": idle_rows(access, list(idle[:IDLE_SHOWN]), now=moment),
        "healths": SEVERITY,
        "weak": weak_told(),
        "may_import": access.can_everywhere(Can.OPERATE),
        **frame,
    }
    return render(request, "dashboards/overview.html", context)


@require_GET
@requires(Can.SEE)
def overview_history(request: HttpRequest) -> HttpResponseBase:
    """The chart for another range or type, or a minute later."""
    chart = fleet_chart(gpu_type=request.GET.get("type", ""), access=access_of(request), chosen=range_of(request.GET), now=now())
    answer = chart_response(request, chart, name="utilization")
    answer["Cache-Control"] = "no-store"
    return answer


@require_GET
@requires(Can.SEE)
def fleet_map(request: HttpRequest) -> HttpResponseBase:
    """Every GPU as a cell, or with `?view=table` as a row. The map's own data is the snapshot of the topic `gpus`."""
    access = access_of(request)
    gpus, nodes, types = fleet_size()
    context: dict[str, Any] = {"gpus": gpus, "nodes": nodes, "may_import": access.can_everywhere(Can.OPERATE)}
    context["weak"] = weak_told()
    if request.GET.get("view") == "table":
        listed = {**context, "heading": "Fleet map", "can_add": context["may_import"]}
        return CELLS.respond(request, cells_listed(), "dashboards/fleet_table.html", listed, presented=partial(cells, access))
    context |= {"types": types, "levels": levels_deep(), "healths": SEVERITY}
    return render(request, "dashboards/fleet_map.html", context)


@require_GET
@requires(Can.SEE)
def gpu_course_chart(request: HttpRequest, public_id: str) -> HttpResponseBase:
    """The chart of a GPU's page for another range, or a minute later."""
    gpu = gpu_for(access_of(request), public_id)
    return _course(request, gpu_chart(gpu, chosen=range_of(request.GET), now=now(), measure=measure_of(request.GET)), gpu.public_id)


@require_GET
@requires(Can.SEE)
def node_course_chart(request: HttpRequest, public_id: str) -> HttpResponseBase:
    """The chart of a node's page likewise; with `?by=gpu` that of each of its GPUs."""
    node, chosen = node_for(access_of(request), public_id), range_of(request.GET)
    if request.GET.get("by") == "gpu":
        return _course(request, node_heat(node, node_gpus(node), chosen=chosen, now=now()), f"{node.public_id}-gpus")
    return _course(request, node_chart(node, chosen=chosen, now=now(), measure=measure_of(request.GET)), node.public_id)


@require_GET
@requires(Can.SEE)
def cluster_course_chart(request: HttpRequest, name: str) -> HttpResponseBase:
    """The chart of a cluster's page likewise."""
    cluster = cluster_for(access_of(request), name)
    return _course(request, cluster_chart(cluster, chosen=range_of(request.GET), now=now(), measure=measure_of(request.GET)), cluster.public_id)


@require_GET
@requires(Can.SEE)
def pool_course_chart(request: HttpRequest, name: str, pool: str) -> HttpResponseBase:
    """The chart of a pool's page likewise."""
    found = pool_for(access_of(request), name, pool)
    return _course(request, pool_chart(found, chosen=range_of(request.GET), now=now(), measure=measure_of(request.GET)), found.public_id)


@require_GET
@requires(Can.SEE)
def team_course_chart(request: HttpRequest, public_id: str) -> HttpResponseBase:
    """The chart of a team's page likewise."""
    access = access_of(request)
    team = quota_for(access, public_id)
    return _course(request, team_chart(team, access=access, chosen=range_of(request.GET), now=now()), team.public_id)


@require_GET
@requires(Can.SEE)
def team_ahead_chart(request: HttpRequest, public_id: str) -> HttpResponseBase:
    """The load that a team's running jobs are to bring, a minute later."""
    team = quota_for(access_of(request), public_id)
    return _course(request, ahead_told(now=now(), quota=team).chart, f"{team.public_id}-ahead")


@require_GET
@requires(Can.SEE)
def job_course_chart(request: HttpRequest, public_id: str) -> HttpResponseBase:
    """The chart of a job's page likewise; without a range all of its time."""
    job, moment = job_for(access_of(request), public_id), now()
    attempts = job_attempts(job)
    chosen = job_range(request.GET.get("range", ""), job_ranges(attempts, now=moment))
    return _course(request, job_chart(job, attempts, now=moment, chosen=chosen, measure=measure_of(request.GET, JOB_MEASURES)), job.public_id)


def _course(request: HttpRequest, chart: Chart, name: str) -> HttpResponseBase:
    answer = chart_response(request, chart, name=name)
    answer["Cache-Control"] = "no-store"
    return answer
