"""What the pages that change a running service have in common: a form beside what it comes to, and how its faults are told."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from gpufleet.core.faults import Conflict, Missing, Stale
from gpufleet.core.previews import Preview
from gpufleet.web import Access
from scheduler.models import ENDED, Job
from scheduler.selectors.jobs import job_for, must_steer
from scheduler.selectors.scaling import is_service
from scheduler.services.jobs.steering import REASON_LENGTH
from scheduler.views.nodes import messages_by_field

Typed = Mapping[str, str]
STALE = "It has changed since you opened this page. Look at it, then apply again."


def service_for(access: Access, public_id: str) -> Job:
    """A service that goes on, or will, for those who may steer it."""
    job = job_for(access, public_id)
    must_steer(access, job)
    if not is_service(job) or job.state in ENDED:
        raise Missing(f"{public_id} is not a service that goes on.")
    return job


def service_change(access: Access, job: Job, typed: Typed, act: Callable[[], HttpResponse], form: Callable[..., HttpResponse]) -> HttpResponse:
    """What `act` answers, or the form once more with what is wrong. A page that was only opened tells it, too, and is no failure."""
    try:
        return act()
    except ValidationError as fault:
        return form(job, typed, faults=messages_by_field(fault), status=422)
    except Stale:
        return form(job_for(access, job.public_id), {**typed, "revision": ""}, faults={"all": [STALE]}, status=409)
    except Conflict as fault:
        return form(job_for(access, job.public_id), typed, faults={"all": [str(fault)]}, status=409 if typed else 200)


def service_form(
    request: HttpRequest,
    job: Job,
    typed: Typed,
    template: str,
    context: Mapping[str, Any],
    *,
    own_faults: Sequence[str],
    faults: Mapping[str, list[str]] | None = None,
    preview: Preview | None = None,
    status: int = 200,
) -> HttpResponse:
    """`own_faults`: the fields at which `template` tells them. The others stand above its buttons."""
    told = [message for messages in (faults or {}).values() for message in messages]
    shared = {
        "job": job,
        "reason": typed.get("reason", ""),
        "reason_optional": True,
        "reason_most": REASON_LENGTH,
        "faults": faults or {},
        "own_faults": own_faults,
        "preview": preview or Preview(sentences=(), faults=told),
        "revision": typed.get("revision") or job.revision,
    }
    return render(request, template, {**shared, **context}, status=status)
