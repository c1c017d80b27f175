"""Rows of a round that are done together, and apart where one of them fails: a bad row keeps no other from being done."""

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from django.db import InterfaceError, OperationalError, transaction

Row = TypeVar("Row")
Done = TypeVar("Done")
logger = logging.getLogger(__name__)


def done_apart(rows: Sequence[Row], do: Callable[[Sequence[Row]], Done], *, failed: Callable[[Row, Exception], None]) -> list[Done]:
    """What `do` returns of all rows, in one transaction; where it fails, of their halves, each in one of its own, down to the row that fails alone.

    `do` may be asked again of rows that it has changed in memory: it begins with what it was given. What a database that is out of reach or locked
    says is no row's fault, and is raised. `failed` may raise, too, and ends it.
    """
    if not rows:
        return []
    try:
        with transaction.atomic():
            return [do(rows)]
    except (InterfaceError, OperationalError):
        raise
    except Exception as fault:
        if len(rows) == 1:
            failed(rows[0], fault)
            return []
    middle = len(rows) // 2
    return [*done_apart(rows[:middle], do, failed=failed), *done_apart(rows[middle:], do, failed=failed)]


def all_done(*steps: Callable[[], object]) -> None:
    """Each of them, whatever became of those before it. The first fault is raised in the end, others are logged."""
    first: Exception | None = None
    for step in steps:
        try:
            step()
        except Exception as fault:
            if first is not None:
                logger.exception("A step of a round failed after another one had.")
            first = first or fault
    if first is not None:
        raise first
