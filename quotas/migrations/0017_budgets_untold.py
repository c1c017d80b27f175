"""What a budget has turned to is kept until somebody has acted on it."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("quotas", "0016_ledger_clock_unseen")]
    operations = [
        migrations.AddField(
            "budget",
            "untold",
            models.CharField(
                max_length=8, blank=True, default="", help_text="What it has turned to, on which nobody has acted yet."
            ),
        ),
    ]
