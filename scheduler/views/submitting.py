"""The submission page: a form, the same job as YAML, and what would become of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.template.loader import render_to_string
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from gpufleet.core.faults import TooMany
from gpufleet.core.times import now
from gpufleet.web import Access, Can, access_of, requires
from scheduler.backends.registry import is_simulated
from scheduler.jobs.fields import REPEAT, description_of, differences, field_at, repeat_of, roles_of, values_of
from scheduler.jobs.reading import Faults
from scheduler.jobs.template_rules import Template
from scheduler.jobs.writing import description_again
from scheduler.jobs.yaml_text import Document, read_yaml, write_yaml
from scheduler.models import GpuType, JobDraft
from scheduler.presenters.fitting import fit_view, node_names
from scheduler.presenters.sooner import WITH, described_with
from scheduler.presenters.submitting import (
    bounds_said,
    command_line,
    curl_line,
    due_told,
    faults_by_field,
    form_groups,
    other_faults,
    preset_said,
    presets_of,
    repeat_faults,
)
from scheduler.schedules.pattern import pattern_of, pattern_sent
from scheduler.schedules.schema import schedule_read
from scheduler.selectors.jobs import drafts_of, job_for, may_steer, quota_last_used
from scheduler.selectors.nodes import node_sizes
from scheduler.selectors.suggestions import teams_to_submit
from scheduler.selectors.templates import template_named, templates_visible
from scheduler.services.forecasts.fitting import fit_checked
from scheduler.services.forecasts.grounds import AGAIN_SECONDS
from scheduler.services.forecasts.presets import preset_fits
from scheduler.services.jobs.admission import submissions_refused
from scheduler.services.jobs.submission import Checked, submissions_judge, submissions_write
from scheduler.services.jobs.templates import draft_delete, draft_save
from scheduler.services.schedules.schedules import Drawn, schedule_draw, schedule_keep

PRESETS_SHOWN = 13  # with a blank one two rows on a desk
CRON = f"{REPEAT}cron"
DUE_BY = (CRON, "repeat.zone", "repeat.starts_at", "repeat.ends_at")


@dataclass(frozen=True, slots=True)
class Start:
    """What a job begins with: nothing, a template, another job, or a draft. `compared`: whether the page shows what differs from it."""

    description: dict[str, Any]
    template: Template | None = None
    clone: str = ""
    draft: str = ""
    text: str = ""  # of a draft that is no description
    repeat: dict[str, str] = field(default_factory=dict)
    heading: str = "Submit a job"
    compared: bool = False
    newest: int = 0  # version of the template

    @property
    def template_said(self) -> str:
        """As the description names it: with its version where an older one was asked for."""
        return str(self.description.get("template", "")) if self.template else ""


@dataclass(slots=True)
class Sent:
    """What the browser has of the job now."""

    description: dict[str, Any]
    values: dict[str, str] | None  # as typed
    document: Document | None  # where the YAML was typed
    yaml: str
    faults: Faults
    repeat: dict[str, str]  # as typed; empty: it is submitted once
    checked: Checked | None = None
    drawn: Drawn | None = None  # where it recurs
    keeps: bool = False  # as a draft

    @property
    def said(self) -> dict[str, Any]:
        return {**self.description, "draft": True} if self.keeps else self.description

    @property
    def recurs(self) -> dict[str, Any]:
        return repeat_of(self.repeat)


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.SUBMIT)
def job_new(request: HttpRequest) -> HttpResponse:
    access = access_of(request)
    start = _start(request, access)
    if request.method != "POST":
        return _page(request, access, start, _begun(request, start))
    if _only_looks(request):
        return redirect("job_look", preserve_request=True)
    if _repeat_sent(request):
        return redirect("job_recurring", preserve_request=True)
    sent = _judged(access, _sent(request))
    if sent.checked is None or sent.faults:
        return _page(request, access, start, sent, status=422, looked=True)
    try:
        jobs = submissions_write(checked=[sent.checked], access=access, now=now(), actor=access.actor)
    except ValidationError as fault:  # there is no room for it
        sent.faults, sent.checked = fault.message_dict, None
        answer = _page(request, access, start, sent, status=429 if isinstance(fault, TooMany) else 422, looked=True)
        if isinstance(fault, TooMany):
            answer["Retry-After"] = str(fault.wait_seconds)
        return answer
    draft_delete(access=access, public=request.POST.get("_draft", ""))
    first = jobs[0]
    if len(jobs) > 1:
        messages.success(
            request,
            f"{len(jobs):,} jobs are {'kept as drafts' if first.state == 'draft' else 'submitted'}, {first.public_id} to {jobs[-1].public_id}.",
        )
    else:
        messages.success(request, f"{first.name} is {'kept as a draft' if first.state == 'draft' else 'submitted'}: {first.public_id}.")
    # What was submitted as a whole is followed as a whole.
    return redirect("array", first.array) if len(jobs) > 1 else redirect("job", first.public_id)


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.SUBMIT)
def job_recurring(request: HttpRequest) -> HttpResponse:
    """The same form, where it says that the job recurs: a schedule comes of it."""
    if request.method != "POST":
        return redirect("job_new")  # a page that refused it has this address
    access = access_of(request)
    sent = _drawn(access, _sent(request))
    if sent.drawn is not None and sent.checked is not None and not sent.faults:
        try:
            schedule = schedule_keep(access=access, drawn=sent.drawn)
        except ValidationError as fault:
            sent.faults = repeat_faults(fault.message_dict)
        else:
            draft_delete(access=access, public=request.POST.get("_draft", ""))
            messages.success(request, f"{schedule.name} is kept: it is submitted each time that it is due.")
            return redirect("schedule", schedule.public_id)
    return _page(request, access, _start(request, access), sent, status=422, looked=True, more=_due(sent))


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.SUBMIT)
def job_look(request: HttpRequest) -> HttpResponse:
    """What the page shows while one types: the other form of the same job, every fault, and what would become of it. Nothing is written.

    To a button, pressed without scripts, it answers with the whole page.
    """
    if request.method != "POST":
        return redirect("job_new")
    access = access_of(request)
    start, sent = _start(request, access), _sent(request)
    sent = _drawn(access, sent) if sent.repeat else _judged(access, sent)
    fit = _fit(access, sent)
    if sent.checked is not None and not sent.faults and not sent.repeat:
        full = submissions_refused(wishes=[sent.checked.wish], user=access.actor.user, now=now())
        sent.faults = {} if full is None else dict(full.message_dict)
    if _only_looks(request):
        return _page(request, access, start, sent, looked=True, more=_due(sent) | fit)
    began = start.description if start.compared else None
    roles = max(1, len(roles_of(sent.description)))
    told: dict[str, Any] = {
        "yaml": sent.yaml,
        "faults": faults_by_field(sent.faults, typed=sent.values is not None),
        "others": other_faults(sent.faults, sent.document),
        "fit": render_to_string("scheduler/_fit.html", fit, request=request),
        "due": render_to_string("scheduler/_due_next.html", _due(sent), request=request),
        "send": _send(sent),
        "recurs": bool(sent.repeat),
        "bounds": bounds_said(_template_of(access, sent.description)),
        **_lines(request, sent),
        "differs": [{"path": path, "was": was, "is": value} for path, was, value in _differences(began, sent)],
    }
    if sent.document is not None:
        told["values"] = (values_of(sent.description) if sent.values is None else sent.values) | sent.repeat
        if str(roles) != request.POST.get("_roles", "1"):
            told["form"] = render_to_string("scheduler/_job_form.html", _form(access, start, sent) | _due(sent), request=request)
    return JsonResponse(told)


@require_safe
@requires(Can.SUBMIT)
def job_presets(request: HttpRequest) -> JsonResponse:
    """When each preset starts and what an hour of it costs, in a line each; it asks to be asked again while some of them are not known."""
    access = access_of(request)
    fits = preset_fits(access=access, templates=templates_visible(access)[:PRESETS_SHOWN], now=now())
    told: dict[str, Any] = {"presets": {ref: preset_said(fit) for ref, fit in fits.found.items()}}
    return JsonResponse(told | ({"again": 1000 * AGAIN_SECONDS} if fits.more else {}))


def _differences(began: Mapping[str, Any] | None, sent: Sent) -> list[tuple[str, str, str]]:
    return differences(began, sent.description) if began is not None else []


@require_POST
@requires(Can.SUBMIT)
def job_draft_write(request: HttpRequest) -> HttpResponse:
    """Keep what is typed, finished or not. It is its owner's alone and starts nothing."""
    access = access_of(request)
    sent = _sent(request)
    name = sent.description.get("name")
    try:
        named = name if isinstance(name, str) else ""
        draft = draft_save(access=access, public=request.POST.get("_draft", ""), name=named, text=sent.yaml, repeat=sent.repeat, now=now())
    except ValidationError as fault:
        return JsonResponse({"faults": fault.message_dict}, status=422)
    return JsonResponse({"draft": draft.public_id})


@require_POST
@requires(Can.SUBMIT)
def job_draft_delete(request: HttpRequest, public_id: str) -> HttpResponse:
    draft_delete(access=access_of(request), public=public_id)
    return redirect("job_new")


def _start(request: HttpRequest, access: Access) -> Start:
    asked, mark = (request.POST, "_") if request.method == "POST" else (request.GET, "")
    template, clone, draft = asked.get(f"{mark}template", ""), asked.get(f"{mark}clone", ""), asked.get(f"{mark}draft", "")
    if clone:
        job = job_for(access, clone)
        steers = may_steer(access, job)
        heading = f"Submit {job.name} again"
        return Start(description_again(job, with_launch=steers), clone=job.public_id, draft=draft, heading=heading, compared=True)
    if template and (found := template_named(access, template)) is not None:
        # Who asked for an older version gets that one.
        described = {**found.body, "template": template if "@" in template else found.ref}
        described.setdefault("quota", quota_last_used(access, found.quota))
        newest = template_named(access, found.ref) if "@" in template else found
        version = newest.version if newest else found.version
        return Start(described, template=found, draft=draft, heading=f"Submit by {found.title}", compared=True, newest=version)
    if draft and request.method != "POST":
        kept = get_object_or_404(JobDraft, user=access.actor.user, public_id=draft)
        value = read_yaml(kept.text).value
        described = value if isinstance(value, dict) else {}
        template_ = _template_of(access, described)
        return Start(described, template=template_, draft=kept.public_id, text=kept.text, heading="Go on with a draft", repeat=kept.repeat)
    return Start({"quota": quota_last_used(access, "")}, draft=draft)


def _template_of(access: Access, description: Mapping[str, Any]) -> Template | None:
    named = description.get("template")
    return template_named(access, named) if isinstance(named, str) and named else None


def _blank(start: Start) -> Sent:
    document = read_yaml(start.text) if start.text else None
    return Sent(start.description, None, document, start.text or write_yaml(start.description), {}, start.repeat)


def _begun(request: HttpRequest, start: Start) -> Sent:
    """What the page begins with, and over it what its address says of some fields."""
    asked = {name.removeprefix(WITH): str(text) for name, text in request.GET.items() if name.startswith(WITH)}
    asked = {path: text for path, text in asked.items() if field_at(path) is not None and not path.startswith(REPEAT)}
    if not asked or start.text:
        return _blank(start)
    described = described_with(start.description, asked)
    return Sent(described, None, None, write_yaml(described), {}, start.repeat)


def _only_looks(request: HttpRequest) -> bool:
    return "check" in request.POST or "add_role" in request.POST


def _repeat_sent(request: HttpRequest) -> dict[str, str]:
    """When it recurs, as typed; nothing where it is submitted once."""
    typed = {path: str(text) for path, text in request.POST.items() if path.startswith(REPEAT) and field_at(path)}
    if CRON in typed:
        typed[CRON] = pattern_sent(CRON, request.POST.get, request.POST.getlist).cron
    return {path: text for path, text in typed.items() if text.strip()} if request.POST.get(f"{CRON}-every") != "" else {}


def _sent(request: HttpRequest) -> Sent:
    """What was typed, read and not yet judged."""
    repeat = _repeat_sent(request)
    if "yaml" in (request.POST.get(name) for name in ("_from", "check", "keep")):  # without scripts the button says it
        text = request.POST.get("yaml", "").replace("\r\n", "\n")
        document = read_yaml(text)
        value = document.value
        faults = dict(document.faults)
        if not faults and not isinstance(value, dict):
            faults["yaml"] = ["It describes no job: keys with values are wanted."]
        if "yaml" in faults:
            # What is half typed says nothing of the job, so the form stays as it was.
            values = _typed(request)
            return Sent(description_of(values), values, document, text, faults, repeat)
        sent = Sent(value if isinstance(value, dict) else {}, None, document, text, faults, repeat)
    else:
        values = _typed(request)
        if "add_role" in request.POST:
            values[f"roles[{len({path.partition(']')[0] for path in values if path.startswith('roles[')})}].name"] = "another"
        described = description_of(values)
        sent = Sent(described, values, None, write_yaml(described), {}, repeat)
    sent.keeps = "keep" in request.POST
    return sent


def _judged(access: Access, sent: Sent) -> Sent:
    """With its faults as a job, or as one that may be submitted."""
    (verdict,) = submissions_judge(access=access, descriptions=[sent.said], now=now())
    if not isinstance(verdict, Checked):
        sent.faults = {**verdict, **sent.faults}
    elif not sent.faults:
        sent.checked = verdict
    return sent


def _drawn(access: Access, sent: Sent) -> Sent:
    """With its faults as a schedule, or as one that may be kept."""
    given, unread = schedule_read({"name": sent.said.get("name", ""), **sent.recurs, "description": sent.said})
    drawn = schedule_draw(access=access, given=given, now=now())
    faults = repeat_faults(drawn.faults | unread)
    if fault := pattern_of(sent.repeat.get(CRON, "")).fault:
        faults[CRON] = [fault]
    if "name" not in sent.description:
        faults["name"] = ["This field is required."]
    sent.checked, sent.drawn, sent.faults = drawn.checked, drawn, {**faults, **sent.faults}
    return sent


def _typed(request: HttpRequest) -> dict[str, str]:
    """What stands in the fields of the job; when it recurs is read apart."""
    fields = ((path, text) for path, text in request.POST.items() if isinstance(text, str) and field_at(path) is not None)
    return {path: text for path, text in fields if not path.startswith(REPEAT)}


def _due(sent: Sent) -> dict[str, Any]:
    """When it would be due next."""
    if sent.drawn is None or any(path in sent.faults for path in DUE_BY):
        return {"recurs": bool(sent.repeat), "due": []}
    return due_told(sent.drawn.schedule, now())


def _send(sent: Sent) -> str:
    return "Create schedule" if sent.repeat else "Submit"


def _lines(request: HttpRequest, sent: Sent) -> dict[str, str]:
    """The same by command line and API."""
    repeat, origin = sent.recurs, f"{request.scheme}://{request.get_host()}"
    return {"command": command_line(sent.yaml, repeat), "curl": curl_line(sent.description, repeat, origin)}


def _fit(access: Access, sent: Sent) -> dict[str, Any]:
    """What the panel shows; while the fleet is being read it says so and asks again by itself."""
    if sent.checked is None:
        return {"view": None}
    whole = sent.description
    if (template := _template_of(access, whole)) is not None:
        whole = template.completed(whole)
    fit = fit_checked(access=access, checked=sent.checked, raw=whole, now=now())
    if fit is None:
        return {"view": None, "again_ms": 1000 * AGAIN_SECONDS}
    return {"view": fit_view(fit, access, node_sizes(node_names(fit)))}


def _form(access: Access, start: Start, sent: Sent) -> dict[str, Any]:
    template = start.template or _template_of(access, sent.description)
    began = start.description if start.compared else None
    groups = form_groups(sent.description, sent.faults, began, template, values=sent.values, repeat=sent.repeat, simulates=is_simulated())
    return {
        "groups": groups,
        "recurs": bool(sent.repeat),
        "role_count": max(len(group.roles) for group in groups),
        "teams": [(path, path.rpartition("/")[2]) for path in teams_to_submit(access)],
        "types": list(GpuType.objects.order_by("name").values_list("name", flat=True)),
    }


def _page(
    request: HttpRequest,
    access: Access,
    start: Start,
    sent: Sent,
    *,
    status: int = 200,
    looked: bool = False,
    more: Mapping[str, Any] | None = None,
) -> HttpResponse:
    if access.actor.user is None:
        raise PermissionDenied
    templates = templates_visible(access)
    context = _form(access, start, sent) | {
        "heading": start.heading,
        "start": start,
        "sent": sent,
        "yaml": sent.yaml,
        "others": other_faults(sent.faults, sent.document),
        "count": sum(map(len, sent.faults.values())),
        "looked": looked,
        "presets": presets_of(templates[:PRESETS_SHOWN]),
        "more_templates": max(0, len(templates) - PRESETS_SHOWN),
        "drafts": JobDraft.objects.filter(user=access.actor.user).exclude(public_id=start.draft).order_by("-saved_at", "-id")[:8],
        "draft_jobs": drafts_of(access),
        "send": _send(sent),
        **_lines(request, sent),
        "is_yaml": sent.document is not None and bool(sent.faults),
        **(more or {}),
    }
    return render(request, "scheduler/job_new.html", context, status=status)
