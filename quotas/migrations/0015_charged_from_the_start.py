"""A run is charged from the start that its back-end tells. What is not closed was added up from the moment its GPUs were taken: it is added up anew."""

from zoneinfo import ZoneInfo

from django.db import migrations


def add_up_anew(apps, schema_editor):
    """Open months, and the periods of budgets that were counted last. Whether a budget has warned or stops stays."""
    apps.get_model("quotas", "ChargeMonth").objects.filter(closed_at__isnull=True).update(settled_to=None)
    for budget in apps.get_model("quotas", "Budget").objects.filter(period_start__isnull=False).order_by("pk"):
        budget.days.filter(day__gte=budget.period_start.astimezone(ZoneInfo(budget.zone)).date()).delete()
        budget.counted_to = None
        budget.save(update_fields=["counted_to"])


class Migration(migrations.Migration):
    dependencies = [("quotas", "0014_windows_ended_early")]

    operations = [migrations.RunPython(add_up_anew, migrations.RunPython.noop)]
