"""Workers are asked whether they can serve; of a scale-up it is kept when its replicas could."""

import django.db.models.deletion
from django.db import migrations, models
from django.db.models import Q

import gpufleet.core.times


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0030_one_long_what_if")]
    operations = [
        migrations.AddField(
            "scaling",
            "ready_at",
            gpufleet.core.times.MomentField(blank=True, help_text="When as many could serve, of a job whose workers are asked.", null=True),
        ),
        migrations.CreateModel(
            "WorkerState",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("role", models.CharField(max_length=100)),
                ("worker", models.PositiveIntegerField()),
                ("up", models.BooleanField(default=False)),
                ("began", models.PositiveIntegerField(default=0, help_text="Number of the order that replaced it in its place last; 0: none.")),
                ("ready", models.BooleanField(help_text="Null: it is not asked.", null=True)),
                (
                    "since",
                    gpufleet.core.times.MomentField(default=gpufleet.core.times.now, help_text="Since when it is ready, or is not."),
                ),
                (
                    "first_at",
                    gpufleet.core.times.MomentField(
                        blank=True, help_text="When it was ready for the first time since it was begun.", null=True
                    ),
                ),
                ("why", models.CharField(blank=True, help_text="Why it is not ready.", max_length=200)),
                (
                    "attempt",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="worker_states", to="scheduler.attempt"),
                ),
            ],
            options={
                "db_table": "worker_state",
                "indexes": [models.Index(fields=["since"], name="worker_state_not_ready", condition=Q(ready=False))],
                "constraints": [models.UniqueConstraint(fields=["attempt", "role", "worker"], name="worker_state_once")],
            },
        ),
    ]
