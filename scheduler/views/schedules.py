"""Schedules: which there are, one with what came of each time, and a page to write one."""

from collections.abc import Callable
from functools import partial
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from gpufleet.core.faults import Conflict
from gpufleet.core.live.feed import feed_revision
from gpufleet.core.times import now
from gpufleet.core.undo import Undo, done_with_undo
from gpufleet.web import Access, Can, access_of, requires
from quotas.forms import faults_of
from quotas.views.confirm import confirm
from scheduler.forms import ScheduleForm, SteeringForm
from scheduler.jobs.writing import description_again
from scheduler.jobs.yaml_text import read_yaml, write_yaml
from scheduler.models import CatchUp, Overlap, Schedule
from scheduler.presenters.submitting import due_told
from scheduler.schedules.lists import RUNS, SCHEDULES
from scheduler.selectors.jobs import job_for, may_steer, quota_last_used
from scheduler.selectors.schedules import (
    description_told,
    is_owner,
    may_steer_schedule,
    must_steer_schedule,
    schedule_for,
    schedule_runs,
    schedules_listed,
    times_ahead,
)
from scheduler.services.jobs.steering import REASON_LENGTH
from scheduler.services.schedules.schedules import (
    NOT_RECURRING,
    Ran,
    schedule_change,
    schedule_create,
    schedule_draw,
    schedule_pause,
    schedule_remove,
    schedule_resume,
    schedule_run_now,
    schedule_timed,
)

GIVEN = ("name", "cron", "zone", "overlap", "catch_up", "start_within_s", "starts_at", "ends_at")
MOMENTS = ("starts_at", "ends_at")


@require_safe
@requires(Can.SEE)
def schedule_list(request: HttpRequest) -> HttpResponseBase:
    access = access_of(request)
    context = {"heading": "Schedules", "version": feed_revision(), "can_add": access.can_somewhere(Can.SUBMIT)}
    return SCHEDULES.respond(request, schedules_listed(access), "scheduler/schedules.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.SUBMIT)
def schedule_new(request: HttpRequest) -> HttpResponse:
    access = access_of(request)
    form = ScheduleForm(request.POST if request.method == "POST" else None, initial=_begun(request, access))
    if _looks(request):
        return _due(request, access, form)
    if request.method == "POST" and form.is_valid():
        try:
            made = schedule_create(access=access, given=_given(form), now=now())
        except ValidationError as fault:
            _show_faults(form, fault)
        else:
            messages.success(request, f"{made.name} is kept.")
            return redirect("schedule", made.public_id)
    elif request.method == "POST":
        # What can be read is judged in the same round.
        drawn = schedule_draw(access=access, given=form.cleaned_data, now=now())
        told = {path: texts for path, texts in drawn.faults.items() if path.partition(".")[0] in form.cleaned_data}
        _show_faults(form, ValidationError(told))
    return _form(request, form, send="Create schedule", back=reverse("schedules"))


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.SEE)
def schedule_edit(request: HttpRequest, public_id: str) -> HttpResponse:
    access = access_of(request)
    schedule = schedule_for(access, public_id)
    must_steer_schedule(access, schedule)
    form = ScheduleForm(request.POST if request.method == "POST" else None, initial=_written(access, schedule), owned=is_owner(access, schedule))
    if _looks(request):
        return _due(request, access, form, of=schedule)
    status = 422
    if request.method == "POST" and form.is_valid():
        data = form.cleaned_data
        # The picker knows no milliseconds: what it did not change stays as it was.
        given = {name: value for name, value in _given(form).items() if name not in MOMENTS or name in form.changed_data}
        given |= {"reason": data["reason"]}
        try:
            schedule_change(access=access, schedule=schedule, given=given, revision=data["revision"], now=now())
        except ValidationError as fault:
            _show_faults(form, fault)
        except Conflict as fault:
            form.add_error(None, str(fault))
            status = 409
        else:
            messages.success(request, f"{data['name']} is changed.")
            return redirect("schedule", public_id)
    return _form(request, form, of=schedule, send="Save", back=reverse("schedule", args=[public_id]), status=status)


@require_safe
@requires(Can.SEE)
def schedule_page(request: HttpRequest, public_id: str) -> HttpResponseBase:
    access = access_of(request)
    version = feed_revision()
    schedule = schedule_for(access, public_id)
    context = {
        "version": version,
        "heading": schedule.name,
        "schedule": schedule,
        "ahead": times_ahead(schedule, now()),
        "job": write_yaml(description_told(access, schedule)),
        "overlap": Overlap(schedule.overlap).label,
        "catch_up": CatchUp(schedule.catch_up).label,
        "may_steer": may_steer_schedule(access, schedule),
        "may_take_over": not is_owner(access, schedule) and access.can(Can.SUBMIT, schedule.quota.path) and may_steer_schedule(access, schedule),
    }
    return RUNS.respond(request, schedule_runs(schedule), "scheduler/schedule.html", context)


@require_POST
@requires(Can.SEE)
def schedule_switch(request: HttpRequest, public_id: str) -> HttpResponse:
    """Pause it, or go on with it."""
    resumes, seen = request.POST.get("to") == "active", request.POST.get("revision", "")
    revision = int(seen) if seen.isascii() and seen.isdigit() and len(seen) < 10 else None
    service, said = (schedule_resume, "{} goes on.") if resumes else (schedule_pause, "{} is paused. What runs goes on.")

    def undo(before: Schedule, after: Schedule) -> Undo:
        reason = before.paused_reason[:REASON_LENGTH] if resumes else "Undo of a pause."
        back = {"to": "paused" if resumes else "active", "reason": reason, "revision": str(after.revision)}
        return Undo(reverse("schedule_switch", args=[public_id]), back)

    return _steer(request, public_id, partial(service, revision=revision), said, undo if revision is None else None)


@require_POST
@requires(Can.SEE)
def schedule_run_write(request: HttpRequest, public_id: str) -> HttpResponse:
    return _steer(request, public_id, schedule_run_now, "{} is submitted.")


@require_POST
@requires(Can.SEE)
def schedule_take(request: HttpRequest, public_id: str) -> HttpResponse:
    def take(*, access: Access, schedule: Schedule, reason: str, now: Any) -> Schedule:
        return schedule_change(access=access, schedule=schedule, given={"take_over": True, "reason": reason}, now=now)

    return _steer(request, public_id, take, "{} is yours: it is submitted with your rights from now on.")


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.SEE)
def schedule_remove_page(request: HttpRequest, public_id: str) -> HttpResponse:
    access = access_of(request)
    schedule = schedule_for(access, public_id)
    must_steer_schedule(access, schedule)
    form = SteeringForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        try:
            schedule_remove(access=access, schedule=schedule, reason=form.cleaned_data["reason"])
        except Conflict as fault:
            messages.error(request, str(fault))
        else:
            messages.success(request, f"{schedule.name} is removed.")
        return redirect("schedules")
    page = reverse("schedule", args=[public_id])
    effects = ["It submits nothing any more, for good. To stop it for a while, pause it.", "Its jobs stay, and those that run go on."]
    above = [("Schedules", reverse("schedules")), (schedule.name, page)]
    return confirm(request, form, above=above, back=page, heading=f"Remove {schedule.name}", send="Remove", effects=effects)


def _steer(
    request: HttpRequest, public_id: str, service: Callable[..., Schedule | Ran], said: str, undo: Callable[[Schedule, Any], Undo] | None = None
) -> HttpResponse:
    access = access_of(request)
    schedule = schedule_for(access, public_id)
    try:
        done = service(access=access, schedule=schedule, reason=request.POST.get("reason", ""), now=now())
    except ValidationError as fault:
        messages.error(request, " ".join(f"{path}: {text}" for path, texts in faults_of(fault) for text in texts))
    except Conflict as fault:
        messages.error(request, str(fault))
    else:
        done_with_undo(request, said.format(schedule.name), undo(schedule, done) if undo is not None else None)
    return redirect("schedule", public_id)


def _begun(request: HttpRequest, access: Access) -> dict[str, Any]:
    """What a new one begins with: a job that is to be repeated, or the least that a job says."""
    name = request.GET.get("repeat", "")
    if not name:
        return {"description": write_yaml({"quota": quota_last_used(access, ""), "gpus": 1, "launch": {"command": ["python", "train.py"]}})}
    job = job_for(access, name)
    if not may_steer(access, job):
        raise PermissionDenied
    said = {key: value for key, value in description_again(job, with_launch=True).items() if key not in NOT_RECURRING}
    return {"name": said["name"], "description": write_yaml(said)}


def _written(access: Access, schedule: Schedule) -> dict[str, Any]:
    own = {name: getattr(schedule, name) for name in GIVEN}
    return own | {"description": write_yaml(description_told(access, schedule)), "revision": schedule.revision}


def _given(form: ScheduleForm) -> dict[str, Any]:
    data = form.cleaned_data
    given = {name: data[name] for name in GIVEN}
    return given | ({"description": data["description"]} if "description" in data else {})


def _show_faults(form: ScheduleForm, fault: ValidationError) -> None:
    """Faults inside the job are told at its field, with their line."""
    document = read_yaml(form.data.get("description", ""))
    for path, told in faults_of(fault):
        head, _, inner = path.partition(".")
        line = document.line(inner) if inner else None
        before = f"Line {line}, {inner}: " if line else f"{inner}: " if inner else ""
        form.add_error(head if head in form.fields else None, [f"{before}{message}" for message in told])


def _looks(request: HttpRequest) -> bool:
    """Whether the page asks only when it would be due, as somebody chooses."""
    return request.method == "POST" and "_look" in request.POST


def _due(request: HttpRequest, access: Access, form: ScheduleForm, of: Schedule | None = None) -> HttpResponse:
    form.is_valid()
    if of is not None:
        given = {name: value for name, value in form.cleaned_data.items() if name not in MOMENTS or name in form.changed_data}
        drawn = schedule_timed(access=access, schedule=of, given=given, now=now())
    else:
        drawn = schedule_draw(access=access, given={"name": "", "description": {}} | form.cleaned_data, now=now())
    faulty = any(name in drawn.faults or name in form.errors for name in ("cron", "zone", *MOMENTS))
    return render(request, "scheduler/_due_next.html", {"recurs": True, "due": []} if faulty else due_told(drawn.schedule, now()))


def _form(request: HttpRequest, form: ScheduleForm, *, send: str, back: str, of: Schedule | None = None, status: int = 422) -> HttpResponse:
    context = {"form": form, "schedule": of, "heading": f"Change {of.name}" if of else "New schedule", "send": send, "back": back}
    return render(request, "scheduler/schedule_form.html", context, status=status if form.is_bound else 200)
