"""The newest snapshot of the gap GPU by GPU: the rows behind each figure of its page."""

from django.db import migrations, models

from gpufleet.core.times import MomentField


def forget_frames(apps, schema_editor):
    """The version before knows fewer signals and cannot read frames with more; the next look makes new ones."""
    apps.get_model("dashboards", "HealthFrame").objects.using(schema_editor.connection.alias).all().delete()


class Migration(migrations.Migration):
    dependencies = [("dashboards", "0006_rollups_in_partitions")]
    operations = [
        migrations.CreateModel(
            "GapNewest",
            [
                ("id", models.PositiveSmallIntegerField(default=1, primary_key=True, serialize=False)),
                ("at", MomentField()),
                ("pieces", models.BinaryField(help_text="Compressed uint64 columns: part, GPU, job (0: none) and milli-GPU.")),
            ],
            {"db_table": "gap_newest"},
        ),
        migrations.RunPython(migrations.RunPython.noop, forget_frames),
    ]
