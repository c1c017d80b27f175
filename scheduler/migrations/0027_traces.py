"""A what-if may play a trace that somebody has added, in place of the last days."""

from django.conf import settings
from django.db import migrations, models

from gpufleet.core import times


class Migration(migrations.Migration):
    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
        ("scheduler", "0026_template_speeds"),
    ]
    operations = [
        migrations.CreateModel(
            "Trace",
            [
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("public_id", models.CharField(max_length=24, unique=True)),
                ("title", models.CharField(max_length=80)),
                ("kind", models.CharField(help_text="Which trace its files were, or scenario.", max_length=10)),
                ("files", models.JSONField(default=list, help_text="The names of its files.")),
                ("document", models.BinaryField(help_text="The scenario as JSON, compressed.")),
                ("fleet", models.BinaryField(help_text="The same without jobs.")),
                ("jobs", models.PositiveIntegerField()),
                ("queues", models.JSONField(default=list, help_text="The names of queues that jobs are in.")),
                ("nodes", models.PositiveIntegerField()),
                ("gpus", models.PositiveIntegerField()),
                ("hours", models.PositiveIntegerField(help_text="Until its last job would have ended, had none waited.")),
                ("left_out", models.JSONField(default=list, help_text="[why, how many rows]")),
                ("created_at", times.MomentField(default=times.now)),
                (
                    "created_by",
                    models.ForeignKey(null=True, on_delete=models.deletion.SET_NULL, related_name="+", to=settings.AUTH_USER_MODEL),
                ),
            ],
            {"db_table": "trace"},
        ),
        migrations.AddIndex("trace", models.Index(fields=["-created_at", "-id"], name="trace_created")),
        migrations.AddField(
            "quotareplay",
            "trace",
            models.ForeignKey(blank=True, null=True, on_delete=models.deletion.SET_NULL, related_name="replays", to="scheduler.trace"),
        ),
        migrations.AlterField(
            "quotareplay",
            "rows",
            models.JSONField(
                default=list, help_text="[key of a quota node, or a queue of a trace, jobs, started, waited, held before and after]"
            ),
        ),
    ]
