"""Triggers for migrations: the database itself refuses what no part of the program may do to a table."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations import RunPython


def closed_once(table: str, columns: Sequence[str]) -> RunPython:
    """Rows are added, and `until` is set once. Every other change and every loss of a row is refused. `columns`: all but `until`."""
    refused = f"{table} is append-only"
    changed = " OR ".join(f'NEW."{name}" IS NOT OLD."{name}"' for name in columns)
    refuse = f"EXECUTE FUNCTION {table}_refuse()"
    guards = {
        "postgresql": (
            f"CREATE FUNCTION {table}_refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION '{refused}'; END $$",
            f"CREATE TRIGGER {table}_kept BEFORE DELETE ON {table} FOR EACH ROW {refuse}",
            f"CREATE TRIGGER {table}_closed_once BEFORE UPDATE ON {table} FOR EACH ROW"
            f" WHEN (OLD.until IS NOT NULL OR NEW.until IS NULL OR to_jsonb(NEW) - 'until' IS DISTINCT FROM to_jsonb(OLD) - 'until') {refuse}",
        ),
        "sqlite": (
            f"CREATE TRIGGER {table}_kept BEFORE DELETE ON {table} BEGIN SELECT RAISE(ABORT, '{refused}'); END",
            f"CREATE TRIGGER {table}_closed_once BEFORE UPDATE ON {table} WHEN OLD.until IS NOT NULL OR NEW.until IS NULL OR {changed}"
            f" BEGIN SELECT RAISE(ABORT, '{refused}'); END",
        ),
    }
    undone = {
        "postgresql": (
            f"DROP TRIGGER {table}_kept ON {table}",
            f"DROP TRIGGER {table}_closed_once ON {table}",
            f"DROP FUNCTION {table}_refuse()",
        ),
        "sqlite": (f"DROP TRIGGER {table}_kept", f"DROP TRIGGER {table}_closed_once"),
    }
    return statements(guards, undone)


def statements(forwards: Mapping[str, Sequence[str]], backwards: Mapping[str, Sequence[str]]) -> RunPython:
    """SQL by kind of database."""

    def doing(chosen: Mapping[str, Sequence[str]]) -> Any:
        def run(apps: Any, editor: BaseDatabaseSchemaEditor) -> None:
            for statement in chosen[editor.connection.vendor]:
                editor.execute(statement)

        return run

    return RunPython(doing(forwards), doing(backwards))
