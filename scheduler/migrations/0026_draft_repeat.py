from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("scheduler", "0025_schedule_token"),
    ]

    operations = [
        migrations.AddField(
            model_name="jobdraft",
            name="repeat",
            field=models.JSONField(default=dict, help_text="The fields that say when it is to recur, as typed."),
        ),
    ]
