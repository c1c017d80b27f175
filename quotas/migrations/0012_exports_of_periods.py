from datetime import timedelta

from django.db import migrations, models
from django.db.models.deletion import PROTECT


def fill(apps, schema_editor):
    """From the first to the last day of the month."""
    export = apps.get_model("quotas", "CostExport")
    for key, first in export.objects.values_list("pk", "month__first"):
        last = (first + timedelta(days=32)).replace(day=1) - timedelta(days=1)
        export.objects.filter(pk=key).update(first=first, last=last)


def unfill(apps, schema_editor):
    """The month of the first day. An export of a month without one is deleted: its file goes with the next sweep."""
    export, month = apps.get_model("quotas", "CostExport"), apps.get_model("quotas", "ChargeMonth")
    known = dict(month.objects.values_list("first", "pk"))
    for key, first in export.objects.values_list("pk", "first"):
        if first.replace(day=1) in known:
            export.objects.filter(pk=key).update(month=known[first.replace(day=1)])
    export.objects.filter(month=None).delete()
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute("SET CONSTRAINTS ALL IMMEDIATE")  # a table with keys still to be checked cannot be altered


class Migration(migrations.Migration):

    dependencies = [
        ('quotas', '0011_sums_of_months'),
    ]

    operations = [
        migrations.AddField('costexport', 'first', models.DateField(null=True, help_text='The first day that it is of.')),
        migrations.AddField('costexport', 'last', models.DateField(null=True, help_text='The last day that it is of.')),
        migrations.AlterField('costexport', 'month', models.ForeignKey('quotas.chargemonth', null=True, on_delete=PROTECT, related_name='+')),
        migrations.RunPython(fill, unfill),
        migrations.AlterField('costexport', 'first', models.DateField(help_text='The first day that it is of.')),
        migrations.AlterField('costexport', 'last', models.DateField(help_text='The last day that it is of.')),
        migrations.RemoveField('costexport', 'month'),
    ]
