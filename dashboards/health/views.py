"""Incidents, health rules with their dry run, and what is wrong now."""

from functools import partial

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.functional import SimpleLazyObject
from django.views.decorators.http import require_http_methods, require_safe

from dashboards.health.forms import LimitsForm, RuleForm
from dashboards.health.lists import INCIDENTS, INCIDENTS_UNPRICED
from dashboards.health.models import Incident
from dashboards.health.round import rule_of, settings_row
from dashboards.health.selectors import (
    findings_open,
    health_summary,
    incident_for,
    incident_jobs,
    incident_rows,
    incidents_listed,
    rule_for,
    rules_listed,
    steps_told,
    stragglers_open,
)
from dashboards.health.services import dry_run, rule_asked, rule_change, rule_create, rule_facts, rule_remove, settings_save
from dashboards.health.state import SIGNALS
from dashboards.health.xids import XIDS
from gpufleet.core.faults import Conflict
from gpufleet.core.times import now
from gpufleet.web import Can, access_of, requires
from quotas.forms import ReasonForm, show_faults
from quotas.views.confirm import confirm
from scheduler.hardware.lifecycle import may_follow
from scheduler.models import Health

SHOWN = 50


@require_safe
@requires(Can.SEE)
def incident_list(request: HttpRequest) -> HttpResponseBase:
    access, moment = access_of(request), now()
    context = {
        "heading": "Incidents",
        "summary": partial(health_summary, access, now=moment),
        "findings": SimpleLazyObject(partial(findings_open, access)),
        "stragglers": SimpleLazyObject(partial(stragglers_open, access)),
        "sees_costs": access.can_everywhere(Can.SEE_COSTS),
        "may_operate": access.can_everywhere(Can.OPERATE),
    }
    rows = partial(incident_rows, access, now=moment)
    table = INCIDENTS if context["sees_costs"] else INCIDENTS_UNPRICED
    return table.respond(request, incidents_listed(access), "dashboards/incidents.html", context, presented=rows)


@require_safe
@requires(Can.SEE)
def incident_page(request: HttpRequest, public_id: str) -> HttpResponse:
    access, moment = access_of(request), now()
    incident = incident_for(access, public_id)
    context = {
        "row": incident_rows(access, [incident], now=moment)[0],
        "incident": incident,
        "steps": steps_told(incident),
        "jobs": incident_jobs(access, incident, now=moment),
        "may_operate": access.can_everywhere(Can.OPERATE),
        "may_drain": access.can_everywhere(Can.OPERATE) and may_drain(incident),
    }
    return render(request, "dashboards/incident.html", context)


def may_drain(incident: Incident) -> bool:
    """What is over needs no drain."""
    return incident.closed_at is None and incident.node.removed_at is None and may_follow(incident.node.health, Health.DRAINING)


@require_safe
@requires(Can.SEE)
def rule_list(request: HttpRequest) -> HttpResponse:
    access = access_of(request)
    rules = [{"rule": rule, "signal": SIGNALS[rule.signal]} for rule in rules_listed(access)]
    context = {"rules": rules, "settings_row": settings_row(), "may_operate": access.can_everywhere(Can.OPERATE), "xids": XIDS.values()}
    return render(request, "dashboards/health_rules.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.OPERATE, everywhere=True)
def rule_new(request: HttpRequest) -> HttpResponse:
    return _rule_form(request, None)


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.OPERATE, everywhere=True)
def rule_edit(request: HttpRequest, public_id: str) -> HttpResponse:
    return _rule_form(request, public_id)


def _rule_form(request: HttpRequest, public_id: str | None) -> HttpResponse:
    """A rule's form. Dry run shows what the form would have found in 30 days, and saves nothing."""
    access, moment = access_of(request), now()
    rule = rule_for(access, public_id) if public_id else None
    initial = rule_facts(rule) | {"revision": rule.revision} if rule else {"window_minutes": 5, "clear_minutes": 10}
    form = RuleForm(request.POST if request.method == "POST" else None, initial=initial)
    status, tried = 200, None
    if request.method == "POST":
        status = 422
        if form.is_valid():
            data = form.cleaned_data
            try:
                if "dry_run" in request.POST:
                    tried, status = dry_run(rule_asked(form.values(), rule), now=moment), 200
                elif rule:
                    rule_change(access=access, rule=rule, values=form.values(), reason=data["reason"], revision=data["revision"], now=moment)
                else:
                    rule_create(access=access, values=form.values(), reason=data["reason"], now=moment)
            except ValidationError as fault:
                show_faults(form, fault)
            except Conflict as fault:
                form.add_error(None, str(fault))
                status = 409
            else:
                if tried is None:
                    messages.success(request, f"The rule {data['name']} is saved.")
                    return redirect("health_rules")
    elif rule:
        tried = dry_run(rule_of(rule), now=moment)
    heading = f"Change {rule.name}" if rule else "New health rule"
    held = tried.held[-SHOWN:][::-1] if tried else []
    context = {"form": form, "heading": heading, "rule": rule, "tried": tried, "held": held, "hidden": len(tried.held) - len(held) if tried else 0}
    return render(request, "dashboards/health_rule.html", context, status=status)


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.OPERATE, everywhere=True)
def rule_remove_page(request: HttpRequest, public_id: str) -> HttpResponse:
    access = access_of(request)
    rule = rule_for(access, public_id)
    form = ReasonForm(request.POST if request.method == "POST" else None)
    back = reverse("health_rules")
    if request.method == "POST" and form.is_valid():
        try:
            rule_remove(access=access, rule=rule, reason=form.cleaned_data["reason"], now=now())
        except Conflict as fault:
            messages.error(request, str(fault))
        else:
            messages.success(request, f"The rule {rule.name} is removed.")
        return redirect("health_rules")
    effects = ["It finds nothing any more. What it did to nodes stays.", "Its open findings are over."]
    return confirm(request, form, heading=f"Remove {rule.name}", send="Remove", effects=effects, above=[("Health rules", back)], back=back)


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.OPERATE, everywhere=True)
def limits_edit(request: HttpRequest) -> HttpResponse:
    form = LimitsForm(request.POST if request.method == "POST" else None, initial=LimitsForm.initial_of(settings_row()))
    status = 200
    if request.method == "POST":
        status = 422
        if form.is_valid():
            data = form.cleaned_data
            try:
                settings_save(access=access_of(request), values=form.values(), reason=data["reason"], revision=data["revision"])
            except ValidationError as fault:
                show_faults(form, fault)
            except Conflict as fault:
                form.add_error(None, str(fault))
                status = 409
            else:
                messages.success(request, "The limits are saved.")
                return redirect("health_rules")
    context = {"form": form, "heading": "Limits of health rules", "send": "Save", "back": reverse("health_rules")}
    return render(request, "quotas/form.html", context, status=status)
