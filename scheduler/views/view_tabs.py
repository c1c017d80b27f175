"""Saved views on the page of their list: its tabs, and the one that it opens with."""

from typing import Any

from django.http import HttpRequest, HttpResponseRedirect
from django.shortcuts import redirect

from gpufleet.core.tables import Table
from gpufleet.web import Access
from scheduler.jobs.view_queries import query_spelt
from scheduler.selectors.saved_views import is_mine, view_default, views_visible


def opened_with(access: Access, request: HttpRequest, table: Table) -> HttpResponseRedirect | None:
    """Where a list leads that is opened by its bare address: to the view that the person made its default."""
    if request.GET or request.htmx:  # type: ignore[attr-defined]
        return None
    chosen = view_default(access, table.name)
    return redirect(f"{request.path}?{chosen.query}") if chosen is not None and chosen.query else None


def views_shown(access: Access, request: HttpRequest, table: Table) -> list[dict[str, Any]]:
    """Links to what people keep of a list. One that says nothing names an empty search, as the bare address opens the default."""
    shown = query_spelt(request.GET, table)
    return [
        {"view": view, "href": f"?{view.query or 'q='}", "current": view.query == shown, "mine": is_mine(access, view)}
        for view in views_visible(access, table.name)
    ]
