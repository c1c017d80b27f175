"""An entry of the capacity timeline is closed once; otherwise the database refuses every change and every loss of a row."""

from django.db import migrations

POSTGRESQL = (
    """
    CREATE FUNCTION capacity_entry_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION 'capacity_entry is append-only';
    END $$
    """,
    "CREATE TRIGGER capacity_entry_kept BEFORE DELETE ON capacity_entry FOR EACH ROW EXECUTE FUNCTION capacity_entry_refuse()",
    """
    CREATE TRIGGER capacity_entry_closed_once BEFORE UPDATE ON capacity_entry FOR EACH ROW
    WHEN (OLD.until IS NOT NULL OR NEW.until IS NULL OR to_jsonb(NEW) - 'until' IS DISTINCT FROM to_jsonb(OLD) - 'until')
    EXECUTE FUNCTION capacity_entry_refuse()
    """,
)
COLUMNS = "id gpu_id since used_milli starting_milli window_milli draining_milli down_milli kept_milli blocked_milli unwanted_milli".split()
CHANGED = " OR ".join(f'NEW."{name}" IS NOT OLD."{name}"' for name in COLUMNS)
SQLITE = (
    "CREATE TRIGGER capacity_entry_kept BEFORE DELETE ON capacity_entry BEGIN SELECT RAISE(ABORT, 'capacity_entry is append-only'); END",
    "CREATE TRIGGER capacity_entry_closed_once BEFORE UPDATE ON capacity_entry"
    f" WHEN OLD.until IS NOT NULL OR NEW.until IS NULL OR {CHANGED}"
    " BEGIN SELECT RAISE(ABORT, 'capacity_entry is append-only'); END",
)
UNDO = {
    "postgresql": (
        "DROP TRIGGER capacity_entry_kept ON capacity_entry",
        "DROP TRIGGER capacity_entry_closed_once ON capacity_entry",
        "DROP FUNCTION capacity_entry_refuse()",
    ),
    "sqlite": ("DROP TRIGGER capacity_entry_kept", "DROP TRIGGER capacity_entry_closed_once"),
}


def guard(apps, schema_editor):
    for statement in {"postgresql": POSTGRESQL, "sqlite": SQLITE}[schema_editor.connection.vendor]:
        schema_editor.execute(statement)


def unguard(apps, schema_editor):
    for statement in UNDO[schema_editor.connection.vendor]:
        schema_editor.execute(statement)


class Migration(migrations.Migration):
    replaces = [("scheduler", "0006_the_timeline_is_append_only")]
    dependencies = [("scheduler", "0001_tables")]

    operations = [migrations.RunPython(guard, unguard)]
