"""What a kWh costs and how much CO2 it stands for, of a pool or of the fleet over time, and forecasts of both."""

from django.conf import settings
from django.db import migrations, models

import gpufleet.core.times


class Migration(migrations.Migration):
    dependencies = [migrations.swappable_dependency(settings.AUTH_USER_MODEL), ("scheduler", "0003_job_words")]
    operations = [
        migrations.CreateModel(
            "EnergyRate",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("public_id", models.CharField(max_length=24, unique=True)),
                ("pool", models.CharField(blank=True, help_text="Of nodes, by name or by the label pool; empty: the whole fleet.", max_length=60)),
                ("zone", models.CharField(default="UTC", max_length=60)),
                ("starts_at", gpufleet.core.times.MomentField(help_text="When it applies first.")),
                ("ends_at", gpufleet.core.times.MomentField(blank=True, help_text="When that ends; null: standing.", null=True)),
                ("rule", models.CharField(blank=True, help_text="RFC 5545, over the wall clock of its zone.", max_length=300)),
                ("note", models.CharField(blank=True, max_length=200)),
                ("created_at", gpufleet.core.times.MomentField(default=gpufleet.core.times.now)),
                ("revision", models.PositiveIntegerField(default=1)),
                ("price_micros", models.BigIntegerField(blank=True, help_text="Of a kWh, in millionths of the currency.", null=True)),
                ("grams", models.PositiveIntegerField(blank=True, help_text="Of CO2 for a kWh.", null=True)),
                (
                    "created_by",
                    models.ForeignKey(
                        blank=True, null=True, on_delete=models.deletion.SET_NULL, related_name="+", to=settings.AUTH_USER_MODEL
                    ),
                ),
            ],
            options={
                "db_table": "energy_rate",
                "ordering": ["pool", "starts_at", "id"],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("ends_at__isnull", True), ("ends_at__gt", models.F("starts_at")), _connector="OR"),
                        name="energy_rate_ends_after_start",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("price_micros__isnull", False), ("grams__isnull", False), _connector="OR"),
                        name="energy_rate_says_something",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            "EnergyForecast",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("pool", models.CharField(blank=True, help_text="Empty: the whole fleet.", max_length=60, unique=True)),
                (
                    "steps",
                    models.JSONField(default=list, help_text="[start in milliseconds, micro-units or null, grams or null], each until the next one."),
                ),
                ("ends_at", gpufleet.core.times.MomentField(help_text="The end of the last step.")),
                ("sent_at", gpufleet.core.times.MomentField(default=gpufleet.core.times.now)),
                (
                    "sent_by",
                    models.ForeignKey(
                        blank=True, null=True, on_delete=models.deletion.SET_NULL, related_name="+", to=settings.AUTH_USER_MODEL
                    ),
                ),
            ],
            options={"db_table": "energy_forecast", "ordering": ["pool"]},
        ),
    ]
