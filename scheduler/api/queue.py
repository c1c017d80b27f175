"""The queue over HTTP: who waits, in the order in which the scheduler asks them."""

from datetime import datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse, QueryDict
from ninja import Query, Router, Schema
from pydantic import ConfigDict, Field

from gpufleet.core.list_parameters import filters_of
from gpufleet.core.tables import Page
from gpufleet.core.times import now
from gpufleet.web import Access, Can, access_of
from scheduler.api.fitting import FitReadingOut, being_read
from scheduler.api.lists import answered
from scheduler.jobs.lists import QUEUE
from scheduler.presenters.queue import QueueLine, queue_lines
from scheduler.selectors.jobs import jobs_listed
from scheduler.selectors.queue import queue_part, turns_matching, turns_visible
from scheduler.services.forecasts.grounds import GROUNDS

router = Router(tags=["Jobs"])
EXAMPLE: dict[str, Any] = {
    "items": [
        {
            "turn": 12,
            "turn_of_team": 3,
            "others_before": 4,
            "id": "j-417",
            "name": "train",
            "state": "queued",
            "quota": "acme/research/nlp",
            "class": "batch",
            "priority": 50,
            "gpus_milli": 8000,
            "submitted_at": "2026-03-02T09:14:05Z",
            "by": "priority",
            "why": "Behind j-398 of the same team: priority 80 goes before 50.",
            "waits_for": "Needs 8 GPUs on one node; the largest free node has 6.",
            "predicted_start": "2026-03-02T11:30:00Z",
            "predicted_at": "2026-03-02T10:02:05Z",
            "late_since": None,
        }
    ],
    "as_of": "2026-03-02T10:02:11Z",
    "waiting": 140,
    "visible": 38,
    "others_behind": 0,
    "next": "12",
}
BY = (
    "What decides against the job that is asked directly before. Of one team: `window`, `class`, `priority`, `submitted`. Of two nodes of the tree: "
    "`fair` (not above the fair share), `guarantee` (stays within it), `node_priority`, `nothing` (may count on something); "
    "`share_with` and `share` (the smaller part of what it may count on, with the next job and without), `counted_on` (the smaller node), `age`. "
    "`round`: another GPU type is asked for first. `first`: nobody is before it."
)


class QueuedOut(Schema):
    """`turn`: its place in the whole queue. `others_before`: jobs that are not listed between it and the one before."""

    turn: int
    turn_of_team: int
    others_before: int
    id: str
    name: str
    state: str = Field(description="As it is now: it may have started since.")
    quota: str
    job_class: str = Field(alias="class")
    priority: int
    gpus_milli: int
    submitted_at: datetime
    by: str = Field(description=BY)
    why: str = Field(description="The same in words; jobs and teams that the caller may not see are not named.")
    waits_for: str = Field(description="The first thing that stands in its way.")
    predicted_start: datetime | None
    predicted_at: datetime | None
    late_since: datetime | None


class QueueOut(Schema):
    """Jobs of the caller's subtrees. `waiting`: jobs in the whole queue, of which `visible` are his. `next` goes into `after`."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})

    items: list[QueuedOut]
    as_of: datetime
    waiting: int
    visible: int
    others_behind: int
    next: str | None


class QueueQuery(Schema):
    size: int = Field(100, ge=1, le=1000, description="Rows of a page")
    after: int = Field(0, ge=0, description="The `next` of the page before")


@router.get(
    "/jobs/queue",
    response={200: QueueOut, 202: FitReadingOut},
    by_alias=True,
    url_name="job_queue",
    openapi_extra={"parameters": filters_of(QUEUE)},
    summary="Waiting jobs in scheduling order",
)
def job_queue(request: HttpRequest, asked: Query[QueueQuery]) -> HttpResponse:
    """As of a few seconds ago, or up to a minute where nothing was decided.

    Jobs that are held, not due, backing off or waiting for others have no turn. Between two pages the queue may have
    changed. 202 says that the console is still reading the fleet: ask again, as `Retry-After` says.
    """
    access, moment = access_of(request), now()
    access.must_somewhere(Can.SEE)
    page = _filtered(access, request.GET)
    queue = GROUNDS.queue(moment)
    if queue is None:
        return being_read()
    visible = turns_visible(access, queue.turns)
    if page.is_filtered:
        visible = list(turns_matching(visible, page.queryset))
    first = sum(turn.number <= asked.after for turn in visible)
    part = queue_part(access, queue.turns, visible, first=first, size=asked.size)
    last = min(first + asked.size, len(visible))
    return answered(
        {
            "items": [_out(line) for line in queue_lines(access, part, moment)],
            "as_of": queue.as_of,
            "waiting": len(queue.turns),
            "visible": part.visible,
            "others_behind": part.behind,
            "next": str(visible[last - 1].number) if last < len(visible) else None,
        }
    )


def _filtered(access: Access, parameters: QueryDict) -> Page:
    """A program must not go on with rows that it did not ask for: what can't be read is a fault."""
    known = {"q", *QueueQuery.model_fields, *(item.key for item in QUEUE.filters)}
    unknown = {name: [f"Unknown parameter; there are {', '.join(sorted(known))}."] for name in parameters if name not in known}
    if unknown:
        raise ValidationError(unknown)
    parameters = parameters.copy()
    for name in QueueQuery.model_fields:
        parameters.pop(name, None)
    page = QUEUE.page_asked(parameters, jobs_listed(access))
    if page.faults:
        raise ValidationError(page.faults)
    return page


def _out(line: QueueLine) -> dict[str, Any]:
    job = line.job
    return {
        "turn": line.turn.number,
        "turn_of_team": line.turn.of_leaf,
        "others_before": line.others,
        "id": job.public_id,
        "name": job.name,
        "state": job.state,
        "quota": job.quota.path,
        "class": job.job_class,
        "priority": job.priority,
        "gpus_milli": job.gpus_milli,
        "submitted_at": job.submitted_at,
        "by": line.turn.by,
        "why": line.why,
        "waits_for": line.told_wait,
        "predicted_start": line.foreseen and line.foreseen.at,
        "predicted_at": line.foreseen and line.foreseen.told_at,
        "late_since": line.foreseen and line.foreseen.late_since,
    }
