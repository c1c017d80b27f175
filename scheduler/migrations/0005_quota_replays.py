"""What the last days would have been under a drafted tree."""

import django.db.models.deletion
import gpufleet.core.times
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("quotas", "0005_the_ledger_by_time_and_job"),
        ("scheduler", "0004_defragmentations"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="QuotaReplay",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("change_revision", models.PositiveIntegerField(help_text="Of the change when it was asked for.")),
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
                ("hours", models.PositiveIntegerField(default=0, help_text="Played so far.")),
                ("rows", models.JSONField(default=list, help_text="[key of a quota node, jobs, started, waited, held before and after]")),
                ("fault", models.CharField(blank=True, max_length=300)),
                (
                    "asked_by",
                    models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name="+", to=settings.AUTH_USER_MODEL),
                ),
                ("change", models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="replays", to="quotas.quotachange")),
            ],
            options={
                "db_table": "quota_replay",
                "indexes": [models.Index(fields=["change", "-id"], name="quota_replay_of_change")],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("state__in", ("waiting", "playing"))), fields=("change",), name="quota_replay_one_at_a_time"
                    )
                ],
            },
        ),
    ]
