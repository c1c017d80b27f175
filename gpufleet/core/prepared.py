"""Questions that are asked many times a second: their SQL is made once, and then only filled in.

Making a statement takes the ORM ten times as long as a small database takes to answer it, which was most of what a quiet tick did. What is asked,
and what comes back, is the same as from the query set itself: rows, single values, dictionaries or objects.

PostgreSQL keeps them prepared, too, and is asked several at a time (`together`): reading and planning them anew, and waiting for each answer before
the next question, took it longer than to answer.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from django.core.exceptions import EmptyResultSet
from django.db import DEFAULT_DB_ALIAS, connection, connections, transaction
from django.db.models import Expression, QuerySet
from django.db.models.query import FlatValuesListIterable, ValuesIterable, ValuesListIterable, get_related_populators
from django.db.models.sql import DeleteQuery, UpdateQuery

from gpufleet.core.times import whole_millis

Row = TypeVar("Row")
# How long PostgreSQL may keep a plan: one that was made while a table was empty is a bad one soon after.
PLAN_SECONDS = 30.0
# A tick asks some three hundred different questions, some with lists of small and of large numbers. As usual, the longest unused goes.
MOST_PREPARED = 1000
# Since when a connection has kept its plans.
_PLANNED: WeakKeyDictionary[Any, float] = WeakKeyDictionary()


def prepared_cursor(database: Any) -> Any:
    """A cursor whose statements PostgreSQL prepares and keeps; elsewhere any. The driver keeps them by itself on SQLite.

    What is logged goes the usual way, as only there the driver can say what it has sent.
    """
    if database.vendor != "postgresql" or database.queries_logged:
        return database.cursor()
    from django.db.backends.postgresql.base import ServerBindingCursor

    database.ensure_connection()
    driver = database.connection
    if driver.prepared_max != MOST_PREPARED:
        driver.prepared_max = MOST_PREPARED
    with database.wrap_database_errors:
        _plans_renewed(driver)
        return database._prepare_cursor(ServerBindingCursor(driver))  # type: ignore[call-arg]  # as its `cursor()` ends


def _is_straight(database: Any) -> bool:
    """SQLite answers most questions in less time than Django takes to pass one on. What is logged goes the usual way."""
    return database.vendor == "sqlite" and not database.queries_logged


def _plans_renewed(driver: Any) -> None:
    """Let go of plans that are old by now, unless answers are still on their way."""
    moment = time.monotonic()
    if moment - _PLANNED.setdefault(driver, moment) > PLAN_SECONDS and not driver.pgconn.pipeline_status:
        _PLANNED[driver] = moment
        driver.execute("DISCARD PLANS")


def times_as_text(cursor: Any) -> None:
    """Of what this cursor fetches, times stay as the driver spells them."""
    if connection.vendor == "postgresql":
        from psycopg.types.string import TextLoader

        cursor.adapters.register_loader("timestamptz", TextLoader)


class Given(Expression):
    """The place of a value in a question. `void` stands for no keys at all, where a list of keys is given."""

    def __init__(self, place: int, void: bool = False) -> None:
        super().__init__()
        self.place, self.void = place, void

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, tuple[Any, ...]]:
        return "%s", (self,)

    def among(self, convert: Callable[[list[Any]], Any]) -> "Keys":
        if self.void:
            raise EmptyResultSet
        return Keys(self.place, convert)


@dataclass(frozen=True, slots=True)
class Keys:
    """The place of a list of keys."""

    place: int
    convert: Callable[[list[Any]], Any]


@dataclass(frozen=True, slots=True)
class _Statement:
    sql: str
    params: tuple[Any, ...]
    pointless: tuple[int, ...]  # lists of keys without which nothing can be found
    read: Callable[[list[Any]], list[Any]]
    locks: bool = False
    # Which of the parameters are given, and from which place.
    singles: tuple[tuple[int, int], ...] = ()
    lists: tuple[tuple[int, Keys], ...] = ()

    def filled(self, given: tuple[Any, ...], database: Any) -> list[Any] | None:
        """The parameters with what is given; None where that can find nothing."""
        found = list(self.params)
        for place, source in self.singles:
            value = given[source]
            found[place] = database.ops.adapt_datetimefield_value(whole_millis(value)) if isinstance(value, datetime) else value
        if self.lists:
            keys = {each.place: list(given[each.place]) for _, each in self.lists}
            if any(not keys[place] for place in self.pointless):
                return None
            for place, each in self.lists:
                found[place] = each.convert(keys[each.place])
        return found


class _Prepared:
    def __init__(self, make: Callable[..., Any], count: int | None = None) -> None:
        self._make = make
        self._count = make.__code__.co_argcount if count is None else count
        self._statements: dict[str, _Statement] = {}  # by kind of database

    def _statement(self, vendor: str) -> _Statement:
        known = self._statements.get(vendor)
        if known is None:
            known = self._statements[vendor] = self._prepare()
        return known

    def _prepare(self) -> _Statement:
        compiler, sql, params = self._compiled([Given(place) for place in range(self._count)])
        lists = sorted({param.place for param in params if isinstance(param, Keys)})
        pointless = []
        for empty in lists:
            try:
                self._compiled([Given(place, void=place == empty) for place in range(self._count)])
            except EmptyResultSet:
                pointless.append(empty)
        return _Statement(
            sql,
            tuple(params),
            tuple(pointless),
            self._reader(compiler),
            bool(compiler.query.select_for_update),
            tuple((place, param.place) for place, param in enumerate(params) if isinstance(param, Given)),
            tuple((place, param) for place, param in enumerate(params) if isinstance(param, Keys)),
        )

    def _compiled(self, given: list[Given]) -> tuple[Any, str, tuple[Any, ...]]:
        raise NotImplementedError

    def _reader(self, compiler: Any) -> Callable[[list[Any]], list[Any]]:
        return list


@dataclass(slots=True)
class Question:
    """A prepared question with what is filled in (None: it can find nothing), and how its rows are read, if they are."""

    database: Any
    statement: _Statement
    values: list[Any] | None
    read: Callable[[list[Any]], list[Any]] | None

    def answer(self) -> list[Any]:
        if self.values is None:
            return []
        if _is_straight(self.database):
            self._assert_locks_hold()
            rows: list[Any] = self.database.rows_straight(self.statement.sql, self.values)
            return rows if self.read is None else self.read(rows)
        with prepared_cursor(self.database) as cursor:
            self.ask(cursor)
            return self.rows(cursor)

    def ahead(self) -> Callable[[], list[Any]]:
        """Ask now, and read the answer later: where statements are `sent_ahead` nobody waits for it in between."""
        if self.values is None or _is_straight(self.database):
            rows = self.answer()
            return lambda: rows
        cursor = prepared_cursor(self.database)
        self.ask(cursor)

        def answer() -> list[Any]:
            with cursor:
                return self.rows(cursor)

        return answer

    def ask(self, cursor: Any) -> None:
        self._assert_locks_hold()
        if self.read is None:
            times_as_text(cursor)
        cursor.execute(self.statement.sql, self.values)

    def _assert_locks_hold(self) -> None:
        assert not self.statement.locks or self.database.in_atomic_block, "a lock only holds inside a transaction"

    def rows(self, cursor: Any) -> list[Any]:
        found: list[Any] = cursor.fetchall()
        return found if self.read is None else self.read(found)


def together(*questions: Question) -> list[list[Any]]:
    """The answers to all of them, in order. PostgreSQL gets every question at once and works on the next while an answer is read here."""
    database = connections[DEFAULT_DB_ALIAS]
    if database.vendor != "postgresql" or database.queries_logged or len(questions) < 2:
        return [question.answer() for question in questions]
    prepared_cursor(database).close()  # there is a connection now, and its plans are young
    with ExitStack() as stack:
        asked = []
        with database.wrap_database_errors, database.connection.pipeline():
            for question in questions:
                cursor = stack.enter_context(prepared_cursor(database)) if question.values is not None else None
                if cursor is not None:
                    question.ask(cursor)
                asked.append((question, cursor))
        # All answers are there: the end of the pipeline waits for them, and to wait for the first one before would be a second way there and back.
        return [[] if cursor is None else question.rows(cursor) for question, cursor in asked]


@contextmanager
def sent_ahead() -> Iterator[None]:
    """PostgreSQL is sent one statement after the other without waiting for its word on each; who reads an answer waits for that one.

    Inside nobody learns how many rows a statement was about, and nothing is copied. What went wrong is told at the next answer, or at the end.
    """
    database = connections[DEFAULT_DB_ALIAS]
    if database.vendor != "postgresql" or database.queries_logged:
        yield
        return
    prepared_cursor(database).close()  # there is a connection now, and its plans are young
    with database.wrap_database_errors, database.connection.pipeline():
        yield


def is_sent_ahead(database: Any) -> bool:
    """Whether an answer that is read now would be waited for, and what was sent before it as well."""
    return database.vendor == "postgresql" and database.connection is not None and bool(database.connection.pgconn.pipeline_status)


class Prepared(_Prepared, Generic[Row]):
    """A query set that is made once, from a function of the values that are given later. Keys are given as lists, `pk__among=keys`."""

    def __init__(self, make: Callable[..., QuerySet[Any, Row]]) -> None:
        super().__init__(make)

    def __call__(self, *given: Any) -> list[Row]:
        return self.asking(*given).answer()

    def raw(self, *given: Any) -> list[tuple[Any, ...]]:
        """Rows as the driver gives them, times as it spells them: thousands that nobody looks at need not become Python's."""
        return self.asking_raw(*given).answer()

    def asking(self, *given: Any) -> "Question":
        """To be asked `together` with others."""
        database = connections[DEFAULT_DB_ALIAS]  # looked up once: the shared `connection` does so whenever it is named
        statement = self._statement(database.vendor)
        return Question(database, statement, statement.filled(given, database), statement.read)

    def asking_raw(self, *given: Any) -> "Question":
        database = connections[DEFAULT_DB_ALIAS]
        statement = self._statement(database.vendor)
        return Question(database, statement, statement.filled(given, database), None)

    def first(self, *given: Any) -> Row | None:
        return next(iter(self(*given)), None)

    def _compiled(self, given: list[Given]) -> tuple[Any, str, tuple[Any, ...]]:
        queryset = self._make(*given)
        compiler = queryset.query.get_compiler(DEFAULT_DB_ALIAS)
        sql, params = compiler.as_sql()
        compiler.shape = queryset._iterable_class
        return compiler, sql, tuple(params)

    def _reader(self, compiler: Any) -> Callable[[list[Any]], list[Any]]:
        expressions = [each for each, _, _ in compiler.select[: compiler.col_count]]
        assert not compiler.has_composite_fields(expressions), "columns that are several are not prepared"
        converters = tuple((place, tuple(convert), expression) for place, (convert, expression) in compiler.get_converters(expressions).items())
        width, extra = compiler.col_count, compiler.has_extra_select

        def converted(rows: list[Any]) -> list[Any]:
            if extra:
                rows = [row[:width] for row in rows]
            if not converters:
                return rows
            found = [list(row) for row in rows]
            for place, convert, expression in converters:
                for one in convert:
                    for row in found:
                        row[place] = one(row[place], expression, connection)
            return found

        shape = compiler.shape
        if shape is FlatValuesListIterable:
            return lambda rows: [row[0] for row in converted(rows)]
        if shape is ValuesListIterable:
            return (lambda rows: [tuple(row) for row in converted(rows)]) if converters else converted
        if shape is ValuesIterable:
            names = list(compiler.query.selected or compiler.query.values_select)
            return lambda rows: [dict(zip(names, row, strict=True)) for row in converted(rows)]
        return _objects(compiler, converted)


def _objects(compiler: Any, converted: Callable[[list[Any]], list[Any]]) -> Callable[[list[Any]], list[Any]]:
    info, select = compiler.klass_info, compiler.select
    assert not compiler.annotation_col_map, "annotated objects are not prepared"
    begin, end = info["select_fields"][0], info["select_fields"][-1] + 1
    names = [each.target.attname for each, _, _ in select[begin:end]]
    populators = get_related_populators(info, select, DEFAULT_DB_ALIAS)  # type: ignore[call-arg]  # the stubs are of the next version
    make = info["model"].from_db

    def read(rows: list[Any]) -> list[Any]:
        found = []
        for row in converted(rows):
            one = make(DEFAULT_DB_ALIAS, names, row[begin:end])
            for populator in populators:
                populator.populate(row, one)
            found.append(one)
        return found

    return read


class _PreparedWrite(_Prepared):
    def __call__(self, *given: Any) -> int:
        """How many rows there were."""
        database: Any = connections[DEFAULT_DB_ALIAS]
        statement = self._statement(database.vendor)
        values = statement.filled(given, database)
        if values is None:
            return 0
        if _is_straight(database):
            with transaction.mark_for_rollback_on_error(using=DEFAULT_DB_ALIAS):
                return int(database.count_straight(statement.sql, values))
        with transaction.mark_for_rollback_on_error(using=DEFAULT_DB_ALIAS), prepared_cursor(database) as cursor:
            cursor.execute(statement.sql, values)
            return int(cursor.rowcount)


class PreparedUpdate(_PreparedWrite):
    """An UPDATE that is made once: from a function of the values that are given later to the query set and its new values."""

    def __init__(self, make: Callable[..., tuple[QuerySet[Any, Any], dict[str, Any]]], count: int | None = None) -> None:
        """`count` says how many values are given, where the function itself takes any number."""
        super().__init__(make, count)

    def _compiled(self, given: list[Given]) -> tuple[Any, str, tuple[Any, ...]]:
        queryset, values = self._make(*given)
        query = queryset.query.chain(UpdateQuery)
        query.add_update_values(values)
        compiler = query.get_compiler(DEFAULT_DB_ALIAS)
        sql, params = compiler.as_sql()
        return compiler, sql, tuple(params)


class PreparedDelete(_PreparedWrite):
    """A DELETE that is made once. What refers to the rows is not looked for: the caller deletes that first."""

    def _compiled(self, given: list[Given]) -> tuple[Any, str, tuple[Any, ...]]:
        compiler = self._make(*given).query.chain(DeleteQuery).get_compiler(DEFAULT_DB_ALIAS)
        sql, params = compiler.as_sql()
        return compiler, sql, tuple(params)
