"""The factor on estimates that is learned from jobs that have ended."""

from django.db import migrations, models

import gpufleet.core.times


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0009_levels_by_labels")]
    operations = [
        migrations.CreateModel(
            "LearnedOverrun",
            fields=[
                ("id", models.PositiveSmallIntegerField(default=1, primary_key=True, serialize=False)),
                ("learnt_at", gpufleet.core.times.MomentField()),
                ("factor_millionths", models.PositiveIntegerField(default=1000000, help_text="Bounded; 1 where too few jobs were known.")),
                (
                    "median_millionths",
                    models.PositiveBigIntegerField(blank=True, help_text="As measured; null: no job was known.", null=True),
                ),
                ("jobs", models.PositiveIntegerField(default=0, help_text="Of so many jobs.")),
                ("since", gpufleet.core.times.MomentField(blank=True, help_text="When the first of them ended.", null=True)),
            ],
            options={"db_table": "learned_overrun"},
        ),
    ]
