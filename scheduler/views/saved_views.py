"""Saved views of a list: kept from the list, and changed on a page of their own."""

from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from dashboards.viewed_lists import VIEWED
from gpufleet.core.faults import Conflict
from gpufleet.core.tables import columns_kept
from gpufleet.core.times import now
from gpufleet.web import Access, Can, access_of, requires
from quotas.selectors.nodes import leaves_where
from scheduler.jobs.view_queries import Viewed, query_said, with_columns
from scheduler.models import SavedView, ViewedList
from scheduler.selectors.saved_views import is_mine, may_unshare, view_for, views_page
from scheduler.services.jobs.saved_views import MOST_VIEWS, view_change, view_remove, view_save
from scheduler.views.nodes import messages_by_field

TEAMS_SHOWN = 200


def _address(view: SavedView) -> str:
    # With nothing to say it still says something: without, the list would open with the default.
    return f"{reverse(view.list)}?{view.query or 'q='}"


def _views_address(listed: str) -> str:
    return f"{reverse('job_views')}?list={listed}"


def _listed(given: str | None) -> Viewed:
    """The list that an address or a form names; jobs where it names none."""
    if given not in (None, *VIEWED):
        raise Http404("There are no saved views of such a list.")
    return VIEWED[given or ViewedList.JOBS]


@require_safe
@requires(Can.SEE)
def view_list(request: HttpRequest) -> HttpResponse:
    viewed = _listed(request.GET.get("list"))
    try:
        return _page(request, access_of(request), viewed)
    except ValidationError:
        return redirect(_views_address(viewed.table.name))  # a place that is none: the beginning is a better answer


@require_POST
@requires(Can.SEE)
def view_new(request: HttpRequest) -> HttpResponse:
    """Keep what the list shows now, with the columns that somebody chose for it."""
    access, viewed = access_of(request), _listed(request.POST.get("list"))
    asked = {key: request.POST.get(key, "") for key in ("name", "query", "shared_with")}
    chosen = columns_kept(request, viewed.table.name)
    asked["query"] = with_columns(asked["query"], viewed.table.columns_spelt(chosen) if chosen else "")
    try:
        view = view_save(access=access, viewed=viewed, is_default="is_default" in request.POST, now=now(), **asked)
    except ValidationError as fault:
        return _page(request, access, viewed, new=asked | {"is_default": "is_default" in request.POST}, faults=messages_by_field(fault), status=422)
    messages.success(request, f"The view {view.name} is saved.")
    return redirect(_address(view))


@require_POST
@requires(Can.SEE)
def view_edit(request: HttpRequest, public_id: str) -> HttpResponse:
    access = access_of(request)
    view = view_for(access, public_id)
    viewed = VIEWED[view.list]
    asked: dict[str, Any] = {key: request.POST.get(key, "") for key in ("name", "shared_with")}
    asked |= {"is_default": "is_default" in request.POST, "seen": _seen(request)}
    try:
        view = view_change(access=access, view=view, viewed=viewed, now=now(), **asked)
    except ValidationError as fault:
        return _page(request, access, viewed, edited=public_id, faults=messages_by_field(fault), status=422)
    except Conflict as fault:
        return _page(request, access, viewed, edited=public_id, faults={"all": [str(fault)]}, status=409)
    messages.success(request, f"The view {view.name} is changed.")
    return redirect(_views_address(view.list))


@require_POST
@requires(Can.SEE)
def view_end(request: HttpRequest, public_id: str) -> HttpResponse:
    access = access_of(request)
    view = view_for(access, public_id)
    gone = view_remove(access=access, view=view)
    messages.success(request, f"The view {view.name} is {'removed' if gone else 'no longer shared'}.")
    return redirect(_views_address(view.list))


def _seen(request: HttpRequest) -> int | None:
    """The revision that the form shows: what somebody else has unshared since is not shared again by an old page."""
    text = request.POST.get("revision", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _page(
    request: HttpRequest,
    access: Access,
    viewed: Viewed,
    *,
    new: dict[str, Any] | None = None,
    edited: str = "",
    faults: dict[str, list[str]] | None = None,
    status: int = 200,
) -> HttpResponse:
    rows = []
    table = viewed.table
    page = views_page(access, table.name, after="" if request.method == "POST" else request.GET.get("after", "")[:2000])
    for view in page.rows:
        typed = view.public_id == edited
        rows.append(
            {
                "view": view,
                "address": _address(view),
                "said": query_said(view.query, table),
                "mine": is_mine(access, view),
                "may_unshare": may_unshare(access, view),
                "name": request.POST.get("name", "") if typed else view.name,
                "shared_with": request.POST.get("shared_with", "") if typed else view.shared_with.path if view.shared_with else "",
                "faults": faults if typed else {},
            }
        )
    places = list(dict.fromkeys([*access.paths(Can.SUBMIT), *access.paths(Can.MANAGE_JOBS), *leaves_where(access, Can.SUBMIT)]))
    context = {
        "table": table,
        "lists": [{"label": label, "href": _views_address(name), "current": name == table.name} for name, label in ViewedList.choices],
        "mine": [row for row in rows if row["mine"]],
        "shared": [row for row in rows if not row["mine"]],
        "places": [path for path in places if path][:TEAMS_SHOWN],
        "new": new,
        "faults": faults if new else {},
        "most": MOST_VIEWS,
        "after": page.after,
    }
    return render(request, "scheduler/views.html", context, status=status)
