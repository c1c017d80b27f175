"""Activity, alerts, their rules and silences."""

from datetime import timedelta
from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from dashboards.alerts.figures import FIGURES, figure_told
from dashboards.alerts.forms import AcknowledgeForm, AlertRuleForm, SilenceForm
from dashboards.alerts.leads import leads_of
from dashboards.alerts.lists import ACTIVITY, ALERTS
from dashboards.alerts.rights import figures_offered, may_act, must_act, must_act_on_any
from dashboards.alerts.round import report_of
from dashboards.alerts.selectors import (
    activity_listed,
    alert_for,
    alert_rows,
    alert_rule_for,
    alert_rules_listed,
    alerts_listed,
    deliveries_of,
    hooks_offered,
    silence_for,
    silences_now,
)
from dashboards.alerts.services import (
    alert_acknowledge,
    alert_rule_change,
    alert_rule_create,
    alert_rule_facts,
    alert_rule_remove,
    alert_rule_test,
    silence_create,
    silence_end,
)
from gpufleet.core.faults import Conflict
from gpufleet.core.times import now
from gpufleet.web import Can, access_of, requires
from quotas.forms import ReasonForm, show_faults
from quotas.views.confirm import confirm

SILENCE_FOR = timedelta(hours=4)


@require_safe
@requires(Can.SEE)
def activity_page(request: HttpRequest) -> HttpResponseBase:
    return ACTIVITY.respond(request, activity_listed(access_of(request)), "list.html", {"heading": "Activity"})


@require_safe
@requires(Can.SEE)
def alert_list(request: HttpRequest) -> HttpResponseBase:
    access, moment = access_of(request), now()
    silences = [{"silence": one, "may_end": may_act(access, one.rule.figure if one.rule else "")} for one in silences_now(access, moment)]
    context = {"heading": "Alerts", "silences": silences, "may_silence": bool(figures_offered(access))}
    return ALERTS.respond(request, alerts_listed(access), "dashboards/alerts.html", context, presented=alert_rows)


@require_safe
@requires(Can.SEE)
def alert_page(request: HttpRequest, public_id: str) -> HttpResponse:
    access = access_of(request)
    alert = alert_for(access, public_id)
    may = may_act(access, alert.rule.figure)
    context = {"alert": alert, "row": alert_rows([alert])[0], "figure": FIGURES.get(alert.rule.figure), "may_act": may}
    context |= {
        "form": AcknowledgeForm(),
        "deliveries": deliveries_of(alert) if may else [],
        "worst_told": figure_told(alert.rule.figure, alert.worst),
    }
    context |= {"report": report_of(alert), "leads": leads_of(access, alert)}
    return render(request, "dashboards/alert.html", context)


@require_POST
@requires(Can.SEE)
def alert_acknowledge_write(request: HttpRequest, public_id: str) -> HttpResponse:
    access = access_of(request)
    try:
        alert_acknowledge(access=access, alert=alert_for(access, public_id), note=request.POST.get("note", ""), now=now())
    except ValidationError as fault:
        messages.error(request, " ".join(fault.messages))
    except Conflict as fault:
        messages.error(request, str(fault))
    else:
        messages.success(request, "The alert is acknowledged.")
    return redirect("alert", public_id)


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.SEE)
def silence_new(request: HttpRequest) -> HttpResponse:
    moment, access = now(), access_of(request)
    must_act_on_any(access)
    first: dict[str, Any] = {"until": (moment + SILENCE_FOR).replace(second=0, microsecond=0, tzinfo=None).isoformat(timespec="minutes")}
    first |= {"rule": request.GET.get("rule", "")[:24], "subject": request.GET.get("subject", "")[:400]}
    sent = request.POST if request.method == "POST" else None
    form = SilenceForm(sent, initial=first, figures=figures_offered(access), is_for_all=may_act(access))
    if request.method == "POST" and form.is_valid():
        data = form.cleaned_data
        try:
            silence_create(access=access, now=moment, **{name: data[name] for name in ("rule", "subject", "until", "reason")})
        except ValidationError as fault:
            show_faults(form, fault)
        else:
            messages.success(request, "The silence holds: alerts are listed, and nobody is told.")
            return redirect("alerts")
    context = {"form": form, "heading": "New silence", "send": "Silence", "back": reverse("alerts")}
    return render(request, "quotas/form.html", context, status=422 if form.is_bound else 200)


@require_POST
@requires(Can.SEE)
def silence_end_write(request: HttpRequest, public_id: str) -> HttpResponse:
    access = access_of(request)
    silence_end(access=access, silence=silence_for(access, public_id), now=now())
    messages.success(request, "The silence has ended.")
    return redirect("alerts")


@require_safe
@requires(Can.SEE)
def alert_rule_list(request: HttpRequest) -> HttpResponse:
    access = access_of(request)
    rows: list[dict[str, Any]] = [
        {
            "rule": rule,
            "figure": FIGURES.get(rule.figure),
            "limit": figure_told(rule.figure, rule.threshold),
            "clear": figure_told(rule.figure, rule.clear_at),
        }
        | {"may_act": may_act(access, rule.figure)}
        for rule in alert_rules_listed(access)
    ]
    context = {"rows": rows, "may_add": bool(figures_offered(access)), "may_act": any(row["may_act"] for row in rows)}
    return render(request, "dashboards/alert_rules.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.SEE)
def alert_rule_new(request: HttpRequest) -> HttpResponse:
    return _rule_form(request, None)


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.SEE)
def alert_rule_edit(request: HttpRequest, public_id: str) -> HttpResponse:
    return _rule_form(request, public_id)


def _rule_form(request: HttpRequest, public_id: str | None) -> HttpResponse:
    access, moment = access_of(request), now()
    rule = alert_rule_for(access, public_id) if public_id else None
    if rule:
        must_act(access, rule.figure)
    else:
        must_act_on_any(access)
    initial: dict[str, Any] = {"for_minutes": 5}
    if rule:
        initial = alert_rule_facts(rule) | {"revision": rule.revision, "hooks": list(rule.hooks.values_list("public_id", flat=True))}
    form = AlertRuleForm(request.POST if request.method == "POST" else None, initial=initial, hooks=hooks_offered(), figures=figures_offered(access))
    status = 200
    if request.method == "POST":
        status = 422
        if form.is_valid():
            data, values = form.cleaned_data, form.values()
            try:
                if rule:
                    sent = {"values": values, "hooks": data["hooks"], "reason": data["reason"], "revision": data["revision"]}
                    alert_rule_change(access=access, rule=rule, now=moment, **sent)
                else:
                    alert_rule_create(access=access, values=values, hooks=data["hooks"], reason=data["reason"], now=moment)
            except ValidationError as fault:
                show_faults(form, fault)
            except Conflict as fault:
                form.add_error(None, str(fault))
                status = 409
            else:
                messages.success(request, f"The rule {data['name']} is saved.")
                return redirect("alert_rules")
    heading = f"Change {rule.name}" if rule else "New alert rule"
    context = {"form": form, "heading": heading, "send": "Save", "back": reverse("alert_rules")}
    return render(request, "quotas/form.html", context, status=status)


@require_POST
@requires(Can.SEE)
def alert_rule_test_write(request: HttpRequest, public_id: str) -> HttpResponse:
    access = access_of(request)
    alert_rule_test(access=access, rule=alert_rule_for(access, public_id), now=now())
    messages.success(request, "A test is being sent to all recipients of this rule. The pages of the webhooks show the result.")
    return redirect("alert_rules")


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.SEE)
def alert_rule_remove_page(request: HttpRequest, public_id: str) -> HttpResponse:
    access = access_of(request)
    rule = alert_rule_for(access, public_id)
    must_act(access, rule.figure)
    form = ReasonForm(request.POST if request.method == "POST" else None)
    back = reverse("alert_rules")
    if request.method == "POST" and form.is_valid():
        try:
            alert_rule_remove(access=access, rule=rule, reason=form.cleaned_data["reason"], now=now())
        except Conflict as fault:
            messages.error(request, str(fault))
        else:
            messages.success(request, f"The rule {rule.name} is removed.")
        return redirect("alert_rules")
    effects = ["It fires no more. Its open alerts are over."]
    above = [("Alerts", reverse("alerts")), ("Alert rules", back)]
    return confirm(request, form, heading=f"Remove {rule.name}", send="Remove", effects=effects, above=above, back=back)
