"""Changes of the quota tree: their list, one with its preview and its steps, and the tree as it was."""

from datetime import UTC, datetime
from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from gpufleet.core.faults import Conflict
from gpufleet.core.live.feed import feed_revision
from gpufleet.core.times import now
from gpufleet.core.undo import Undo, done_with_undo
from gpufleet.web import Can, access_of, requires
from quotas.exchange import FORMATS, rows_read, tree_written
from quotas.forms import ApplyAtForm, ImportForm, PastForm, faults_of
from quotas.lists import CHANGES
from quotas.models import QuotaChange
from quotas.presenters import changed_fields, past_rows
from quotas.selectors.changes import applied_lines, change_for, change_list, change_standing, steps_open, tree_visible, tree_visible_at
from quotas.services.changes import Wanted, capacity_lines, change_draft, change_step, preview_save, tree_imported
from scheduler.presenters.tree_changes import tree_told
from scheduler.selectors.windows import capacity_now
from scheduler.services.forecasts.previews import tree_preview

DONE = {
    "propose": "Approval is requested.",
    "approve": "The change is approved.",
    "reject": "The change is rejected.",
    "withdraw": "The change is withdrawn.",
    "schedule": "The change is scheduled.",
    "apply": "The change is applied.",
    "rebase": "The change is rebased on the present tree.",
    "allow": "The change may exceed the healthy capacity.",
    "revert": "This change undoes the other one. Read the preview, then apply it.",
}


@require_safe
@requires(Can.SEE)
def changes(request: HttpRequest) -> HttpResponseBase:
    context = {"heading": "Quota changes", "version": feed_revision()}
    return CHANGES.respond(request, change_list(access_of(request)), "quotas/changes.html", context)


@require_safe
@requires(Can.SEE)
def change(request: HttpRequest, public_id: str) -> HttpResponse:
    access, version = access_of(request), feed_revision()
    found = change_for(access, public_id)
    context: dict[str, Any] = {"version": version, "change": found, "reverted_by": list(found.reverted_by.order_by("pk"))}
    standing = change_standing(access, found) if found.is_open else None
    if standing is not None:
        beyond = [] if found.over_capacity else capacity_lines(standing.before, standing.after, capacity_now().by_type)
        context |= {"standing": standing, "hidden": standing.hidden, "lines": changed_fields(standing.lines), "beyond": beyond}
        if not standing.faults:
            found_now = tree_preview(access=access, before=standing.before, after=standing.after, now=now())
            context |= {"preview": tree_told(found_now), "shares": found_now.shares}
    elif found.after:
        lines, hidden = applied_lines(access, found)
        context |= {"hidden": hidden, "lines": changed_fields(lines)}
    context |= {"steps": steps_open(access, found, standing), "when": ApplyAtForm(), "is_author": found.author_id == request.user.pk}
    return render(request, "quotas/change.html", context)


@require_POST
@requires(Can.EDIT_QUOTA)
def change_step_page(request: HttpRequest, public_id: str) -> HttpResponse:
    access = access_of(request)
    found = change_for(access, public_id)
    step, when = request.POST.get("step", ""), None
    try:
        if step == "save":
            preview_save(access=access, change=found, revision=_revision(request, found), now=now())
            messages.success(request, "The change is saved as a draft.")
            return redirect("quota-change", public_id)
        if step == "schedule":
            form = ApplyAtForm(request.POST)
            if not form.is_valid():
                raise ValidationError({"apply_at": [text for texts in form.errors.values() for text in texts]})
            when = form.cleaned_data["apply_at"]
        after = change_step(
            access=access,
            change=found,
            step=step,
            revision=_revision(request, found),
            capacity=lambda: capacity_now().by_type,
            reason=request.POST.get("reason", "").strip()[:500],
            apply_at=when,
            now=now(),
        )
    except ValidationError as fault:
        messages.error(request, " ".join(text for _, texts in faults_of(fault) for text in texts))
    except Conflict as fault:
        messages.error(request, str(fault))
    else:
        if after.pk is None:
            return redirect("quotas")
        # Undoing is a change of its own: its draft is shown with a preview before it is applied.
        address, may_undo = reverse("quota-change-step", args=[public_id]), step == "apply" and after.reverts_id is None
        done_with_undo(request, DONE[step], Undo(address, {"step": "revert", "reason": "Undo."}) if may_undo else None)
        return redirect("quota-change", after.public_id)
    return redirect("quota-change", public_id)


def _revision(request: HttpRequest, found: QuotaChange) -> int:
    text = request.POST.get("revision", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else found.revision


@require_safe
@requires(Can.SEE)
def tree_export(request: HttpRequest) -> HttpResponse:
    form = request.GET.get("format", "yaml")
    if form not in FORMATS:
        form = "yaml"
    answer = HttpResponse(tree_written(*tree_visible(access_of(request)), form), content_type=f"text/{form}; charset=utf-8")
    answer["Content-Disposition"] = f'attachment; filename="quotas.{form}"'
    return answer


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.EDIT_QUOTA)
def tree_import(request: HttpRequest) -> HttpResponse:
    access = access_of(request)
    form = ImportForm(request.POST if request.method == "POST" else None, request.FILES or None)
    faults: list[tuple[str, str]] = []
    if form.is_bound and form.is_valid():
        data = form.cleaned_data
        try:
            rows, wrong = rows_read(data["text"], data["format"])
            options = {"archive_missing": data["archive_missing"], "reason": data["reason"]}
            edits, _ = tree_imported(access=access, rows=rows, faults=wrong, **options)
            wanted = Wanted([edit.as_json() for edit in edits], reason=data["reason"])
            return redirect("quota-change", change_draft(access=access, wanted=wanted, preview=True, now=now()).public_id)
        except ValidationError as fault:
            faults = [(at, text) for at, texts in faults_of(fault) for text in texts]
    return render(request, "quotas/import.html", {"form": form, "faults": faults}, status=422 if form.is_bound else 200)


@require_safe
@requires(Can.SEE)
def tree_past(request: HttpRequest) -> HttpResponse:
    """The tree as it was at a time."""
    form = PastForm(request.GET if "at" in request.GET else None, initial={"at": now().replace(tzinfo=None)})
    context: dict[str, Any] = {"form": form}
    if form.is_bound and form.is_valid():
        at: datetime = form.cleaned_data["at"].replace(tzinfo=UTC)
        tree, states = tree_visible_at(access_of(request), at)
        types, rows = past_rows(tree, states)
        context |= {"at": at, "gpu_types": types, "rows": rows}
    return render(request, "quotas/past.html", context, status=422 if form.is_bound and not form.is_valid() else 200)
