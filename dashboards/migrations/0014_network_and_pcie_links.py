"""Signals of network ports and PCIe links: ports below their speed, and the rules that a console starts with, where it has the first ones still."""

from django.db import migrations, models

from dashboards.health.defaults import LATER, default_rules


def add(apps, schema_editor):
    rules = apps.get_model("dashboards", "HealthRule").objects
    if not rules.filter(removed_at__isnull=True).exists():
        return
    for number, values in enumerate(default_rules(), 1):
        if values["signal"] in LATER and not rules.filter(signal=values["signal"]).exists():
            rules.create(public_id=f"hr-first-{number}", **values)


class Migration(migrations.Migration):
    dependencies = [("dashboards", "0013_weak_signal_by_gpu")]
    operations = [
        migrations.AddField(
            "healthframe",
            "slow_nics",
            models.JSONField(default=dict, help_text="Gb/s by node and network port, of those below their nominal speed."),
        ),
        migrations.RunPython(add, migrations.RunPython.noop),
    ]
