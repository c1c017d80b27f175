"""When the change of a form begins (templates/_begins.html)."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from django.core.exceptions import ValidationError
from django.http import HttpRequest

from gpufleet.core.times import now
from scheduler.forms import BeginsForm
from scheduler.services.beginnings import begins_checked


def moment_of(request: HttpRequest) -> datetime | None:
    """None: at once. Unchecked: a form that is sent twice may come after its moment."""
    form = BeginsForm(request.POST)
    if not form.is_valid():
        raise ValidationError(form.errors.as_data())
    found: datetime | None = form.cleaned_data["begins"]
    return found


def begins_told(request: HttpRequest, faults: Mapping[str, Sequence[str]]) -> tuple[datetime | None, Sequence[str]]:
    """When the change begins, and what is wrong with that."""
    if "begins" in faults:
        return None, faults["begins"]
    try:
        found = moment_of(request)
        if found is not None:
            begins_checked(begins_at=found, now=now())
    except ValidationError as fault:
        return None, fault.messages
    return found, ()
