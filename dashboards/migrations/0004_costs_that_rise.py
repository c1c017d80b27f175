"""A least amount of alert rules, and a rule for costs that double where a console has rules already."""

from django.db import migrations, models

from dashboards.alerts.defaults import default_rules

FLOOR = 100


def add(apps, schema_editor):
    rules = apps.get_model("dashboards", "AlertRule").objects
    if not rules.filter(figure="cost_rise").exists():
        values = next(values for values in default_rules() if values["figure"] == "cost_rise")
        rules.create(public_id="ar-first-costs", **values)
    rules.filter(figure="cost_rise").update(floor=FLOOR)


class Migration(migrations.Migration):
    dependencies = [("dashboards", "0003_gap_parts_of_nobody_are_once")]
    operations = [
        migrations.AddField(
            "alertrule", "floor", models.FloatField(default=0, help_text="Of a rise of costs: smaller amounts a week do not count.")
        ),
        migrations.RunPython(add, migrations.RunPython.noop),
    ]
