"""Templates: which there are, and a page to write the next version of one."""

from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from dashboards.fingerprints.neighbours import neighbours_of
from dashboards.fingerprints.selectors import fingerprint_told, template_learned
from gpufleet.core.faults import Conflict
from gpufleet.core.times import now
from gpufleet.web import Can, access_of, requires
from quotas.models import QuotaNode
from scheduler.jobs.template_rules import Template
from scheduler.jobs.yaml_text import read_yaml, write_yaml
from scheduler.loop.policy import colocation_now
from scheduler.presenters.templates import template_view
from scheduler.selectors.neighbours import apart_of_template
from scheduler.selectors.templates import may_edit_templates, template_named, template_places, template_versions, templates_visible
from scheduler.services.jobs.templates import template_archive, template_save


@require_safe
@requires(Can.SEE)
def template_list(request: HttpRequest) -> HttpResponse:
    access = access_of(request)
    rows = [
        {"template": one, "may_edit": bool(one.quota) and may_edit_templates(access, one.quota), "body": write_yaml(one.body)}
        for one in templates_visible(access)
    ]
    context = {"rows": rows, "may_add": bool(template_places(access)), "may_submit": access.can_somewhere(Can.SUBMIT)}
    return render(request, "scheduler/templates.html", context)


@require_safe
@requires(Can.SEE)
def template_page(request: HttpRequest, ref: str) -> HttpResponse:
    """A template in one of its versions (`@3` behind its name, or `to`), and what it changed against another one (`from`)."""
    access = access_of(request)
    chosen = _number(request.GET.get("to", ""))
    found = template_named(access, f"{ref.partition('@')[0]}@{chosen}" if chosen and ":" in ref else ref)
    if found is None:
        raise Http404("There is no such template.")
    versions = template_versions(access, found.ref) if found.quota else []
    learned = template_learned(access, found.key, now=now())
    context = {
        **fingerprint_told(learned),
        "neighbours": neighbours_of(access, found, now=now()) if learned.fingerprint.is_known else [],
        "apart": apart_of_template(access, found.key),
        "colocation": colocation_now(),
        "view": template_view(found, versions, _number(request.GET.get("from", ""))),
        "may_edit": bool(found.quota) and may_edit_templates(access, found.quota),
        "may_add": bool(template_places(access)),
        "may_submit": access.can_somewhere(Can.SUBMIT),
    }
    return render(request, "scheduler/template.html", context)


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else 0


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.SEE)
def template_edit(request: HttpRequest) -> HttpResponse:
    """A new template, a copy of another one (`like`), or the next version of one (`ref`), beginning with an older one of it (`base`)."""
    access = access_of(request)
    places = template_places(access)
    if not places:
        raise PermissionDenied
    ref = request.GET.get("ref", "")
    versions = template_versions(access, ref) if ref else []
    if versions and not may_edit_templates(access, versions[0].template.node.path):
        raise PermissionDenied
    base = _number(request.GET.get("base", ""))
    shown = template_named(access, (f"{ref.partition('@')[0]}@{base}" if base else ref) if ref else request.GET.get("like", ""))
    if request.method != "POST":
        # What is followed is always the newest version, whichever one is begun with.
        seen = {"seen": str(versions[0].number)} if versions else {}
        return _edit(request, _typed(shown, places, bool(ref)) | seen, {}, versions, places)
    typed = {
        key: request.POST.get(key, "").replace("\r\n", "\n")
        for key in ("node", "name", "title", "about", "body", "locked", "limits", "reason", "seen")
    }
    if versions:
        typed |= {"node": versions[0].template.node.path, "name": versions[0].template.name}
    node = QuotaNode.objects.filter(path=typed["node"], archived_at__isnull=True).first()
    if node is None or not may_edit_templates(access, typed["node"]):
        return _edit(request, typed, {"node": ["Choose one of the nodes where you may keep templates."]}, versions, places, status=422)
    body, limits = read_yaml(typed["body"]), read_yaml(typed["limits"])
    read = {"body": body.faults, "limits": limits.faults}
    faults = {key: [message for said in wrong.values() for message in said] for key, wrong in read.items() if wrong}
    if faults:
        return _edit(request, typed, faults, versions, places, status=422)
    try:
        version = template_save(
            access=access,
            node=node,
            name=typed["name"].strip(),
            title=typed["title"],
            about=typed["about"],
            body=body.value if body.value is not None else {},
            locked=typed["locked"].split(),
            limits=limits.value or {},
            seen=_number(typed["seen"]),
            reason=typed["reason"],
            now=now(),
        )
    except ValidationError as fault:
        return _edit(request, typed, _by_field(fault.message_dict), versions, places, status=422)
    except Conflict as fault:
        return _edit(request, typed, {"all": [str(fault)]}, versions, places, status=409)
    messages.success(request, f"{version.title} is saved as version {version.number}.")
    return redirect("templates")


@require_POST
@requires(Can.SEE)
def template_end(request: HttpRequest) -> HttpResponse:
    access = access_of(request)
    template = template_versions(access, request.POST.get("ref", ""))[0].template
    try:
        template_archive(access=access, template=template, reason=request.POST.get("reason", ""), now=now())
    except ValidationError as fault:
        messages.error(request, " ".join(fault.messages))
    except Conflict as fault:
        messages.error(request, str(fault))
    else:
        messages.success(request, f"{template.name} is archived. Jobs that began with it are not touched.")
    return redirect("templates")


def _typed(shown: Template | None, places: list[str], edits: bool) -> dict[str, str]:
    if shown is None:
        return {"node": places[0], "seen": "0"}
    return {
        "node": shown.quota if edits else places[0],
        "name": shown.ref.rpartition(":")[2] if edits else "",
        "title": shown.title,
        "about": shown.about,
        "body": write_yaml(shown.body),
        "locked": "\n".join(shown.locked),
        "limits": write_yaml({path: dict(limit) for path, limit in shown.limits.items()}),
        "seen": str(shown.version) if edits else "0",
    }


def _by_field(faults: dict[str, list[str]]) -> dict[str, list[str]]:
    """Faults inside the description, the locks and the limits are told at those fields, with their path."""
    found: dict[str, list[str]] = {}
    for path, said in faults.items():
        head, _, inner = path.partition(".")
        found.setdefault(head, []).extend(f"{inner}: {message}" if inner else message for message in said)
    return found


def _edit(
    request: HttpRequest, typed: dict[str, str], faults: dict[str, list[str]], versions: list[Any], places: list[str], *, status: int = 200
) -> HttpResponse:
    heading = f"{versions[0].title}: the next version" if versions else "A new template"
    own = f"{versions[0].template.node.path}:{versions[0].template.name}" if versions else ""
    context = {"typed": typed, "faults": faults, "versions": versions, "places": places, "heading": heading, "own": own}
    return render(request, "scheduler/template_edit.html", context, status=status)
