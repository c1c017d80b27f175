"""Per node: minimum run times, default class, approval; and the fleet-wide policy of the top."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ("quotas", "0006_the_ledger_is_append_only"),
    ]

    operations = [
        migrations.AddField(
            model_name='quotanode',
            name='default_class',
            field=models.CharField(blank=True, help_text='Class of jobs that state none; empty: the nearest value above.', max_length=12),
        ),
        migrations.AddField(
            model_name='quotanode',
            name='needs_approval',
            field=models.BooleanField(default=False, help_text='A second person approves changes of this node and of all below it.'),
        ),
        migrations.AddField(
            model_name='quotanode',
            name='policy',
            field=models.JSONField(blank=True, default=dict, help_text='Fleet-wide rules; the top alone has them.'),
        ),
        migrations.AddField(
            model_name='quotanode',
            name='preempt_min_runtime_s',
            field=models.PositiveIntegerField(blank=True, help_text='Null: the nearest value above.', null=True),
        ),
        migrations.AddField(
            model_name='quotanode',
            name='reclaim_min_runtime_s',
            field=models.PositiveIntegerField(blank=True, help_text='Null: the nearest value above.', null=True),
        ),
    ]
