import django.db.models.deletion
from django.db import migrations, models


def guard(apps, schema_editor):
    """As lines of a closed month are."""
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(
            "CREATE TRIGGER charge_idle_day_kept BEFORE INSERT OR UPDATE OR DELETE ON charge_idle_day"
            " FOR EACH ROW EXECUTE FUNCTION charge_part_refuse()"
        )
        return
    for verb, rows in (("INSERT", ("NEW",)), ("UPDATE", ("OLD", "NEW")), ("DELETE", ("OLD",))):
        for row in rows:
            schema_editor.execute(
                f"CREATE TRIGGER charge_idle_day_{verb.lower()}_{row.lower()} BEFORE {verb} ON charge_idle_day"
                f" WHEN EXISTS (SELECT 1 FROM charge_month WHERE id = {row}.month_id AND closed_at IS NOT NULL)"
                " BEGIN SELECT RAISE(ABORT, 'charge_idle_day belongs to a closed month'); END"
            )


def unguard(apps, schema_editor):
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute("DROP TRIGGER charge_idle_day_kept ON charge_idle_day")
        return
    for name in ("insert_new", "update_old", "update_new", "delete_old"):
        schema_editor.execute(f"DROP TRIGGER charge_idle_day_{name}")


class Migration(migrations.Migration):
    dependencies = [("quotas", "0012_exports_of_periods")]

    operations = [
        migrations.CreateModel(
            name="ChargeIdleDay",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("day", models.DateField()),
                ("gpu_type", models.CharField(max_length=60)),
                ("cause", models.CharField(max_length=12)),
                ("milli_millis", models.BigIntegerField()),
                ("effective_nanos", models.BigIntegerField()),
                ("month", models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name="idle_days", to="quotas.chargemonth")),
            ],
            options={
                "db_table": "charge_idle_day",
                "constraints": [models.UniqueConstraint(fields=("month", "day", "gpu_type", "cause"), name="charge_idle_day_once")],
            },
        ),
        migrations.RunPython(guard, unguard),
    ]
