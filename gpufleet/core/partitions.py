"""Tables that PostgreSQL keeps in partitions by time: made ahead, and dropped whole when all in them is past its time.

Migrations make such a table with one partition, `<table>_rest`, that takes whatever has none of its own: rows are never refused. What lies there is
moved when its partition is made. On SQLite the same tables are not partitioned, and rows are deleted one by one.
"""

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from django.db import DatabaseError, OperationalError, connection, transaction
from psycopg import sql

log = logging.getLogger(__name__)
T = TypeVar("T")

# Partitions are there so long before anything is written to them, which is longer than a weekend without a worker.
AHEAD = timedelta(days=3)
# Each is a transaction that holds the table for a moment: so many a call, the next one goes on.
MOST_MADE = 8
# Whoever reads the table for longer is not waited for: all others would queue up behind us.
PATIENCE = "2s"
# So long a table that was read for longer is left alone by what can wait: each wait holds up those who write.
BUSY_FOR = timedelta(minutes=10)
# Rows without a partition that go in one transaction, and transactions a call.
BATCH, MOST_BATCHES = 500, 20
_busy: dict[str, datetime] = {}


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
    """Make the partitions that are due, then drop those that are past their time. Returns how many rows have gone.

    A row goes with its partition, so later by up to the width of one. What can't be had now, as somebody reads the table, is had by a later call.
    """
    before = now - keep
    for begin in _step(series, partial(_due, series, before=before, now=now), now) or ():
        if _step(series, partial(_make_one, series, begin), now) is None and _is_busy(series, now):
            break
    gone = 0
    for name in _step(series, partial(_partitions, series.table), now) or ():
        start = series.begin_of(name)
        if start is None or start + series.width > before:
            continue
        if _is_busy(series, now):
            break
        gone += _step(series, partial(_drop_one, name), now) or 0
    for _ in range(MOST_BATCHES):
        deleted = _step(series, partial(_delete_at_rest, series, before), now) or 0
        gone += deleted
        if deleted < BATCH:
            break
    return gone


def _step(series: Series, step: Callable[[], T], now: datetime) -> T | None:
    """A transaction of its own, also for what only reads, so that no other is worse for its fault. None: there was one."""
    try:
        with transaction.atomic():
            _be_patient()
            return step()
    except DatabaseError as fault:
        log.warning("partitions of %s: left for a later call: %s", series.table, fault)
        if isinstance(fault, OperationalError):  # a lock that was not to be had
            _busy[series.table] = now + BUSY_FOR
        return None


def _is_busy(series: Series, now: datetime) -> bool:
    return series.table in _busy and now < _busy[series.table]


def _drop_one(name: str) -> int:
    rows: int = _rows(sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(name)))[0][0]
    _run(sql.SQL("DROP TABLE {}").format(sql.Identifier(name)))
    return rows


def _delete_at_rest(series: Series, before: datetime) -> int:
    old = sql.SQL("SELECT ctid FROM {} WHERE {} LIMIT {}").format(series.rest, series.condition(None, before), sql.Literal(BATCH))
    return _run(sql.SQL("DELETE FROM {} WHERE ctid IN ({})").format(series.rest, old))


def _due(series: Series, *, before: datetime, now: datetime) -> list[datetime]:
    """Beginnings of partitions that are not there: of the days ahead, and of rows without one that are not past their time."""
    there = set(_partitions(series.table))
    last, due = series.begin(now + AHEAD), series.begin(now)
    begins = {begin for begin in _begins_at_rest(series) if begin + series.width > before}
    while due <= last:
        begins.add(due)
        due += series.width
    return sorted(begin for begin in begins if series.name(begin) not in there)[:MOST_MADE]


def _make_one(series: Series, begin: datetime) -> int:
    """A partition can't be made while rows of its time lie elsewhere: they step aside for a moment, in which nobody writes."""
    end = begin + series.width
    table, name, aside = sql.Identifier(series.table), sql.Identifier(series.name(begin)), sql.Identifier(f"{series.name(begin)}_aside")
    there = series.condition(begin, end)
    _run(sql.SQL("LOCK TABLE ONLY {} IN ACCESS EXCLUSIVE MODE").format(table))
    _run(sql.SQL("CREATE TEMPORARY TABLE {} ON COMMIT DROP AS SELECT * FROM {} WHERE {}").format(aside, series.rest, there))
    _run(sql.SQL("DELETE FROM {} WHERE {}").format(series.rest, there))
    # What this transaction wrote before is checked against its cluster now: a table with checks outstanding gets no partition.
    _run(sql.SQL("SET CONSTRAINTS ALL IMMEDIATE"))
    _run(
        sql.SQL("CREATE TABLE {} PARTITION OF {} FOR VALUES FROM ({}) TO ({})").format(name, table, series.bound(begin), series.bound(end)),
    )
    return _run(sql.SQL("INSERT INTO {} SELECT * FROM {}").format(table, aside))


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
