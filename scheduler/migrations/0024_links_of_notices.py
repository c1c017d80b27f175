"""A notice that is about no job leads to a page as well: the change that waits for approval, the budget, the alert."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0023_defragmentations_are_told")]
    operations = [
        migrations.AddField(
            "notice",
            "link",
            models.CharField(blank=True, default="", help_text="The page of what it is about, other than a job.", max_length=200),
            preserve_default=False,
        ),
    ]
