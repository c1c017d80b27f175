"""Saved views of lists over HTTP."""

from datetime import datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from ninja import Query, Router, Schema, Status
from pydantic import Field

from dashboards.viewed_lists import VIEWED
from gpufleet.core.etags import IF_MATCH, revision_wanted, stamped
from gpufleet.core.tables import COLUMNS
from gpufleet.core.taken import Taken
from gpufleet.core.times import now
from gpufleet.web import Access, access_of
from scheduler.api.lists import answered
from scheduler.jobs.view_queries import Parameters, columns_in, parameters_in, query_of, with_columns
from scheduler.models import SavedView, ViewedList
from scheduler.selectors.saved_views import MOST_SHOWN, is_mine, view_for, views_page
from scheduler.services.jobs.saved_views import view_change, view_remove, view_save

router = Router(tags=["Jobs"])
_Parameters = dict[str, list[str]]


class ViewOut(Schema):
    """`parameters` go into `GET` of its list, such as `/jobs`, as they are.

    `default`: the console opens its owner's list with it. `revision`: as an `ETag` in `If-Match`.
    """

    id: str
    list: ViewedList
    name: str
    parameters: _Parameters
    owner: str
    mine: bool
    shared_with: str | None
    default: bool
    changed_at: datetime
    revision: int


class ViewsOut(Schema):
    items: list[ViewOut]
    next: str | None


class ViewsQuery(Schema):
    list: ViewedList = Field(ViewedList.JOBS, description="The list of which they are views")
    size: int = Field(MOST_SHOWN, ge=1, le=1000, description="Rows of a page")
    after: str = Field("", max_length=2000, description="The `next` of the page before")


class ViewIn(Taken):
    list: ViewedList = Field(ViewedList.JOBS, description="The list of which it is a view: it stays so.")
    name: str = Field(max_length=200)
    parameters: Parameters = Field(default_factory=dict, description="As of `GET /jobs`, or that of another `list`: filters, q, sort and size.")
    shared_with: str = Field("", max_length=500, description="The path of a node: visible to everyone with a role in its subtree.")
    default: bool = False


class ViewChange(Taken):
    """What is not named stays. An empty `shared_with` shares it with nobody."""

    name: str | None = Field(None, max_length=200)
    parameters: Parameters | None = None
    shared_with: str | None = Field(None, max_length=500)
    default: bool | None = None


NEW = {
    "urgent": {
        "summary": "What waits of a team, the largest first",
        "value": {
            "name": "NLP waits",
            "parameters": {"phase": "waiting", "team": "acme/research/nlp", "sort": "-gpus"},
            "shared_with": "acme/research/nlp",
        },
    }
}


@router.get("/jobs/views", response=ViewsOut, url_name="job_views", summary="Saved views of a list")
def job_views(request: HttpRequest, asked: Query[ViewsQuery]) -> HttpResponse:
    """One's own by name, then those that others share."""
    access = access_of(request)
    page = views_page(access, asked.list, size=asked.size, after=asked.after)
    return answered({"items": [_told(access, view) for view in page.rows], "next": page.after or None})


@router.post(
    "/jobs/views",
    response={201: ViewOut},
    url_name="job_views",
    openapi_extra={"requestBody": {"content": {"application/json": {"examples": NEW}}}},
    summary="Save a view",
)
def job_view_create(request: HttpRequest, body: ViewIn) -> HttpResponse:
    """Fifty of a list at most, each name once. To share it one has to submit or manage jobs there."""
    access = access_of(request)
    facts = {"name": body.name, "query": _query(body.parameters), "shared_with": body.shared_with, "is_default": body.default}
    answer = _answer(access, view_save(access=access, viewed=VIEWED[body.list], now=now(), **facts))  # type: ignore[arg-type]
    answer.status_code = 201
    return answer


@router.patch("/jobs/views/{public_id}", response=ViewOut, url_name="job_view", openapi_extra=IF_MATCH, summary="Change a view")
def job_view_update(request: HttpRequest, public_id: str, body: ViewChange) -> HttpResponse:
    """With `If-Match` only if nothing has changed."""
    access = access_of(request)
    view = view_for(access, public_id)
    query = None if body.parameters is None else with_columns(_query(body.parameters), columns_in(view.query))
    changed = view_change(
        access=access,
        view=view,
        viewed=VIEWED[view.list],
        name=body.name,
        query=query,
        shared_with=body.shared_with,
        is_default=body.default,
        seen=revision_wanted(request),
        now=now(),
    )
    return _answer(access, changed)


@router.delete("/jobs/views/{public_id}", response={204: None}, url_name="job_view", openapi_extra=IF_MATCH, summary="Remove a view")
def job_view_delete(request: HttpRequest, public_id: str) -> Status[None]:
    """One's own. Of somebody else's it ends that it is shared, for those who manage jobs of the team that it is shared with."""
    access = access_of(request)
    view_remove(access=access, view=view_for(access, public_id), seen=revision_wanted(request))
    return Status(204, None)


def _query(parameters: Parameters) -> str:
    if COLUMNS in parameters:
        raise ValidationError({"parameters": ["Columns are chosen in the console; the API has no parameter for them."]})
    return query_of(parameters)


def _answer(access: Access, view: SavedView) -> HttpResponse:
    return stamped(answered(_told(access, view)), view.revision)


def _told(access: Access, view: SavedView) -> dict[str, Any]:
    return {
        "id": view.public_id,
        "list": view.list,
        "name": view.name,
        "parameters": parameters_in(view.query),
        "owner": view.owner.username,
        "mine": is_mine(access, view),
        "shared_with": view.shared_with.path if view.shared_with else None,
        "default": view.is_default and is_mine(access, view),
        "changed_at": view.changed_at,
        "revision": view.revision,
    }
