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
from scheduler.presenters.planned_changes import JOBS_SHOWN, planned_lines
from scheduler.selectors.planned_changes import plans_seen
from scheduler.services.jobs.planned_changes import plan_call_off
from scheduler.views.jobs import job_tabs

MOST_PARTS = 100


@require_safe
@requires(Can.SEE)
def job_plans(request: HttpRequest) -> HttpResponse:
    access, version = access_of(request), feed_revision()
    found, more = plans_seen(access, shown=JOBS_SHOWN)
    context = {"plans": planned_lines(found), "more": more, "version": version, "tabs": job_tabs(access, [], planned=True)}
    return render(request, "scheduler/planned_changes.html", context)


@require_POST
@requires(Can.SEE)
def job_plan_call_off(request: HttpRequest) -> HttpResponse:
    """A planned change, or all parts of one (ids, apart by blanks), does not begin; where a job is named, not for this one."""
    job, array = (_id(request.POST.get(name, "")) for name in ("job", "array"))
    back = redirect("job", job) if job else redirect("array", array) if array else redirect("job_plans")
    access, plans = access_of(request), request.POST.get("plan", "").split()[:MOST_PARTS] or [""]
    off, gone = [], Conflict()
    for plan in plans:
        try:
            off.append(plan_call_off(access=access, plan=plan[:24], jobs=[job] if job else None, reason=request.POST.get("reason", ""), now=now()))
        except Conflict as fault:
            gone = fault
        except ValidationError as fault:
            messages.error(request, " ".join(fault.messages))
            return back
    if not off:
        messages.error(request, str(gone))
        return back
    which = ""
    if job:
        (one,) = off[-1].jobs
        is_seen = access.can(Can.SEE, one.quota.path)  # its author may not see it any more: it has no name and no page for him
        which, back = (f" for {one.name}", back) if is_seen else (f" for {one.public_id}", redirect("job_plans"))
    stays = sum(one.left for one in off)
    left = f" {plural(stays, 'other job')} {'stays' if stays == 1 else 'stay'} planned." if stays else ""
    messages.success(request, f"The planned change is called off{which}.{left}")
    return back


def _id(text: str) -> str:
    """As an address takes it; empty where it is none."""
    return text if text.isascii() and text.replace("-", "").isalnum() else ""
