"""How many jobs may be submitted to a node in a minute, and how many may wait there."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("quotas", "0005_paths_that_nodes_had_before")]

    operations = [
        migrations.AddField(
            model_name="quotanode",
            name="submits_per_minute",
            field=models.PositiveIntegerField(blank=True, help_text="Null: the nearest value above; 0: no limit.", null=True),
        ),
        migrations.AddField(
            model_name="quotanode",
            name="waiting_limit",
            field=models.PositiveIntegerField(blank=True, help_text="Null: the nearest value above; 0: no limit.", null=True),
        ),
    ]
