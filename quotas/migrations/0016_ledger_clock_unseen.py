"""Clusters that do not answer: what runs there is not decided anew meanwhile."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("quotas", "0015_charged_from_the_start"),
    ]

    operations = [
        migrations.AddField(
            model_name="ledgerclock",
            name="unseen",
            field=models.JSONField(default=list, help_text="Clusters that do not answer: what runs there is decided anew when they do."),
        ),
    ]
