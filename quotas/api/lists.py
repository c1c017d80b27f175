"""How lists are asked over the API, and how a bad question is refused."""

from typing import Any

from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest
from ninja import Schema
from pydantic import Field

from gpufleet.core.tables import Page, Table


class ListQuery(Schema):
    """How lists are asked: the same parameters as in the address of the list's page."""

    q: str = Field("", description="Words to search for.")
    sort: str = Field("", description="Column, with - in front for falling order.")
    size: int = Field(100, description="25, 50, 100, 250 or 500 rows.")
    after: str = Field("", description="The `next` of the page before.")


class ReasonQuery(Schema):
    reason: str = Field("", description="Kept in the audit log, as far as it goes.")


def listed(table: Table, request: HttpRequest, rows: QuerySet[Any, Any]) -> Page:
    page = table.page(request.GET, rows)
    if page.problems:
        raise ValidationError(page.problems)
    return page
