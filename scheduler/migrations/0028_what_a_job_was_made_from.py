from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0027_job_marks")]

    operations = [
        migrations.AddField(
            model_name="job",
            name="template",
            field=models.CharField(
                blank=True, help_text="The public id of the template that it began with, or the name of a shipped one.", max_length=60, null=True
            ),
        ),
        migrations.AddField(model_name="job", name="template_version", field=models.PositiveIntegerField(blank=True, null=True)),
        migrations.AddField(
            model_name="job",
            name="parameters",
            field=models.JSONField(blank=True, default=dict, help_text="Of an element of an array: the variables that are its own."),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("template__isnull", False)), fields=["template", "-submitted_at", "-id"], name="job_template_made"
            ),
        ),
    ]
