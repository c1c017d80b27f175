"""The queue: who waits, in the order in which the scheduler asks them, and why in that order."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.http import require_safe

from gpufleet.core.live.feed import feed_revision
from gpufleet.core.times import now
from gpufleet.web import Can, access_of, requires
from scheduler.presenters.queue import queue_lines
from scheduler.selectors.loop import standstill_now
from scheduler.selectors.queue import queue_part, turns_visible
from scheduler.services.forecasts.fitting import AGAIN_SECONDS, GROUNDS
from scheduler.views.jobs import job_tabs

SHOWN = 50
BEHIND_MS = 2000  # a page that shows an older order than the last decision looks again so soon


@require_safe
@requires(Can.SEE)
def queue_page(request: HttpRequest) -> HttpResponse:
    """`team` shows a subtree, `job` the page on which a job stands. While the fleet is being read the page says so and comes again by itself."""
    access, moment, version = access_of(request), now(), feed_revision()
    team = request.GET.get("team", "")[:500].strip().strip("/")
    context: dict[str, Any] = {"tabs": job_tabs(access, [], queue=True), "team": team, "pause": standstill_now(moment), "version": version}
    queue = GROUNDS.queue(moment)
    if queue is None:
        answer = render(request, "scheduler/queue.html", context)
        answer["Refresh"] = str(AGAIN_SECONDS)
        return answer
    visible = turns_visible(access, queue.turns, team)
    named = request.GET.get("job", "")
    at = next((place for place, turn in enumerate(visible) if turn.job.name == named), None)
    page = 1 + at // SHOWN if at is not None else _page(request.GET.get("page", ""), len(visible))
    part = queue_part(access, queue.turns, visible, first=(page - 1) * SHOWN, size=SHOWN)
    context |= {
        "queue": queue,
        "again_ms": BEHIND_MS if queue.is_behind() else None,
        "lines": queue_lines(access, part, moment),
        "part": part,
        "total": len(queue.turns),
        "named": named,
        "missed": named if named and at is None else "",
        "previous_href": _href(team, page - 1) if page > 1 else "",
        "next_href": _href(team, page + 1) if page * SHOWN < len(visible) else "",
    }
    return render(request, "scheduler/queue.html", context)


def _page(text: str, visible: int) -> int:
    """Which page is asked for; one behind the last is the last, as the queue may have become shorter."""
    asked = int(text) if text.isascii() and text.isdigit() and len(text) < 7 else 1
    return max(1, min(asked, -(-visible // SHOWN)))


def _href(team: str, page: int) -> str:
    said = ({"team": team} if team else {}) | ({"page": page} if page > 1 else {})
    return f"{reverse('queue')}{'?' if said else ''}{urlencode(said)}"
