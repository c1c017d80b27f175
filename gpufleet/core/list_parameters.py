"""How the API asks for a list: the same parameters as in the address of the list's page, told as precisely as they are read."""

from collections.abc import Sequence
from typing import Any

from gpufleet.core.filters import Choice, Filter, Flag, Moment
from gpufleet.core.tables import Table
from gpufleet.core.taken import STORABLE

SIZES = range(1, 1001)
WORDS = {"type": "string"} | STORABLE


def parameters_of(table: Table) -> dict[str, Any]:
    """The list's parameters for the API's description."""
    found = filters_of(table)
    sortable = [column.key for column in table.columns if column.sort]
    found.append(_parameter("sort", f"Comma-separated, - turns round: {', '.join(sortable)}", {"type": "string", "pattern": _order(sortable)}))
    size = {"type": "integer", "minimum": SIZES.start, "maximum": SIZES.stop - 1, "default": 100}
    found.append(_parameter("size", "Rows of a page", size))
    found.append(_parameter("after", "The `next` of the page before", {"type": "string"}))
    found.append(_parameter("before", "The `previous` of the page behind; not with `after`", {"type": "string"}))
    return {"parameters": found}


def filters_of(table: Table) -> list[dict[str, Any]]:
    """Those that say which rows match."""
    found = [_filter(item) for item in table.filters]
    # A list without a search takes words and does not mind them.
    found.append(_parameter("q", "Words that must all be found", WORDS) if table.search else _parameter("q", "Not searched here", {"type": "string"}))
    return found


def _filter(item: Filter) -> dict[str, Any]:
    if isinstance(item, Choice):
        # An empty value says nothing, as in the forms of the pages.
        values = () if callable(item.choices) else item.choices
        allowed = {"type": "string", **({"enum": [*(value for value, _ in values), ""]} if values else {})}
        return _parameter(item.key, f"{item.label}; may be repeated", {"type": "array", "items": allowed})
    if isinstance(item, Flag):
        return _parameter(item.key, f"{item.label}: {item.yes} or not", {"type": "string", "enum": ["yes", "no", ""]})
    if isinstance(item, Moment):
        moments = [{"type": "string", "format": "date"}, {"type": "string", "format": "date-time"}, {"type": "string", "maxLength": 0}]
        return _parameter(item.key, f"{item.label}: a day or a moment in UTC", {"anyOf": moments})
    return _parameter(item.key, item.label, WORDS)


def _order(columns: Sequence[str]) -> str:
    column = f"-?({'|'.join(columns)})"
    return f"^({column}(,{column})*)?$"


def _parameter(name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"in": "query", "name": name, "description": description, "required": False, "schema": schema}
