"""The clusters, and the topology of one."""

from datetime import timedelta
from functools import partial
from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from dashboards.courses import cluster_chart, gpus_of_pool, pool_chart
from dashboards.health.selectors import counters_followed
from dashboards.measures import HARDWARE_MEASURES, measure_of
from dashboards.readings import read_by
from dashboards.weak import DRIVER_UTILIZATION, signal_of, weak_gpus
from gpufleet.core.faults import Conflict
from gpufleet.core.live.feed import feed_revision
from gpufleet.core.ranges import range_of
from gpufleet.core.templatetags.shell import plural
from gpufleet.core.times import now
from gpufleet.web import Can, access_of, requires
from scheduler.forms import AFTER_CHOICES, GiveUpForm, RemovalForm
from scheduler.hardware.lists import CLUSTERS
from scheduler.models import Cluster
from scheduler.presenters.giving_up import give_up_preview
from scheduler.presenters.removing import removal_preview
from scheduler.selectors.clusters import cluster_for, cluster_tree, clusters_listed, pool_for, pool_sums
from scheduler.selectors.outside import outside_jobs, outside_usage
from scheduler.services.hardware.giving_up import After, cluster_give_up, held_unseen, jobs_left, why_not
from scheduler.services.hardware.removing import cluster_leaves, cluster_remove, why_not_removed
from scheduler.services.jobs.bulk import notified_of
from scheduler.views.nodes import form_values, messages_by_field
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
    context |= {"range": chosen, "measures": HARDWARE_MEASURES, "measure": measure}
    context["read_by"] = read = read_by(cluster.pk, now=moment)
    context["is_weak"] = read is not None and read.is_weak
    context["chart"] = cluster_chart(cluster, chosen=chosen, now=moment, measure=measure)
    if may_operate:
        context["counters"] = counters_followed(cluster)
        context["outside"] = outside_jobs(access, cluster)
        context["outside_usage"] = outside_usage(access, cluster, start=moment - USAGE_OF, end=moment)
    return render(request, "scheduler/cluster.html", context)


@require_safe
@requires(Can.SEE)
def pool_page(request: HttpRequest, name: str, pool: str) -> HttpResponse:
    version, chosen, measure = feed_revision(), range_of(request.GET), measure_of(request.GET)
    found = pool_for(access_of(request), name, pool)
    gpus = gpus_of_pool(found)
    context = {
        "version": version,
        "pool": found,
        "sums": pool_sums(found),
        "range": chosen,
        "measures": HARDWARE_MEASURES,
        "measure": measure,
        "is_weak": signal_of(gpus, weak_gpus([found.cluster_id])) == DRIVER_UTILIZATION,
        "chart": pool_chart(found, chosen=chosen, now=now(), measure=measure) if gpus else None,
    }
    return render(request, "scheduler/pool.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.OPERATE, everywhere=True)
def cluster_give_up_page(request: HttpRequest, name: str) -> HttpResponse:
    """What becomes of the jobs of a cluster that is gone is shown first."""
    access = access_of(request)
    cluster = cluster_for(access, name)
    if request.method != "POST" or "preview" in request.POST:
        return _give_up_page(request, cluster)
    try:
        sent = form_values(GiveUpForm(request.POST))
        done = cluster_give_up(access=access, cluster=cluster, after=sent["jobs"], reason=sent["reason"], confirm=sent["confirm"], now=now())
    except ValidationError as fault:
        return _give_up_page(request, cluster, status=422, faults=messages_by_field(fault))
    except Conflict as fault:
        return _give_up_page(request, cluster_for(access, name), status=409, faults={"all": [str(fault)]})
    again = f", {done.requeued} of them queued again" if done.requeued else ""
    messages.success(request, f"{plural(done.jobs, 'job')} of {cluster.name} {'was' if done.jobs == 1 else 'were'} given up{again}.")
    return redirect("cluster", name=cluster.name)


def _give_up_page(request: HttpRequest, cluster: Cluster, *, status: int = 200, **extra: Any) -> HttpResponse:
    access, moment, form = access_of(request), now(), GiveUpForm(request.POST)
    form.is_valid()
    after = form.cleaned_data.get("jobs") or After.REQUEUE.value
    fault = why_not(cluster)
    left = [] if fault else jobs_left(access=access, cluster=cluster, now=moment)
    unseen = held_unseen(access=access, cluster=cluster, left=left, now=moment)
    notified = notified_of(access, [one.guest.job for one in left], set(), None)
    context = {
        "cluster": cluster,
        "after": after,
        "choices": AFTER_CHOICES,
        "confirm": request.POST.get("confirm", ""),
        "reason": request.POST.get("reason", ""),
        "own_faults": ("jobs", "confirm"),
        "action": reverse("cluster_give_up", args=[cluster.name]),
        "preview": give_up_preview(cluster, left, after, unseen=unseen, notified=notified, fault=fault),
        "idle": not left,
        **extra,
    }
    return render(request, "scheduler/give_up.html", context, status=status)


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.OPERATE, everywhere=True)
def cluster_remove_page(request: HttpRequest, name: str) -> HttpResponse:
    """What leaves the fleet with a cluster is shown first."""
    access = access_of(request)
    cluster = cluster_for(access, name)
    if request.method != "POST":
        return _remove_page(request, cluster)
    try:
        sent = form_values(RemovalForm(request.POST))
        cluster_remove(access=access, cluster=cluster, reason=sent["reason"], confirm=sent["confirm"], now=now())
    except ValidationError as fault:
        return _remove_page(request, cluster, status=422, faults=messages_by_field(fault))
    except Conflict as fault:
        return _remove_page(request, cluster_for(access, name), status=409, faults={"all": [str(fault)]})
    messages.success(request, f"{cluster.name} was removed.")
    return redirect("clusters")


def _remove_page(request: HttpRequest, cluster: Cluster, *, status: int = 200, **extra: Any) -> HttpResponse:
    fault = why_not_removed(cluster)
    context = {
        "cluster": cluster,
        "confirm": request.POST.get("confirm", ""),
        "reason": request.POST.get("reason", ""),
        "own_faults": ("confirm",),
        "action": reverse("cluster_remove", args=[cluster.name]),
        "preview": removal_preview(cluster, None if fault else cluster_leaves(cluster), fault=fault),
        "idle": bool(fault),
        **extra,
    }
    return render(request, "scheduler/cluster_remove.html", context, status=status)
