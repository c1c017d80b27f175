"""Drains of nodes that begin later."""

import django.db.models.deletion
from django.db import migrations, models

import gpufleet.core.times

WAYS = [("finish", "Finish here"), ("move", "Save and resume elsewhere"), ("stop", "Stop, also jobs that may not be preempted")]


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0014_slurm_node_logs")]

    operations = [
        migrations.CreateModel(
            name="PlannedDrain",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("public_id", models.CharField(max_length=24, unique=True)),
                ("begins_at", gpufleet.core.times.MomentField(db_index=True)),
                ("way", models.CharField(choices=WAYS, max_length=10)),
                (
                    "at",
                    gpufleet.core.times.MomentField(
                        blank=True, help_text="When jobs that still run are moved or stopped; empty: as it begins.", null=True
                    ),
                ),
                ("reason", models.CharField(max_length=300)),
                ("author_name", models.CharField(max_length=160)),
                ("made_at", gpufleet.core.times.MomentField(default=gpufleet.core.times.now)),
                (
                    "node",
                    models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, related_name="planned_drain", to="scheduler.node"),
                ),
            ],
            options={"db_table": "planned_drain", "ordering": ["begins_at", "id"]},
        ),
    ]
