"""The first rules on incidents and stragglers watch each node: while one was open, nobody was told of another. Rules that people changed stay."""

from django.db import migrations, models

FIGURES = ("incidents", "stragglers")


def each(apps, schema_editor):
    rules = apps.get_model("dashboards", "AlertRule").objects.using(schema_editor.connection.alias)
    rules.filter(public_id__startswith="ar-first-", figure__in=FIGURES, subject="", revision=1).update(subject="*")


class Migration(migrations.Migration):
    dependencies = [("dashboards", "0011_least_idle_share_of_a_reclaim")]
    operations = [
        migrations.AlterField(
            "alertrule",
            "subject",
            models.CharField(
                blank=True, help_text="A GPU type, class, team, pool, node or cluster; * is each of them; empty: the whole.", max_length=400
            ),
        ),
        migrations.RunPython(each, migrations.RunPython.noop),
    ]
