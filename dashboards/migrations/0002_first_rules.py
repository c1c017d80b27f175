"""The rules that a console starts with. Whoever has rules already keeps them."""

from django.db import migrations

from dashboards.alerts.defaults import default_rules as alert_rules
from dashboards.health.defaults import default_rules as health_rules


def add(apps, schema_editor):
    for name, prefix, rules in (("HealthRule", "hr", health_rules()), ("AlertRule", "ar", alert_rules())):
        model = apps.get_model("dashboards", name)
        if not model.objects.exists():
            model.objects.bulk_create(model(public_id=f"{prefix}-first-{number}", **values) for number, values in enumerate(rules, 1))


class Migration(migrations.Migration):
    replaces = [("dashboards", "0005_first_rules")]
    dependencies = [("dashboards", "0001_all_tables")]
    operations = [migrations.RunPython(add, migrations.RunPython.noop)]
