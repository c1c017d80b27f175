"""The last 7 days under a drafted tree: the address leads to the newest what-if of a change, or to a new one."""

from urllib.parse import urlencode

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from gpufleet.core.faults import Conflict
from gpufleet.core.times import now
from gpufleet.web import Can, access_of, requires
from quotas.selectors.changes import change_for
from scheduler.services.forecasts.what_ifs import may_ask, replay_ask, replay_cancel, replay_of
from scheduler.tasks import quota_replay


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.SEE)
def week(request: HttpRequest, public_id: str) -> HttpResponse:
    access, at = access_of(request), now()
    found = change_for(access, public_id)
    if request.method == "POST":
        access.must_somewhere(Can.EDIT_QUOTA)
        try:
            if request.POST.get("do") == "cancel":
                replay_cancel(access=access, change=found, now=at)
            else:
                replay_ask(access=access, change=found, now=at, begin=quota_replay.delay)
        except (Conflict, ValidationError) as fault:
            messages.error(request, str(fault))
    newest = replay_of(found, at)
    if newest is not None:
        return redirect("what-if", newest.public_id)
    if found.is_open and may_ask(access):
        return redirect(f"{reverse('what-if-new')}?{urlencode({'change': found.public_id})}")
    return redirect("what-ifs")
