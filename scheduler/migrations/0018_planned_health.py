"""What was a planned drain may be any other health of a node."""

import django.db.models.deletion
from django.db import migrations, models

import gpufleet.core.times

HEALTH = [
    ("healthy", "Healthy"),
    ("suspect", "Suspect"),
    ("draining", "Draining"),
    ("drained", "Drained"),
    ("repairing", "Repairing"),
    ("burn_in", "Burn-in"),
    ("down", "Down"),
]
WAYS = [("finish", "Finish here"), ("move", "Save and resume elsewhere"), ("stop", "Stop, also jobs that may not be preempted")]


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0017_slurm_former_folders")]

    operations = [
        migrations.RenameModel(old_name="PlannedDrain", new_name="PlannedHealth"),
        migrations.AlterModelTable(name="plannedhealth", table="planned_health"),
        migrations.AddField(
            model_name="plannedhealth",
            name="to",
            field=models.CharField(choices=HEALTH, default="draining", max_length=10),
            preserve_default=False,
        ),
        migrations.AlterField(
            model_name="plannedhealth",
            name="way",
            field=models.CharField(blank=True, choices=WAYS, help_text="Of a drain: what becomes of jobs that run there.", max_length=10),
        ),
        migrations.AlterField(
            model_name="plannedhealth",
            name="at",
            field=gpufleet.core.times.MomentField(
                blank=True, help_text="Of a drain: when jobs that still run are moved or stopped; empty: as it begins.", null=True
            ),
        ),
        migrations.AlterField(
            model_name="plannedhealth",
            name="node",
            field=models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, related_name="planned_health", to="scheduler.node"),
        ),
    ]
