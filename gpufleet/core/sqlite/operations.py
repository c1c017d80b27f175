"""Times read and spelt the short way, and emptying the database (`manage.py flush`, and the tests) although some tables refuse to lose rows."""

from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from django.db.backends.sqlite3 import operations
from django.utils.dateparse import parse_datetime

LENGTH_OF_UTC = len("+00:00")


@lru_cache(8192)
def moment_of(text: str) -> datetime:
    """A time as SQLite keeps it, which is UTC without saying so. Most are read again and again."""
    found = parse_datetime(text)
    if found is None:
        raise ValueError(f"{text!r} is not a time.")
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found


@lru_cache(1024)
def _spelt(moment: datetime) -> str:
    """A tick says the same few times again and again."""
    return str(moment)[:-LENGTH_OF_UTC]


class DatabaseOperations(operations.DatabaseOperations):
    def adapt_datetimefield_value(self, value: Any) -> Any:
        if isinstance(value, datetime) and value.tzinfo is UTC and self.connection.timezone is UTC:
            return _spelt(value)
        return super().adapt_datetimefield_value(value)

    def convert_datetimefield_value(self, value: Any, expression: Any, connection: Any) -> Any:
        if self.connection.timezone is UTC:
            if isinstance(value, datetime):
                return value if value.tzinfo is not None else value.replace(tzinfo=UTC)
            if isinstance(value, str):
                return moment_of(value)
        return super().convert_datetimefield_value(value, expression, connection)

    def sql_flush(self, style: Any, tables: Iterable[str], **options: Any) -> list[str]:
        """SQLite has no TRUNCATE, which passes by row triggers elsewhere. So they step aside while everything goes, in one transaction."""
        tables = list(tables)
        statements: list[str] = super().sql_flush(style, tables, **options)
        with self.connection.cursor() as cursor:
            cursor.execute("SELECT name, tbl_name, sql FROM sqlite_master WHERE type = 'trigger'")
            guards = [(name, sql) for name, table, sql in cursor.fetchall() if table in tables]
        return [f"DROP TRIGGER {self.quote_name(name)}" for name, _ in guards] + statements + [sql for _, sql in guards]
