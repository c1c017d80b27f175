"""The scheduler's own page: who decides, what the last plans did and why, and what back-ends still owe."""

from collections.abc import Callable
from typing import Any

from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from gpufleet.core.faults import Conflict
from gpufleet.core.live.feed import feed_revision
from gpufleet.core.times import now
from gpufleet.core.undo import Undo, done_with_undo
from gpufleet.web import Can, access_of, requires
from scheduler.jobs.lists import PLANS
from scheduler.presenters.plans import decision_lines, dropped_lines, phases_text, plan_lines, total_ms
from scheduler.selectors.loop import (
    job_counts,
    leadership,
    orders_open,
    phase_times,
    plan_changing,
    plan_for,
    plan_has_scenario,
    plan_latest,
    plan_scenario,
    plan_unpacked,
    plans_listed,
    scenario_now,
)
from scheduler.selectors.overrun import overrun_told
from scheduler.selectors.predictions import predictions_score
from scheduler.services.jobs.steering import REASON_LENGTH, Steered, scheduler_pause, scheduler_resume

DECISIONS_SHOWN = 8


@require_safe
@requires(Can.SEE, everywhere=True)
def scheduler_page(request: HttpRequest) -> HttpResponseBase:
    return _page(request)


@require_POST
@requires(Can.OPERATE, everywhere=True)
def scheduler_pause_write(request: HttpRequest) -> HttpResponseBase:
    return _steer(request, scheduler_pause, "The scheduler is paused. What runs goes on.", "scheduler_resume")


@require_POST
@requires(Can.OPERATE, everywhere=True)
def scheduler_resume_write(request: HttpRequest) -> HttpResponseBase:
    return _steer(request, scheduler_resume, "The scheduler decides again.", "scheduler_pause")


def _steer(request: HttpRequest, service: Callable[..., Steered], said: str, back: str) -> HttpResponseBase:
    reason, undone = request.POST.get("reason", ""), request.POST.get("step", "")
    try:
        done = service(access=access_of(request), reason=reason, now=now(), undone=undone)
    except ValidationError as fault:
        return _page(request, status=422, faults=fault.messages, reason=reason)
    except Conflict as fault:
        return _page(request, status=409, faults=[str(fault)], reason=reason)
    undo = None if undone else Undo(reverse(back), {"reason": done.reason[:REASON_LENGTH] or "Undo of a pause.", "step": done.step})
    done_with_undo(request, said, undo)
    return redirect("scheduler")


def _page(request: HttpRequest, *, status: int = 200, **extra: Any) -> HttpResponseBase:
    access, moment = access_of(request), now()
    version = feed_revision()
    latest = plan_latest()
    measured, phases = phase_times()
    changed = plan_changing()
    decided = changed.decisions if changed else []
    context = {
        "heading": "Scheduler",
        "version": version,
        "lead": leadership(moment),
        "latest": latest,
        "latest_ms": total_ms(latest) if latest else None,
        "measured": measured,
        "phases": phases,
        "counts": job_counts(),
        "changed": changed,
        "decisions": decision_lines(decided[:DECISIONS_SHOWN]),
        "more_decisions": max(0, len(decided) - DECISIONS_SHOWN),
        "orders": orders_open(moment),
        "predicted": predictions_score(now=moment),
        "overrun": overrun_told(),
        "may_operate": access.can_everywhere(Can.OPERATE),
        "may_submit": access.can_somewhere(Can.SUBMIT),
        **extra,
    }
    answer = PLANS.respond(request, plans_listed(access), "scheduler/loop.html", context, presented=plan_lines)
    answer.status_code = status
    return answer


@require_safe
@requires(Can.SEE, everywhere=True)
def scenario_download(request: HttpRequest) -> HttpResponse:
    """What a plan made now would be made from."""
    moment = now()
    return _file(scenario_now(access_of(request), moment), f"scenario-{moment:%Y-%m-%dT%H%M%SZ}.json")


@require_safe
@requires(Can.SEE, everywhere=True)
def plan_page(request: HttpRequest, pk: int) -> HttpResponse:
    plan = plan_for(access_of(request), pk)
    context = {
        "plan": plan,
        "took_ms": total_ms(plan),
        "phases": phases_text(plan.phases),
        "decisions": decision_lines(plan.decisions),
        "dropped": dropped_lines(plan.dropped),
        "has_scenario": plan_has_scenario(pk),
    }
    return render(request, "scheduler/plan.html", context)


@require_safe
@requires(Can.SEE, everywhere=True)
def plan_download(request: HttpRequest, pk: int) -> HttpResponse:
    """The scenario as `gpufleet plan` reads it."""
    return _file(plan_unpacked(plan_scenario(access_of(request), pk)), f"scenario-{pk}.json")


def _file(content: bytes, name: str) -> HttpResponse:
    return HttpResponse(content, content_type="application/json", headers={"Content-Disposition": f'attachment; filename="{name}"'})
