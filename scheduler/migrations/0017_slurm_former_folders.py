"""Shared folders that a Slurm cluster had before."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0016_planned_job_changes")]

    operations = [
        migrations.AddField(
            model_name="slurmcluster",
            name="former_folders",
            field=models.JSONField(
                blank=True, default=list, help_text="Shared folders of before, the newest first: files of earlier jobs lie there."
            ),
        ),
    ]
