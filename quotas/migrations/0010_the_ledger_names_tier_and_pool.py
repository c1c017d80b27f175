"""Prices depend on how a GPU is shared and on the pool it stands in, so the ledger says both. The tier of older entries follows from their parts."""

from django.db import migrations, models

TABLE = "ledger_entry"
REFUSED = "SELECT RAISE(ABORT, 'ledger_entry is append-only')"
COLUMNS = (
    "id attempt job attempt_number role worker surplus cluster node gpu_type gpu_milli parts phase share_class quota_id quota_path job_class priority"
    " preemptible owner labels stated_cost_centre cost_centre began_at since"
).split()


def unguard(apps, schema_editor):
    on = f" ON {TABLE}" if schema_editor.connection.vendor == "postgresql" else ""
    for name in ("ledger_entry_kept", "ledger_entry_closed_once"):
        schema_editor.execute(f"DROP TRIGGER {name}{on}")


def _guard(schema_editor, columns):
    if schema_editor.connection.vendor == "postgresql":
        refuse = "FOR EACH ROW EXECUTE FUNCTION ledger_entry_refuse()"
        changed = "to_jsonb(NEW) - 'until' IS DISTINCT FROM to_jsonb(OLD) - 'until'"
        schema_editor.execute(f"CREATE TRIGGER ledger_entry_kept BEFORE DELETE ON {TABLE} {refuse}")
        when = f"WHEN (OLD.until IS NOT NULL OR NEW.until IS NULL OR {changed})"
        refuse = f"FOR EACH ROW {when} EXECUTE FUNCTION ledger_entry_refuse()"
        schema_editor.execute(f"CREATE TRIGGER ledger_entry_closed_once BEFORE UPDATE ON {TABLE} {refuse}")
    else:
        changed = " OR ".join(f'NEW."{name}" IS NOT OLD."{name}"' for name in columns)
        schema_editor.execute(f"CREATE TRIGGER ledger_entry_kept BEFORE DELETE ON {TABLE} BEGIN {REFUSED}; END")
        when = f"WHEN OLD.until IS NOT NULL OR NEW.until IS NULL OR {changed}"
        schema_editor.execute(f"CREATE TRIGGER ledger_entry_closed_once BEFORE UPDATE ON {TABLE} {when} BEGIN {REFUSED}; END")


def guard_as_before(apps, schema_editor):
    _guard(schema_editor, COLUMNS)


def fill_and_guard(apps, schema_editor):
    entries = apps.get_model("quotas", "LedgerEntry").objects
    tiers = {}
    for pk, parts in entries.values_list("pk", "parts").iterator(chunk_size=5000):
        profile = next((part[2] for part in parts if len(part) > 2 and part[2]), "")
        if profile or any(part[1] != 1000 for part in parts):
            tiers.setdefault(f"mig:{profile}" if profile else "share", []).append(pk)
    for tier, keys in tiers.items():
        for at in range(0, len(keys), 500):
            entries.filter(pk__in=keys[at : at + 500]).update(tier=tier)
    _guard(schema_editor, [*COLUMNS, "tier", "pool"])


class Migration(migrations.Migration):
    atomic = True
    dependencies = [("quotas", "0009_reservations_and_budgets")]

    operations = [
        migrations.RunPython(unguard, guard_as_before),
        migrations.AddField("ledgerentry", "tier", models.CharField(default="whole", help_text="whole, share or mig:PROFILE.", max_length=60)),
        migrations.AddField("ledgerentry", "pool", models.CharField(blank=True, default="", help_text="CLUSTER/POOL; empty: in none.", max_length=130)),
        migrations.RunPython(fill_and_guard, unguard),
    ]
