"""Import and discovery: look first, then apply exactly what was shown."""

from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from gpufleet.core.faults import Conflict
from gpufleet.core.times import now
from gpufleet.web import Can, access_of, requires
from scheduler.forms import DiscoverForm, ImportForm
from scheduler.hardware.discovery import NothingFound
from scheduler.imports.documents import Unreadable, decoded, format_of
from scheduler.imports.plan import Plan
from scheduler.presenters.hardware import difference_lines
from scheduler.selectors.imports import import_for, imports_recent
from scheduler.services.hardware.discovery import DEFAULT_CLUSTER, machine_discover
from scheduler.services.hardware.imports import import_apply, import_plan, import_preview
from scheduler.views.nodes import form_values

SHOWN = 300


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.OPERATE, everywhere=True)
def inventory_import(request: HttpRequest) -> HttpResponse:
    if request.method != "POST":
        return _upload_page(request, ImportForm())
    form = ImportForm(request.POST, request.FILES)
    if not form.is_valid():
        return _upload_page(request, form, status=422)
    sent = form.cleaned_data
    upload = sent["file"]
    source = upload.name if upload else "pasted text"
    try:
        text = decoded(upload.read()) if upload else sent["text"]
    except Unreadable as fault:
        return _upload_page(request, form, status=422, faults=fault.faults, source=source)
    kind = sent["form"] or format_of(source) or ("json" if text.lstrip().startswith(("{", "[")) else "yaml")
    chosen: dict[str, Any] = {"remove_missing": sent["remove_missing"], "cluster": sent["cluster"]}
    preview = import_preview(access=access_of(request), text=text, form=kind, source=source, now=now(), **chosen)
    if preview.faults:
        return _upload_page(request, form, status=422, faults=preview.faults, source=source)
    if preview.upload is None:
        return _upload_page(request, form, nothing=source, plan=_shown(preview.plan), notes=preview.notes)
    return redirect("inventory_preview", public_id=preview.upload.public_id)


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.OPERATE, everywhere=True)
def inventory_preview(request: HttpRequest, public_id: str) -> HttpResponse:
    access = access_of(request)
    upload = import_for(access, public_id)
    if request.method == "POST":
        try:
            plan = import_apply(access=access, upload=upload, now=now())
        except Conflict as fault:
            return _preview_page(request, public_id, status=409, conflict=str(fault))
        count = len(plan.effective)
        messages.success(request, f"{upload.source} is applied: {count:,} {'change' if count == 1 else 'changes'}.")
        return redirect("clusters")
    return _preview_page(request, public_id)


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.OPERATE, everywhere=True)
def inventory_discover(request: HttpRequest) -> HttpResponse:
    context: dict[str, Any] = {"cluster": "", "default_cluster": DEFAULT_CLUSTER}
    if request.method != "POST":
        return render(request, "scheduler/discover.html", context)
    context["cluster"] = request.POST.get("cluster", "")
    try:
        sent = form_values(DiscoverForm(request.POST))
        found = machine_discover(access=access_of(request), cluster=sent["cluster"], now=now())
    except ValidationError as fault:
        return render(request, "scheduler/discover.html", context | {"faults": fault.messages}, status=422)
    except NothingFound as nothing:
        return render(request, "scheduler/discover.html", context | {"nothing": nothing})
    if found.preview.upload is not None:
        for note in found.machine.notes:
            messages.warning(request, note)
        return redirect("inventory_preview", public_id=found.preview.upload.public_id)
    return render(request, "scheduler/discover.html", context | {"found": found})


def _upload_page(request: HttpRequest, form: ImportForm, *, status: int = 200, **extra: Any) -> HttpResponse:
    context = {"form": form, "recent": imports_recent(access_of(request)), **extra}
    return render(request, "scheduler/import.html", context, status=status)


def _preview_page(request: HttpRequest, public_id: str, *, status: int = 200, conflict: str = "") -> HttpResponse:
    upload = import_for(access_of(request), public_id)
    context: dict[str, Any] = {"upload": upload, "conflict": conflict}
    if upload.applied_at is None:
        plan = import_plan(text=upload.text, form=upload.form, remove_missing=upload.remove_missing)
        context |= {"plan": _shown(plan), "stale": bool(plan.faults) or plan.digest != upload.digest}
    return render(request, "scheduler/import_preview.html", context, status=status)


def _shown(plan: Plan) -> dict[str, Any]:
    """The plan as a page shows it: what changes first, what is kept last."""
    order = {"removed": 0, "changed": 1, "added": 2, "kept": 3}
    changes = sorted(plan.changes, key=lambda change: order[change.kind])
    lines = [{"change": change, "differences": difference_lines(change)} for change in changes[:SHOWN]]
    return {"counts": plan.counts_of(), "lines": lines, "more": max(0, len(changes) - SHOWN)}
