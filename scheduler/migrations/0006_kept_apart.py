"""Pairs of a service and a template of which interference is predicted to break the service level."""

from django.db import migrations, models

import gpufleet.core.times


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0005_deferred_jobs")]
    operations = [
        migrations.CreateModel(
            "KeptApart",
            fields=[
                ("id", models.PositiveSmallIntegerField(default=1, primary_key=True, serialize=False)),
                ("learnt_at", gpufleet.core.times.MomentField()),
                ("pairs", models.JSONField(default=list)),
            ],
            options={"db_table": "kept_apart"},
        ),
    ]
