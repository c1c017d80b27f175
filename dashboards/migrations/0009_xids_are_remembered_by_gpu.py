"""The last XID of a GPU is kept with its raw state, not with each server that tells it: two servers may tell of the same GPU."""

from django.db import migrations


def forget_answers(apps, schema_editor):
    """The version before takes every XID of a server that it has read for new, as it knows of none; of the first answer none is."""
    apps.get_model("dashboards", "PrometheusServer").objects.using(schema_editor.connection.alias).update(read_at=None)


class Migration(migrations.Migration):
    dependencies = [("dashboards", "0008_kernel_logs_read")]
    operations = [
        migrations.RunPython(migrations.RunPython.noop, forget_answers),
        migrations.RemoveField("prometheusserver", "xids"),
    ]
