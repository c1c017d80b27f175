"""Lists of the API: the same filters, search and order as the pages, a page at a time, without a schema between the rows and the wire."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import orjson
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from ninja import Header

from gpufleet.core.list_parameters import SIZES, parameters_of
from gpufleet.core.tables import Presenter, Table

__all__ = ["SIZES", "IdempotencyKey", "answered", "inlined", "listed", "moments", "parameters_of"]
# Of what makes something new: sent again under the same key after a time-out, it is answered again and not done again.
_KEY = "At most 100 printable characters, chosen by the caller: the same key is done once, and answered again."
IdempotencyKey = Annotated[str, Header("", alias="Idempotency-Key", description=_KEY)]


def listed(
    request: HttpRequest,
    table: Table,
    queryset: QuerySet[Any, Any],
    row: Callable[[Any], dict[str, Any]],
    presented: Presenter | None = None,
    **whole: Any,
) -> HttpResponse:
    """One page as JSON, with what is said of the `whole` list.

    What a person would be told above a list is a fault here: a program must not go on with rows that it did not ask for.
    """
    known = {"q", "sort", "size", "after", "before", *(item.key for item in table.filters)}
    unknown = {name: [f"Unknown parameter; there are {', '.join(sorted(known))}."] for name in request.GET if name not in known}
    if unknown:
        raise ValidationError(unknown)
    page = table.page(request.GET, queryset, sizes=SIZES, presented=presented)
    if page.faults:
        raise ValidationError(page.faults)
    return answered({**whole, "items": [row(item) for item in page.rows], "next": page.slice.after or None, "previous": page.slice.before or None})


def answered(value: Any) -> HttpResponse:
    return HttpResponse(orjson.dumps(value, option=orjson.OPT_UTC_Z), content_type="application/json")


def moments(events: Sequence[Any]) -> HttpResponse:
    """The history of a device."""
    rows = [
        {
            "at": event.at,
            "kind": event.kind,
            "gpu": event.gpu.public_id if event.gpu_id and event.gpu else None,
            "before": event.before,
            "after": event.after,
            "cause": event.cause,
            "by": event.actor_name,
        }
        for event in events
    ]
    return answered({"items": rows})


def inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema whose parts stand where they are used: references of its own would be looked for in the whole API's document."""
    parts = schema.get("$defs", {})

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            named = value.get("$ref", "")
            if named:
                return filled({**parts[named.rpartition("/")[2]], **{key: inner for key, inner in value.items() if key != "$ref"}})
            return {key: filled(inner) for key, inner in value.items() if key != "$defs"}
        return [filled(inner) for inner in value] if isinstance(value, list) else value

    found: dict[str, Any] = filled(schema)
    return found
