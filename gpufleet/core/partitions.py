"""Tables that PostgreSQL keeps in partitions by time: made ahead, and dropped whole when all in them is past its time.

Migrations make such a table with one partition, `<table>_rest`, that takes whatever has none of its own: rows are never refused. What lies there is
moved when its partition is made. On SQLite the same tables are not partitioned, and rows are deleted one by one.
"""

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import DatabaseError, connection, transaction
from psycopg import sql

log = logging.getLogger(__name__)

# Partitions are there so long before anything is written to them, which is longer than a weekend without a worker.
AHEAD = timedelta(days=3)
# Each is a transaction that holds the table for a moment: so many a call, the next one goes on.
MOST_MADE = 8
# Whoever reads the table for longer is not waited for: all others would queue up behind us.
PATIENCE = "2s"


@dataclass(frozen=True, slots=True)
class Series:
    """Rows of a table that are kept in partitions of one width: those of one `span`, or all where the table has no such column."""

    table: str
    width: timedelta
    span: int | None = None

    def begin(self, moment: datetime) -> datetime:
        seconds = int(self.width.total_seconds())
        return datetime.fromtimestamp(int(moment.timestamp()) // seconds * seconds, UTC)

    def name(self, begin: datetime) -> str:
        return f"{self._stem}{begin:%Y%m%d%H}"

    def begin_of(self, name: str) -> datetime | None:
        """Where a partition of this series begins; None for one of another."""
        found = re.fullmatch(rf"{re.escape(self._stem)}(\d{{10}})", name)
        return datetime.strptime(found[1], "%Y%m%d%H").replace(tzinfo=UTC) if found else None

    def bound(self, moment: datetime) -> sql.Composable:
        values = [moment.isoformat()] if self.span is None else [self.span, moment.isoformat()]
        return sql.SQL(", ").join(map(sql.Literal, values))

    def condition(self, begin: datetime | None, end: datetime) -> sql.Composable:
        parts = [sql.SQL("at < {}").format(sql.Literal(end))]
        if begin is not None:
            parts.append(sql.SQL("at >= {}").format(sql.Literal(begin)))
        if self.span is not None:
            parts.append(sql.SQL("span = {}").format(sql.Literal(self.span)))
        return sql.SQL(" AND ").join(parts)

    @property
    def rest(self) -> sql.Identifier:
        return sql.Identifier(f"{self.table}_rest")

    @property
    def _stem(self) -> str:
        return f"{self.table}_" if self.span is None else f"{self.table}_{self.span}_"


def is_partitioned(table: str) -> bool:
    if connection.vendor != "postgresql":
        return False
    return bool(_rows(sql.SQL("SELECT 1 FROM pg_partitioned_table WHERE partrelid = to_regclass({})").format(sql.Literal(table))))


def partitions_keep(series: Series, *, keep: timedelta, now: datetime) -> int:
    """Make the partitions that are due and drop those that are past their time. Returns how many rows have gone.

    A row goes with its partition, so later by up to the width of one. What can't be had now, as somebody reads the table, is had by the next call.
    """
    try:
        gone = _drop(series, before=now - keep)
        _make(series, now=now)
    except DatabaseError as fault:
        log.warning("partitions of %s are left for the next call: %s", series.table, fault)
        return 0
    return gone


def _drop(series: Series, *, before: datetime) -> int:
    gone = 0
    for name in _partitions(series.table):
        begin = series.begin_of(name)
        if begin is None or begin + series.width > before:
            continue
        with transaction.atomic():
            _be_patient()
            gone += _rows(sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(name)))[0][0]
            _run(sql.SQL("DROP TABLE {}").format(sql.Identifier(name)))
    return gone + _run(sql.SQL("DELETE FROM {} WHERE {}").format(series.rest, series.condition(None, before)))


def _make(series: Series, *, now: datetime) -> None:
    there = set(_partitions(series.table))
    last, due = series.begin(now + AHEAD), series.begin(now)
    begins = set(_begins_at_rest(series))
    while due <= last:
        begins.add(due)
        due += series.width
    for begin in sorted(begin for begin in begins if series.name(begin) not in there)[:MOST_MADE]:
        with transaction.atomic():
            _be_patient()
            _make_one(series, begin)


def _make_one(series: Series, begin: datetime) -> None:
    """A partition can't be made while rows of its time lie elsewhere: they step aside for a moment, in which nobody writes."""
    end = begin + series.width
    table, name, aside = sql.Identifier(series.table), sql.Identifier(series.name(begin)), sql.Identifier(f"{series.name(begin)}_aside")
    there = series.condition(begin, end)
    _run(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(table))
    _run(sql.SQL("CREATE TEMPORARY TABLE {} ON COMMIT DROP AS SELECT * FROM {} WHERE {}").format(aside, series.rest, there))
    _run(sql.SQL("DELETE FROM {} WHERE {}").format(series.rest, there))
    # What this transaction wrote before is checked against its cluster now: a table with checks outstanding gets no partition.
    _run(sql.SQL("SET CONSTRAINTS ALL IMMEDIATE"))
    _run(
        sql.SQL("CREATE TABLE {} PARTITION OF {} FOR VALUES FROM ({}) TO ({})").format(name, table, series.bound(begin), series.bound(end)),
    )
    _run(sql.SQL("INSERT INTO {} SELECT * FROM {}").format(table, aside))


def _begins_at_rest(series: Series) -> list[datetime]:
    seconds = int(series.width.total_seconds())
    asked = sql.SQL("SELECT DISTINCT floor(extract(epoch FROM at) / {})::bigint FROM {}{}").format(
        sql.Literal(seconds),
        series.rest,
        sql.SQL("") if series.span is None else sql.SQL(" WHERE span = {}").format(sql.Literal(series.span)),
    )
    return [datetime.fromtimestamp(number * seconds, UTC) for (number,) in _rows(asked)]


def _partitions(table: str) -> list[str]:
    asked = sql.SQL("SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = to_regclass({}) ORDER BY 1")
    return [name for (name,) in _rows(asked.format(sql.Literal(table)))]


def _be_patient() -> None:
    _run(sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(PATIENCE)))


def _run(statement: sql.Composable) -> int:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return max(0, cursor.rowcount)


def _rows(statement: sql.Composable) -> Sequence[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        found: list[tuple[Any, ...]] = cursor.fetchall()
        return found
