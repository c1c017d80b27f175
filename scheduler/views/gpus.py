"""GPUs: the list, one GPU, how it is split, and the catalogue of what can be split how."""

from dataclasses import asdict
from functools import partial
from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from dashboards.courses import gpu_chart
from dashboards.fragmentation.defragmenting import opening_told, split_opening
from dashboards.gpu_list import GPUS, conditions, gpus_now
from dashboards.idle.selectors import gpu_episodes, idle_rows
from dashboards.measures import HARDWARE_MEASURES, measure_of
from dashboards.readings import gpus_read
from dashboards.weak import DRIVER_UTILIZATION, signal_of, weak_gpus
from gpufleet.core.faults import Conflict
from gpufleet.core.live.feed import feed_revision
from gpufleet.core.ranges import range_of
from gpufleet.core.times import now
from gpufleet.core.undo import Undo, done_with_undo
from gpufleet.web import Can, access_of, requires
from scheduler.engine.model.mig import BOARDS, Board
from scheduler.forms import GeometryForm, HealthForm
from scheduler.hardware.layouts import maximal_layouts
from scheduler.hardware.lifecycle import may_follow, steps_from
from scheduler.models import Gpu, GpuMode, GpuType, Health, SplitState
from scheduler.presenters.hardware import additions, drawing_of, drawing_of_layout, history_lines, split_status, stranded_text
from scheduler.presenters.node_changes import health_preview, split_preview
from scheduler.selectors.gpus import gpu_for, gpu_history, gpu_split, gpus_listed
from scheduler.selectors.holders import gpu_holders, gpu_past_holders
from scheduler.selectors.nodes import gpu_guests, hourly_micros
from scheduler.services.hardware.geometry import (
    SPLIT_MODES,
    SplitPlan,
    geometry_of,
    gpu_geometry_cancel,
    gpu_geometry_change,
    gpu_geometry_undo,
    layout_text,
    split_plan,
    split_text,
)
from scheduler.services.hardware.hardware import gpu_health_change
from scheduler.views.nodes import form_values, health_page, health_said, health_undo, messages_by_field, steps_of
from scheduler.views.view_tabs import opened_with, views_shown


@require_safe
@requires(Can.SEE)
def gpu_list(request: HttpRequest) -> HttpResponseBase:
    access = access_of(request)
    if (opened := opened_with(access, request, GPUS)) is not None:
        return opened
    context = {
        "heading": "GPUs",
        "version": feed_revision(),
        "can_add": access.can_everywhere(Can.OPERATE),
        "tabs": conditions,
        "shown": _asked(request),
        "views": partial(views_shown, access, request, GPUS),
    }
    return GPUS.respond(request, gpus_listed(access), "scheduler/hardware_list.html", context, presented=partial(gpus_now, access))


def _asked(request: HttpRequest) -> str:
    """The filters of the address as the tabs spell them."""
    return "&".join(f"{key}={value}" for key, values in request.GET.lists() for value in values if value)


@require_safe
@requires(Can.SEE)
def gpu_page(request: HttpRequest, public_id: str) -> HttpResponse:
    return _page(request, gpu_for(access_of(request), public_id))


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.OPERATE, everywhere=True)
def gpu_health(request: HttpRequest, public_id: str) -> HttpResponse:
    """Another health, with what it does to the jobs on the GPU shown first (`?to=down`)."""
    access = access_of(request)
    gpu = gpu_for(access, public_id)
    if request.method != "POST":
        to = request.GET.get("to", Health.DRAINING)
        return _health_page(request, gpu, to) if may_follow(gpu.health, to) else redirect("gpu", public_id=public_id)
    try:
        sent = form_values(HealthForm(request.POST))
        changed = gpu_health_change(access=access, gpu=gpu, **steps_of(sent), now=now())
    except ValidationError as fault:
        faults, to = messages_by_field(fault), request.POST.get("to", "")
        return (
            _health_page(request, gpu, to, status=422, faults=faults)
            if may_follow(gpu.health, to)
            else _page(request, gpu, status=422, faults=faults)
        )
    except Conflict as fault:
        return _page(request, gpu_for(access, public_id), status=409, faults={"to": [str(fault)]})
    undo = None if sent["undone"] else health_undo(reverse("gpu_health", args=[public_id]), gpu, changed)
    done_with_undo(request, health_said(f"GPU {changed.index} of {changed.node.name}", changed, sent["undone"]), undo)
    return redirect("gpu", public_id=public_id)


def _health_page(request: HttpRequest, gpu: Gpu, to: str, *, status: int = 200, **extra: Any) -> HttpResponse:
    name, access, moment = f"GPU {gpu.index} of {gpu.node.name}", access_of(request), now()
    hourly = hourly_micros(access, [gpu], now=moment)
    return health_page(
        *(request, gpu, to, name),
        above=_above(gpu),
        preview=health_preview(gpu.node.name, gpu.health, to, gpu_guests(access, gpu, now=moment), gpus=1, hourly=hourly),
        action=reverse("gpu_health", args=[gpu.public_id]),
        status=status,
        **extra,
    )


def _above(gpu: Gpu) -> list[tuple[str, str]]:
    return [(gpu.node.name, reverse("node", args=[gpu.node.public_id])), (f"GPU {gpu.index}", reverse("gpu", args=[gpu.public_id]))]


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.OPERATE, everywhere=True)
def gpu_geometry(request: HttpRequest, public_id: str) -> HttpResponse:
    access = access_of(request)
    gpu = gpu_for(access, public_id)
    board = _board_or_404(gpu)
    if request.method != "POST":
        return _geometry_page(request, gpu, board)
    try:
        if request.POST.get("step") == "cancel":
            gpu_geometry_cancel(access=access, gpu=gpu, now=now())
            messages.success(request, "The repartition was cancelled.")
            return redirect("gpu", public_id=public_id)
        if request.POST.get("step") == "undo":
            return _geometry_undo(request, gpu)
        sent = form_values(GeometryForm(request.POST))
        layout = None if sent["mode"] == GpuMode.WHOLE else sent["layout"]
        if request.POST.get("step") != "apply":
            return _preview_page(request, gpu, board, split_plan(gpu=gpu, layout=layout), sent["reason"])
        split = gpu_geometry_change(access=access, gpu=gpu, layout=layout, seen=sent["seen"], reason=sent["reason"], now=now())
    except ValidationError as fault:
        return _geometry_page(request, gpu, board, status=422, faults=messages_by_field(fault))
    except Conflict as fault:
        return _geometry_page(request, gpu_for(access, public_id), board, status=409, faults={"layout": [str(fault)]})
    before = {"mode": gpu.mode, "layout": layout_text(geometry_of(gpu.instances))}  # type: ignore[attr-defined]
    undo = Undo(reverse("gpu_geometry", args=[public_id]), {"step": "undo", "split": str(split.pk), **before})
    may_undo = gpu.mode in SPLIT_MODES or split.state == SplitState.DRAINING
    done_with_undo(request, f"Repartition to {split_text(split)}: {split_status(split)}.", undo if may_undo else None)
    return redirect("gpu", public_id=public_id)


def _geometry_undo(request: HttpRequest, gpu: Gpu) -> HttpResponse:
    """Take a repartition back. While its back-end has yet to answer, the button is offered again."""
    text, mode = request.POST.get("split", ""), request.POST.get("mode", "")
    key = int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0
    # What was shared by time or MPS comes back only while nothing was done yet, and needs no layout for that.
    layout = form_values(GeometryForm(request.POST))["layout"] if mode == GpuMode.MIG else None
    try:
        back = gpu_geometry_undo(access=access_of(request), gpu=gpu, split=key, mode=mode, layout=layout, now=now())
    except Conflict as fault:
        standing = gpu_split(gpu)
        again = standing is not None and standing.pk == key and standing.state == SplitState.ORDERED
        fields = {name: request.POST.get(name, "") for name in ("step", "split", "mode", "layout")}
        done_with_undo(request, str(fault), Undo(reverse("gpu_geometry", args=[gpu.public_id]), fields) if again else None, level=messages.ERROR)
    else:
        given_up = back.state == SplitState.CANCELLED
        messages.success(request, "The repartition was cancelled." if given_up else f"Repartition back to {split_text(back)}: {split_status(back)}.")
    return redirect("gpu", public_id=gpu.public_id)


@require_safe
@requires(Can.SEE)
def mig_catalogue(request: HttpRequest) -> HttpResponse:
    types: dict[str, list[str]] = {}
    for name, board in GpuType.objects.exclude(board="").order_by("name").values_list("name", "board"):
        types.setdefault(board, []).append(name)
    boards = [
        {"board": board, "profiles": [(one, board.charge_milli(one)) for one in board.profiles], "types": types.get(name, [])}
        for name, board in BOARDS.items()
    ]
    boards.sort(key=lambda entry: not entry["types"])
    return render(request, "scheduler/mig_catalogue.html", {"boards": boards})


def _page(request: HttpRequest, gpu: Gpu, *, status: int = 200, **extra: Any) -> HttpResponse:
    access, version, chosen = access_of(request), feed_revision(), range_of(request.GET)
    holders, measure = gpu_holders(access, [gpu.pk]).get(gpu.pk, []), measure_of(request.GET)
    present = gpu.removed_at is None and gpu.node.removed_at is None
    context = {
        "gpu": gpu,
        "now": gpus_read([gpu.pk], now=now())[gpu.pk] if present else None,
        "version": version,
        "holders": holders,
        "idle": idle_rows(access, gpu_episodes(access, gpu.pk), now=now()),
        "past": gpu_past_holders(access, gpu.pk),
        "chart": gpu_chart(gpu, chosen=chosen, now=now(), measure=measure),
        "range": chosen,
        "measures": HARDWARE_MEASURES,
        "measure": measure,
        "is_weak": signal_of([gpu.pk], weak_gpus([gpu.node.cluster_id])) == DRIVER_UTILIZATION,
        "drawing": drawing_of(gpu, gpu.instances, holders),  # type: ignore[attr-defined]
        "board": BOARDS.get(gpu.gpu_type.board),
        **_split_of(gpu),
        "steps": [asdict(step) for step in steps_from(gpu.health)],
        "may_operate": access.can_everywhere(Can.OPERATE) and present,
        "history": history_lines(gpu_history(gpu)),
        **extra,
    }
    return render(request, "scheduler/gpu.html", context, status=status)


def _board_or_404(gpu: Gpu) -> Board:
    board = BOARDS.get(gpu.gpu_type.board)
    if board is None or gpu.removed_at is not None:
        raise Http404("This GPU can't be split.")
    return board


def _split_of(gpu: Gpu) -> dict[str, Any]:
    """The repartition that is under way, or the last one where it was refused."""
    split = gpu_split(gpu)
    if split is None:
        return {"split": None}
    return {"split": split, "split_to": split_text(split), "split_status": split_status(split), "may_cancel": split.state == SplitState.DRAINING}


def _preview_page(request: HttpRequest, gpu: Gpu, board: Board, plan: SplitPlan, reason: str) -> HttpResponse:
    """What a repartition would do. Nothing is written."""
    access = access_of(request)
    holders = gpu_holders(access, [gpu.pk]).get(gpu.pk, [])
    staying = {row.pk for row in plan.staying} if plan.mode == gpu.mode else set()
    moment = now()
    in_the_way = gpu_guests(access, gpu, now=moment, besides=staying)
    opening = opening_told(split_opening(access=access, gpu=gpu, split=plan, now=moment), waits=bool(in_the_way))
    context = {
        "gpu": gpu,
        "board": board,
        "plan": plan,
        "drawing": drawing_of(gpu, gpu.instances, holders),  # type: ignore[attr-defined]
        "after": drawing_of_layout(board, plan.wanted) if plan.mode == GpuMode.MIG else None,
        "preview": split_preview(gpu, plan, in_the_way, opening),
        "drains": bool(in_the_way),
        "above": [*_above(gpu), ("Split", reverse("gpu_geometry", args=[gpu.public_id]))],
        "layout": layout_text(plan.wanted),
        "present": layout_text(geometry_of(gpu.instances)),  # type: ignore[attr-defined]
        "reason": reason,
    }
    return render(request, "scheduler/gpu_geometry_preview.html", context)


def _geometry_page(request: HttpRequest, gpu: Gpu, board: Board, *, status: int = 200, **extra: Any) -> HttpResponse:
    holders = gpu_holders(access_of(request), [gpu.pk]).get(gpu.pk, [])
    present = geometry_of(gpu.instances)  # type: ignore[attr-defined]
    held = {holder.mig_id for holder in holders}
    used = set(geometry_of([instance for instance in gpu.instances if instance.pk in held]))  # type: ignore[attr-defined]
    plain = tuple(profile.name for profile in board.profiles if not profile.media and not profile.double_memory)
    # Layouts that keep what is in use come first: they wait for nobody.
    offered = sorted((one for one in maximal_layouts(board, plain) if list(one) != present), key=lambda one: len(used - set(one)))
    context = {
        "gpu": gpu,
        "board": board,
        "present": layout_text(present),
        "drawing": drawing_of(gpu, gpu.instances, holders),  # type: ignore[attr-defined]
        "in_use": bool(holders),
        **_split_of(gpu),
        "layouts": [
            {
                "value": layout_text(layout),
                "drawing": drawing_of_layout(board, layout),
                "left": stranded_text(board, layout),
                "drains": bool(holders) and (gpu.mode != GpuMode.MIG or not used <= set(layout)),
            }
            for layout in offered
        ],
        "additions": [
            {"value": layout_text([*present, fitting.instance]), "addition": fitting}
            for fitting in additions(board, present)
            if gpu.mode == GpuMode.MIG
        ],
        "removable": [
            {"instance": instance, "used": instance.pk in held, "value": layout_text([part for part in present if part.start != instance.start])}
            for instance in gpu.instances  # type: ignore[attr-defined]
        ],
        "reason": request.POST.get("reason", ""),
        **extra,
    }
    return render(request, "scheduler/gpu_geometry.html", context, status=status)
