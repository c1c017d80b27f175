"""How fast jobs of a template run on each GPU type, and which of these figures a job was given."""

from django.db import migrations, models

import gpufleet.core.times


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0025_what_ifs")]
    operations = [
        migrations.CreateModel(
            name="TemplateSpeeds",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("template", models.CharField(help_text="The public id of the template, or the name of a shipped one.", max_length=60)),
                ("number", models.PositiveIntegerField()),
                (
                    "speeds",
                    models.JSONField(
                        default=dict, help_text="By GPU type; the fastest is 1, 0 is never used. Empty: nothing is stated any more."
                    ),
                ),
                (
                    "runs",
                    models.JSONField(
                        default=dict, help_text="By GPU type: on how many completed runs a measured speed that was adopted rests."
                    ),
                ),
                ("at", gpufleet.core.times.MomentField(default=gpufleet.core.times.now)),
                ("author_name", models.CharField(max_length=160)),
                ("reason", models.CharField(blank=True, max_length=280)),
            ],
            options={
                "db_table": "template_speeds",
                "constraints": [models.UniqueConstraint(fields=("template", "number"), name="template_speeds_once")],
            },
        ),
        migrations.AddField(
            "job",
            "template_speeds",
            models.PositiveIntegerField(
                blank=True, help_text="Which speeds of its template it was given, by their number; null: its own, or none.", null=True
            ),
        ),
    ]
