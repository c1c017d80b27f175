"""Planned changes of jobs: what is to begin when, and calling it off."""

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST, require_safe

from gpufleet.core.faults import Conflict
from gpufleet.core.live.feed import feed_revision
from gpufleet.core.templatetags.shell import plural
from gpufleet.core.times import now
from gpufleet.web import Can, access_of, requires
from scheduler.presenters.planned_changes import JOBS_SHOWN, planned_line
from scheduler.selectors.planned_changes import plans_seen
from scheduler.services.jobs.planned_changes import plan_call_off
from scheduler.views.jobs import job_tabs


@require_safe
@requires(Can.SEE)
def job_plans(request: HttpRequest) -> HttpResponse:
    access, version = access_of(request), feed_revision()
    found, more = plans_seen(access, shown=JOBS_SHOWN)
    context = {"plans": [planned_line(one) for one in found], "more": more, "version": version, "tabs": job_tabs(access, [], planned=True)}
    return render(request, "scheduler/planned_changes.html", context)


@require_POST
@requires(Can.SEE)
def job_plan_call_off(request: HttpRequest) -> HttpResponse:
    """A planned change does not begin; where a job is named, not for this one."""
    job = request.POST.get("job", "")
    back = redirect("job", job) if job.isascii() and job.replace("-", "").isalnum() else redirect("job_plans")
    access = access_of(request)
    try:
        off = plan_call_off(
            access=access,
            plan=request.POST.get("plan", "")[:24],
            jobs=[job] if job else None,
            reason=request.POST.get("reason", ""),
            now=now(),
        )
    except (Conflict, ValidationError) as fault:
        messages.error(request, str(fault) if isinstance(fault, Conflict) else " ".join(fault.messages))
        return back
    which = ""
    if job:
        (one,) = off.jobs
        is_seen = access.can(Can.SEE, one.quota.path)  # its author may not see it any more: it has no name and no page for him
        which, back = (f" for {one.name}", back) if is_seen else (f" for {one.public_id}", redirect("job_plans"))
    left = f" {plural(off.left, 'other job')} {'stays' if off.left == 1 else 'stay'} planned." if off.left else ""
    messages.success(request, f"The planned change is called off{which}.{left}")
    return back
