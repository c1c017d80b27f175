"""Home says how long the jobs waited that started in a week."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0010_usual_demand")]

    operations = [
        migrations.AddIndex(
            model_name="attempt",
            index=models.Index(condition=models.Q(("number", 1)), fields=["started_at", "id"], name="attempt_first_start"),
        ),
    ]
