"""The first migration of an app, applied in seconds.

Django renders all related models anew after each model that a migration adds, and here nearly all are related: half a minute for a hundred tables.
"""

from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations import CreateModel, Migration
from django.db.migrations.state import ProjectState


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
