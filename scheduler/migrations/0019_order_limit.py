"""A back-end is told that the time limit of a job has changed."""

from django.db import migrations, models

KINDS = [
    ("start", "Start"),
    ("resize", "Resize"),
    ("signal", "Signal"),
    ("stop", "Stop"),
    ("limit", "Limit"),
    ("repartition", "Repartition"),
]


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0018_planned_health")]

    operations = [migrations.AlterField(model_name="order", name="kind", field=models.CharField(choices=KINDS, max_length=12))]
