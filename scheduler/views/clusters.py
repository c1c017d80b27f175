"""The clusters, and the topology of one."""

from datetime import timedelta
from functools import partial

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from django.views.decorators.http import require_safe

from dashboards.courses import cluster_chart
from dashboards.health.selectors import counters_followed
from dashboards.measures import HARDWARE_MEASURES, measure_of
from dashboards.weak import weak_clusters
from gpufleet.core.live.feed import feed_revision
from gpufleet.core.ranges import range_of
from gpufleet.core.times import now
from gpufleet.web import Can, access_of, requires
from scheduler.hardware.lists import CLUSTERS
from scheduler.selectors.clusters import cluster_for, cluster_tree, clusters_listed
from scheduler.selectors.outside import outside_jobs, outside_usage
from scheduler.views.view_tabs import opened_with, views_shown

USAGE_OF = timedelta(days=30)


@require_safe
@requires(Can.SEE)
def cluster_list(request: HttpRequest) -> HttpResponseBase:
    access = access_of(request)
    if (opened := opened_with(access, request, CLUSTERS)) is not None:
        return opened
    context = {"heading": "Clusters", "version": feed_revision(), "can_add": access.can_everywhere(Can.OPERATE)}
    context["views"] = partial(views_shown, access, request, CLUSTERS)
    return CLUSTERS.respond(request, clusters_listed(access), "scheduler/hardware_list.html", context)


@require_safe
@requires(Can.SEE)
def cluster_page(request: HttpRequest, name: str) -> HttpResponse:
    version = feed_revision()
    access = access_of(request)
    cluster = cluster_for(access, name)
    may_operate = access.can_everywhere(Can.OPERATE)
    chosen, moment = range_of(request.GET), now()
    context = {"version": version, "cluster": cluster, "tree": cluster_tree(cluster), "may_operate": may_operate}
    measure = measure_of(request.GET)
    context |= {"range": chosen, "measures": HARDWARE_MEASURES, "measure": measure, "is_weak": bool(weak_clusters([cluster.pk]))}
    context["chart"] = cluster_chart(cluster, chosen=chosen, now=moment, measure=measure)
    if may_operate:
        context["counters"] = counters_followed(cluster)
        context["outside"] = outside_jobs(access, cluster)
        context["outside_usage"] = outside_usage(access, cluster, start=moment - USAGE_OF, end=moment)
    return render(request, "scheduler/cluster.html", context)
