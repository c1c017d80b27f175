"""What a waiting job is told of its start has a range."""

from django.db import migrations

import gpufleet.core.times


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0020_job_batches")]

    operations = [
        migrations.AddField("outlook", "earliest_start", gpufleet.core.times.MomentField(blank=True, null=True)),
        migrations.AddField("outlook", "latest_start", gpufleet.core.times.MomentField(blank=True, null=True)),
        migrations.AlterField(
            "outlook",
            "predicted_start",
            gpufleet.core.times.MomentField(
                blank=True, help_text="When it is expected to start, between the earliest and the latest.", null=True
            ),
        ),
    ]
