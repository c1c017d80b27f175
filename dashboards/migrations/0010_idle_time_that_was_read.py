"""Of each idle episode the time that readings show it idle. The steps of policies went by the clock, outages of the source included."""

from datetime import timedelta

from django.db import migrations, models

MILLISECOND = timedelta(milliseconds=1)
AT_ONCE = 1000


def fill(apps, schema_editor):
    """As the waste tells it, which was counted from readings alone. An open episode that was larger before seems shorter, so that no step comes early."""
    rows = apps.get_model("dashboards", "IdleEpisode").objects.using(schema_editor.connection.alias).order_by("pk")
    last = 0
    while page := list(rows.filter(pk__gt=last)[:AT_ONCE]):
        for one in page:
            size = one.idle_milli if one.ended_at is not None else max(one.idle_milli, one.held_milli)
            one.idle_millis = max(0, min((one.seen_at - one.started_at) // MILLISECOND, one.wasted_milli_millis // max(1, size)))
        rows.bulk_update(page, ["idle_millis"])
        last = page[-1].pk


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
