"""What jobs usually ask for, which the scheduler leaves room for."""

import gpufleet.core.times
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("scheduler", "0009_cluster_silent_since"),
    ]

    operations = [
        migrations.CreateModel(
            name="UsualDemand",
            fields=[
                ("id", models.PositiveSmallIntegerField(default=1, primary_key=True, serialize=False)),
                ("learnt_at", gpufleet.core.times.MomentField()),
                ("parts", models.JSONField(default=list)),
            ],
            options={
                "db_table": "usual_demand",
            },
        ),
    ]
