"""Traces of this fleet's own past, which a worker writes."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0007_kubernetes_clusters")]
    operations = [
        migrations.AlterField(
            "trace",
            "kind",
            models.CharField(help_text="Which trace its files were, or scenario, or own: of this fleet's past.", max_length=10),
        ),
        migrations.AddField(
            "trace", "days", models.PositiveSmallIntegerField(blank=True, help_text="Of this fleet's own past: how many.", null=True)
        ),
        migrations.AddField(
            "trace",
            "state",
            models.CharField(
                choices=[("waiting", "Waiting"), ("writing", "Writing"), ("done", "Done"), ("failed", "Failed")], default="done", max_length=10
            ),
        ),
        migrations.AddField("trace", "fault", models.CharField(blank=True, max_length=300)),
    ]
