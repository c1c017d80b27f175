"""The least share of a job's GPUs that must be idle before an idle policy reclaims it: a reclaim takes all of them."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("dashboards", "0010_idle_time_that_was_read")]
    operations = [
        migrations.AddField(
            "idlepolicy",
            "reclaim_share_percent",
            models.PositiveSmallIntegerField(default=50, help_text="A job is reclaimed only while at least this share of its GPUs is idle."),
        ),
    ]
