"""The audit log: who did what, when, with the values before and after."""

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from django.views.decorators.http import require_safe

from gpufleet.web import Can, access_of, requires
from quotas.lists import AUDIT
from quotas.presenters import changes_of
from quotas.selectors.audit import audit_entry_for, audit_list


@require_safe
@requires(Can.SEE_AUDIT)
def audit(request: HttpRequest) -> HttpResponseBase:
    return AUDIT.respond(
        request, audit_list(access_of(request)), "list.html", {"heading": "Audit log", "sub": "Entries are kept for ever and cannot be changed."}
    )


@require_safe
@requires(Can.SEE_AUDIT)
def audit_entry(request: HttpRequest, pk: int) -> HttpResponse:
    entry = audit_entry_for(access_of(request), pk)
    return render(request, "quotas/audit_entry.html", {"entry": entry, "changes": changes_of(entry), "both": bool(entry.before and entry.after)})
