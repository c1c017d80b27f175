"""The first migration of an app, applied in seconds.

Django renders all related models anew after each model that a migration adds, and here nearly all are related: half a minute for a hundred tables.
"""

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations import CreateModel, Migration
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.db.migrations.state import ProjectState

SQUASHED = "29 November 2026"


class TablesAtOnce(Migration):
    """Models are rendered once, with all that the migration adds to them, and their tables made as they are then."""

    def apply(self, project_state: ProjectState, schema_editor: BaseDatabaseSchemaEditor, collect_sql: bool = False) -> ProjectState:
        project_state.__dict__.pop("apps", None)
        for operation in self.operations:
            operation.state_forwards(self.app_label, project_state)
        for operation in self.operations:
            if isinstance(operation, CreateModel):
                operation.database_forwards(self.app_label, schema_editor, project_state, project_state)
        return project_state


def left_out(connection: BaseDatabaseWrapper) -> list[tuple[str, str]]:
    """Migrations that a database lacks of those that one here stands for. None: all of them are applied, or none is."""
    loader = MigrationLoader(connection, load=False)
    loader.load_disk()
    applied = MigrationRecorder(connection).applied_migrations()
    found = []
    for key, migration in loader.disk_migrations.items():
        if key not in applied and any(one in applied for one in migration.replaces):
            found += [one for one in migration.replaces if one not in applied]
    return found


def too_old(connection: BaseDatabaseWrapper) -> str:
    """Why a database can't be brought to this version at once; empty where it can."""
    if not (missing := left_out(connection)):
        return ""
    named = ", ".join(".".join(key) for key in sorted(missing)[:3])
    return f"The database is of an older version, and lacks {named}. Start gpufleet once as it was on {SQUASHED}, then this version."
