"""The fair share of each node, hour by hour."""

import gpufleet.core.times
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("scheduler", "0006_outside_jobs"),
    ]

    operations = [
        migrations.CreateModel(
            name="ShareStep",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("at", gpufleet.core.times.MomentField(help_text="The beginning of the hour.", unique=True)),
                ("fair", models.JSONField(default=dict, help_text="Milli-GPU by public id of a quota node and GPU type; nothing where it is 0.")),
            ],
            options={
                "db_table": "share_step",
            },
        ),
    ]
