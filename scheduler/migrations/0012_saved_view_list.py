"""Of which list a saved view is. On the way back only those of the list of jobs stay: nothing before knows of others."""

from typing import Any

from django.conf import settings
from django.db import migrations, models
from django.db.models.functions import Lower


def keep_those_of_jobs(apps: Any, schema_editor: Any) -> None:
    apps.get_model("scheduler", "SavedView").objects.exclude(list="jobs").delete()


class Migration(migrations.Migration):
    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
        ("scheduler", "0011_first_starts_by_time"),
    ]

    operations = [
        migrations.AddField(model_name="savedview", name="list", field=models.CharField(default="jobs", max_length=16)),
        migrations.RemoveConstraint(model_name="savedview", name="saved_view_name_once"),
        migrations.RemoveConstraint(model_name="savedview", name="saved_view_one_default"),
        migrations.AddConstraint(
            model_name="savedview", constraint=models.UniqueConstraint("owner", "list", Lower("name"), name="saved_view_name_once")
        ),
        migrations.AddConstraint(
            model_name="savedview",
            constraint=models.UniqueConstraint(
                fields=["owner", "list"], condition=models.Q(is_default=True), name="saved_view_one_default"
            ),
        ),
        migrations.RunPython(migrations.RunPython.noop, keep_those_of_jobs),
    ]
