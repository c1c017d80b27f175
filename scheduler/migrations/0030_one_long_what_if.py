"""One what-if of more than a minute goes on at a time, also if two are asked for in one instant."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0029_replica_rules")]
    operations = [
        migrations.AddField(
            "quotareplay", "is_long", models.BooleanField(default=False, help_text="Whether it may take more than a minute.")
        ),
        migrations.AddConstraint(
            "quotareplay",
            models.UniqueConstraint(
                fields=["is_long"],
                condition=models.Q(state__in=("waiting", "playing"), is_long=True),
                name="quota_replay_one_long",
            ),
        ),
    ]
