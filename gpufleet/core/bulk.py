"""Many rows in one statement, in the form that the driver takes and gives fastest.

The ORM's own ways look at each value several times, which was most of what a busy tick did (docs/operate/loop.md).
"""

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db import connection, models
from django.db.models import Lookup, QuerySet
from django.db.models.lookups import IContains

from gpufleet.core.prepared import Given, times_as_text


def rows_insert(model: type[models.Model], names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Insert rows given as values in the order of `names` (attributes such as `job_id`). Other columns get their default; keys are not told."""
    named = [next(field for field in model._meta.concrete_fields if field.attname == name) for name in names]
    rest = [field for field in model._meta.concrete_fields if field not in named and not field.primary_key and not field.null]
    constants = [field.get_default() for field in rest]
    fields = [*named, *rest]
    # Numbers, words and bytes go as they are; only what the databases write differently is converted.
    special = [(place, convert) for place, field in enumerate(fields) if (convert := _converter(field))]

    def values(row: Sequence[Any]) -> list[Any]:
        found = [*row, *constants]
        for place, convert in special:
            found[place] = convert(found[place])
        return found

    given = [values(row) for row in rows]
    if not given:
        return
    quoted = connection.ops.quote_name
    table, columns = quoted(model._meta.db_table), ", ".join(quoted(str(field.column)) for field in fields)
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            with connection.wrap_database_errors, cursor.copy(f"COPY {table} ({columns}) FROM STDIN") as copy:
                for row in given:
                    copy.write_row(row)
        else:
            marks = ", ".join(["%s"] * len(fields))
            cursor.executemany(f"INSERT INTO {table} ({columns}) VALUES ({marks})", given)  # noqa: S608 - names from the models


def rows_fetch(query: QuerySet[Any, Any]) -> list[tuple[Any, ...]]:
    """Rows as the driver gives them, times as it spells them (`moment_read`): thousands that nobody looks at need not become Python's."""
    try:
        sql, params = query.query.sql_with_params()
    except EmptyResultSet:
        return []
    with connection.cursor() as cursor:
        times_as_text(cursor)
        cursor.execute(sql, params)
        return cursor.fetchall()


def moment_read(value: Any) -> datetime | None:
    """A time of a row that was fetched, as whichever driver gave it."""
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    return value if value is None or value.tzinfo else value.replace(tzinfo=UTC)


def _converter(field: Any) -> Callable[[Any], Any] | None:
    if isinstance(field, models.JSONField):
        return lambda value: None if value is None else json.dumps(value, cls=field.encoder)
    if isinstance(field, models.DateTimeField):
        known: dict[Any, Any] = {None: None}  # many rows of one moment

        def convert(value: Any) -> Any:
            if value not in known:
                known[value] = field.get_db_prep_save(value, connection)
            return known[value]

        return convert
    return None


class Among(Lookup):
    """`pk__among=keys`: as `__in`, for numbers and words, as one parameter however many there are."""

    lookup_name = "among"
    prepare_rhs = False

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, tuple[Any, ...]]:
        return self._with("{} IN (SELECT value FROM json_each(%s))", self._keys(json.dumps), compiler, connection)

    def as_postgresql(self, compiler: Any, connection: Any) -> tuple[str, tuple[Any, ...]]:
        kind = self.lhs.output_field.db_type(connection)
        return self._with(f"{{}} = ANY(%s::{kind}[])", self._keys(list), compiler, connection)

    def _keys(self, convert: Callable[[list[Any]], Any]) -> Any:
        if isinstance(self.rhs, Given):
            return self.rhs.among(convert)
        if not (keys := list(self.rhs)):
            raise EmptyResultSet
        return convert(keys)

    def _with(self, form: str, keys: Any, compiler: Any, connection: Any) -> tuple[str, tuple[Any, ...]]:
        column, params = self.process_lhs(compiler, connection)
        return form.format(column), (*params, keys)


class Holds(IContains):
    """`name__holds=word`: as `__icontains`, in the words for which PostgreSQL has statistics.

    Not knowing how many names hold a word it reads and sorts all of them, where walking the list's own order meets a page of them at once.
    """

    lookup_name = "holds"

    def get_rhs_op(self, connection: Any, rhs: str) -> str:
        return f"ILIKE {rhs}" if connection.vendor == "postgresql" else str(connection.operators["icontains"] % rhs)


def lookups_register() -> None:
    models.Field.register_lookup(Holds)
    models.Field.register_lookup(Among)
    models.ForeignKey.register_lookup(Among)
