"""How often the nodes of a Slurm cluster are imported by themselves, and what became of the last time."""

import django.db.models.deletion
from django.db import migrations, models

import gpufleet.core.times


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0012_saved_view_list")]

    operations = [
        migrations.AddField(
            model_name="slurmcluster",
            name="import_minutes",
            field=models.PositiveIntegerField(default=0, help_text="Its nodes are imported so often by themselves; 0: never."),
        ),
        migrations.AddField(model_name="slurmcluster", name="imported_at", field=gpufleet.core.times.MomentField(blank=True, null=True)),
        migrations.AddField(
            model_name="slurmcluster",
            name="import_fault",
            field=models.CharField(blank=True, help_text="Why the last import by itself changed nothing.", max_length=300),
        ),
        migrations.AddField(
            model_name="slurmcluster",
            name="import_waits",
            field=models.ForeignKey(
                blank=True,
                help_text="A preview that an operator is to look at.",
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="+",
                to="scheduler.inventoryimport",
            ),
        ),
    ]
