"""The page that sets or changes what holds for a pool over time, a power cap or an energy rate: its form, and a preview of what it comes to."""

from collections.abc import Callable
from typing import Any

from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from gpufleet.core.faults import Conflict
from gpufleet.core.previews import Preview
from quotas.forms import faults_of
from scheduler.power.forms import PooledForm
from scheduler.selectors.power import pools_known


def pools_for(pool: str) -> list[str]:
    """Those that may be chosen: also one that has no nodes any more, where it is stated already."""
    return sorted({*pools_known(), *([pool] if pool else [])})


def pooled_form(
    request: HttpRequest,
    form: PooledForm,
    *,
    look: Callable[[dict[str, Any]], Preview],
    save: Callable[[], HttpResponse],
    empty: Preview,
    page: dict[str, Any],
) -> HttpResponse:
    """The form, and what it comes to as `look` tells it of what is given; once it is sent, it is saved."""
    looks, told, status = request.POST.get("do") == "look", empty, 200
    if form.is_bound and form.is_valid():
        try:
            if not looks:
                return save()
            told = look(form.given())
        except ValidationError as fault:
            form.show(dict(faults_of(fault)))
            status = 200 if looks else 422
        except Conflict as fault:
            form.add_error(None, str(fault))
            status = 409
    elif form.is_bound and not looks:
        status = 422
    context = {
        "form": form,
        "preview": Preview(sentences=(), faults=form.unclear) if form.is_bound and form.unclear else told,
        "reason": form["reason"].value() or "",
        "reason_optional": True,
        "reason_most": form.fields["reason"].max_length,  # type: ignore[attr-defined]
        "faults": {"reason": form.errors["reason"]} if "reason" in form.errors else {},
    }
    return render(request, "scheduler/power_cap.html", context | page, status=status)
