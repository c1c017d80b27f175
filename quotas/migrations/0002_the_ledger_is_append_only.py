"""An entry of the ledger is closed once; otherwise the database refuses every change and every loss of a row."""

from django.db import migrations

POSTGRESQL = (
    """
    CREATE FUNCTION ledger_entry_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION 'ledger_entry is append-only';
    END $$
    """,
    "CREATE TRIGGER ledger_entry_kept BEFORE DELETE ON ledger_entry FOR EACH ROW EXECUTE FUNCTION ledger_entry_refuse()",
    """
    CREATE TRIGGER ledger_entry_closed_once BEFORE UPDATE ON ledger_entry FOR EACH ROW
    WHEN (OLD.until IS NOT NULL OR NEW.until IS NULL OR to_jsonb(NEW) - 'until' IS DISTINCT FROM to_jsonb(OLD) - 'until')
    EXECUTE FUNCTION ledger_entry_refuse()
    """,
)
COLUMNS = (
    "id attempt job attempt_number role worker surplus cluster node gpu_type gpu_milli parts phase share_class quota_id quota_path job_class priority"
    " preemptible owner labels stated_cost_centre cost_centre began_at since tier pool"
).split()
CHANGED = " OR ".join(f'NEW."{name}" IS NOT OLD."{name}"' for name in COLUMNS)
SQLITE = (
    "CREATE TRIGGER ledger_entry_kept BEFORE DELETE ON ledger_entry BEGIN SELECT RAISE(ABORT, 'ledger_entry is append-only'); END",
    "CREATE TRIGGER ledger_entry_closed_once BEFORE UPDATE ON ledger_entry"
    f" WHEN OLD.until IS NOT NULL OR NEW.until IS NULL OR {CHANGED}"
    " BEGIN SELECT RAISE(ABORT, 'ledger_entry is append-only'); END",
)
UNDO = {
    "postgresql": (
        "DROP TRIGGER ledger_entry_kept ON ledger_entry",
        "DROP TRIGGER ledger_entry_closed_once ON ledger_entry",
        "DROP FUNCTION ledger_entry_refuse()",
    ),
    "sqlite": ("DROP TRIGGER ledger_entry_kept", "DROP TRIGGER ledger_entry_closed_once"),
}


def guard(apps, schema_editor):
    for statement in {"postgresql": POSTGRESQL, "sqlite": SQLITE}[schema_editor.connection.vendor]:
        schema_editor.execute(statement)


def unguard(apps, schema_editor):
    for statement in UNDO[schema_editor.connection.vendor]:
        schema_editor.execute(statement)


class Migration(migrations.Migration):
    replaces = [("quotas", "0006_the_ledger_is_append_only")]
    dependencies = [("quotas", "0001_tables")]

    operations = [migrations.RunPython(guard, unguard)]
