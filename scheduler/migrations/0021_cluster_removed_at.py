"""When a cluster left the fleet: its history stays."""

import gpufleet.core.times
from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [
        ("scheduler", "0020_one_form_of_spec"),
    ]

    operations = [
        migrations.AddField(
            model_name="cluster",
            name="removed_at",
            field=gpufleet.core.times.MomentField(blank=True, help_text="It has left the fleet: only its history is there.", null=True),
        ),
    ]
