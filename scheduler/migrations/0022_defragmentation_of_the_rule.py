"""One defragmentation of a person and one of the rule may be open."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("scheduler", "0021_cluster_removed_at"),
    ]

    operations = [
        migrations.RemoveConstraint(model_name="defragmentation", name="defragmentation_open_once"),
        migrations.AddConstraint(
            model_name="defragmentation",
            constraint=models.UniqueConstraint(condition=models.Q(("state", "open")), fields=("by_rule",), name="defragmentation_open_once_each"),
        ),
    ]
