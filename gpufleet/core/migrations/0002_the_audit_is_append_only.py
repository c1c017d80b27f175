"""The audit log refuses changes in the database itself, so that no code path, and no one with only the console's login, can rewrite it."""

from django.db import migrations

from gpufleet.core.guards import statements

POSTGRESQL = (
    """
    CREATE FUNCTION audit_entry_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION 'audit_entry is append-only';
    END $$
    """,
    "CREATE TRIGGER audit_entry_append_only BEFORE UPDATE OR DELETE ON audit_entry FOR EACH ROW EXECUTE FUNCTION audit_entry_refuse()",
)
SQLITE = (
    "CREATE TRIGGER audit_entry_no_update BEFORE UPDATE ON audit_entry BEGIN SELECT RAISE(ABORT, 'audit_entry is append-only'); END",
    "CREATE TRIGGER audit_entry_no_delete BEFORE DELETE ON audit_entry BEGIN SELECT RAISE(ABORT, 'audit_entry is append-only'); END",
)
UNDO = {
    "postgresql": ("DROP TRIGGER audit_entry_append_only ON audit_entry", "DROP FUNCTION audit_entry_refuse()"),
    "sqlite": ("DROP TRIGGER audit_entry_no_update", "DROP TRIGGER audit_entry_no_delete"),
}


class Migration(migrations.Migration):
    replaces = [("core", "0002_audit_append_only")]
    dependencies = [("core", "0001_all_tables")]

    operations = [statements({"postgresql": POSTGRESQL, "sqlite": SQLITE}, UNDO)]
