"""A closed month, its lines and its idle time are never changed nor lost: triggers refuse it, whoever asks."""

from django.db import migrations

PARTS = ("charge_line", "charge_idle", "charge_sum", "charge_idle_day")


def guard(apps, schema_editor):
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(
            """
            CREATE FUNCTION charge_month_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                IF OLD.closed_at IS NOT NULL THEN RAISE EXCEPTION 'charge_month is closed'; END IF;
                IF TG_OP = 'DELETE' THEN RETURN OLD; END IF;
                RETURN NEW;
            END $$
            """
        )
        schema_editor.execute(
            "CREATE TRIGGER charge_month_kept BEFORE UPDATE OR DELETE ON charge_month FOR EACH ROW EXECUTE FUNCTION charge_month_refuse()"
        )
        schema_editor.execute(
            """
            CREATE FUNCTION charge_part_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                IF TG_OP <> 'INSERT' AND EXISTS (SELECT 1 FROM charge_month WHERE id = OLD.month_id AND closed_at IS NOT NULL)
                THEN RAISE EXCEPTION USING MESSAGE = TG_TABLE_NAME || ' belongs to a closed month'; END IF;
                IF TG_OP <> 'DELETE' AND EXISTS (SELECT 1 FROM charge_month WHERE id = NEW.month_id AND closed_at IS NOT NULL)
                THEN RAISE EXCEPTION USING MESSAGE = TG_TABLE_NAME || ' belongs to a closed month'; END IF;
                IF TG_OP = 'DELETE' THEN RETURN OLD; END IF;
                RETURN NEW;
            END $$
            """
        )
        for table in PARTS:
            schema_editor.execute(
                f"CREATE TRIGGER {table}_kept BEFORE INSERT OR UPDATE OR DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION charge_part_refuse()"
            )
        return
    for verb in ("UPDATE", "DELETE"):
        schema_editor.execute(
            f"CREATE TRIGGER charge_month_{verb.lower()} BEFORE {verb} ON charge_month WHEN OLD.closed_at IS NOT NULL"
            " BEGIN SELECT RAISE(ABORT, 'charge_month is closed'); END"
        )
    for table in PARTS:
        for verb, rows in (("INSERT", ("NEW",)), ("UPDATE", ("OLD", "NEW")), ("DELETE", ("OLD",))):
            for row in rows:
                schema_editor.execute(
                    f"CREATE TRIGGER {table}_{verb.lower()}_{row.lower()} BEFORE {verb} ON {table}"
                    f" WHEN EXISTS (SELECT 1 FROM charge_month WHERE id = {row}.month_id AND closed_at IS NOT NULL)"
                    f" BEGIN SELECT RAISE(ABORT, '{table} belongs to a closed month'); END"
                )


def unguard(apps, schema_editor):
    if schema_editor.connection.vendor == "postgresql":
        for table in ("charge_month", *PARTS):
            schema_editor.execute(f"DROP TRIGGER {table}_kept ON {table}")
        schema_editor.execute("DROP FUNCTION charge_month_refuse()")
        schema_editor.execute("DROP FUNCTION charge_part_refuse()")
        return
    for verb in ("update", "delete"):
        schema_editor.execute(f"DROP TRIGGER charge_month_{verb}")
    for table in PARTS:
        for name in ("insert_new", "update_old", "update_new", "delete_old"):
            schema_editor.execute(f"DROP TRIGGER {table}_{name}")


class Migration(migrations.Migration):
    replaces = [("quotas", "0013_closed_months_are_frozen")]
    dependencies = [("quotas", "0002_the_ledger_is_append_only")]

    operations = [migrations.RunPython(guard, unguard)]
