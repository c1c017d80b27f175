"""Caps of what the GPUs of a pool draw over time, and the rated watts of each GPU type."""

from django.conf import settings
from django.db import migrations, models

import gpufleet.core.times


class Migration(migrations.Migration):
    dependencies = [migrations.swappable_dependency(settings.AUTH_USER_MODEL), ("scheduler", "0032_replacements")]
    operations = [
        migrations.AddField(
            "gputype", "rated_watts", models.PositiveIntegerField(blank=True, help_text="Of one GPU; null: as its maker states.", null=True)
        ),
        migrations.CreateModel(
            "PowerCap",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("public_id", models.CharField(max_length=24, unique=True)),
                ("pool", models.CharField(blank=True, help_text="Of nodes, by name or by the label pool; empty: the whole fleet.", max_length=60)),
                ("watts", models.PositiveBigIntegerField()),
                ("zone", models.CharField(default="UTC", max_length=60)),
                ("starts_at", gpufleet.core.times.MomentField(help_text="When it applies first.")),
                ("ends_at", gpufleet.core.times.MomentField(blank=True, help_text="When that ends; null: standing.", null=True)),
                ("rule", models.CharField(blank=True, help_text="RFC 5545, over the wall clock of its zone.", max_length=300)),
                ("note", models.CharField(blank=True, max_length=200)),
                ("created_at", gpufleet.core.times.MomentField(default=gpufleet.core.times.now)),
                ("revision", models.PositiveIntegerField(default=1)),
                (
                    "created_by",
                    models.ForeignKey(
                        blank=True, null=True, on_delete=models.deletion.SET_NULL, related_name="+", to=settings.AUTH_USER_MODEL
                    ),
                ),
            ],
            options={
                "db_table": "power_cap",
                "ordering": ["pool", "starts_at", "id"],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("ends_at__isnull", True), ("ends_at__gt", models.F("starts_at")), _connector="OR"),
                        name="power_cap_ends_after_start",
                    )
                ],
            },
        ),
    ]
