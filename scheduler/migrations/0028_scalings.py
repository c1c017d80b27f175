"""How many replicas of a service are wanted changes while it runs; how long it takes until they have their place is kept."""

from django.db import migrations, models
from django.db.models import Q

import gpufleet.core.times

ENDS = [
    ("placed", "Placed"),
    ("released", "Released"),
    ("overtaken", "Changed again"),
    ("ended", "The job ended"),
    ("not_running", "It did not run"),
]


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0027_traces")]
    operations = [
        migrations.CreateModel(
            "Scaling",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("role", models.CharField(max_length=100)),
                ("at", gpufleet.core.times.MomentField(default=gpufleet.core.times.now)),
                ("before", models.PositiveIntegerField(help_text="How many were wanted before.")),
                ("after", models.PositiveIntegerField(help_text="How many are wanted since.")),
                ("stood", models.PositiveIntegerField(help_text="How many had their place then.")),
                ("by_metric", models.BooleanField(default=False, help_text="Whether it followed its metric.")),
                ("actor_name", models.CharField(max_length=160)),
                ("reason", models.CharField(blank=True, max_length=300)),
                ("over_at", gpufleet.core.times.MomentField(blank=True, null=True)),
                ("end", models.CharField(blank=True, choices=ENDS, max_length=12)),
                ("job", models.ForeignKey(on_delete=models.deletion.CASCADE, related_name="scalings", to="scheduler.job")),
            ],
            options={
                "db_table": "job_scaling",
                "indexes": [
                    models.Index(fields=["job", "-at", "-id"], name="scaling_job"),
                    models.Index(fields=["at"], name="scaling_at"),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=["job", "role"], condition=Q(over_at__isnull=True), name="scaling_one_open_per_role"),
                    models.CheckConstraint(
                        condition=Q(over_at__isnull=True, end="") | (Q(over_at__isnull=False) & ~Q(end="")), name="scaling_over_is_whole"
                    ),
                ],
            },
        ),
    ]
