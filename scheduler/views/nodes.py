"""Nodes: the list, one node, and what an operator does with it."""

from dataclasses import asdict
from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from dashboards.courses import node_chart
from dashboards.weak import DRIVER_UTILIZATION, nodes_signal
from gpufleet.core.faults import Conflict
from gpufleet.core.live.feed import feed_revision
from gpufleet.core.ranges import range_of
from gpufleet.core.templatetags.shell import plural
from gpufleet.core.times import now
from gpufleet.web import Can, access_of, requires
from scheduler.forms import HealthForm, SpareForm
from scheduler.hardware.lifecycle import may_follow, steps_from
from scheduler.hardware.lists import NODES
from scheduler.models import Health, Node
from scheduler.presenters.hardware import drawing_of, history_lines
from scheduler.presenters.node_changes import FINISH, MOVE, PREVIEWED, health_preview
from scheduler.selectors.holders import Holder, holding_jobs, node_holders
from scheduler.selectors.nodes import jobs_left, node_for, node_gpus, node_guests, node_history, nodes_listed
from scheduler.services.hardware.draining import node_drain
from scheduler.services.hardware.hardware import node_health_change, node_spare_set


@require_safe
@requires(Can.SEE)
def node_list(request: HttpRequest) -> HttpResponseBase:
    access = access_of(request)
    context = {"heading": "Nodes", "version": feed_revision(), "can_add": access.can_everywhere(Can.OPERATE)}
    return NODES.respond(request, nodes_listed(access), "scheduler/hardware_list.html", context)


@require_safe
@requires(Can.SEE)
def node_page(request: HttpRequest, public_id: str) -> HttpResponse:
    return _page(request, node_for(access_of(request), public_id))


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.OPERATE, everywhere=True)
def node_health(request: HttpRequest, public_id: str) -> HttpResponse:
    """Another health: what it does to running jobs is shown first, on a page of its own (`?to=draining`)."""
    access = access_of(request)
    node = node_for(access, public_id)
    if request.method != "POST":
        to = request.GET.get("to", Health.DRAINING)
        return _health_page(request, node, to) if to in PREVIEWED and may_follow(node.health, to) else redirect("node", public_id=public_id)
    was_shown = request.POST.get("to", "") in PREVIEWED and "jobs" in request.POST
    try:
        sent = form_values(HealthForm(request.POST))
        reason, seen = sent["reason"], sent["seen"] or None
        if sent["to"] == Health.DRAINING:
            changed, asked = node_drain(access=access, node=node, reason=reason, move=sent["jobs"] == MOVE, seen=seen, now=now())
        else:
            changed, asked = node_health_change(access=access, node=node, to=sent["to"], reason=reason, seen=seen, now=now()), 0
    except ValidationError as fault:
        faults = messages_by_field(fault)
        if was_shown:
            return _health_page(request, node, request.POST["to"], status=422, faults=faults)
        return _page(request, node, status=422, faults=faults, reason=request.POST.get("reason", ""))
    except Conflict as fault:
        return _page(request, node_for(access, public_id), status=409, faults={"to": [str(fault)]}, reason=request.POST.get("reason", ""))
    moved = f" {plural(asked, 'job')} {'is' if asked == 1 else 'are'} asked to save and leave." if asked else ""
    messages.success(request, f"{changed.name} is {Health(changed.health).label.lower()} now.{moved}")
    return redirect("node", public_id=public_id)


def _health_page(request: HttpRequest, node: Node, to: str, *, status: int = 200, **extra: Any) -> HttpResponse:
    guests = node_guests(access_of(request), node, now=now())
    context = {
        "node": node,
        "to": to,
        "verb": next(step.verb for step in steps_from(node.health) if step.to == to),
        "preview": health_preview(node, to, guests, gpus=len(node_gpus(node))),
        "asks": to == Health.DRAINING and any(guest.movable for guest in guests),
        "reason": request.POST.get("reason", ""),
        "jobs": request.POST.get("jobs", FINISH),
        **extra,
    }
    return render(request, "scheduler/node_change.html", context, status=status)


@require_POST
@requires(Can.OPERATE, everywhere=True)
def node_spare(request: HttpRequest, public_id: str) -> HttpResponse:
    access = access_of(request)
    node = node_for(access, public_id)
    try:
        sent = form_values(SpareForm(request.POST))
        changed = node_spare_set(access=access, node=node, spare=sent["spare"], reason=sent["reason"], now=now())
    except ValidationError as fault:
        return _page(request, node, status=422, spare_faults=messages_by_field(fault), spare_reason=request.POST.get("reason", ""))
    except Conflict as fault:
        return _page(request, node, status=409, spare_faults={"spare": [str(fault)]})
    messages.success(request, f"{changed.name} is kept as a spare." if changed.spare else f"{changed.name} is no longer a spare.")
    return redirect("node", public_id=public_id)


def form_values(form: Any) -> dict[str, Any]:
    """What the form says; a form that says it wrongly is refused like any other bad value."""
    if not form.is_valid():
        raise ValidationError(form.errors.as_data())
    read: dict[str, Any] = form.cleaned_data
    return read


def messages_by_field(fault: ValidationError) -> dict[str, list[str]]:
    return fault.message_dict if hasattr(fault, "error_dict") else {"all": fault.messages}


def _page(request: HttpRequest, node: Node, *, status: int = 200, **extra: Any) -> HttpResponse:
    access, version, chosen = access_of(request), feed_revision(), range_of(request.GET)
    gpus = node_gpus(node)
    held: dict[int | None, list[Holder]] = {}
    holders_here = node_holders(access, node.pk)
    for holder in holders_here:
        held.setdefault(holder.gpu_id, []).append(holder)
    devices = []
    for gpu in gpus:
        holders = held.get(gpu.pk, [])
        drawing = drawing_of(gpu, gpu.instances, holders)  # type: ignore[attr-defined]
        devices.append({"gpu": gpu, "holders": holders, "jobs": holding_jobs(holders), "drawing": drawing})
    taken = sum(min(1000, sum(holder.gpu_milli for holder in held.get(gpu.pk, []))) for gpu in gpus)
    context = {
        "version": version,
        "node": node,
        "chart": node_chart(node, chosen=chosen, now=now()) if gpus else None,
        "range": chosen,
        "is_weak": nodes_signal([node.public_id]) == DRIVER_UTILIZATION,
        "devices": devices,
        "taken_milli": taken,
        "capacity_milli": len(gpus) * 1000,
        "jobs": holding_jobs(holders_here),
        "left": jobs_left(access, node),
        "nics": list(node.nics.order_by("name")),
        "steps": [asdict(step) for step in steps_from(node.health)],
        "previewed": PREVIEWED,
        "may_drain": may_follow(node.health, Health.DRAINING),
        "may_operate": access.can_everywhere(Can.OPERATE) and node.removed_at is None,
        "history": history_lines(node_history(node)),
        **extra,
    }
    return render(request, "scheduler/node.html", context, status=status)
