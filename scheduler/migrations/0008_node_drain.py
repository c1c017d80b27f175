"""What becomes of the jobs on a draining node, and when."""

import gpufleet.core.times
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("scheduler", "0007_share_steps"),
    ]

    operations = [
        migrations.AddField(
            model_name="node",
            name="drain_at",
            field=gpufleet.core.times.MomentField(
                blank=True, help_text="While it drains: when jobs that still run are moved or stopped.", null=True
            ),
        ),
        migrations.AddField(
            model_name="node",
            name="drain_way",
            field=models.CharField(
                blank=True, default="", help_text="While it drains: what becomes of its jobs. Empty: they finish.", max_length=10
            ),
            preserve_default=False,
        ),
    ]
