"""Many rows in one statement, in the form that the driver takes and gives fastest.

The ORM's own ways look at each value several times, which was most of what a busy tick did (docs/operate/loop.md).
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any, TypeVar

from django.core.exceptions import EmptyResultSet
from django.db import DEFAULT_DB_ALIAS, connection, connections, models, transaction
from django.db.models import Lookup, QuerySet
from django.db.models.lookups import IContains

from gpufleet.core.prepared import Given, is_sent_ahead, prepared_cursor, times_as_text

Row = TypeVar("Row", bound=models.Model)
# Fewer rows than it takes to make copying worth its beginning and end.
FEW = 3
MOST_PARAMS = 10_000


@dataclass(frozen=True, slots=True)
class _Form:
    """How rows of certain columns are written: what the model fills in itself, and what the database writes differently."""

    begin: str
    marks: str
    key: str
    rest: tuple[Any, ...]
    special: tuple[tuple[int, Any], ...]

    def values(self, rows: Iterable[Sequence[Any]]) -> list[list[Any]]:
        constants = [field.get_default() for field in self.rest]
        # Numbers, words and bytes go as they are.
        converters = [(place, _converter(field)) for place, field in self.special]
        found = [[*row, *constants] for row in rows]
        for place, convert in converters:
            for row in found:
                row[place] = convert(row[place])
        return found


@cache
def _form(model: type[models.Model], names: tuple[str, ...], vendor: str) -> _Form:
    fields: dict[str, Any] = {field.attname: field for field in model._meta.concrete_fields}
    rest = [field for name, field in fields.items() if name not in names and not field.primary_key and not field.null]
    written = [*(fields[name] for name in names), *rest]
    quoted = connection.ops.quote_name
    columns = ", ".join(quoted(str(field.column)) for field in written)
    special = tuple((place, field) for place, field in enumerate(written) if isinstance(field, models.JSONField | models.DateTimeField))
    marks = f"({', '.join(['%s'] * len(written))})"
    return _Form(f"{quoted(model._meta.db_table)} ({columns})", marks, quoted(str(model._meta.pk.column)), tuple(rest), special)


def rows_insert(model: type[models.Model], names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Insert rows given as values in the order of `names` (attributes such as `job_id`). Other columns get their default; keys are not told."""
    database = connections[DEFAULT_DB_ALIAS]
    form = _form(model, tuple(names), database.vendor)
    given = form.values(rows)
    if not given:
        return
    # Where nobody waits for the answers nothing is copied: that would be to wait.
    if len(given) <= FEW or is_sent_ahead(database):
        several = ", ".join([form.marks] * len(given))
        with prepared_cursor(database) as cursor:
            cursor.execute(f"INSERT INTO {form.begin} VALUES {several}", [value for row in given for value in row])  # noqa: S608 - names from the models
        return
    with database.cursor() as cursor:
        if database.vendor == "postgresql":
            with database.wrap_database_errors, cursor.copy(f"COPY {form.begin} FROM STDIN") as copy:
                for row in given:
                    copy.write_row(row)
        else:
            cursor.executemany(f"INSERT INTO {form.begin} VALUES {form.marks}", given)  # noqa: S608 - names from the models


def row_insert(model: type[models.Model], **values: Any) -> int:
    """Insert one row given by attributes (such as `job_id`), and tell its key. Other columns get their default."""
    database = connections[DEFAULT_DB_ALIAS]
    form = _form(model, tuple(values), database.vendor)
    with transaction.mark_for_rollback_on_error(using=DEFAULT_DB_ALIAS), prepared_cursor(database) as cursor:
        cursor.execute(f"INSERT INTO {form.begin} VALUES {form.marks} RETURNING {form.key}", form.values([tuple(values.values())])[0])  # noqa: S608
        (key,) = cursor.fetchone()
    return int(key)


def row_made(instance: Row) -> Row:
    """Insert a new instance as it is, past the ORM's own way with its hooks, and give it its key."""
    values = {field.attname: getattr(instance, field.attname) for field in instance._meta.concrete_fields if not field.primary_key}
    instance.pk = row_insert(type(instance), **values)
    instance._state.adding, instance._state.db = False, DEFAULT_DB_ALIAS
    return instance


def keys_ahead(model: type[models.Model], count: int) -> Callable[[], list[int]]:
    """Keys for a few objects that are yet to be inserted, asked now and read later. None where to ask would be to wait: the insert tells them."""
    database = connections[DEFAULT_DB_ALIAS]
    if not is_sent_ahead(database):
        return list
    cursor = prepared_cursor(database)
    place = [str(model._meta.db_table), str(model._meta.pk.column)]
    cursor.execute("SELECT nextval(pg_get_serial_sequence(%s, %s)) FROM generate_series(1, %s)", [*place, count])

    def read() -> list[int]:
        with cursor:
            return [key for (key,) in cursor.fetchall()]

    return read


def objects_insert(objects: Sequence[models.Model], *, keys: Sequence[int] = ()) -> None:
    """As `bulk_create`: insert new objects of one model, which then know their keys. Those that have theirs already are not waited for."""
    if not objects:
        return
    database = connections[DEFAULT_DB_ALIAS]
    model = type(objects[0])
    for one, key in zip(objects, keys, strict=bool(keys)):
        one.pk = key
    fields = [field for field in model._meta.concrete_fields if keys or not field.primary_key]
    names = tuple(field.attname for field in fields)
    times = [field for field in fields if isinstance(field, models.DateTimeField)]
    form = _form(model, names, database.vendor)
    most = max(1, (database.features.max_query_params or MOST_PARAMS) // len(fields))
    with transaction.atomic(savepoint=False), prepared_cursor(database) if len(objects) <= FEW else database.cursor() as cursor:
        for first in range(0, len(objects), most):
            some = objects[first : first + most]
            for one in some:
                for field in times:
                    field.pre_save(one, True)
            values = [value for row in form.values([[getattr(one, name) for name in names] for one in some]) for value in row]
            rows = ", ".join([form.marks] * len(some))
            returning = "" if keys else f" RETURNING {form.key}"
            cursor.execute(f"INSERT INTO {form.begin} VALUES {rows}{returning}", values)  # noqa: S608 - names from the models
            if not keys:
                for one, (key,) in zip(some, cursor.fetchall(), strict=True):
                    one.pk = key
            for one in some:
                one._state.adding, one._state.db = False, DEFAULT_DB_ALIAS


def objects_update(objects: Sequence[models.Model], names: Sequence[str]) -> None:
    """Write these attributes of stored objects of one model, in one statement that is sent once for all of them."""
    if not objects:
        return
    database = connections[DEFAULT_DB_ALIAS]
    model = type(objects[0])
    fields: dict[str, Any] = {field.attname: field for field in model._meta.concrete_fields}
    quoted = database.ops.quote_name
    changes = ", ".join(f"{quoted(str(fields[name].column))} = %s" for name in names)
    statement = f"UPDATE {quoted(model._meta.db_table)} SET {changes} WHERE {quoted(str(model._meta.pk.column))} = %s"  # noqa: S608 - of the model
    rows = [[*(fields[name].get_db_prep_save(getattr(one, name), database) for name in names), one.pk] for one in objects]
    with database.cursor() as cursor:
        cursor.executemany(statement, rows)


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


def _converter(field: Any) -> Callable[[Any], Any]:
    if isinstance(field, models.JSONField):
        return lambda value: None if value is None else json.dumps(value, cls=field.encoder)
    known: dict[Any, Any] = {None: None}  # many rows of one moment

    def convert(value: Any) -> Any:
        if value not in known:
            known[value] = field.get_db_prep_save(value, connection)
        return known[value]

    return convert


def _spelt(keys: list[Any]) -> str:
    """As JSON, which Python's own spelling of whole numbers is as well and sooner made."""
    return repr(keys) if {type(key) for key in keys} == {int} else json.dumps(keys)


class Among(Lookup):
    """`pk__among=keys`: as `__in`, for numbers and words, as one parameter however many there are."""

    lookup_name = "among"
    prepare_rhs = False

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, tuple[Any, ...]]:
        return self._with("{} IN (SELECT value FROM json_each(%s))", self._keys(_spelt), compiler, connection)

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
    """`name__holds=word`: as `__icontains`, in the words for which PostgreSQL has statistics, and an index of jobs' names (`job_words`).

    Not knowing how many names hold a word it reads and sorts all of them, where walking the list's own order meets a page of them at once.
    """

    lookup_name = "holds"

    def get_rhs_op(self, connection: Any, rhs: str) -> str:
        return f"ILIKE {rhs}" if connection.vendor == "postgresql" else str(connection.operators["icontains"] % rhs)


def lookups_register() -> None:
    models.Field.register_lookup(Holds)
    models.Field.register_lookup(Among)
    models.ForeignKey.register_lookup(Among)
