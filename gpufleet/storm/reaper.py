"""Death between any two statements, a database that refuses one, and another scheduler that wakes up in the middle of a tick.

A process that is killed does nothing more: once the reaper has struck, every statement and every call to a back-end fails in the same way until a new
process begins, so nothing that a `finally` would still do happens. The database takes back what was not committed, as it does for a lost connection.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from django.db import OperationalError, connection

WRITES = ("INSERT", "UPDATE", "DELETE")


AFTER_SNAPSHOT = "after the snapshot"


class Killed(BaseException):
    """The process is gone. No `except Exception` of the product may stop it."""


class Reaper:
    """Watches the statements of one process at a time. A strike is armed beforehand and waits until so many statements have gone by."""

    def __init__(self) -> None:
        self.dead = False
        self.kill_after: int | None = None  # writes and calls to back-ends
        self.kill_after_order: int | None = None  # as `kill_after`, counted from the next order that a back-end is told
        self.fail_after: int | None = None  # statements
        self.wake_at: int | str = 0  # after so many statements outside of any transaction, or right after the snapshot
        self.wake: Callable[[], None] | None = None
        self.struck = ""
        self.writes = 0
        self._watching = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """All within belongs to one process, which may be struck."""
        self.dead, self.struck, self._watching = False, "", True
        try:
            with connection.execute_wrapper(self._statement):
                yield
        finally:
            self.dead = self._watching = False

    def calm(self) -> None:
        self.kill_after = self.kill_after_order = self.fail_after = self.wake = None

    @contextmanager
    def _resting(self) -> Iterator[None]:
        """Somebody else's statements in between."""
        self._watching = False
        try:
            yield
        finally:
            self._watching = True

    def _statement(self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if self._watching:
            self._before(sql, context["connection"])
        return execute(sql, params, many, context)

    def _before(self, sql: str, database: Any) -> None:
        if self.dead:
            raise Killed(self.struck)
        if self.wake is not None and not database.in_atomic_block and self._time_to_wake():
            self._wake()
        self.fail_after = _down(self.fail_after)
        if self.fail_after == 0:
            self.fail_after = None
            self.struck = f"the database failed at: {sql[:60]}"
            raise OperationalError("The storm has struck the database.")
        if _writes(sql):
            self.step(f"killed before: {sql[:60]}")

    def _time_to_wake(self) -> bool:
        if not isinstance(self.wake_at, int):
            return False
        self.wake_at -= 1
        return self.wake_at == 0

    def snapshot_taken(self) -> None:
        """What is planned now is already the past."""
        if self._watching and self.wake is not None and self.wake_at == AFTER_SNAPSHOT:
            self._wake()

    def _wake(self) -> None:
        other, self.wake = self.wake, None
        assert other is not None
        with self._resting():
            other()

    def order_told(self) -> None:
        """A back-end has been told to do something: what the process does now is to write that down."""
        if self._watching and self.kill_after_order is not None:
            self.kill_after, self.kill_after_order = self.kill_after_order, None

    def step(self, where: str) -> None:
        """One write, or one call to a back-end: before each of them the process may die."""
        if not self._watching:
            return
        if self.dead:
            raise Killed(self.struck)
        self.writes += 1
        self.kill_after = _down(self.kill_after)
        if self.kill_after == 0:
            self.kill_after = None
            self.dead, self.struck = True, where
            raise Killed(where)


@cache
def _writes(sql: str) -> bool:
    return sql.lstrip().upper().startswith(WRITES)


def _down(count: int | None) -> int | None:
    return None if count is None else count - 1
