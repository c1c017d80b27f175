"""What people were told of a defragmentation, and who stopped it. Of those that there are, what has come is taken for told."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

from gpufleet.core.times import now


def told(apps, schema_editor):
    rows = apps.get_model("scheduler", "Defragmentation").objects
    rows.filter(state="ended").update(told="ended")
    rows.filter(state="open", starts_at__lte=now()).update(told="begun")
    rows.filter(state="open", starts_at__gt=now()).update(told="planned")


class Migration(migrations.Migration):
    dependencies = [
        ("scheduler", "0022_defragmentation_of_the_rule"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]
    operations = [
        migrations.AddField(
            "defragmentation",
            "stopped_by",
            models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name="+", to=settings.AUTH_USER_MODEL),
        ),
        migrations.AddField(
            "defragmentation",
            "told",
            models.CharField(blank=True, default="", help_text="What people were told of it last: planned, begun or ended.", max_length=7),
            preserve_default=False,
        ),
        migrations.RunPython(told, migrations.RunPython.noop),
    ]
