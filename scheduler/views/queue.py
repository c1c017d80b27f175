"""The queue: who waits, in the order in which the scheduler asks them, and why in that order."""

from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import Any

from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import render
from django.utils.cache import patch_vary_headers
from django.views.decorators.http import require_safe

from gpufleet.core import csvfile
from gpufleet.core.live.feed import feed_revision
from gpufleet.core.tables import EVERYTHING, Page
from gpufleet.core.times import now
from gpufleet.web import Access, Can, access_of, requires
from scheduler.engine.tell.turns import Turn
from scheduler.jobs.lists import QUEUE
from scheduler.presenters.bulk import CHOICES
from scheduler.presenters.queue import QueueLine, queue_lines
from scheduler.selectors.loop import standstill_now
from scheduler.selectors.queue import queue_part, turns_matching, turns_visible
from scheduler.services.forecasts.grounds import AGAIN_SECONDS, GROUNDS, Queue
from scheduler.views.jobs import job_tabs
from scheduler.views.queue_filters import queue_asked
from scheduler.views.view_tabs import opened_with, views_shown

BEHIND_MS = 2000  # a page that shows an older order than the last decision looks again so soon


@require_safe
@requires(Can.SEE)
def queue_page(request: HttpRequest) -> HttpResponseBase:
    """`job` names the page on which a job stands. While the fleet is being read the page says so and comes again by itself."""
    access, moment, version = access_of(request), now(), feed_revision()
    if (opened := opened_with(access, request, QUEUE)) is not None:
        return opened
    page = queue_asked(access, request.GET)
    queue = GROUNDS.queue(moment)
    as_file = request.GET.get("format") == "csv"
    context: dict[str, Any] = {
        "tabs": cache(lambda: job_tabs(access, [], queue=True)),
        "views": cache(lambda: views_shown(access, request, QUEUE)),
        "pause": cache(lambda: standstill_now(moment)),
        "version": version,
        "page": page,
    }
    if queue is None:
        answer = render(request, "scheduler/queue.html", context, status=503 if as_file else 200)
        answer["Refresh"] = str(AGAIN_SECONDS)
        if request.htmx:  # type: ignore[attr-defined]
            answer["HX-Redirect"] = request.get_full_path()  # in place of the list alone, which can't say this
        return answer
    mine = turns_visible(access, queue.turns)
    visible = turns_matching(mine, page.queryset) if page.is_filtered else mine
    if as_file:
        return _file(request, access, queue, visible, moment)
    named = request.GET.get("job", "")
    at = next((place for place, turn in enumerate(visible) if turn.job.name == named), None)
    number = 1 + at // page.size if at is not None else _number(request.GET.get("page", ""), len(visible), page.size)
    part = queue_part(access, queue.turns, visible, first=(number - 1) * page.size, size=page.size)
    page.chooses = access.can_somewhere(Can.SUBMIT) or access.can_somewhere(Can.MANAGE_JOBS)
    context |= {
        "queue": queue,
        "again_ms": BEHIND_MS if queue.is_behind() else None,
        "lines": queue_lines(access, part, moment),
        "part": part,
        "total": len(queue.turns),
        "named": named,
        "missed": named if named and all(turn.job.name != named for turn in mine) else "",
        "previous_href": _href(page, number - 1) if number > 1 else "",
        "next_href": _href(page, number + 1) if number * page.size < len(visible) else "",
        "bulk_actions": CHOICES,
        "of_queue": True,
    }
    partial = request.htmx and not request.htmx.history_restore_request and request.htmx.target == page.region  # type: ignore[attr-defined]
    answer = render(request, "scheduler/_queue_region.html" if partial else "scheduler/queue.html", context)
    if partial:
        answer["HX-Push-Url"] = _href(page, number)
    patch_vary_headers(answer, ["HX-Request", "HX-Target"])
    return answer


def _number(text: str, visible: int, size: int) -> int:
    """Which page is asked for; one behind the last is the last, as the queue may have become shorter."""
    asked = int(text) if text.isascii() and text.isdigit() and len(text) < 7 else 1
    return max(1, min(asked, -(-visible // size)))


def _href(page: Page, number: int) -> str:
    href = page.href(page=str(number) if number > 1 else "")
    return href if href != "?" else EVERYTHING


def _file(request: HttpRequest, access: Access, queue: Queue, visible: Sequence[Turn], moment: datetime) -> HttpResponseBase:
    """All of the queue that matches, in its order."""

    def chunk(place: str) -> tuple[Sequence[QueueLine], str]:
        first = int(place or 0)
        part = queue_part(access, queue.turns, visible, first=first, size=csvfile.CHUNK)
        following = first + csvfile.CHUNK
        return queue_lines(access, part, moment), str(following) if following < len(visible) else ""

    columns = QUEUE.columns
    return csvfile.answer(request, "queue.csv", [column.label for column in columns], chunk, lambda row: [column.read(row) for column in columns])
