"""Logs of Slurm jobs in a folder of their nodes."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0013_slurm_imports")]

    operations = [
        migrations.AddField(
            model_name="slurmcluster",
            name="node_logs",
            field=models.CharField(blank=True, default="", help_text="Folder of the nodes for logs; empty: they lie in the shared one.", max_length=300),
            preserve_default=False,
        ),
    ]
