"""Up to where kernel logs were read, so that an XID counts once however a machine's clocks drift."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("dashboards", "0007_the_newest_gap_by_gpu")]
    operations = [
        migrations.AddField(
            "healthframe",
            "logs",
            models.JSONField(
                default=list, help_text="Boots whose kernel log was read, with the number of the newest record; the last one read last."
            ),
        ),
    ]
