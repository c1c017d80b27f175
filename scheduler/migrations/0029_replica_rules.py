"""A service may follow its metric: how many replicas are wanted is then what that says."""

from django.db import migrations, models

import gpufleet.core.times


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0028_scalings")]
    operations = [
        migrations.CreateModel(
            "ReplicaRule",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("role", models.CharField(max_length=100)),
                ("cooldown_seconds", models.PositiveIntegerField(help_text="So long it has to want fewer before it is given fewer.")),
                ("since", gpufleet.core.times.MomentField(default=gpufleet.core.times.now)),
                ("actor_name", models.CharField(help_text="Who had it follow.", max_length=160)),
                ("read_at", gpufleet.core.times.MomentField(blank=True, help_text="When its metric was read last.", null=True)),
                ("figure", models.PositiveIntegerField(blank=True, help_text="What it said then.", null=True)),
                ("low_since", gpufleet.core.times.MomentField(blank=True, help_text="Since when it has said fewer than are wanted.", null=True)),
                ("low_most", models.PositiveIntegerField(blank=True, help_text="The most that it has said in that time.", null=True)),
                ("job", models.OneToOneField(on_delete=models.deletion.CASCADE, related_name="replica_rule", to="scheduler.job")),
            ],
            options={"db_table": "job_replica_rule"},
        ),
    ]
