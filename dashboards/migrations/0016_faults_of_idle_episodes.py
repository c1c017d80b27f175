"""Why the last round could not go on with an idle episode."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("dashboards", "0015_sign_in_of_prometheus_servers")]
    operations = [
        migrations.AddField(
            "idleepisode",
            "fault",
            models.CharField(
                blank=True, default="", help_text="Why the last round could not go on with it; empty where it could.", max_length=300
            ),
            preserve_default=False,
        ),
    ]
