"""Power: caps by pool, what is drawn now and in the coming day, rated watts, and their forms."""

from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from dashboards.readings import readings_now
from gpufleet.core.previews import Preview
from gpufleet.core.times import now
from gpufleet.web import Access, Can, access_of, requires
from quotas.forms import ReasonForm, show_faults
from quotas.views.confirm import confirm
from scheduler.models import GpuType, PowerCap
from scheduler.power.forms import CapForm, RatingForm, written
from scheduler.presenters.power import DAY, STEP, by_pool, cap_lines, pool_line, pool_name, preview_told, told_watts
from scheduler.selectors.power import cap_for, caps_listed, gpu_pools, may_cap, power_ahead, power_now, ratings
from scheduler.services.forecasts.power import CapPreview, cap_preview
from scheduler.services.power import cap_change, cap_drawn, cap_remove, cap_set, rating_set
from scheduler.services.windows.previews import snapshot_now
from scheduler.views.energy import energy_shown
from scheduler.views.pooled_forms import pooled_form, pools_for

TO_BE_SEEN = Preview(sentences=["What the cap does is shown here."])
MOST_POOLS = 12


@require_safe
@requires(Can.SEE)
def power_page(request: HttpRequest) -> HttpResponse:
    access, moment = access_of(request), now()
    caps = list(caps_listed(access))
    lines = cap_lines(caps, moment)
    pools = []
    if any(line.state != "past" for line in lines):
        scenario = snapshot_now(moment)[0].scenario
        watts = {gpu: one.watts for gpu, one in readings_now(now=moment).items() if one.watts is not None}
        measured = by_pool(watts, gpu_pools()) if watts else {}
        for name, drawn in sorted(power_now(scenario).items())[:MOST_POOLS]:
            pools.append(pool_line(drawn, power_ahead(scenario, name, moment, moment + DAY, STEP), measured.get(name)))
    context = {"heading": "Power", "caps": lines, "pools": pools, "ratings": ratings(access), "may_cap": may_cap(access)}
    return render(request, "scheduler/power.html", context | energy_shown(access, moment))


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.OPERATE, everywhere=True)
def cap_new(request: HttpRequest) -> HttpResponse:
    start = now().replace(minute=0, second=0, microsecond=0, tzinfo=None)
    begun = {"zone": "UTC", "start": start, "pool": request.GET.get("pool", "")[:60]}
    return _written(request, access_of(request), None, begun)


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.OPERATE, everywhere=True)
def cap_edit(request: HttpRequest, public_id: str) -> HttpResponse:
    access = access_of(request)
    found = cap_for(access, public_id)
    return _written(request, access, found, written(found))


def _written(request: HttpRequest, access: Access, of: PowerCap | None, begun: dict[str, Any]) -> HttpResponse:
    form = CapForm(request.POST if request.method == "POST" else None, pools=pools_for(of.pool if of else ""), initial=begun)

    def look(given: dict[str, Any]) -> Preview:
        cap, faults = cap_drawn(given, now=now(), instead_of=of)
        if faults:
            raise ValidationError(faults)
        return preview_told(cap_preview(access=access, cap=cap, instead_of=of, now=now()))

    page = {
        "action": reverse("power_cap", args=[of.public_id]) if of else reverse("power_cap_new"),
        "cap": of,
        "heading": "Change power cap" if of else "New power cap",
        "send": "Save" if of else "Set cap",
    }
    return pooled_form(request, form, look=look, save=lambda: _saved(access, request, form, of), empty=TO_BE_SEEN, page=page)


def _saved(access: Access, request: HttpRequest, form: CapForm, of: PowerCap | None) -> HttpResponse:
    given = form.given()
    if of is None:
        made = cap_set(access=access, given=given, now=now())
    else:
        made = cap_change(access=access, one=of, given=given, revision=form.cleaned_data["revision"], now=now())
    messages.success(request, f"The cap of {told_watts(made.watts)} for {_whose(made)} is {'saved' if of else 'set'}.")
    return redirect("power")


def _whose(cap: PowerCap) -> str:
    return f"pool {cap.pool}" if cap.pool else pool_name("").lower()


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.OPERATE, everywhere=True)
def cap_remove_page(request: HttpRequest, public_id: str) -> HttpResponse:
    access = access_of(request)
    found = cap_for(access, public_id)
    form = ReasonForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        cap_remove(access=access, one=found, reason=form.cleaned_data["reason"], now=now())
        messages.success(request, f"The cap of {told_watts(found.watts)} for {_whose(found)} is removed.")
        return redirect("power")
    seen: CapPreview = cap_preview(access=access, cap=None, instead_of=found, now=now())
    above = [("Power", reverse("power")), (f"{told_watts(found.watts)}, {_whose(found)}", reverse("power_cap", args=[public_id]))]
    heading = f"Remove the cap of {told_watts(found.watts)}"
    return confirm(request, form, above=above, back=reverse("power"), heading=heading, send="Remove cap", effects=preview_told(seen))


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.OPERATE, everywhere=True)
def rating_edit(request: HttpRequest, gpu_type: str) -> HttpResponse:
    access = access_of(request)
    found = get_object_or_404(GpuType, pk=gpu_type)
    form = RatingForm(request.POST if request.method == "POST" else None, initial={"watts": found.rated_watts})
    if request.method == "POST" and form.is_valid():
        try:
            rating_set(access=access, gpu_type=gpu_type, watts=form.cleaned_data["watts"], reason=form.cleaned_data["reason"])
        except ValidationError as fault:
            show_faults(form, fault)
        else:
            messages.success(request, f"The rated power of {gpu_type} is saved.")
            return redirect("power")
    context = {"form": form, "heading": f"Rated power of {gpu_type}", "send": "Save", "back": reverse("power")}
    return render(request, "quotas/form.html", context, status=422 if form.is_bound else 200)
