"""SQLite with a fair queue for writers.

SQLite's own busy handler polls, so under several writer threads one of them can starve for seconds. Here the threads of one process queue first come,
first served, before BEGIN IMMEDIATE. Other processes still meet at SQLite's lock.
"""

import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache, partial
from operator import attrgetter, methodcaller
from typing import TYPE_CHECKING, Any

from django.db import OperationalError, transaction
from django.db.backends.sqlite3 import base
from django.utils.asyncio import async_unsafe
from django.utils.dateparse import parse_datetime

from gpufleet.core.sqlite.operations import DatabaseOperations

if TYPE_CHECKING:

    class _Wrapper(base.DatabaseWrapper):
        """The hooks of Django's wrapper that are used here; its type stubs leave them out."""

        def _start_transaction_under_autocommit(self) -> None: ...
        def _commit(self) -> None: ...
        def _rollback(self) -> None: ...
        def _close(self) -> None: ...

else:
    _Wrapper = base.DatabaseWrapper

# As long as SQLite itself waits for a writer of another process.
DEFAULT_TIMEOUT_SECONDS = 20.0


class FairLock:
    """A lock that goes to whoever waited longest. The owner is a connection, so a connection that is closed gives it back."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._queue: deque[tuple[object, threading.Event]] = deque()
        self._owner: object | None = None

    def acquire(self, owner: object, timeout: float) -> bool:
        """Wait for our turn; False when it did not come in time, and then we stand in the queue no longer."""
        turn = threading.Event()
        with self._guard:
            if self._owner is owner:
                return True
            if self._owner is None:
                self._owner = owner
                return True
            self._queue.append((owner, turn))
        if turn.wait(timeout):
            return True
        with self._guard:
            if self._owner is owner:  # our turn came between the end of the wait and here
                return True
            self._queue.remove((owner, turn))
        return False

    def release(self, owner: object) -> None:
        with self._guard:
            if self._owner is not owner:
                return
            self._owner, turn = self._queue.popleft() if self._queue else (None, None)
            if turn:
                turn.set()


_locks: dict[str, FairLock] = {}


@lru_cache(8192)
def _moment_read(text: bytes) -> datetime | None:
    """A column of times as the driver gives it, which is without its zone. Most are read again and again."""
    return parse_datetime(text.decode())


for _kind in ("datetime", "timestamp"):
    sqlite3.register_converter(_kind, _moment_read)


@lru_cache(1024)
def question_marks(query: str) -> str:
    """A statement as SQLite takes it: most are asked again with other values."""
    return str(base.FORMAT_QMARK_REGEX.sub("?", query).replace("%%", "%"))


@lru_cache(1024)
def _reads(query: str) -> bool:
    return query.lstrip().upper().startswith(("SELECT", "WITH", "SAVEPOINT", "RELEASE", "ROLLBACK TO"))


class _Cursor(base.SQLiteCursorWrapper):
    def convert_query(self, query: str, *, param_names: list[str] | None = None) -> str:
        return question_marks(query) if param_names is None else str(super().convert_query(query, param_names=param_names))


class _ReadingCursor(_Cursor):
    """`PRAGMA query_only` would see to this as well, but each time that it changes SQLite makes every statement anew that it has kept, which was two
    thirds of what it did in a tick. A statement that writes and begins like one that reads is found at the end of the transaction."""

    def execute(self, query: str, params: Any = None) -> Any:
        if not _reads(query):
            raise sqlite3.OperationalError(READONLY)
        return super().execute(query, params)

    def executemany(self, query: str, param_list: Any) -> Any:
        raise sqlite3.OperationalError(READONLY)


READONLY = "attempt to write while only reading"
_all_rows, _row_count = methodcaller("fetchall"), attrgetter("rowcount")


class DatabaseWrapper(_Wrapper):
    ops_class = DatabaseOperations
    _only_reads = False
    _changes_before = 0

    @property
    def _gate(self) -> FairLock:
        return _locks.setdefault(str(self.settings_dict["NAME"]), FairLock())

    @contextmanager
    def reading(self) -> Iterator[None]:
        """A transaction of its own, in which nothing can be written: it sees one moment, waits for no writer and keeps none waiting."""
        self._only_reads = True
        try:
            with transaction.atomic(using=self.alias, durable=True):
                yield
        finally:
            self._only_reads = False

    def create_cursor(self, name: str | None = None) -> Any:
        return self.connection.cursor(factory=_ReadingCursor if self._only_reads else _Cursor)

    @async_unsafe
    def rows_straight(self, query: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """What a cursor of ours would fetch, with less on the way: for statements that are asked so often that the way costs more than the answer."""
        found: list[tuple[Any, ...]] = self._straight(query, values, _all_rows)
        return found

    @async_unsafe
    def count_straight(self, query: str, values: Sequence[Any]) -> int:
        """How many rows a statement has changed."""
        return int(self._straight(query, values, _row_count))

    def _straight(self, query: str, values: Sequence[Any], take: Callable[[Any], Any]) -> Any:
        if self.connection is None:
            self.ensure_connection()
        self.validate_thread_sharing()
        self.validate_no_broken_transaction()

        def executed(query: str, values: Sequence[Any], many: bool, context: dict[str, Any]) -> Any:
            with self.wrap_database_errors:
                if self._only_reads and not _reads(query):
                    raise sqlite3.OperationalError(READONLY)
                return take(self.connection.execute(question_marks(query), values))

        execute = executed
        for wrapper in reversed(self.execute_wrappers):
            execute = partial(wrapper, execute)
        return execute(query, values, False, {"connection": self, "cursor": None})

    def _start_transaction_under_autocommit(self) -> None:
        if self._only_reads:
            with self.wrap_database_errors:
                self.connection.execute("BEGIN DEFERRED")
            self._changes_before = self.connection.total_changes
            return
        if not self._gate.acquire(self, self.settings_dict["OPTIONS"].get("timeout", DEFAULT_TIMEOUT_SECONDS)):
            raise OperationalError("database is locked: another transaction of this process has not ended")
        try:
            super()._start_transaction_under_autocommit()
        except BaseException:
            self._gate.release(self)
            raise

    def _commit(self) -> Any:
        if self._only_reads and self.connection is not None and self.connection.total_changes != self._changes_before:
            raise OperationalError(READONLY)  # which takes it back
        try:
            return super()._commit()
        finally:
            if self.connection is None or not self.connection.in_transaction:
                self._gate.release(self)

    def _rollback(self) -> Any:
        try:
            return super()._rollback()
        finally:
            self._gate.release(self)

    def _close(self) -> Any:
        try:
            return super()._close()
        finally:
            self._gate.release(self)
