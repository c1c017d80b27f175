"""An array as a whole: how far it is, which of its jobs to look at first, and one action on all that have not ended."""

import secrets
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from gpufleet.core.faults import Conflict
from gpufleet.core.live.feed import feed_revision
from gpufleet.core.templatetags.shell import plural
from gpufleet.core.times import now
from gpufleet.core.undo import NAMED, Undo, done_with_undo, undone_said
from gpufleet.web import Access, Can, access_of, requires
from scheduler.presenters.arrays import array_view
from scheduler.presenters.bulk import CHOICES, WORDS, bulk_view
from scheduler.presenters.jobs import job_lines
from scheduler.presenters.node_changes import moment_told
from scheduler.presenters.planned_changes import plan_title, planned_lines
from scheduler.selectors.arrays import array_for, array_rows, array_spent, elements_left
from scheduler.selectors.batches import batches_of_run
from scheduler.selectors.jobs import job_rows, may_steer
from scheduler.selectors.planned_changes import plans_seen
from scheduler.services.jobs.arrays import FIRST, MOST_ELEMENTS, array_part_undo, array_plan_whole, array_preview, array_steer
from scheduler.services.jobs.bulk import Action, Effect
from scheduler.services.jobs.steering import REASON_LENGTH
from scheduler.services.jobs.undoing import UNDOES
from scheduler.views.begins import begins_told, moment_of
from scheduler.views.nodes import messages_by_field

# Of one request: then the page shows how far it is.
SLICES = 4
RUN_LENGTH = 16
ARRAY_JOBS_SHOWN = 5  # of each planned change


@require_safe
@requires(Can.SEE)
def array_page(request: HttpRequest, public_id: str) -> HttpResponse:
    access, moment, version = access_of(request), now(), feed_revision()
    state = array_for(access, public_id, moment)
    rows = job_lines(job_rows(access, array_rows(access, public_id)), moment)
    view = array_view(state, rows, may_steer=may_steer(access, state.first))
    planned = planned_lines(plans_seen(access, array=public_id, shown=ARRAY_JOBS_SHOWN)[0]) if state.ended < state.size else []
    context = {"view": view, "spent": array_spent(access, public_id, moment), "version": version, "bulk_actions": CHOICES, "planned": planned}
    return render(request, "scheduler/array.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.SEE)
def array_steer_page(request: HttpRequest, public_id: str) -> HttpResponse:
    """What an action on the whole would come to, and doing it: some parts in each request, until all is done."""
    access = access_of(request)
    state = array_for(access, public_id, now())
    if not may_steer(access, state.first):
        raise PermissionDenied
    asked = request.POST if request.method == "POST" else request.GET
    action = asked.get("action", Action.CANCEL.value)
    priority = _number(asked.get("priority", "")) if action == Action.PRIORITY else None
    if request.method != "POST":
        return _page(request, access, public_id, action, priority)
    if "undo" in asked:
        return _undo(request, access, public_id)
    after, done, run = _number(asked.get("after", "")), _number(asked.get("done", "")) or 0, _run(asked.get("run", ""))
    after = FIRST if after is None else after
    if "stop" in asked:
        return _done(request, public_id, action, done, run, "Stopped. ")
    how: dict[str, Any] = {"action": action, "priority": priority}
    if "preview" in asked:
        return _page(request, access, public_id, **how, run=run)
    try:
        if asked.get("begins") or "later" in asked:
            return _plan(request, access, public_id, action, priority, run)
        for _ in range(SLICES):
            part = array_steer(access=access, array=public_id, **how, reason=asked.get("reason", ""), now=now(), after=after, run=run)
            done += part.counts[Effect.CHANGES]
            if part.after is None:
                return _done(request, public_id, action, done, run)
            after = part.after
    except ValidationError as fault:
        return _page(request, access, public_id, **how, faults=messages_by_field(fault), after=after, done=done, run=run, status=422)
    except Conflict as fault:
        return _page(request, access, public_id, **how, faults={"all": [str(fault)]}, after=after, done=done, run=run, status=409)
    return _page(request, access, public_id, **how, after=after, done=done, run=run, going=True)


def _plan(request: HttpRequest, access: Access, public_id: str, action: str, priority: int | None, run: str) -> HttpResponse:
    """Have it begin at the moment that the form names."""
    begins = moment_of(request)
    if begins is None:
        raise ValidationError({"begins": ["Nothing would change now. Say when it begins."]})
    given: dict[str, Any] = {"action": action, "priority": priority, "reason": request.POST.get("reason", ""), "run": run}
    plans = array_plan_whole(access=access, array=public_id, begins_at=begins, now=now(), **given)
    count = sum(plan.jobs.count() for plan in plans)
    fields = {"plan": " ".join(plan.public_id for plan in plans), "array": public_id, "reason": "Undo of a planned change."}
    said = f"Planned for {moment_told(plans[0].begins_at)}: {plan_title(plans[0], count)}."
    done_with_undo(request, said, Undo(reverse("job_plan_call_off"), fields))
    return redirect("array", public_id)


def _run(text: str) -> str:
    """What the parts of one action have in common: as the page before said it, or a new one."""
    return text if text.isascii() and text.isalnum() and len(text) <= RUN_LENGTH else secrets.token_hex(RUN_LENGTH // 2)


def _done(request: HttpRequest, public_id: str, action: str, done: int, run: str, first: str = "") -> HttpResponse:
    undo = Undo(reverse("array_steer", args=[public_id]), {"undo": run}) if action in UNDOES and done else None
    said = f"{WORDS[Action(action)][2].format(plural(done, 'job'))}." if action in set(Action) else ""
    done_with_undo(request, f"{first}{said}", undo)
    return redirect("array", public_id)


def _undo(request: HttpRequest, access: Access, public_id: str) -> HttpResponse:
    """Take an action on the whole back, some of its parts in each request."""
    given, run = request.POST, _run(request.POST["undo"])
    first, done, left = (max(0, _number(given.get(name, "")) or 0) for name in ("after", "done", "left"))
    parts, names = [] if "stop" in given else batches_of_run(access, run)[first:], given.getlist("name")[:NAMED]
    for part in parts[:SLICES]:
        undone = array_part_undo(access=access, batch=part, now=now())
        done, left, names = done + undone.done, left + undone.left, [*names, *undone.names][:NAMED]
    if len(parts) > SLICES:
        context = {"state": array_for(access, public_id, now()), "heading": "Undo", "button": "Go on", "can_be_done": True, "going": True}
        context |= {"undo": run, "after": first + SLICES, "done": done, "left": left, "names": names, "reason_optional": True}
        return render(request, "scheduler/array_steer.html", context | {"action": reverse("array_steer", args=[public_id])})
    if done:
        messages.success(request, undone_said(done, left, names, "job"))
    else:
        messages.error(request, "These jobs have changed since. Nothing was undone.")
    return redirect("array", public_id)


def _number(text: str) -> int | None:
    try:
        return int(text[:9])
    except ValueError:
        return None


def _page(
    request: HttpRequest,
    access: Access,
    public_id: str,
    action: str,
    priority: int | None,
    *,
    faults: dict[str, list[str]] | None = None,
    after: int = FIRST,
    done: int = 0,
    run: str = "",
    going: bool = False,
    status: int = 200,
) -> HttpResponse:
    view, told = None, dict(faults or {})
    begins, unclear = begins_told(request, told)
    left = len(elements_left(access, public_id, after=after, limit=MOST_ELEMENTS)) if going else 0
    try:
        # Between its parts nobody asks again what the whole would come to.
        if not going:
            found = array_preview(access=access, array=public_id, action=action, priority=priority, now=now())
            view = bulk_view(found, faults=unclear, may_plan=True, begins=begins)
    except ValidationError as fault:
        told, status = messages_by_field(fault) | told, 422
    context: dict[str, Any] = {
        "state": array_for(access, public_id, now()),
        "preview": view.told if view else None,
        "reason_optional": True,
        "reason_most": REASON_LENGTH,
        "heading": view.heading if view else f"{plural(left, 'job')} to go" if going else "That can't be done",
        "button": view.button if view else "Go on",
        "scheduled": view.scheduled if view else "",
        "is_grave": action == Action.CANCEL,
        "can_be_done": going or bool(view and (view.changing or view.later)),
        "idle": not going and not (view and (view.changing or view.later)),
        "own_faults": ("begins",),
        "begins": "" if going else request.POST.get("begins", "")[:20],
        "begins_preview": reverse("array_steer", args=[public_id]),
        "begins_must": not going and view is not None and not view.changing,
        "steers": action,
        "priority": priority,
        "after": after,
        "done": done,
        "run": run or _run(""),
        "going": going,
        "reason": request.POST.get("reason", ""),
        "action": reverse("array_steer", args=[public_id]),
        "faults": told,
    }
    return render(request, "scheduler/array_steer.html", context, status=status)
