"""How many replicas of a service are wanted: a page of its own, with what the change comes to before it is applied."""

from functools import partial
from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.text import capfirst
from django.views.decorators.http import require_http_methods

from dashboards.slo.selectors import level_of, must_have_metric
from gpufleet.core.previews import Preview
from gpufleet.core.times import now
from gpufleet.core.undo import Undo, done_with_undo
from gpufleet.web import Access, Can, access_of, requires
from scheduler.models import Job
from scheduler.presenters.bulk import steer_told
from scheduler.presenters.job_changes import revision_typed
from scheduler.scenarios.kinds import MOST_WORKERS
from scheduler.selectors.scaling import ReplicasTold, RoleReplicas, replicas_told
from scheduler.services.jobs.edit_previews import job_scale_preview
from scheduler.services.jobs.scaling import COOLDOWN, LONGEST_COOLDOWN, job_scale, replicas_follow_set
from scheduler.views.service_changes import Typed, service_change, service_for, service_form

UNCHANGED = Preview(sentences=["Nothing is changed so far."])


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.SEE)
def job_replicas_page(request: HttpRequest, public_id: str) -> HttpResponse:
    """Applied only if the job still stands as the page showed it."""
    access = access_of(request)
    job = service_for(access, public_id)
    form = partial(_form, request)
    if request.method != "POST":
        return form(job, {})
    typed = {name: request.POST.get(name, "") for name in ("replicas", "role", "reason", "revision", "follow", "cooldown_s")}

    def act() -> HttpResponse:
        if "preview" in request.POST:
            return form(job, typed, preview=_looked(access, job, typed))
        return _applied(request, access, job, typed)

    return service_change(access, job, typed, act, form)


def _looked(access: Access, job: Job, typed: Typed) -> Preview:
    if typed["follow"]:
        must_have_metric(job)
        _number(typed["cooldown_s"], "cooldown_s", LONGEST_COOLDOWN)
        return Preview(sentences=["Its metric says how many replicas are wanted, within its range: more at once, fewer after the cool-down."])
    replicas = _number(typed["replicas"], "replicas", MOST_WORKERS)
    detail = f"Replicas wanted {_chosen(replicas_told(job, now=now()), typed).wanted} → {replicas}"
    return steer_told(job_scale_preview(access=access, job=job, replicas=replicas, role=typed["role"], detail=detail, now=now()))


def _applied(request: HttpRequest, access: Access, job: Job, typed: Typed) -> HttpResponse:
    moment = now()
    before = _chosen(replicas_told(job, now=moment), typed)
    asked: dict[str, Any] = {"access": access, "role": typed["role"], "reason": typed["reason"], "now": moment}
    revision = revision_typed(typed["revision"])
    if typed["follow"]:
        must_have_metric(job)
        cooldown = _number(typed["cooldown_s"], "cooldown_s", LONGEST_COOLDOWN)
        replicas_follow_set(job=job, follows=True, cooldown_seconds=cooldown, revision=revision, **asked)
        messages.success(request, f"{job.name} follows its metric from now on.")
        return redirect("job", job.public_id)
    undoes = "undo" in request.POST
    # What was not stated before is not stated again.
    replicas = None if undoes and not typed["replicas"] else _number(typed["replicas"], "replicas", MOST_WORKERS)
    with transaction.atomic():
        fresh = job
        if before.follows:
            fresh = replicas_follow_set(job=job, follows=False, revision=revision, **asked)
        stopped = fresh.revision != job.revision
        scaled = job_scale(job=fresh, replicas=replicas, revision=fresh.revision if stopped else revision, **asked)
    stated = str(before.wanted) if before.stated else ""
    back = {"replicas": stated, "role": before.role, "reason": "Undo of a change.", "undo": "yes", "revision": str(scaled.revision)}
    undo = None if undoes or stopped or scaled.revision == job.revision else Undo(reverse("job_replicas", args=[job.public_id]), back)
    count = before.most if replicas is None else replicas
    text = f"{'Undone: ' if undoes else ''}{job.name}: {count} of {before.least} to {before.most} replicas are wanted."
    done_with_undo(request, text, undo)
    return redirect("job", job.public_id)


def _number(text: str, name: str, most: int) -> int:
    text = text.strip()
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) <= most):
        raise ValidationError({name: "Enter a whole number."})
    return int(text)


def _chosen(found: ReplicasTold, typed: Typed) -> RoleReplicas:
    """The role that was chosen, else the one that follows the metric, else the first."""
    roles = found.roles
    return next((one for one in roles if one.role == typed.get("role")), next((one for one in roles if one.follows), roles[0]))


def _form(request: HttpRequest, job: Job, typed: Typed, *, preview: Preview | None = None, **told: Any) -> HttpResponse:
    found = replicas_told(job, now=now())
    role = _chosen(found, typed)
    level = level_of(job)
    has_metric = level is not None and bool(level.wanted)
    hint = "Within the range of the role." if len(found.roles) > 1 else f"{capfirst(role.range_told)}; {role.placed} placed now."
    context = {
        "roles": found.roles,
        "chosen": role.role,
        "rule": found.rule,
        "has_metric": has_metric,
        "by_hand": "(by hand)" if has_metric or found.rule else "",
        "replicas_hint": hint,
        "follows": bool(typed["follow"]) if "follow" in typed else role.follows,
        "cooldown": typed.get("cooldown_s") or (found.rule.cooldown_seconds if found.rule else COOLDOWN),
        "typed": typed.get("replicas", str(role.wanted)),
    }
    fields = ("replicas", "role", "follow", "cooldown_s")
    preview = preview or (None if told.get("faults") else UNCHANGED)
    return service_form(request, job, typed, "scheduler/job_replicas.html", context, own_faults=fields, preview=preview, **told)
