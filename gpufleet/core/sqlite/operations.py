"""Emptying the database (`manage.py flush`, and the tests) although some tables refuse to lose rows."""

from collections.abc import Iterable
from typing import Any

from django.db.backends.sqlite3 import operations


class DatabaseOperations(operations.DatabaseOperations):
    def sql_flush(self, style: Any, tables: Iterable[str], **options: Any) -> list[str]:
        """SQLite has no TRUNCATE, which passes by row triggers elsewhere. So they step aside while everything goes, in one transaction."""
        tables = list(tables)
        statements: list[str] = super().sql_flush(style, tables, **options)
        with self.connection.cursor() as cursor:
            cursor.execute("SELECT name, tbl_name, sql FROM sqlite_master WHERE type = 'trigger'")
            guards = [(name, sql) for name, table, sql in cursor.fetchall() if table in tables]
        return [f"DROP TRIGGER {self.quote_name(name)}" for name, _ in guards] + statements + [sql for _, sql in guards]
