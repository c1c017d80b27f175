"""Since when the back-end of a cluster has not answered."""

import gpufleet.core.times
from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [
        ("scheduler", "0008_node_drain"),
    ]

    operations = [
        migrations.AddField(
            model_name="cluster",
            name="silent_since",
            field=gpufleet.core.times.MomentField(
                blank=True, help_text="Its back-end has not answered since: nothing new is placed there.", null=True
            ),
        ),
    ]
