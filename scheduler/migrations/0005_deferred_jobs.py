"""Jobs that may be deferred, the hour to which each is, and by which figures it was chosen."""

from django.db import migrations, models

import gpufleet.core.times


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0004_energy_rates")]
    operations = [
        migrations.AddField(
            "job",
            "defer",
            models.CharField(blank=True, help_text="By what it may be deferred: price or carbon; null: not at all.", max_length=8, null=True),
        ),
        migrations.AddField(
            "job",
            "deferred_to",
            gpufleet.core.times.MomentField(blank=True, help_text="Not started before; once that has come, it waits as any other.", null=True),
        ),
        migrations.AddField(
            "job",
            "deferral",
            models.JSONField(
                blank=True, help_text="By which figures that was chosen; null: it is still to be judged, if at all.", null=True
            ),
        ),
        migrations.AddIndex(
            "job",
            models.Index(
                condition=models.Q(("deferred_to__isnull", False), ("ended_at__isnull", True)), fields=["deferred_to"], name="job_deferred_to"
            ),
        ),
        migrations.AddIndex(
            "job",
            models.Index(
                condition=models.Q(("defer__isnull", False), ("deferral__isnull", True), ("ended_at__isnull", True)),
                fields=["id"],
                name="job_to_be_judged",
            ),
        ),
    ]
