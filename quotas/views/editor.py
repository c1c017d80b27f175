"""The editor of the quota tree."""

import json
from typing import Any

from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.http import urlencode
from django.views.decorators.http import require_http_methods

from gpufleet.core.times import now
from gpufleet.web import Access, Can, access_of, requires
from quotas.chargeback.report import node_costs
from quotas.editor import Fault, blank_row, changed_meanwhile, editor_rows, edits_sent, faults_told, opened, parents_named, steps_above
from quotas.forms import faults_of
from quotas.models import NodeKind, QuotaNode
from quotas.presenters import summed
from quotas.selectors.nodes import tree_list, tree_outline, types_stated
from quotas.services.changes import Wanted, change_draft
from scheduler.selectors.usage import gpu_types_known, held_by_quota
from scheduler.services.forecasts.standing import tree_standing

MOST_FOUND = 50


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.EDIT_QUOTA)
def editor(request: HttpRequest) -> HttpResponse:
    """`open` names nodes whose children are shown, `q` is what to find. `below` answers only the rows of one node's children, `rows` all rows."""
    access = access_of(request)
    if request.method == "POST":
        return _drafted(request, access)
    if below := request.GET.get("below", "")[:40]:
        return render(request, "quotas/_editor_rows.html", _context(access, [], below=below))
    page = "quotas/_editor_rows.html" if request.GET.get("rows") else "quotas/editor.html"
    return render(request, page, _context(access, request.GET.getlist("open"), q=request.GET.get("q", "").strip()[:100]))


def _context(access: Access, wanted: list[str], below: str = "", q: str = "") -> dict[str, Any]:
    outline = tree_outline(access)
    unfolded = opened(outline, wanted)
    if below:
        parent = next((node for node in outline if node.public_id == below), None)
        shown = {node.pk for node in outline if parent is not None and node.parent_id == parent.pk}
        unfolded = {parent.path} if parent else set()
    elif q:
        found = list(tree_list(access, search=q).values_list("path", flat=True)[:MOST_FOUND])
        unfolded = {step for path in found for step in steps_above(path)}
        shown = {node.pk for node in outline if node.path in unfolded or node.path in found}
    else:
        least = min((node.depth for node in outline), default=0)
        shown = {node.pk for node in outline if node.depth == least or node.path.rpartition("/")[0] in unfolded}
    types = sorted({*gpu_types_known(), *types_stated(access)})
    standing = tree_standing(now())
    sums = summed({node.pk: node.path for node in outline}, held_by_quota())
    named = [node.public_id for node in outline if node.path in unfolded]

    def href(node: QuotaNode) -> str:
        rest = [key for key in named if key != node.public_id] if node.path in unfolded else [*named, node.public_id]
        return f"?{urlencode({'open': rest}, doseq=True)}#{node.public_id}"

    nodes = tree_list(access).filter(pk__among=shown)
    costs = node_costs(access, now=now())
    rows = editor_rows(access, outline, nodes, types, sums, (standing.fair, standing.waiting, standing.decayed), unfolded, href, costs)
    kinds = [(kind.value, kind.label) for kind in NodeKind if kind != NodeKind.ORG]
    return {"rows": rows, "gpu_types": types, "as_of": standing.as_of, "q": q, "blank": [blank_row(types)], "kinds": kinds, "costs": costs}


def _drafted(request: HttpRequest, access: Access) -> HttpResponse:
    reason, text = request.POST.get("reason", "").strip()[:500], request.POST.get("edits", "")
    faults: list[Fault] = []
    meanwhile: list[Fault] = []
    edits: list[dict[str, Any]] = []
    status = 422
    try:
        edits, seen = edits_sent(text)
    except ValueError:
        faults, text = [Fault("The edits can't be read. Edit the cells again.")], ""
    else:
        parents_named(edits, tree_outline(access))
        named = {str(edit.get("node", "")) for edit in edits if isinstance(edit, dict)}
        nodes = list(tree_list(access).filter(public_id__in=named))
        meanwhile = changed_meanwhile(access, nodes, seen)
        if meanwhile:
            # The edits stay, and are sent again by somebody who has seen what changed.
            status = 409
            text = json.dumps({"edits": edits, "seen": seen | {node.public_id: node.revision for node in nodes}})
        else:
            try:
                return redirect("quota-change", change_draft(access=access, wanted=Wanted(edits, reason=reason), preview=True, now=now()).public_id)
            except ValidationError as fault:
                faults = faults_told(dict(faults_of(fault)), edits, {node.public_id: node.path for node in nodes})
    named_nodes = [str(edit.get(name) or "") for edit in edits if isinstance(edit, dict) for name in ("node", "parent")]
    context = _context(access, [*request.POST.getlist("open"), *named_nodes]) | {
        "faults": faults,
        "meanwhile": meanwhile,
        "sent": text,
        "reason": reason,
    }
    return render(request, "quotas/editor.html", context, status=status)
