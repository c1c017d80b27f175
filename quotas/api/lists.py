"""How lists are asked over the API, and how a bad question is refused."""

from typing import Any

from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest
from ninja import Schema
from pydantic import Field

from gpufleet.core.list_parameters import SIZES
from gpufleet.core.tables import Page, Table
from gpufleet.core.taken import Storable


class ReasonQuery(Storable, Schema):
    reason: str = Field("", description="Kept in the audit log, as far as it goes.")


def listed(table: Table, request: HttpRequest, rows: QuerySet[Any, Any]) -> Page:
    page = table.page(request.GET, rows, sizes=SIZES)
    if page.faults:
        raise ValidationError(page.faults)
    return page
