import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

import gpufleet.core.times


class Migration(migrations.Migration):
    dependencies = [
        ("scheduler", "0019_predictions_by_futures"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="JobBatch",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("public_id", models.CharField(max_length=32, unique=True)),
                ("action", models.CharField(max_length=20)),
                ("priority", models.IntegerField(null=True)),
                ("reason", models.CharField(blank=True, max_length=280)),
                ("at", gpufleet.core.times.MomentField(default=gpufleet.core.times.now)),
                (
                    "verdicts",
                    models.JSONField(
                        default=list, help_text="In the order in which the jobs were named: id, name, state, revision, effect, detail."
                    ),
                ),
                ("key", models.CharField(blank=True, help_text="The caller's own name for it, if it gave one.", max_length=100)),
                ("digest", models.CharField(blank=True, help_text="Of what was asked under that name.", max_length=64)),
                (
                    "user",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="+", to=settings.AUTH_USER_MODEL),
                ),
            ],
            options={
                "db_table": "job_batch",
                "indexes": [models.Index(fields=["at"], name="job_batch_at")],
                "constraints": [
                    models.UniqueConstraint(condition=models.Q(("key", ""), _negated=True), fields=("user", "key"), name="job_batch_once")
                ],
            },
        ),
    ]
