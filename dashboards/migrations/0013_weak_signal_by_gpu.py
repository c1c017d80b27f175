"""Which GPUs have the weaker signal is kept for each: one old GPU marked a whole cluster. Frames of before say it of all until the next one."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("dashboards", "0012_each_incident_is_told")]
    operations = [
        migrations.AddField(
            "telemetryframe",
            "weak_ids",
            models.BinaryField(default=b"", help_text="Keys of GPUs whose SM activity is the driver's utilization. Not told: all, or none."),
        ),
    ]
