"""Templates by GPU types: how fast their jobs run, and a page to state it."""

from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_safe

from gpufleet.core.faults import Conflict
from gpufleet.core.times import now
from gpufleet.web import Can, access_of, requires
from scheduler.jobs.template_speeds import normalised
from scheduler.presenters.template_speeds import NAME, NEEDS, SHOWN, asked_of, chosen, speed_rows, steps_of
from scheduler.selectors.template_speeds import SpeedsOf, speed_types, speeds_of, stated_all
from scheduler.selectors.templates import template_named, templates_visible
from scheduler.services.jobs.template_speeds import speeds_adopt, speeds_state


@require_safe
@requires(Can.SEE)
def template_speeds(request: HttpRequest) -> HttpResponse:
    """The matrix: templates down, GPU types across."""
    access = access_of(request)
    types = speed_types()
    found = speeds_of(access, templates_visible(access), now=now())
    asked = asked_of(request.GET.dict(), types)
    context = {
        "rows": speed_rows(chosen(found, asked), types),
        "types": [asked.sorted_by(name) for name in types],
        "name_head": asked.sorted_by(NAME),
        "asked": asked,
        "shown": SHOWN,
        "knows_nothing": not any(one.stated or one.measured for one in found),
        "needs": NEEDS,
    }
    return render(request, "scheduler/template_speeds.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.SEE)
def template_speed(request: HttpRequest, ref: str) -> HttpResponse:
    """What is known of one template, its history, and the form that states it; `?adopt=1` looks at what adopting the measured speeds would do."""
    access = access_of(request)
    found = template_named(access, ref.partition("@")[0])
    if found is None:
        raise Http404("There is no such template.")
    (one,) = speeds_of(access, [found], now=now())
    types = sorted({*speed_types(), *one.stated, *one.measured})
    if request.method != "POST":
        return _page(request, one, types, looks=request.GET.get("adopt") == "1" and one.may_edit and not one.by_description)
    if not one.may_edit:
        raise PermissionDenied
    seen, reason = _number(request.POST.get("seen", "")), request.POST.get("reason", "")
    adopts = request.POST.get("adopt") == "1"
    typed = {name: request.POST.get(f"speed.{name}", "").strip() for name in types}
    try:
        if adopts:
            row = speeds_adopt(access=access, template=found, seen=seen, reason=reason, now=now())
        else:
            row = speeds_state(access=access, template=found, speeds=_read(typed), seen=seen, reason=reason, now=now())
    except ValidationError as fault:
        return _page(request, one, types, typed=typed, faults=fault.message_dict, looks=adopts, status=422)
    except Conflict as fault:
        return _page(request, one, types, typed=typed, faults={"speeds": [str(fault)]}, looks=adopts, status=409)
    said = f"Speeds number {row.number} of {found.title} are stated." if row.speeds else f"No speeds are stated of {found.title} any more."
    messages.success(request, f"{said} Jobs submitted from now on are given them; others keep theirs.")
    return redirect("template_speed", found.ref)


def _read(typed: dict[str, str]) -> dict[str, float]:
    """What was typed as numbers; an empty field states nothing."""
    speeds: dict[str, float] = {}
    faults = {}
    for name, text in typed.items():
        if not text:
            continue
        try:
            speeds[name] = float(text)
        except ValueError:
            faults[f"speeds.{name}"] = ["Enter a number, such as 0.45."]
    if faults:
        raise ValidationError(faults)
    return speeds


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else 0


def _page(
    request: HttpRequest,
    one: SpeedsOf,
    types: list[str],
    *,
    typed: dict[str, str] | None = None,
    faults: dict[str, list[str]] | None = None,
    looks: bool = False,
    status: int = 200,
) -> HttpResponse:
    faults = faults or {}
    (row,) = speed_rows([one], types)
    fields = [
        {
            "cell": cell,
            "typed": cell.typed if typed is None else typed.get(cell.gpu_type, ""),
            "faults": faults.get(f"speeds.{cell.gpu_type}", []),
        }
        for cell in row.cells
    ]
    context: dict[str, Any] = {
        "one": one,
        "template": one.template,
        "row": row,
        "fields": fields,
        "faults": faults,
        "reason": request.POST.get("reason", ""),
        "steps": steps_of(normalised(one.stated), one.adoptable, one.adopted_runs) if looks else [],
        "looks": looks,
        "history": stated_all(one.template),
        "needs": NEEDS,
        "may_edit": one.may_edit and not one.by_description,
    }
    return render(request, "scheduler/template_speed.html", context, status=status)
