"""How much of their submission rates people and nodes have used."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("quotas", "0006_limits_on_submissions"),
        ("scheduler", "0013_pcie_lost"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="SubmissionRate",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("full_at_us", models.BigIntegerField(default=0, help_text="When nothing of it is used any more, in microseconds since 1970.")),
                (
                    "node",
                    models.OneToOneField(
                        blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name="+", to="quotas.quotanode"
                    ),
                ),
                (
                    "user",
                    models.OneToOneField(
                        blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name="+", to=settings.AUTH_USER_MODEL
                    ),
                ),
            ],
            options={
                "db_table": "submission_rate",
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("node__isnull", True), ("user__isnull", False))
                        | models.Q(("node__isnull", False), ("user__isnull", True)),
                        name="submission_rate_of_one",
                    )
                ],
            },
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("state__in", ("queued", "reserved", "preempted"))), fields=["quota"], name="job_waiting"
            ),
        ),
        migrations.AlterField(
            model_name="schedulerun",
            name="outcome",
            field=models.CharField(
                choices=[
                    ("submitted", "Submitted"),
                    ("delayed", "Delayed"),
                    ("skipped", "Left out"),
                    ("missed", "Let go"),
                    ("refused", "Refused"),
                ],
                max_length=10,
            ),
        ),
    ]
