"""What a view of a list says: its filters, order and columns, spelt in one way, read from an address and told in words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from django.core.exceptions import TooManyFieldsSent, ValidationError
from django.db.models import Model
from django.http import QueryDict
from pydantic import Field

from gpufleet.core.filters import Choice
from gpufleet.core.tables import COLUMNS, Table

QUERY_LENGTH = 2000
# An address says more than what is kept of it: the page, and fields without a value.
ADDRESS_LENGTH = 4 * QUERY_LENGTH
_Value = Annotated[str, Field(max_length=QUERY_LENGTH)]
# The parameters of the list as programs send them.
Parameters = Annotated[dict[str, _Value | Annotated[list[_Value], Field(max_length=100)]], Field(max_length=40)]
# Of an address, what says which page of the list is shown.
OF_THE_PAGE = ("after", "before", "rows", "format")


@dataclass(frozen=True, slots=True)
class Viewed:
    """A list of which views are kept, and the model of its rows."""

    table: Table
    model: type[Model]


def _keys(table: Table) -> tuple[str, ...]:
    return ("q", "sort", "size", COLUMNS, *(item.key for item in table.filters))


def query_spelt(parameters: QueryDict, table: Table) -> str:
    """The same view is always spelt alike."""
    spelt = QueryDict(mutable=True)
    for key in _keys(table):
        values = list(dict.fromkeys(value for value in parameters.getlist(key) if value))
        if values and key == COLUMNS:
            spelt[key] = table.columns_spelt(values[-1].split("."))
        elif values:
            spelt.setlist(key, sorted(values) if key not in ("q", "sort", "size") else values[-1:])
    return spelt.urlencode()


def query_read(text: str, viewed: Viewed) -> str:
    """As it is kept; a `ValidationError` names what the list could not read."""
    if len(text) > ADDRESS_LENGTH:
        raise ValidationError({"query": [f"It says more than {QUERY_LENGTH:,} characters."]})
    try:
        parameters = QueryDict(text.strip().removeprefix("?"), mutable=True)
    except TooManyFieldsSent as fault:
        raise ValidationError({"query": ["It names more fields than can be read."]}) from fault
    for key in OF_THE_PAGE:
        parameters.pop(key, None)
    keys = _keys(viewed.table)
    faults = [f"There is no filter {key[:40]}; there are {', '.join(keys)}." for key in parameters if key not in keys]
    faults += viewed.table.page_asked(parameters, viewed.model._default_manager.none()).problems
    spelt = query_spelt(parameters, viewed.table)
    if len(spelt) > QUERY_LENGTH:
        faults.append(f"It says more than {QUERY_LENGTH:,} characters.")
    if faults:
        raise ValidationError({"query": faults})
    return spelt


def query_of(parameters: Mapping[str, str | Sequence[str]]) -> str:
    found = QueryDict(mutable=True)
    for key, value in parameters.items():
        found.setlist(key, [value] if isinstance(value, str) else list(value))
    return found.urlencode()


def parameters_in(query: str) -> dict[str, list[str]]:
    """As programs ask for the list. Its columns are of the page alone."""
    return {key: list(values) for key, values in QueryDict(query).lists() if key != COLUMNS}


def with_columns(query: str, keys: str) -> str:
    """The same with columns, where it names none; `keys` is empty where none were chosen."""
    if not keys:
        return query
    try:
        found = QueryDict(query.strip().removeprefix("?"), mutable=True)
    except TooManyFieldsSent:
        return query  # `query_read` says so
    if not found.get(COLUMNS):
        found[COLUMNS] = keys
    return found.urlencode()


def columns_in(query: str) -> str:
    return QueryDict(query).get(COLUMNS, "")


def _order_said(sort: str, table: Table) -> list[str]:
    labels = {column.key: column.label for column in table.columns}
    keys = [part for part in sort.split(",") if part]
    return [f"{labels.get(key.removeprefix('-'), key)}{' turned round' if key.startswith('-') else ''}" for key in keys]


def query_said(query: str, table: Table) -> str:
    """`Jobs: Waiting; Team: acme/nlp`."""
    labels = {item.key: item for item in table.filters}
    parts = []
    for key, values in QueryDict(query).lists():
        item = labels.get(key)
        words = dict(item.choices) if isinstance(item, Choice) and not callable(item.choices) else {}
        label = item.label if item is not None else {"q": "Search", "sort": "Order", "size": "Rows", COLUMNS: "Columns"}.get(key, key)
        if key == "sort":
            told = _order_said(values[-1], table)
        elif key == COLUMNS:
            told = [column.label for column in table.chosen(values[-1].split("."))]
        else:
            told = [words.get(value, value) for value in values]
        parts.append(f"{label}: {', '.join(told)}")
    return "; ".join(parts) or f"All {table.plural_noun}"
