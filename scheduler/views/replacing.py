"""The replicas of a service start anew: a page with what that comes to before it begins, and the button that stops it."""

from collections.abc import Mapping
from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST

from gpufleet.core.faults import Conflict, Missing, Stale
from gpufleet.core.lengths import seconds_read
from gpufleet.core.previews import Preview
from gpufleet.core.times import now
from gpufleet.web import Can, access_of, requires
from scheduler.models import ENDED, Job
from scheduler.presenters.job_changes import revision_typed
from scheduler.selectors.jobs import job_for, must_steer
from scheduler.selectors.scaling import is_service, replicas_told
from scheduler.services.jobs.replacing import WITHIN, job_replace, job_replace_stop, replacement_foreseen
from scheduler.services.jobs.steering import REASON_LENGTH
from scheduler.views.nodes import messages_by_field

TYPED = ("role", "max_unavailable", "within_s", "reason", "revision")


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.SEE)
def job_replace_page(request: HttpRequest, public_id: str) -> HttpResponse:
    """Begun only if the job still stands as the page showed it."""
    access = access_of(request)
    job = job_for(access, public_id)
    must_steer(access, job)
    if not is_service(job) or job.state in ENDED:
        raise Missing(f"{public_id} is not a service that goes on.")
    typed = {name: request.POST.get(name, "") for name in TYPED} if request.method == "POST" else {}
    try:
        asked = _asked(typed)
        preview = Preview(sentences=replacement_foreseen(access=access, job=job, **asked).sentences)
        if request.method != "POST" or "preview" in request.POST:
            return _form(request, job, typed, preview=preview)
        revision = revision_typed(typed["revision"])
        row = job_replace(access=access, job=job, reason=typed["reason"], now=now(), revision=revision, **asked)
        messages.success(request, f"The replicas of {row.role} of {job.name} start anew.")
        return redirect("job", job.public_id)
    except ValidationError as fault:
        return _form(request, job, typed, faults=messages_by_field(fault), status=422)
    except Stale:
        said = "It has changed since you opened this page. Look at it, then apply again."
        return _form(request, job_for(access, public_id), typed | {"revision": ""}, faults={"all": [said]}, status=409)
    except Conflict as fault:
        status = 409 if request.method == "POST" else 200
        return _form(request, job_for(access, public_id), typed, faults={"all": [str(fault)]}, status=status)


@require_POST
@requires(Can.SEE)
def job_replace_stop_write(request: HttpRequest, public_id: str) -> HttpResponse:
    access = access_of(request)
    job = job_for(access, public_id)
    try:
        job_replace_stop(access=access, job=job, now=now())
        messages.success(request, f"No further replica of {job.name} is replaced.")
    except Conflict as fault:
        messages.error(request, str(fault))
    return redirect("job", job.public_id)


def _asked(typed: Mapping[str, str]) -> dict[str, Any]:
    """What `job_replace` and its preview take; what is not typed is as it is by default."""
    count, within = typed.get("max_unavailable", "").strip(), typed.get("within_s", "").strip()
    if count and not (count.isascii() and count.isdigit() and len(count) < 6):
        raise ValidationError({"max_unavailable": "Enter a whole number."})
    length = seconds_read(within) if within else WITHIN
    if length is None or length != int(length):
        raise ValidationError({"within_s": "Enter a length such as 10m, or seconds."})
    return {"role": typed.get("role", ""), "max_unavailable": int(count or 1), "within_seconds": int(length)}


def _form(
    request: HttpRequest,
    job: Job,
    typed: Mapping[str, str],
    *,
    faults: Mapping[str, list[str]] | None = None,
    preview: Preview | None = None,
    status: int = 200,
) -> HttpResponse:
    told = [message for said in (faults or {}).values() for message in said]
    context = {
        "job": job,
        "roles": replicas_told(job, now=now()).roles,
        "role": typed.get("role", ""),
        "max_unavailable": typed.get("max_unavailable", "1"),
        "within": typed.get("within_s", "10m"),
        "reason": typed.get("reason", ""),
        "reason_optional": True,
        "reason_most": REASON_LENGTH,
        "faults": faults or {},
        "own_faults": ("role", "max_unavailable", "within_s"),
        "preview": preview or Preview(sentences=(), faults=told),
        "revision": typed.get("revision") or job.revision,
    }
    return render(request, "scheduler/job_replace.html", context, status=status)
