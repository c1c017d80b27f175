"""Sweeps of the lab, which play a trace at several arrival rates or fleet sizes."""

import django.db.models.deletion
import gpufleet.core.times
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("scheduler", "0010_learned_overrun"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Sweep",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("public_id", models.CharField(max_length=24, unique=True)),
                ("trace_title", models.CharField(help_text="Also of one that was removed since.", max_length=80)),
                ("axis", models.CharField(choices=[("load", "Arrival rate"), ("nodes", "Number of nodes")], max_length=5)),
                ("asked", models.JSONField(default=dict, help_text="values, policies, seeds, hours, minutes, exact")),
                ("lane", models.PositiveSmallIntegerField(default=0, editable=False, help_text="What is in one lane goes on one at a time.")),
                (
                    "state",
                    models.CharField(
                        choices=[("waiting", "Waiting"), ("playing", "Playing"), ("done", "Done"), ("cancelled", "Cancelled"), ("failed", "Failed")],
                        default="waiting",
                        max_length=10,
                    ),
                ),
                ("asked_at", gpufleet.core.times.MomentField(default=gpufleet.core.times.now)),
                ("seen_at", gpufleet.core.times.MomentField(default=gpufleet.core.times.now, help_text="When it last went on.")),
                ("ended_at", gpufleet.core.times.MomentField(blank=True, null=True)),
                ("terms", models.JSONField(default=dict, help_text="gpu_types, and warm_up, until and step in milliseconds; once its trace was read")),
                ("results", models.JSONField(default=list, help_text="[policy, value, seed, what came of it], of points that were played")),
                ("played", models.PositiveIntegerField(default=0, help_text="Points so far.")),
                ("fault", models.CharField(blank=True, max_length=300)),
                (
                    "asked_by",
                    models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name="+", to=settings.AUTH_USER_MODEL),
                ),
                ("trace", models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name="sweeps", to="scheduler.trace")),
            ],
            options={
                "db_table": "sweep",
                "indexes": [models.Index(fields=["-asked_at", "-id"], name="sweep_asked")],
                "constraints": [
                    models.UniqueConstraint(condition=models.Q(("state__in", ("waiting", "playing"))), fields=("lane",), name="sweep_one_at_a_time")
                ],
            },
        ),
    ]
