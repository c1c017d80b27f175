"""Adding a cluster: each step is tried and shown, then its nodes are imported by the usual preview."""

from dataclasses import asdict
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.html import format_html
from django.views.decorators.http import require_http_methods, require_POST

from gpufleet.core.times import now
from gpufleet.web import Can, access_of, requires
from scheduler.backends.base import BackendError
from scheduler.forms import KubernetesForm, LocalClusterForm, SlurmForm, SlurmTypesForm
from scheduler.selectors.clusters import cluster_for, former_folders
from scheduler.services.hardware import kubernetes
from scheduler.services.hardware.checks import Step, StepsFailed
from scheduler.services.hardware.discovery import machine_add
from scheduler.services.hardware.kubernetes_checks import kubernetes_check
from scheduler.services.hardware.local_checks import local_check
from scheduler.services.hardware.slurm import (
    GresTypes,
    must_be_valid,
    slurm_asked,
    slurm_choices,
    slurm_connect,
    slurm_is_connected,
    slurm_known,
    slurm_preview,
    slurm_row,
    slurm_types,
)
from scheduler.services.hardware.slurm_accounts import accounts_propose, accounts_read
from scheduler.services.hardware.slurm_checks import slurm_check
from scheduler.services.hardware.slurm_imports import import_every

LINES_TOLD = 5  # of what is left out, in a message
AnyForm = SlurmForm | KubernetesForm | LocalClusterForm
KINDS = {"slurm": SlurmForm, "kubernetes": KubernetesForm, "local": LocalClusterForm}


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.OPERATE, everywhere=True)
def cluster_add_slurm(request: HttpRequest) -> HttpResponse:
    """Also how a cluster that is there is reached: it is named in the address."""
    addressed = request.GET.get("cluster", "").strip()
    name = request.POST.get("cluster", addressed).strip()
    known = slurm_known(name)
    is_there = slurm_is_connected(name)
    choices, connected = asdict(slurm_choices(known)), name if is_there and name == addressed else ""
    if request.method != "POST":
        return _add_page(request, SlurmForm(initial=asdict(known) | {"cluster": name}, **choices), connected=connected)
    form = SlurmForm(request.POST, **choices)
    if is_there and not connected:
        form.add_error("cluster", _connected_already(name))
    if not form.is_valid():
        return _add_page(request, form, status=422, connected=connected)
    sent = form.cleaned_data
    shown = sent.keys() & request.POST.keys() - {"cluster"}  # what was not shown keeps its value
    try:
        chosen = slurm_asked(sent["cluster"], {field: sent[field] for field in shown})
        if "keep" in request.POST:
            made = slurm_connect(access=access_of(request), cluster=sent["cluster"], settings=chosen, now=now())
            messages.success(request, f"{sent['cluster']} is connected.")
            for told in filter(None, (made.told, made.not_read)):
                messages.warning(request, told)
            return redirect("cluster" if is_there else "slurm_import", name=sent["cluster"])
        must_be_valid(sent["cluster"], chosen)
        steps = slurm_check(chosen)
    except ValidationError as fault:
        form.add_error(None, fault)
        return _add_page(request, form, status=422, connected=connected)
    except StepsFailed as fault:
        steps = fault.steps
    return _tried_page(request, form, steps, connected=connected)


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.OPERATE, everywhere=True)
def cluster_add_kubernetes(request: HttpRequest) -> HttpResponse:
    """Also how a cluster that is there is reached: it is named in the address."""
    addressed = request.GET.get("cluster", "").strip()
    name = request.POST.get("cluster", addressed).strip()
    known = kubernetes.kubernetes_known(name)
    is_there = kubernetes.kubernetes_is_connected(name)
    contexts, connected = kubernetes.kubernetes_contexts(known), name if is_there and name == addressed else ""
    if request.method != "POST":
        return _add_page(request, KubernetesForm(initial=asdict(known) | {"cluster": name}, contexts=contexts), connected=connected)
    form = KubernetesForm(request.POST, contexts=contexts)
    if is_there and not connected:
        form.add_error("cluster", _connected_already(name, "cluster_add_kubernetes"))
    if not form.is_valid():
        return _add_page(request, form, status=422, connected=connected)
    sent = form.cleaned_data
    shown = sent.keys() & request.POST.keys() - {"cluster"}  # what was not shown keeps its value
    try:
        chosen = kubernetes.kubernetes_asked(sent["cluster"], {field: sent[field] for field in shown})
        if "keep" in request.POST:
            kubernetes.kubernetes_connect(access=access_of(request), cluster=sent["cluster"], settings=chosen, now=now())
            messages.success(request, f"{sent['cluster']} is connected.")
            is_as_imported = is_there and chosen.levels == known.levels
            return redirect("cluster" if is_as_imported else "kubernetes_import", name=sent["cluster"])
        kubernetes.must_be_valid(sent["cluster"], chosen)
        steps = kubernetes_check(chosen, cluster=sent["cluster"], kubeconfig=settings.KUBECONFIG)
    except ValidationError as fault:
        form.add_error(None, fault)
        return _add_page(request, form, status=422, connected=connected)
    except StepsFailed as fault:
        steps = fault.steps
    return _tried_page(request, form, steps, connected=connected)


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.OPERATE, everywhere=True)
def kubernetes_import_page(request: HttpRequest, name: str) -> HttpResponse:
    access = access_of(request)
    cluster = cluster_for(access, name)
    try:
        row = kubernetes.kubernetes_row(name)
    except ValidationError as fault:
        raise Http404(fault.messages[0]) from fault
    context: dict[str, Any] = {"cluster": cluster, "row": row}
    if request.method != "POST":
        return render(request, "scheduler/kubernetes_import.html", context)
    try:
        preview = kubernetes.kubernetes_preview(access=access, cluster=name, now=now())
    except BackendError as fault:
        return render(request, "scheduler/kubernetes_import.html", context | {"silent": str(fault)}, status=409)
    if preview.upload is not None:
        return redirect("inventory_preview", public_id=preview.upload.public_id)
    context |= {"faults": preview.faults, "same": not preview.faults, "notes": preview.notes}
    return render(request, "scheduler/kubernetes_import.html", context, status=422 if preview.faults else 200)


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.OPERATE, everywhere=True)
def cluster_add_local(request: HttpRequest) -> HttpResponse:
    if request.method != "POST":
        return _add_page(request, LocalClusterForm())
    form = LocalClusterForm(request.POST)
    if not form.is_valid():
        return _add_page(request, form, status=422)
    name = form.cleaned_data["cluster"]
    try:
        if "keep" not in request.POST:
            return _tried_page(request, form, local_check())
        found = machine_add(access=access_of(request), cluster=name, now=now())
    except ValidationError as fault:
        form.add_error(None, fault)
        return _add_page(request, form, status=422)
    except StepsFailed as fault:
        return _tried_page(request, form, fault.steps)
    if found.preview.faults:
        form.add_error("cluster", [str(one) for one in found.preview.faults])
        return _add_page(request, form, status=422)
    if found.preview.upload is None:
        messages.info(request, f"Nothing to change: {found.machine.name} is in {name} as its driver says.")
        return redirect("cluster", name=name)
    return redirect("inventory_preview", public_id=found.preview.upload.public_id)


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
    named = {gres: (form.cleaned_data[f"name-{gres}"], form.cleaned_data[f"memory-{gres}"]) for gres in types.unknown}
    preview = slurm_preview(access=access, cluster=name, named=named, now=now(), types=types)
    if preview.upload is not None:
        return redirect("inventory_preview", public_id=preview.upload.public_id)
    return _import_page(request, cluster, types, form, status=422 if preview.faults else 200, faults=preview.faults, same=not preview.faults)


@require_POST
@requires(Can.OPERATE, everywhere=True)
def slurm_every_page(request: HttpRequest, name: str) -> HttpResponse:
    """How often a cluster is imported by itself."""
    return _every(request, name, "slurm_import")


@require_POST
@requires(Can.OPERATE, everywhere=True)
def kubernetes_every_page(request: HttpRequest, name: str) -> HttpResponse:
    return _every(request, name, "kubernetes_import")


def _every(request: HttpRequest, name: str, page: str) -> HttpResponse:
    cluster_for(access_of(request), name)
    text = request.POST.get("minutes", "")
    try:
        minutes = int(text) if text.isascii() and text.isdigit() and len(text) < 7 else -1
        row = import_every(access=access_of(request), cluster=name, minutes=minutes, now=now())
    except ValidationError as fault:
        messages.error(request, " ".join(fault.messages))
    else:
        messages.success(request, f"Imported every {row.import_minutes} minutes." if row.import_minutes else "Not imported by itself.")
    return redirect(page, name=name)


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


def _connected_already(name: str, page: str = "cluster_add") -> str:
    return format_html('{} is connected already. Change it on its page <a href="{}?cluster={}">Connection</a>.', name, reverse(page), name)


def _add_page(request: HttpRequest, form: AnyForm, *, status: int = 200, **more: Any) -> HttpResponse:
    kind = next(kind for kind, of in KINDS.items() if isinstance(form, of))
    may_run = isinstance(form, LocalClusterForm) or form.may_run
    former = former_folders(more["connected"], now=now()) if more.get("connected") else []
    context = {"form": form, "kind": kind, "may_run": may_run, "former": former, **more}
    return render(request, "scheduler/cluster_add.html", context, status=status)


def _tried_page(request: HttpRequest, form: AnyForm, steps: list[Step], **more: Any) -> HttpResponse:
    """What failed is said at its field as well."""
    failed = [step for step in steps if step.result == "failed"]
    for step in failed:
        if step.field in form.fields:
            form.add_error(step.field, step.told)
    return _add_page(request, form, status=422 if failed else 200, steps=steps, failed=failed, **more)


def _import_page(request: HttpRequest, cluster: Any, types: GresTypes, form: SlurmTypesForm, *, status: int = 200, **more: Any) -> HttpResponse:
    shown = {"cluster": cluster, "slurm": slurm_row(cluster.name), "types": types, "form": form}
    shown["may_edit"] = access_of(request).can_everywhere(Can.EDIT_QUOTA)
    return render(request, "scheduler/slurm_import.html", shown | more, status=status)
