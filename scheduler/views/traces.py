"""Traces of the what-if lab: listed, added from files or from this fleet's past, downloaded and removed."""

from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from gpufleet.core.faults import Conflict
from gpufleet.core.live.feed import feed_revision
from gpufleet.core.times import now
from gpufleet.web import Can, access_of, requires
from scheduler.imports.documents import Unreadable, decoded
from scheduler.selectors.traces import queues_seen, trace_file, trace_for, traces_listed
from scheduler.services.forecasts.own_traces import own_trace_ask
from scheduler.services.forecasts.traces import trace_add, trace_remove
from scheduler.services.forecasts.what_ifs import may_ask, must_ask
from scheduler.tasks import own_trace
from scheduler.traces.rows import File
from scheduler.whatifs.forms import OwnTraceForm, TraceForm
from scheduler.whatifs.lists import TRACES
from scheduler.whatifs.traces import FORMATS, MOST_BYTES, OWN, TOO_LARGE


@require_safe
@requires(Can.SEE)
def trace_list(request: HttpRequest) -> HttpResponseBase:
    access = access_of(request)
    context: dict[str, Any] = {"heading": "Traces", "sub": "Jobs of other fleets, or of this one's past, for what-ifs."}
    context |= {"version": feed_revision(), "can_add": may_ask(access)}
    return TRACES.respond(request, traces_listed(access), "scheduler/traces.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.SEE)
def trace_new(request: HttpRequest) -> HttpResponse:
    access = access_of(request)
    must_ask(access)
    if request.method != "POST":
        return _new(request)
    form, status = TraceForm(request.POST, request.FILES), 422
    if form.is_valid():
        sent = form.cleaned_data
        try:
            files = _texts(sent["files"])
            made = trace_add(access=access, title=sent["title"], kind=sent["kind"], files=files, shapes=sent["nodes"], limit=sent["limit"], now=now())
        except ValidationError as fault:
            for field, texts in fault.message_dict.items():
                form.add_error(field, texts)
        except Conflict as fault:
            form.add_error(None, str(fault))
            status = 409
        else:
            messages.success(request, f"{made.title} was added.")
            return redirect("trace", made.public_id)
    return _new(request, form=form, status=status)


@require_POST
@requires(Can.SEE)
def trace_own_write(request: HttpRequest) -> HttpResponse:
    """The last days of this fleet, which a worker writes as a trace."""
    access = access_of(request)
    must_ask(access)
    own, status = OwnTraceForm(request.POST, prefix=OWN), 422
    if own.is_valid():
        sent = own.cleaned_data
        try:
            made = own_trace_ask(access=access, days=sent["days"], title=sent["title"], now=now(), begin=own_trace.delay)
        except ValidationError as fault:
            own.add_error(None, fault)
        except Conflict as fault:
            own.add_error(None, str(fault))
            status = 409
        else:
            return redirect("trace", made.public_id)
    return _new(request, own=own, status=status)


def _new(request: HttpRequest, *, form: TraceForm | None = None, own: OwnTraceForm | None = None, status: int = 200) -> HttpResponse:
    context = {"form": form or TraceForm(), "own": own or OwnTraceForm(prefix=OWN)}
    return render(request, "scheduler/trace_new.html", context, status=status)


def _texts(uploads: list[Any]) -> list[File]:
    if sum(upload.size for upload in uploads) > MOST_BYTES:
        raise ValidationError({"files": [TOO_LARGE]})
    found = []
    for upload in uploads:
        try:
            found.append(File(upload.name, decoded(upload.read())))
        except Unreadable as unreadable:
            raise ValidationError({"files": [f"{upload.name}:{fault}." for fault in unreadable.faults]}) from unreadable
    return found


@require_safe
@requires(Can.SEE)
def trace_page(request: HttpRequest, public_id: str) -> HttpResponse:
    access, version = access_of(request), feed_revision()
    found = trace_for(access, public_id)
    queues = list(filter(queues_seen(access), found.queues))
    context = {
        "found": found,
        "version": version,
        "queues": queues,
        "format": FORMATS.get(found.kind, found.kind),
        "may_ask": may_ask(access),
        "may_download": access.can_everywhere(Can.SEE),
    }
    return render(request, "scheduler/trace.html", context)


@require_safe
@requires(Can.SEE, everywhere=True)
def trace_download(request: HttpRequest, public_id: str) -> HttpResponse:
    """The scenario as `gpufleet simulate` reads it."""
    content = trace_file(access_of(request), public_id)
    return HttpResponse(content, content_type="application/json", headers={"Content-Disposition": f'attachment; filename="trace-{public_id}.json"'})


@require_POST
@requires(Can.SEE)
def trace_remove_write(request: HttpRequest, public_id: str) -> HttpResponse:
    access = access_of(request)
    found = trace_for(access, public_id)
    trace_remove(access=access, trace=found)
    messages.success(request, f"{found.title} was removed. What-ifs of it keep their results.")
    return redirect("traces")
