"""Connecting a Slurm cluster: each step is tried and shown, then its nodes are imported by the usual preview."""

from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST

from gpufleet.core.times import now
from gpufleet.web import Can, access_of, requires
from scheduler.backends.base import BackendError
from scheduler.backends.slurm.client import Settings
from scheduler.forms import SlurmForm, SlurmTypesForm
from scheduler.hardware.slurm import KnownType
from scheduler.selectors.clusters import cluster_for
from scheduler.services.hardware.imports import import_preview
from scheduler.services.hardware.slurm import GresTypes, Step, slurm_check, slurm_connect, slurm_document, slurm_row, slurm_types, slurm_users
from scheduler.services.hardware.slurm_accounts import accounts_propose, accounts_read
from scheduler.services.hardware.slurm_imports import import_every

LINES_TOLD = 5  # of what is left out, in a message


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.OPERATE, everywhere=True)
def slurm_connect_page(request: HttpRequest) -> HttpResponse:
    users = slurm_users()
    if request.method != "POST":
        return _connect_page(request, SlurmForm(users=users))
    form = SlurmForm(request.POST, users=users)
    if not form.is_valid():
        return _connect_page(request, form, status=422)
    sent = form.cleaned_data
    chosen = Settings(conf="", **{name: sent[name] for name in ("partition", "account", "user", "folder", "node_logs")})
    steps = slurm_check(chosen)
    if "keep" not in request.POST or not all(step.ok for step in steps):
        return _connect_page(request, form, steps=steps)
    try:
        slurm_connect(access=access_of(request), cluster=sent["cluster"], settings=chosen, now=now())
    except ValidationError as fault:
        for name, words in fault.message_dict.items():
            form.add_error(name if name in form.fields else "cluster", words)
        return _connect_page(request, form, steps=steps, status=422)
    messages.success(request, f"{sent['cluster']} is connected.")
    return redirect("slurm_import", name=sent["cluster"])


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.OPERATE, everywhere=True)
def slurm_import_page(request: HttpRequest, name: str) -> HttpResponse:
    access = access_of(request)
    cluster = cluster_for(access, name)
    try:
        types = slurm_types(access=access, cluster=name)
    except ValidationError as fault:
        raise Http404(fault.messages[0]) from fault
    except BackendError as fault:
        return render(request, "scheduler/slurm_import.html", {"cluster": cluster, "silent": str(fault)})
    if request.method != "POST":
        return _import_page(request, cluster, types, SlurmTypesForm(gres=types.unknown, known=types.known))
    form = SlurmTypesForm(request.POST, gres=types.unknown, known=types.known)
    if not form.is_valid():
        return _import_page(request, cluster, types, form, status=422)
    named = {gres: KnownType(form.cleaned_data[f"name-{gres}"], form.cleaned_data[f"memory-{gres}"]) for gres in types.unknown}
    text = slurm_document(cluster=name, types=named)
    preview = import_preview(access=access, text=text, form="yaml", source=f"Slurm of {name}", remove_missing=False, now=now())
    if preview.upload is not None:
        return redirect("inventory_preview", public_id=preview.upload.public_id)
    return _import_page(request, cluster, types, form, status=422 if preview.faults else 200, faults=preview.faults, same=not preview.faults)


@require_POST
@requires(Can.OPERATE, everywhere=True)
def slurm_every_page(request: HttpRequest, name: str) -> HttpResponse:
    """How often a cluster is imported by itself."""
    cluster_for(access_of(request), name)
    text = request.POST.get("minutes", "")
    try:
        minutes = int(text) if text.isascii() and text.isdigit() and len(text) < 7 else -1
        row = import_every(access=access_of(request), cluster=name, minutes=minutes, now=now())
    except ValidationError as fault:
        messages.error(request, " ".join(fault.messages))
    else:
        messages.success(request, f"Imported every {row.import_minutes} minutes." if row.import_minutes else "Not imported by itself.")
    return redirect("slurm_import", name=name)


@require_POST
@requires(Can.EDIT_QUOTA, everywhere=True)
def slurm_accounts_page(request: HttpRequest, name: str) -> HttpResponse:
    """Accounts of a cluster as a draft of a change of quotas, which its own page previews and applies."""
    access = access_of(request)
    cluster_for(access, name)
    try:
        read = accounts_read(access=access, cluster=name, under=request.POST.get("under", "").strip("/ "))
        draft = accounts_propose(access=access, cluster=name, read=read, now=now())
    except ValidationError as fault:
        messages.error(request, " ".join(fault.messages))
    except BackendError as fault:
        messages.error(request, f"Slurm's accounts cannot be read: {fault}")
    else:
        if read.left_out:
            more = len(read.left_out) - LINES_TOLD
            told = f"{'; '.join(read.left_out[:LINES_TOLD])}{f'; and {more} more' if more > 0 else ''}"
            messages.warning(request, f"Left out: {told}. `gpufleet inventory slurm-accounts` lists all." if more > 0 else f"Left out: {told}.")
        if draft is not None:
            return redirect("quota-change", draft.public_id)
        messages.success(request, "Nothing to change: the quotas match Slurm's accounts.")
    return redirect("quota-changes")


def _connect_page(request: HttpRequest, form: SlurmForm, *, status: int = 200, steps: list[Step] | None = None) -> HttpResponse:
    return render(request, "scheduler/slurm_connect.html", {"form": form, "steps": steps, "may_run": bool(slurm_users())}, status=status)


def _import_page(request: HttpRequest, cluster: Any, types: GresTypes, form: SlurmTypesForm, *, status: int = 200, **more: Any) -> HttpResponse:
    shown = {"cluster": cluster, "slurm": slurm_row(cluster.name), "types": types, "form": form}
    shown["may_edit"] = access_of(request).can_everywhere(Can.EDIT_QUOTA)
    return render(request, "scheduler/slurm_import.html", shown | more, status=status)
