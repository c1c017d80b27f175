"""How many replicas of a service are wanted: a page of its own, with what the change comes to before it is applied."""

from collections.abc import Mapping

from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from gpufleet.core.faults import Conflict, Missing, Stale
from gpufleet.core.previews import Preview
from gpufleet.core.times import now
from gpufleet.core.undo import Undo, done_with_undo
from gpufleet.web import Can, access_of, requires
from scheduler.models import ENDED, Job
from scheduler.presenters.bulk import steer_told
from scheduler.presenters.job_changes import revision_typed
from scheduler.scenarios.kinds import MOST_WORKERS
from scheduler.selectors.jobs import job_for, must_steer
from scheduler.selectors.scaling import RoleReplicas, is_service, replicas_told
from scheduler.services.jobs.edit_previews import job_scale_preview
from scheduler.services.jobs.scaling import job_scale
from scheduler.services.jobs.steering import REASON_LENGTH
from scheduler.views.nodes import messages_by_field

UNCHANGED = Preview(sentences=["Nothing is changed so far."])


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.SEE)
def job_replicas_page(request: HttpRequest, public_id: str) -> HttpResponse:
    """Applied only if the job still stands as the page showed it."""
    access = access_of(request)
    job = job_for(access, public_id)
    must_steer(access, job)
    if not is_service(job) or job.state in ENDED:
        raise Missing(f"{public_id} is not a service that goes on.")
    if request.method != "POST":
        return _form(request, job, {})
    typed = {name: request.POST.get(name, "") for name in ("replicas", "role", "reason", "revision")}
    before = _chosen(job, typed)
    try:
        replicas = _number(typed["replicas"])
        if "preview" in request.POST:
            detail = f"Replicas wanted {before.wanted} → {replicas}"
            told = job_scale_preview(access=access, job=job, replicas=replicas, role=typed["role"], detail=detail, now=now())
            return _form(request, job, typed, preview=steer_told(told))
        revision = revision_typed(typed["revision"])
        scaled = job_scale(access=access, job=job, replicas=replicas, role=typed["role"], reason=typed["reason"], now=now(), revision=revision)
    except ValidationError as fault:
        return _form(request, job, typed, faults=messages_by_field(fault), status=422)
    except Stale:
        said = "It has changed since you opened this page. Look at it, then apply again."
        return _form(request, job_for(access, public_id), typed | {"revision": ""}, faults={"all": [said]}, status=409)
    except Conflict as fault:
        return _form(request, job_for(access, public_id), typed, faults={"all": [str(fault)]}, status=409)
    undoes = "undo" in request.POST
    back = {"replicas": str(before.wanted), "role": before.role, "reason": "Undo of a change.", "undo": "yes", "revision": str(scaled.revision)}
    undo = None if undoes or scaled.revision == job.revision else Undo(reverse("job_replicas", args=[public_id]), back)
    text = f"{'Undone: ' if undoes else ''}{job.name}: {replicas} of {before.least} to {before.most} replicas are wanted."
    done_with_undo(request, text, undo)
    return redirect("job", public_id)


def _number(text: str) -> int:
    text = text.strip()
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) <= MOST_WORKERS):
        raise ValidationError({"replicas": "Enter a whole number."})
    return int(text)


def _chosen(job: Job, typed: Mapping[str, str]) -> RoleReplicas:
    roles = replicas_told(job, now=now()).roles
    return next((one for one in roles if one.role == typed.get("role")), roles[0])


def _form(
    request: HttpRequest,
    job: Job,
    typed: Mapping[str, str],
    *,
    faults: Mapping[str, list[str]] | None = None,
    preview: Preview | None = None,
    status: int = 200,
) -> HttpResponse:
    role = _chosen(job, typed)
    told = [message for messages in (faults or {}).values() for message in messages]
    context = {
        "job": job,
        "roles": replicas_told(job, now=now()).roles,
        "role": role,
        "typed": typed.get("replicas", str(role.wanted)),
        "reason": typed.get("reason", ""),
        "reason_optional": True,
        "reason_most": REASON_LENGTH,
        "faults": faults or {},
        "own_faults": ("replicas", "role"),
        "preview": preview or (Preview(sentences=(), faults=told) if told else UNCHANGED),
        "revision": typed.get("revision") or job.revision,
    }
    return render(request, "scheduler/job_replicas.html", context, status=status)
