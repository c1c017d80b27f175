from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("scheduler", "0023_schedules"),
    ]

    operations = [
        migrations.AddField(
            model_name="savedview",
            name="revision",
            field=models.PositiveIntegerField(default=1),
        ),
    ]
