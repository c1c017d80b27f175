"""The last 7 days under a drafted tree: asked for, followed, cancelled, and read by team."""

from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from gpufleet.core.faults import Conflict
from gpufleet.core.live.feed import feed_revision
from gpufleet.core.times import now
from gpufleet.web import Can, access_of, requires
from quotas.selectors.changes import change_for
from scheduler.services.forecasts.replays import HOURS, replay_ask, replay_cancel, replay_of, replay_teams
from scheduler.tasks import quota_replay


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.SEE)
def week(request: HttpRequest, public_id: str) -> HttpResponse:
    access, version, at = access_of(request), feed_revision(), now()
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
        return redirect("quota-week", public_id)
    replay = replay_of(found, at)
    context: dict[str, Any] = {
        "version": version,
        "change": found,
        "replay": replay,
        "of_hours": HOURS,
        "teams": replay_teams(access, replay) if replay is not None and replay.state == "done" else [],
        "may_ask": found.is_open and access.can_somewhere(Can.EDIT_QUOTA) and not (replay is not None and replay.goes_on),
        "is_old": replay is not None and replay.change_revision != found.revision,
    }
    return render(request, "quotas/week.html", context)
