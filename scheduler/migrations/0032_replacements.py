"""Replicas of services are started anew a few at a time."""

import django.db.models.deletion
import gpufleet.core.times
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("scheduler", "0031_worker_states"),
    ]

    operations = [
        migrations.AlterField(
            model_name="order",
            name="kind",
            field=models.CharField(
                choices=[
                    ("start", "Start"),
                    ("resize", "Resize"),
                    ("replace", "Replace"),
                    ("signal", "Signal"),
                    ("stop", "Stop"),
                    ("limit", "Limit"),
                    ("repartition", "Repartition"),
                ],
                max_length=12,
            ),
        ),
        migrations.CreateModel(
            name="Replacement",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("role", models.CharField(max_length=100)),
                ("at", gpufleet.core.times.MomentField(default=gpufleet.core.times.now)),
                ("max_unavailable", models.PositiveIntegerField(default=1)),
                ("within_seconds", models.PositiveIntegerField(help_text="A new replica can serve by then, or no further one is taken down.")),
                ("actor_name", models.CharField(max_length=160)),
                ("reason", models.CharField(blank=True, max_length=300)),
                ("over_at", gpufleet.core.times.MomentField(blank=True, null=True)),
                (
                    "end",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("done", "Done"),
                            ("stopped", "Stopped"),
                            ("failed", "Stopped by itself"),
                            ("restarted", "The job started anew"),
                            ("ended", "The job ended"),
                        ],
                        max_length=12,
                    ),
                ),
                ("why", models.CharField(blank=True, help_text="Why it stopped.", max_length=300)),
                ("attempt", models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="replacements", to="scheduler.attempt")),
                ("job", models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="replacements", to="scheduler.job")),
            ],
            options={
                "db_table": "job_replacement",
            },
        ),
        migrations.CreateModel(
            name="ReplacementStep",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("worker", models.PositiveIntegerField()),
                ("began_at", gpufleet.core.times.MomentField(blank=True, null=True)),
                ("sequence", models.PositiveIntegerField(default=0, help_text="Number of the order that its back-end was given.")),
                ("over_at", gpufleet.core.times.MomentField(blank=True, null=True)),
                (
                    "end",
                    models.CharField(
                        blank=True, choices=[("ready", "Replaced"), ("new", "Was new already"), ("left", "Left"), ("failed", "Failed")], max_length=12
                    ),
                ),
                ("replacement", models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="steps", to="scheduler.replacement")),
            ],
            options={
                "db_table": "job_replacement_step",
            },
        ),
        migrations.AddIndex(
            model_name="replacement",
            index=models.Index(fields=["job", "-at", "-id"], name="replacement_job"),
        ),
        migrations.AddIndex(
            model_name="replacement",
            index=models.Index(fields=["at"], name="replacement_at"),
        ),
        migrations.AddConstraint(
            model_name="replacement",
            constraint=models.UniqueConstraint(condition=models.Q(("over_at__isnull", True)), fields=("job",), name="replacement_one_open_per_job"),
        ),
        migrations.AddConstraint(
            model_name="replacement",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("end", ""), ("over_at__isnull", True)),
                    models.Q(("over_at__isnull", False), models.Q(("end", ""), _negated=True)),
                    _connector="OR",
                ),
                name="replacement_over_is_whole",
            ),
        ),
        migrations.AddConstraint(
            model_name="replacementstep",
            constraint=models.UniqueConstraint(fields=("replacement", "worker"), name="replacement_step_once"),
        ),
    ]
