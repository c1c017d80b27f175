"""Services over their objective, and jobs that gave way for them."""

import django.db.models.deletion
import gpufleet.core.times
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("scheduler", "0011_sweeps"),
    ]

    operations = [
        migrations.CreateModel(
            name="Relief",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "since",
                    gpufleet.core.times.MomentField(blank=True, help_text="Since when a breach goes on with co-tenants as its cause.", null=True),
                ),
                ("read_at", gpufleet.core.times.MomentField(help_text="When its latency was read last.")),
                ("figure", models.CharField(max_length=40)),
                ("latency_ms", models.FloatField()),
                ("objective_ms", models.PositiveIntegerField()),
                ("beside", models.JSONField(default=list, help_text="Public ids of the jobs that are the cause.")),
                (
                    "how",
                    models.CharField(
                        choices=[("shares", "shares its GPUs"), ("came", "came to its nodes shortly before")], default="shares", max_length=8
                    ),
                ),
                (
                    "evicted_at",
                    gpufleet.core.times.MomentField(blank=True, help_text="When a job was evicted for it last, also for another service.", null=True),
                ),
                ("next_job", models.CharField(blank=True, help_text="Public id of the job that gives way next; empty: none.", max_length=24)),
                ("next_at", gpufleet.core.times.MomentField(blank=True, null=True)),
                ("refused", models.JSONField(default=dict, help_text="By public id, why a job beside it does not give way.")),
                ("job", models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, related_name="relief", to="scheduler.job")),
            ],
            options={
                "db_table": "relief",
            },
        ),
        migrations.CreateModel(
            name="Relieved",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("at", gpufleet.core.times.MomentField()),
                ("figure", models.CharField(max_length=40)),
                ("latency_ms", models.FloatField()),
                ("objective_ms", models.PositiveIntegerField()),
                ("how", models.CharField(choices=[("shares", "shares its GPUs"), ("came", "came to its nodes shortly before")], max_length=8)),
                ("lost_gpu_seconds", models.PositiveBigIntegerField(help_text="Work that was lost, as the plan saw it.")),
                ("plan", models.BigIntegerField(blank=True, help_text="Key of the plan record, as long as that is kept.", null=True)),
                ("until", gpufleet.core.times.MomentField(blank=True, null=True)),
                ("job", models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="gave_way_for", to="scheduler.job")),
                ("service", models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="relieved_by", to="scheduler.job")),
            ],
            options={
                "db_table": "relieved",
                "indexes": [
                    models.Index(fields=["service", "-at", "-id"], name="relieved_service"),
                    models.Index(fields=["until"], name="relieved_until"),
                ],
            },
        ),
    ]
