"""Energy rates: their forms, and their part of the page of power."""

from datetime import datetime
from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from gpufleet.core.previews import Preview
from gpufleet.core.times import now
from gpufleet.web import Access, Can, access_of, requires
from quotas.forms import ReasonForm
from quotas.views.confirm import confirm
from scheduler.models import EnergyRate
from scheduler.power.forms import RateForm, rate_written
from scheduler.presenters.energy import deferred_told, energy_charts, forecast_lines, preview_told, rate_lines
from scheduler.presenters.power import pool_name
from scheduler.selectors.energy import Tariffs, deferred_now, forecasts_listed, rate_for, rates_listed, sees_prices
from scheduler.services.energy import rate_change, rate_drawn, rate_remove, rate_set
from scheduler.services.forecasts.energy import rate_preview
from scheduler.views.pooled_forms import pooled_form, pools_for

TO_BE_SEEN = Preview(sentences=["What the rate does to deferred jobs is shown here."])


def energy_shown(access: Access, moment: datetime) -> dict[str, Any]:
    """What the page of power shows of energy."""
    sees, rates, forecasts = sees_prices(access), list(rates_listed(access)), list(forecasts_listed(access, moment))
    return {
        "rates": rate_lines(rates, moment, sees=sees),
        "forecasts": forecast_lines(forecasts, sees=sees),
        "energy_charts": energy_charts(Tariffs(moment), sees=sees) if rates or forecasts else [],
        "deferred": deferred_told(deferred_now(access, moment)),
    }


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.OPERATE, everywhere=True)
def rate_new(request: HttpRequest) -> HttpResponse:
    start = now().replace(minute=0, second=0, microsecond=0, tzinfo=None)
    begun = {"zone": "UTC", "start": start, "pool": request.GET.get("pool", "")[:60]}
    return _written(request, access_of(request), None, begun)


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.OPERATE, everywhere=True)
def rate_edit(request: HttpRequest, public_id: str) -> HttpResponse:
    access = access_of(request)
    found = rate_for(access, public_id)
    return _written(request, access, found, rate_written(found))


def _written(request: HttpRequest, access: Access, of: EnergyRate | None, begun: dict[str, Any]) -> HttpResponse:
    form = RateForm(request.POST if request.method == "POST" else None, pools=pools_for(of.pool if of else ""), initial=begun)

    def look(given: dict[str, Any]) -> Preview:
        rate, faults = rate_drawn(given, now=now(), instead_of=of)
        if faults:
            raise ValidationError(faults)
        return preview_told(rate_preview(access=access, rate=rate, instead_of=of, now=now()))

    page = {
        "action": reverse("energy_rate", args=[of.public_id]) if of else reverse("energy_rate_new"),
        "cap": of,
        "heading": "Change energy rate" if of else "New energy rate",
        "send": "Save" if of else "Set rate",
    }
    return pooled_form(request, form, look=look, save=lambda: _saved(access, request, form, of), empty=TO_BE_SEEN, page=page)


def _saved(access: Access, request: HttpRequest, form: RateForm, of: EnergyRate | None) -> HttpResponse:
    given = form.given()
    if of is None:
        made = rate_set(access=access, given=given, now=now())
    else:
        made = rate_change(access=access, one=of, given=given, revision=form.cleaned_data["revision"], now=now())
    messages.success(request, f"The energy rate for {_whose(made)} is {'saved' if of else 'set'}.")
    return redirect("power")


def _whose(rate: EnergyRate) -> str:
    return f"pool {rate.pool}" if rate.pool else pool_name("").lower()


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.OPERATE, everywhere=True)
def rate_remove_page(request: HttpRequest, public_id: str) -> HttpResponse:
    access = access_of(request)
    found = rate_for(access, public_id)
    form = ReasonForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        rate_remove(access=access, one=found, reason=form.cleaned_data["reason"], now=now())
        messages.success(request, f"The energy rate for {_whose(found)} is removed.")
        return redirect("power")
    seen = rate_preview(access=access, rate=None, instead_of=found, now=now())
    above = [("Power", reverse("power")), (f"Energy rate, {_whose(found)}", reverse("energy_rate", args=[public_id]))]
    return confirm(
        request, form, above=above, back=reverse("power"), heading="Remove the energy rate", send="Remove rate", effects=preview_told(seen)
    )
