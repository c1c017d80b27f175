"""One action on many jobs: the rows that were chosen in the list, what it would come to, and what became of each."""

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from gpufleet.core.faults import Conflict
from gpufleet.core.times import now
from gpufleet.core.undo import Undo, done_with_undo, undone_said
from gpufleet.web import Access, Can, access_of, requires
from scheduler.jobs.lists import JOBS, QUEUE
from scheduler.presenters.bulk import BulkView, batch_view, bulk_view
from scheduler.presenters.node_changes import moment_told
from scheduler.presenters.planned_changes import plan_title
from scheduler.selectors.batches import batch_for, verdicts_seen
from scheduler.selectors.jobs import jobs_listed
from scheduler.services.jobs.bulk import MOST, Action, Asked, Effect, asked_checked, jobs_judged, jobs_preview, jobs_steer, must_steer_something
from scheduler.services.jobs.planned_changes import jobs_plan
from scheduler.services.jobs.steering import REASON_LENGTH
from scheduler.services.jobs.undoing import batch_undo, may_undo
from scheduler.views.begins import begins_told, moment_of
from scheduler.views.nodes import messages_by_field
from scheduler.views.queue_filters import queue_matching

# Of the list's address, what says which page of it is shown and not which jobs match.
OF_THE_PAGE = ("after", "before", "size", "rows", "format", "page", "job")
MOST_FILTERS = 2_000  # characters of them


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.SEE)
def jobs_bulk(request: HttpRequest) -> HttpResponse:
    """What the action would come to, job by job. Nothing is written. An address may name the jobs (`row`); a list posts them."""
    access = access_of(request)
    must_steer_something(access)
    data = request.POST if request.method == "POST" else request.GET
    if request.method != "POST" and not data.get("row"):
        return redirect("jobs")
    matching = _matching(request)
    more = False
    jobs: list[tuple[str, int | None]] = []
    try:
        if "all" in request.POST:
            if _is_too_long(request):
                raise ValidationError({"matching": [f"The filters are too long: at most {MOST_FILTERS:,} characters. Use fewer, or choose jobs."]})
            if _is_of_queue(request):
                rows, more, problems = queue_matching(access, matching, MOST, now())
            else:
                rows, more, problems = JOBS.matching(matching, jobs_listed(access), MOST)
            if problems:
                raise ValidationError({"jobs": problems})
            jobs = [(job.public_id, job.revision) for job in rows]
        else:
            jobs = [*((name, None) for name in (*data.getlist("row"), *data.getlist("later"))), *(_seen(text) for text in data.getlist("job"))]
        asked = _asked(data, jobs)
    except ValidationError as fault:
        return _not_asked(request, access, jobs, matching, messages_by_field(fault), more=more)
    except Conflict as fault:
        return _refused(request, matching, {"all": [str(fault)]}, 409)
    return _page(request, access, asked, matching, more=more)


@require_POST
@requires(Can.SEE)
def jobs_bulk_write(request: HttpRequest) -> HttpResponse:
    """Do it to the jobs of the preview, each at the revision that was seen."""
    access = access_of(request)
    must_steer_something(access)
    matching = _matching(request)
    asked = None
    jobs = [_seen(text) for text in request.POST.getlist("job")]
    later: list[tuple[str, int | None]] = [(name, None) for name in request.POST.getlist("later")]
    try:
        if request.POST.get("begins") or (later and not jobs):
            jobs = [*((name, None) for name, _ in jobs), *later]
            asked = _asked(request.POST, jobs)
            return job_changes_plan(request, access, asked)
        asked = _asked(request.POST, jobs)
        key = request.POST.get("key", "")
        steered = jobs_steer(access=access, asked=asked, reason=request.POST.get("reason", ""), now=now(), key=key)
    except ValidationError as fault:
        found = messages_by_field(fault)
        if asked is None:
            return _not_asked(request, access, jobs, matching, found)
        return _page(request, access, asked, matching, faults=found, status=422)
    except Conflict as fault:
        assert asked is not None, "only doing it conflicts"
        return _page(request, access, asked, matching, faults={"all": [str(fault)]}, status=409)
    batch = steered.batch
    if len(batch.verdicts) == 1 and batch.verdicts[0]["effect"] == Effect.CHANGES:
        undo = Undo(reverse("job_batch_undo", args=[batch.public_id]), {}) if may_undo(batch) else None
        done_with_undo(request, f"{batch.verdicts[0]['name']}: {batch.verdicts[0]['detail']}", undo)
        return redirect("job", batch.verdicts[0]["id"])
    return redirect("job_batch", batch.public_id)


def job_changes_plan(request: HttpRequest, access: Access, asked: Asked) -> HttpResponse:
    """Have it begin at the moment that the form names. Whatever the revision that was seen of a job: it is looked at again then."""
    begins = moment_of(request)
    if begins is None:
        raise ValidationError({"begins": ["Nothing would change now. Say when it begins."]})
    meant = replace(asked, jobs=tuple((name, None) for name, _ in asked.jobs))
    given = {"reason": request.POST.get("reason", ""), "key": request.POST.get("key", "")}
    plan = jobs_plan(access=access, asked=meant, begins_at=begins, **given, now=now()).plan
    names = list(plan.jobs.order_by("pk").values_list("public_id", flat=True))
    said = f"Planned for {moment_told(plan.begins_at)}: {plan_title(plan, len(names))}."
    done_with_undo(request, said, Undo(reverse("job_plan_call_off"), {"plan": plan.public_id, "reason": "Undo of a planned change."}))
    return redirect("job", names[0]) if len(names) == len(asked.jobs) == 1 else redirect("job_plans")


@require_safe
@requires(Can.SEE)
def batch_page(request: HttpRequest, public_id: str) -> HttpResponse:
    access = access_of(request)
    batch = batch_for(access, public_id)
    return render(request, "scheduler/batch.html", {"view": batch_view(batch, verdicts_seen(access, batch)), "may_undo": may_undo(batch)})


@require_POST
@requires(Can.SEE)
def batch_undo_write(request: HttpRequest, public_id: str) -> HttpResponse:
    """Take it back, for the jobs that nobody has changed since. What was done to one job is undone on its page."""
    access = access_of(request)
    batch = batch_for(access, public_id)
    must_steer_something(access)
    own = redirect("job", batch.verdicts[0]["id"]) if len(batch.verdicts) == 1 else None
    try:
        undone = batch_undo(access=access, batch=batch, now=now())
    except Conflict as fault:
        messages.error(request, str(fault))
        return own or redirect("job_batch", public_id)
    messages.success(request, undone_said(undone.done, undone.left, undone.names, "job"))
    return own or redirect("jobs")


def _asked(data: QueryDict, jobs: list[tuple[str, int | None]]) -> Asked:
    action = data.get("action", "")
    text = data.get("priority", "").strip() if action == "priority" else ""
    try:
        priority = int(text[:8]) if text else None
    except ValueError:
        priority = None
    return asked_checked(action=action, jobs=jobs, priority=priority)


def _seen(text: str) -> tuple[str, int | None]:
    """`j-17:4`, a job with the revision of its preview."""
    name, _, revision = text.partition(":")
    return name, int(revision) if revision.isascii() and revision.isdigit() and len(revision) < 10 else 0


def _is_of_queue(request: HttpRequest) -> bool:
    """Whether the jobs were chosen in the queue, and not in the list of all jobs."""
    return request.POST.get("list") == QUEUE.name


def _is_too_long(request: HttpRequest) -> bool:
    return len(request.POST.get("matching", "")) > MOST_FILTERS


def _matching(request: HttpRequest) -> QueryDict:
    """The filters of the list that the rows were chosen in. Too long ones are none and never a part of them, which would match more."""
    parameters = QueryDict("" if _is_too_long(request) else request.POST.get("matching", "").removeprefix("?"), mutable=True)
    for name in OF_THE_PAGE:
        parameters.pop(name, None)
    return parameters


def _not_asked(
    request: HttpRequest,
    access: Access,
    jobs: Sequence[tuple[str, int | None]],
    matching: QueryDict,
    faults: dict[str, list[str]],
    *,
    more: bool = False,
) -> HttpResponse:
    """A priority that is none is told at its field: what was typed stays, as do the jobs. All else leads back to the list."""
    if faults.keys() != {"priority"} or request.POST.get("action", request.GET.get("action")) != Action.PRIORITY:
        return _refused(request, matching, faults, 422)
    asked = replace(asked_checked(action=Action.PRIORITY, jobs=jobs, priority=0), priority=None)
    return _page(request, access, asked, matching, more=more, faults=faults, status=422)


def _refused(request: HttpRequest, matching: QueryDict, faults: dict[str, list[str]], status: int) -> HttpResponse:
    return render(
        request, "scheduler/jobs_refused.html", {"faults": faults, "back": _back(request, matching), "of_queue": _is_of_queue(request)}, status=status
    )


def _back(request: HttpRequest, matching: QueryDict) -> str:
    shown = matching.urlencode()
    return f"{reverse('queue' if _is_of_queue(request) else 'jobs')}{'?' if shown else ''}{shown}"


def _page(
    request: HttpRequest,
    access: Access,
    asked: Asked,
    matching: QueryDict,
    *,
    more: bool = False,
    faults: dict[str, list[str]] | None = None,
    status: int = 200,
) -> HttpResponse:
    back = _back(request, matching)
    unclear = asked.action == Action.PRIORITY and asked.priority is None
    judged = jobs_judged(access=access, asked=asked) if unclear else jobs_preview(access=access, asked=asked, now=now())
    begins, told = begins_told(request, faults or {})
    view = bulk_view(judged, faults=(faults or {})["priority"] if unclear else told, may_plan=True, begins=begins)
    return steer_page(
        *(request, asked, view),
        status=status,
        action=reverse("jobs_bulk_do"),
        above=[("Queue" if _is_of_queue(request) else "Jobs", back)],
        here="Many at once" if len(asked.jobs) > 1 else asked.jobs[0][0],
        back=back,
        matching=matching.urlencode(),
        of_queue=_is_of_queue(request),
        more=more,
        most=MOST,
        faults=faults or {},
    )


def steer_page(request: HttpRequest, asked: Asked, view: BulkView, *, status: int, **given: Any) -> HttpResponse:
    """The change beside what becomes of it, for many jobs and for one."""
    context = {
        "asked": asked,
        "view": view,
        "preview": view.told,
        "reason": request.POST.get("reason", ""),
        "idle": not (view.later or (view.sent if asked.action == Action.PRIORITY else view.changing)),
        "own_faults": ("priority", "begins"),
        "begins": request.POST.get("begins", "")[:20],
        "begins_preview": reverse("jobs_bulk"),
        "begins_must": not view.sent,
        "priority": (request.POST or request.GET).get("priority", "")[:20],
        "reason_optional": True,
        "reason_most": REASON_LENGTH,
        "key": secrets.token_hex(12),
        "leave": "Cancel" if view.changing and asked.action != Action.CANCEL else "Back",
        **given,
    }
    return render(request, "scheduler/jobs_steer.html", context, status=status)
