"""Of each idle episode the time that readings show it idle. The steps of policies went by the clock, outages of the source included."""

from datetime import timedelta

from django.db import migrations, models

MILLISECOND = timedelta(milliseconds=1)
FIELDS = ("pk", "started_at", "seen_at", "idle_milli", "wasted_milli_millis")


def fill(apps, schema_editor):
    """As the waste tells it, which was counted from readings alone."""
    rows = apps.get_model("dashboards", "IdleEpisode").objects.using(schema_editor.connection.alias)
    for key, started, seen, idle, wasted in list(rows.filter(ended_at__isnull=True).values_list(*FIELDS)):
        rows.filter(pk=key).update(idle_millis=max(0, min((seen - started) // MILLISECOND, wasted // max(1, idle))))


class Migration(migrations.Migration):
    dependencies = [("dashboards", "0009_xids_are_remembered_by_gpu")]
    operations = [
        migrations.AddField(
            "idleepisode",
            "idle_millis",
            models.BigIntegerField(default=0, help_text="Milliseconds that readings show it idle. The steps of a policy go by them."),
        ),
        migrations.RunPython(fill, migrations.RunPython.noop),
    ]
