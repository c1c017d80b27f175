"""The replicas of a service start anew: a page with what that comes to before it begins, and the button that stops it."""

from functools import partial
from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_http_methods, require_POST

from gpufleet.core.faults import Conflict
from gpufleet.core.lengths import seconds_read
from gpufleet.core.previews import Preview
from gpufleet.core.times import now
from gpufleet.web import Can, access_of, requires
from scheduler.models import Job
from scheduler.presenters.job_changes import revision_typed
from scheduler.selectors.jobs import job_for
from scheduler.selectors.scaling import replicas_told
from scheduler.services.jobs.replacing import WITHIN, job_replace, job_replace_stop, replacement_foreseen
from scheduler.views.service_changes import Typed, service_change, service_for, service_form

TYPED = ("role", "max_unavailable", "within_s", "reason", "revision")


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.SEE)
def job_replace_page(request: HttpRequest, public_id: str) -> HttpResponse:
    """Begun only if the job still stands as the page showed it."""
    access = access_of(request)
    job = service_for(access, public_id)
    form = partial(_form, request)
    typed = {name: request.POST.get(name, "") for name in TYPED} if request.method == "POST" else {}

    def act() -> HttpResponse:
        asked = _asked(typed)
        preview = Preview(sentences=replacement_foreseen(access=access, job=job, **asked).sentences)
        if request.method != "POST" or "preview" in request.POST:
            return form(job, typed, preview=preview)
        revision = revision_typed(typed["revision"])
        row = job_replace(access=access, job=job, reason=typed["reason"], now=now(), revision=revision, **asked)
        messages.success(request, f"The replicas of {row.role} of {job.name} start anew.")
        return redirect("job", job.public_id)

    return service_change(access, job, typed, act, form)


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


def _asked(typed: Typed) -> dict[str, Any]:
    """What `job_replace` and its preview take; what is not typed is as it is by default."""
    count, within = typed.get("max_unavailable", "").strip(), typed.get("within_s", "").strip()
    if count and not (count.isascii() and count.isdigit() and len(count) < 6):
        raise ValidationError({"max_unavailable": "Enter a whole number."})
    length = seconds_read(within) if within else WITHIN
    if length is None or length != int(length):
        raise ValidationError({"within_s": "Enter a length such as 10m, or seconds."})
    return {"role": typed.get("role", ""), "max_unavailable": int(count or 1), "within_seconds": int(length)}


def _form(request: HttpRequest, job: Job, typed: Typed, **told: Any) -> HttpResponse:
    context = {
        "roles": replicas_told(job, now=now()).roles,
        "chosen": typed.get("role", ""),
        "max_unavailable": typed.get("max_unavailable", "1"),
        "within": typed.get("within_s", "10m"),
        "within_label": "Ready within" if job.launch.get("ready") else "Started within",
    }
    return service_form(request, job, typed, "scheduler/job_replace.html", context, own_faults=("role", "max_unavailable", "within_s"), **told)
