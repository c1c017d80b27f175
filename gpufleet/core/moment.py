"""Reading many tables as they were at one moment."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from django.db import connection, transaction


def one_moment() -> AbstractContextManager[None]:
    """All reads inside see the database as it was when the first of them was made. Inside somebody's transaction that one decides what is seen.

    Otherwise nobody has to wait for it, and nothing can be written in it.
    """
    if connection.in_atomic_block:
        return transaction.atomic()
    return _repeatable() if connection.vendor == "postgresql" else connection.reading()  # type: ignore[attr-defined]


@contextmanager
def _repeatable() -> Iterator[None]:
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        yield
