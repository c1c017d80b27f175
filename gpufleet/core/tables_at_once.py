"""The first migration of an app, applied and taken back in seconds.

Django renders all related models anew after each model that a migration adds, and here nearly all are related: half a minute for a hundred tables.
"""

from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations import CreateModel, Migration
from django.db.migrations.state import ProjectState


class TablesAtOnce(Migration):
    """Models are rendered once, with all that the migration adds to them, and their tables made as they are then."""

    def apply(self, project_state: ProjectState, schema_editor: BaseDatabaseSchemaEditor, collect_sql: bool = False) -> ProjectState:
        state = self.mutate_state(project_state, preserve=False)
        for operation in self._tables():
            operation.database_forwards(self.app_label, schema_editor, state, state)
        return state

    def unapply(self, project_state: ProjectState, schema_editor: BaseDatabaseSchemaEditor, collect_sql: bool = False) -> ProjectState:
        state = self.mutate_state(project_state)
        for operation in reversed(self._tables()):
            operation.database_backwards(self.app_label, schema_editor, state, project_state)
        return project_state

    def mutate_state(self, project_state: ProjectState, preserve: bool = True) -> ProjectState:
        state = project_state.clone() if preserve else project_state
        state.__dict__.pop("apps", None)
        for operation in self.operations:
            operation.state_forwards(self.app_label, state)
        return state

    def _tables(self) -> list[CreateModel]:
        return [operation for operation in self.operations if isinstance(operation, CreateModel)]
