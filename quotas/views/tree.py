"""The quota tree: the list, one node, and what may be done to it."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from dashboards.courses import team_chart
from dashboards.fingerprints.told import ahead_told
from gpufleet.core import csvfile
from gpufleet.core.faults import Conflict
from gpufleet.core.live.feed import feed_revision
from gpufleet.core.previews import UNKNOWN, Preview
from gpufleet.core.ranges import Range, range_of
from gpufleet.core.times import now
from gpufleet.core.undo import Undo, done_with_undo
from gpufleet.web import Access, Can, access_of, requires
from quotas.drafts import difference_of
from quotas.forms import GrantForm, MoveForm, NodeForm, ReasonForm, faults_of, show_faults
from quotas.lists import NODES
from quotas.models import NodeKind, QuotaNode, Role
from quotas.presenters import Cell, TreeRow, cells_of, policy_told, summed, tree_rows, types_of
from quotas.rules import NodeValues, said
from quotas.selectors.audit import audit_list
from quotas.selectors.effects import archive_effects, restore_effects
from quotas.selectors.nodes import child_list, node_for, roles_on, tree_list, types_stated
from quotas.services.changes import CHANGED_MEANWHILE, Wanted, change_draft, edits_tried
from quotas.services.nodes import may_decide, node_archive, node_create, node_restore, node_values
from quotas.services.roles import may_hand_out, roles_to_hand_out
from quotas.views.confirm import confirm
from scheduler.presenters.submission_limits import submissions_told
from scheduler.presenters.tree_changes import tree_told
from scheduler.selectors.submission_limits import submission_use
from scheduler.selectors.usage import gpu_types_known, held_by_quota
from scheduler.services.forecasts.previews import tree_preview

log = logging.getLogger(__name__)

CHILD_KIND = {
    NodeKind.ORG: NodeKind.DEPARTMENT,
    NodeKind.DEPARTMENT: NodeKind.TEAM,
    NodeKind.TEAM: NodeKind.PROJECT,
    NodeKind.PROJECT: NodeKind.USER,
}


@require_safe
@requires()
def tree(request: HttpRequest) -> HttpResponseBase:
    access, version = access_of(request), feed_revision()
    if not access.can_everywhere(Can.ADMINISTER):
        access.must_somewhere(Can.SEE)
    archived = NODES.said(request.GET, "archived") == "yes"
    nodes = tree_list(access, archived=archived)
    gpu_types = sorted({*gpu_types_known(), *types_stated(access, archived=archived)})

    def rows_of(found: list[QuotaNode]) -> list[TreeRow]:
        # What runs below a node counts at it, also where the list leaves out the nodes between.
        paths = dict(tree_list(access, archived=archived).values_list("pk", "path"))
        return tree_rows(found, gpu_types, summed(paths, held_by_quota()))

    if request.GET.get("format") == "csv":
        return _tree_csv(request, rows_of(list(NODES.page_asked(request.GET, nodes).queryset)))
    context = {
        "heading": "Quotas",
        "sub": "Guarantees and usage by GPU type, child nodes included.",
        "version": version,
        "label": "Quota tree",
        "gpu_types": gpu_types,
        "may_edit": access.can_somewhere(Can.EDIT_QUOTA),
        "can_add": access.can_everywhere(Can.ADMINISTER),
    }
    return NODES.respond(request, nodes, "quotas/tree.html", context, presented=rows_of)


def _tree_csv(request: HttpRequest, rows: list[TreeRow]) -> HttpResponseBase:
    header = ["Path", "Title", "Kind", "Cost centre", "Weight", "Priority", "GPU type", "Used GPUs", "Guaranteed GPUs", "Limit GPUs"]
    lines: list[tuple[TreeRow, Cell | None]] = []
    for row in rows:
        named = [cell for cell in row.cells if not cell.says_nothing]
        lines += [(row, cell) for cell in named] or [(row, None)]

    def cells(line: tuple[TreeRow, Cell | None]) -> list[Any]:
        row, cell = line
        node = row.node
        facts = [node.path, node.title, node.get_kind_display(), node.cost_centre, node.weight, node.priority]
        if cell is None:
            return [*facts, "", "", "", ""]
        limit = "" if cell.limit is None else cell.limit / 1000
        return [*facts, cell.gpu_type, cell.used / 1000, "unlimited" if cell.guaranteed is None else cell.guaranteed / 1000, limit]

    return csvfile.answer(request, "quotas.csv", header, lambda place: (lines, ""), cells)


@require_safe
@requires(Can.SEE)
def node_page(request: HttpRequest, public_id: str) -> HttpResponse:
    access = access_of(request)
    return render(request, "quotas/node.html", node_context(access, node_for(access, public_id), chosen=range_of(request.GET)))


def node_context(access: Access, node: QuotaNode, grant: GrantForm | None = None, *, chosen: Range) -> dict[str, Any]:
    """What the page of a node shows to this reader."""
    version = feed_revision()
    below = list(tree_list(access).filter(path__startswith=node.path + "/"))
    gpu_types = types_of([node, *below], gpu_types_known())
    sums = summed({row.pk: row.path for row in [node, *below]}, held_by_quota())
    children = list(child_list(node))
    roles = [{"binding": binding, "revocable": may_hand_out(access, binding.role, binding.node.path)} for binding in roles_on(node)]
    offered = [] if node.archived_at else roles_to_hand_out(access, node.path)
    steps = node.path.split("/")
    ancestors = {row.path: row for row in tree_list(access).filter(path__in=["/".join(steps[:depth]) for depth in range(1, len(steps))])}
    return {
        "node": node,
        "policy": policy_told(node.policy),
        "version": version,
        "range": chosen,
        "chart": team_chart(node, access=access, chosen=chosen, now=now()),
        "submissions": submissions_told(node, submission_use(node, now=now())),
        "ahead": ahead_told(now=now(), quota=node),
        "week_ago": f"{now() - timedelta(days=7):%Y-%m-%d}",
        "crumbs": [(step, ancestors.get("/".join(steps[: depth + 1]))) for depth, step in enumerate(steps[:-1])],
        "cells": cells_of(node, gpu_types, sums.get(node.path, {})),
        "children": tree_rows(children, gpu_types, sums),
        "gpu_types": gpu_types,
        "roles": roles,
        "withheld": [role.label for role in Role if role not in offered],
        "grant": grant or (GrantForm(roles=[(role.value, role.label) for role in offered]) if offered else None),
        "may_edit": access.can(Can.EDIT_QUOTA, node.path) and not node.archived_at,
        "may_decide": may_decide(access, node),
        "may_see_audit": access.can(Can.SEE_AUDIT, node.path),
        "audit": audit_list(access).filter(object_kind="quota", object_id=node.public_id).order_by("-at", "-id")[:8],
    }


@require_http_methods(["GET", "POST"])
@requires()
def root_new(request: HttpRequest) -> HttpResponse:
    """The top of an empty tree."""
    access_of(request).must_everywhere(Can.ADMINISTER)
    return _new(request, None)


@require_http_methods(["GET", "POST"])
@requires(Can.EDIT_QUOTA)
def node_new(request: HttpRequest, public_id: str) -> HttpResponse:
    return _new(request, node_for(access_of(request), public_id, Can.EDIT_QUOTA))


def _new(request: HttpRequest, parent: QuotaNode | None) -> HttpResponse:
    kind = CHILD_KIND.get(NodeKind(parent.kind), NodeKind.PROJECT) if parent else NodeKind.ORG
    gpu_types = types_of([parent] if parent else [], gpu_types_known())
    form = NodeForm(request.POST or None, gpu_types=gpu_types, values=NodeValues(kind=kind), is_top=parent is None)
    if request.method == "POST" and form.is_valid():
        data = form.cleaned_data
        try:
            node = node_create(
                access=access_of(request), parent=parent, name=data["name"], values=form.node_values(), reason=data["reason"], now=now()
            )
        except ValidationError as fault:
            form.show_faults(fault)
        else:
            messages.success(request, f"{node.path} is there.")
            return redirect("quota", node.public_id)
    context = {"form": form, "parent": parent, "heading": f"New node below {parent.path}" if parent else "The top of the tree"}
    return render(request, "quotas/node_form.html", context | {"around": _around(parent)}, status=422 if form.is_bound else 200)


@require_http_methods(["GET", "POST"])
@requires(Can.EDIT_QUOTA)
def node_edit(request: HttpRequest, public_id: str) -> HttpResponse:
    """A change is kept as a draft, whose page shows what it does before it is applied."""
    access = access_of(request)
    node = node_for(access, public_id, Can.EDIT_QUOTA)
    form = NodeForm(
        request.POST or None,
        gpu_types=types_of([node], gpu_types_known()),
        values=node_values(node),
        fixed_name=node.name,
        decides=may_decide(access, node),
        is_top=node.parent_id is None,
        initial={"revision": node.revision},
    )
    if request.method == "POST" and form.is_valid():
        data = form.cleaned_data
        try:
            wanted = difference_of(node_values(node), form.node_values())
            return redirect("quota-change", _drafted(access, node, {"op": "update", "set": wanted}, data))
        except ValidationError as fault:
            form.show_faults(fault)
        except Conflict as fault:
            form.add_error(None, str(fault))
    context = {"form": form, "node": node, "heading": f"Edit {node.path}", "around": _around(node.parent, apart_from=node)}
    return render(request, "quotas/node_form.html", context, status=422 if form.is_bound else 200)


def _drafted(access: Access, node: QuotaNode, edit: dict[str, Any], data: Mapping[str, Any]) -> str:
    """The id of a draft with one edit of the node. Faults are at the node's own fields. `data` has the revision that was seen and the reason."""
    if node.revision != data["revision"]:
        raise Conflict(CHANGED_MEANWHILE)
    wanted = Wanted([{**edit, "node": node.public_id}], reason=data["reason"])
    try:
        return change_draft(access=access, wanted=wanted, preview=True, now=now()).public_id
    except ValidationError as fault:
        raise ValidationError({field.removeprefix("edits.0."): texts for field, texts in faults_of(fault)}) from None


def _around(parent: QuotaNode | None, apart_from: QuotaNode | None = None) -> list[tuple[str, str, str, str]]:
    """What the parent has of each type, what its other children are promised already, and what that leaves: the room for the form's numbers."""
    if parent is None:
        return []
    promised: dict[str, int] = {}
    for child in child_list(parent):
        for share in child.shares.all():
            if apart_from is None or child.pk != apart_from.pk:
                promised[share.gpu_type] = promised.get(share.gpu_type, 0) + (share.guaranteed_milli or 0)
    held = {share.gpu_type: share.guaranteed_milli for share in parent.shares.all()}
    room = []
    for gpu_type in sorted({*held, *promised}):
        has, others = held.get(gpu_type, 0), promised.get(gpu_type, 0)
        room.append((gpu_type, said(has), said(others), said(None if has is None else max(0, has - others))))
    return room


@require_http_methods(["GET", "POST"])
@requires(Can.EDIT_QUOTA)
def node_move_page(request: HttpRequest, public_id: str) -> HttpResponse:
    """Another place or name: kept as a draft, whose page shows what it does to jobs before it is applied."""
    access = access_of(request)
    node = node_for(access, public_id, Can.EDIT_QUOTA)
    parents = tree_list(access, capability=Can.EDIT_QUOTA).exclude(path=node.path).exclude(path__startswith=node.path + "/")
    first = {"name": node.name, "parent": node.parent, "revision": node.revision}
    top = node.parent is None or access.can_everywhere(Can.ADMINISTER)
    form = MoveForm(request.POST or None, parents=parents, top=top, initial=first)
    if request.method == "POST" and form.is_valid():
        data = form.cleaned_data
        edit = {"op": "move", "parent": data["parent"].public_id if data["parent"] else None, "name": data["name"]}
        try:
            return redirect("quota-change", _drafted(access, node, edit, data))
        except ValidationError as fault:
            show_faults(form, fault)
        except Conflict as fault:
            form.add_error(None, str(fault))
    return render(request, "quotas/node_move.html", {"form": form, "node": node}, status=422 if form.is_bound else 200)


@require_http_methods(["GET", "POST"])
@requires(Can.EDIT_QUOTA)
def node_archive_page(request: HttpRequest, public_id: str) -> HttpResponse:
    return _in_or_out_of_use(request, public_id, node_archive)


@require_http_methods(["GET", "POST"])
@requires(Can.EDIT_QUOTA)
def node_restore_page(request: HttpRequest, public_id: str) -> HttpResponse:
    return _in_or_out_of_use(request, public_id, node_restore)


def _in_or_out_of_use(request: HttpRequest, public_id: str, service: Callable[..., QuotaNode]) -> HttpResponse:
    """What archiving or restoring a node does, a reason, and the button; afterwards an Undo, which does the other."""
    access = access_of(request)
    node = node_for(access, public_id, Can.EDIT_QUOTA)
    archives = service is node_archive
    form, status = ReasonForm(request.POST or None, initial={"revision": node.revision}), None
    if request.method == "POST" and form.is_valid():
        data, undoes = form.cleaned_data, "undo" in request.POST
        try:
            done = service(access=access, node=node, revision=data["revision"] or 0, reason=data["reason"], now=now())
        except ValidationError as fault:
            show_faults(form, fault)
        except Conflict as fault:
            # The page as it is now, so that a second press is about what it says.
            node, status = node_for(access, public_id, Can.EDIT_QUOTA), 409
            form = ReasonForm({**request.POST.dict(), "revision": str(node.revision)})
            form.add_error(None, str(fault))
        else:
            said = f"{node.path} is archived: its guarantee is free, and roles on it have ended." if archives else f"{node.path} is back."
            address = reverse("quota-restore" if archives else "quota-archive", args=[node.public_id])
            fields = {"reason": f"Undo of {'archiving' if archives else 'restoring'}.", "revision": str(done.revision), "undo": "yes"}
            done_with_undo(request, f"Undone: {said}" if undoes else said, None if undoes else Undo(address, fields))
            return redirect("quota", node.public_id)
    page, verb = reverse("quota", args=[node.public_id]), "Archive" if archives else "Restore"
    above = [("Quotas", reverse("quotas")), (node.path, page)]
    effects = _use_preview(access, node, verb.lower(), archive_effects(node) if archives else restore_effects(node))
    answer = confirm(request, form, heading=f"{verb} {node.label}", send=verb, effects=effects, above=above, back=page, is_grave=archives)
    answer.status_code = status or answer.status_code
    return answer


def _use_preview(access: Access, node: QuotaNode, op: str, effects: Sequence[str]) -> Preview:
    try:
        edited = edits_tried(access=access, wanted=Wanted([{"op": op, "node": node.public_id}], reason="Preview"))
    except ValidationError as fault:
        return Preview(sentences=(), faults=[text for _, texts in faults_of(fault) for text in texts])
    try:
        told = tree_told(tree_preview(access=access, before=edited.before, after=edited.after, now=now()))
    except Exception:  # people must be able to do it also where its effects can't be said
        log.exception("What a node's use or disuse comes to could not be computed")
        return Preview(sentences=[*effects, UNKNOWN])
    return replace(told, sentences=[*effects, *told.sentences])
