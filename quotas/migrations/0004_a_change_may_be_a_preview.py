"""A change that is only looked at is a preview, until it is saved."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("quotas", "0003_closed_months_are_frozen")]

    operations = [
        migrations.AlterField(
            model_name="quotachange",
            name="state",
            field=models.CharField(
                choices=[
                    ("preview", "Preview"),
                    ("draft", "Draft"),
                    ("proposed", "Waiting for approval"),
                    ("approved", "Approved"),
                    ("scheduled", "Scheduled"),
                    ("applied", "Applied"),
                    ("rejected", "Rejected"),
                    ("withdrawn", "Withdrawn"),
                    ("failed", "Failed"),
                ],
                default="draft",
                max_length=10,
            ),
        ),
    ]
