"""A replay may be of other settings and another fleet, without a change of the tree, and has an address of its own."""

from django.conf import settings
from django.db import migrations, models
from django.db.models import F, Q, Value
from django.db.models.functions import Cast, Concat


def name(apps, schema_editor):
    rows = apps.get_model("scheduler", "QuotaReplay").objects.filter(public_id="")
    rows.update(public_id=Concat(Value("wi-old-"), Cast(F("pk"), models.CharField())))


def forget(apps, schema_editor):
    """What is of no change has no place in the former table."""
    apps.get_model("scheduler", "QuotaReplay").objects.filter(change__isnull=True).delete()


class Migration(migrations.Migration):
    dependencies = [
        ("quotas", "0016_ledger_clock_unseen"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
        ("scheduler", "0024_links_of_notices"),
    ]
    operations = [
        migrations.AddField("quotareplay", "public_id", models.CharField(default="", max_length=24), preserve_default=False),
        migrations.AddField(
            "quotareplay",
            "asked",
            models.JSONField(default=dict, help_text="days, policy, nodes, return_nodes, and told in words; hours once it is known"),
        ),
        migrations.AddField(
            "quotareplay",
            "figures",
            models.JSONField(default=dict, help_text="from, in milliseconds; before and after: of the whole fleet, with a course by hour"),
        ),
        migrations.AlterField(
            "quotareplay",
            "change",
            models.ForeignKey(blank=True, null=True, on_delete=models.deletion.CASCADE, related_name="replays", to="quotas.quotachange"),
        ),
        migrations.AlterField(
            "quotareplay", "change_revision", models.PositiveIntegerField(default=0, help_text="Of the change when it was asked for.")
        ),
        migrations.RunPython(name, forget),
        migrations.AlterField("quotareplay", "public_id", models.CharField(max_length=24, unique=True)),
        migrations.AddIndex("quotareplay", models.Index(fields=["-asked_at", "-id"], name="quota_replay_asked")),
        migrations.AddConstraint(
            "quotareplay",
            models.UniqueConstraint(
                condition=Q(("change__isnull", True), ("state__in", ("waiting", "playing"))),
                fields=("asked_by",),
                name="quota_replay_one_of_a_person",
            ),
        ),
    ]
