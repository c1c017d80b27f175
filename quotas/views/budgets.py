"""Budgets: how each subtree stands in its period, and the forms of those who set them."""

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

from django.contrib import messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from gpufleet.core.charts import chart_response
from gpufleet.core.faults import Conflict
from gpufleet.core.live.feed import feed_revision
from gpufleet.core.times import now
from gpufleet.web import Access, Can, access_of, requires
from quotas.budgets import BudgetForm, ExceptionForm, bullet, burn_chart, burn_range, burn_ranges
from quotas.forms import ReasonForm, show_faults
from quotas.models import Budget, BudgetUnit
from quotas.selectors.budgets import budget_for, budgets_listed, may_budget, must_budget, standings
from quotas.selectors.rates import price_book
from quotas.services.budgets import (
    FIELDS,
    budget_change,
    budget_create,
    budget_remove,
    exception_end,
    exception_grant,
    teams_offered,
)
from quotas.views.confirm import confirm

MOST = 500


@require_safe
@requires(Can.SEE)
def budget_list(request: HttpRequest) -> HttpResponse:
    access = access_of(request)
    version = feed_revision()
    rows = list(budgets_listed(access).order_by("quota__path", "public_id")[:MOST])
    moment = now()
    found = standings(rows, price_book(), moment)
    context = {
        "version": version,
        "as_of": moment,
        "rows": [(standing, bullet(standing)) for standing in found],
        "can_add": access.can_somewhere(Can.EDIT_QUOTA),
        "over": sum(standing.state == "stopped" for standing in found),
        "near": sum(standing.state in ("warned", "excepted") for standing in found),
    }
    return render(request, "quotas/budgets.html", context)


@require_safe
@requires(Can.SEE)
def budget_page(request: HttpRequest, public_id: str) -> HttpResponseBase:
    """Or with `?chart=1` its chart alone, for another range."""
    access, moment = access_of(request), now()
    version = feed_revision()
    found = budget_for(access, public_id)
    (standing,) = standings([found], price_book(), moment)
    ranges = burn_ranges(standing, moment)
    chosen = burn_range(request.GET.get("range", ""), ranges)
    chart = burn_chart(standing, chosen, moment)
    if request.GET.get("chart"):
        return chart_response(request, chart, name=found.public_id)
    context = {
        "version": version,
        "budget": found,
        "as_of": moment,
        "standing": standing,
        "bullet": bullet(standing),
        "chart": chart,
        "range": chosen,
        "ranges": ranges,
        "source": f"{reverse('budget', args=[found.public_id])}?chart=1",
        "exceptions": sorted(found.exceptions.all(), key=lambda one: -one.pk)[:20],
        "may_change": may_budget(access, found.quota),
        "form": ExceptionForm(unit=found.unit),
    }
    return render(request, "quotas/budget.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.EDIT_QUOTA)
def budget_new(request: HttpRequest) -> HttpResponse:
    access = access_of(request)
    teams = teams_offered(access)
    if not teams:
        raise PermissionDenied("Quota admins of the node above set budgets.")
    form = BudgetForm(request.POST if request.method == "POST" else None, teams=teams, initial={"quota": request.GET.get("quota", "")[:500]})
    if request.method == "POST" and form.is_valid():
        try:
            made = budget_create(access=access, given=form.given(), now=now())
        except ValidationError as fault:
            show_faults(form, fault)
        else:
            messages.success(request, f"{made.name} is set.")
            return redirect("budget", made.public_id)
    return _form(request, form, heading="New budget", send="Set budget", back=reverse("budgets"))


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.SEE)
def budget_edit(request: HttpRequest, public_id: str) -> HttpResponse:
    access = access_of(request)
    found = budget_for(access, public_id)
    must_budget(access, found.quota)
    form = BudgetForm(request.POST if request.method == "POST" else None, of=found, initial=_written(found))
    status = 422
    if request.method == "POST" and form.is_valid():
        try:
            budget_change(access=access, budget=found, given=form.given(), revision=form.cleaned_data["revision"], now=now())
        except ValidationError as fault:
            show_faults(form, fault)
        except Conflict as fault:
            form.add_error(None, str(fault))
            status = 409
        else:
            messages.success(request, f"{form.cleaned_data['name']} is changed.")
            return redirect("budget", public_id)
    return _form(request, form, heading=f"Change {found.name}", send="Save", back=reverse("budget", args=[public_id]), status=status)


@require_POST
@requires(Can.SEE)
def budget_exception_write(request: HttpRequest, public_id: str) -> HttpResponse:
    """Grant an exception, or end the one that there is."""
    access = access_of(request)
    found = budget_for(access, public_id)
    try:
        if request.POST.get("do") == "end":
            exception_end(access=access, budget=found, now=now())
            messages.success(request, "The exception has ended.")
        else:
            _grant(request, access, found)
    except ValidationError as fault:
        messages.error(request, " ".join(fault.messages))
    except Conflict as fault:
        messages.error(request, str(fault))
    return redirect("budget", public_id)


def _grant(request: HttpRequest, access: Access, found: Budget) -> None:
    form = ExceptionForm(request.POST, unit=found.unit)
    if not form.is_valid():
        raise ValidationError([f"{name}: {text}" for name, texts in form.errors.items() for text in texts])
    until: datetime = form.cleaned_data["until"]
    exception_grant(access=access, budget=found, extra=form.more(), until=until, reason=form.cleaned_data["reason"], now=now())
    messages.success(request, "The exception is granted.")


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.SEE)
def budget_remove_page(request: HttpRequest, public_id: str) -> HttpResponse:
    access = access_of(request)
    found = budget_for(access, public_id)
    must_budget(access, found.quota)
    form = ReasonForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        budget_remove(access=access, budget=found, reason=form.cleaned_data["reason"], now=now())
        messages.success(request, f"{found.name} is removed.")
        return redirect("budgets")
    page = reverse("budget", args=[public_id])
    effects = ["Jobs that wait because of it may start.", "Usage stays in the ledger."]
    above = [("Budgets", reverse("budgets")), (found.name, page)]
    return confirm(request, form, above=above, back=page, heading=f"Remove {found.name}", send="Remove budget", effects=effects)


def _written(found: Budget) -> dict[str, Any]:
    zone = ZoneInfo(found.zone)
    own = {name: getattr(found, name) for name in FIELDS} | {"revision": found.revision}
    for name in ("starts_at", "ends_at"):
        own[name] = own[name].astimezone(zone).replace(tzinfo=None) if own[name] is not None else None
    scale = 1_000_000 if found.unit == BudgetUnit.MONEY else 1000
    return own | {"amount": Decimal(found.amount) / scale}


def _form(request: HttpRequest, form: Any, *, heading: str, send: str, back: str, status: int = 422) -> HttpResponse:
    context: Mapping[str, Any] = {"form": form, "heading": heading, "send": send, "back": back}
    return render(request, "quotas/form.html", context, status=status if form.is_bound else 200)
