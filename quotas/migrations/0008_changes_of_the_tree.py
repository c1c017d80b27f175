"""Changes of the tree as objects, and every version of every node."""

import django.db.models.deletion
import gpufleet.core.times
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ("quotas", "0007_policy_of_nodes"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='QuotaChange',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('public_id', models.CharField(max_length=24, unique=True)),
                ('title', models.CharField(max_length=200)),
                ('reason', models.CharField(blank=True, max_length=500)),
                ('state', models.CharField(choices=[('draft', 'Draft'), ('proposed', 'Waiting for approval'), ('approved', 'Approved'), ('scheduled', 'Scheduled'), ('applied', 'Applied'), ('rejected', 'Rejected'), ('withdrawn', 'Withdrawn'), ('failed', 'Failed')], default='draft', max_length=10)),
                ('edits', models.JSONField(default=list)),
                ('bases', models.JSONField(default=dict, help_text='What the author saw of each node that is touched, by public id.')),
                ('over_capacity', models.BooleanField(default=False, help_text='The guarantees may exceed the healthy capacity; the reason says why.')),
                ('author_name', models.CharField(max_length=160)),
                ('approver_name', models.CharField(blank=True, max_length=160)),
                ('approved_at', gpufleet.core.times.MomentField(blank=True, null=True)),
                ('decision_reason', models.CharField(blank=True, help_text='Of who approved or rejected it.', max_length=500)),
                ('apply_at', gpufleet.core.times.MomentField(blank=True, help_text='When it takes effect by itself.', null=True)),
                ('applied_at', gpufleet.core.times.MomentField(blank=True, null=True)),
                ('applied_by_name', models.CharField(blank=True, max_length=160)),
                ('before', models.JSONField(default=dict, help_text='Each touched node before it was applied, by public id; null: it did not exist.')),
                ('after', models.JSONField(default=dict)),
                ('fault', models.TextField(blank=True, help_text='Why it could not take effect at its time.')),
                ('revision', models.PositiveIntegerField(default=1)),
                ('made_at', gpufleet.core.times.MomentField(default=gpufleet.core.times.now)),
                ('changed_at', gpufleet.core.times.MomentField(default=gpufleet.core.times.now)),
                ('approver', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('author', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('nodes', models.ManyToManyField(db_table='quota_change_node', related_name='changes', to='quotas.quotanode')),
                ('reverts', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='reverted_by', to='quotas.quotachange')),
            ],
            options={
                'db_table': 'quota_change',
            },
        ),
        migrations.CreateModel(
            name='QuotaVersion',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', gpufleet.core.times.MomentField()),
                ('said', models.JSONField()),
                ('change', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='versions', to='quotas.quotachange')),
                ('node', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='versions', to='quotas.quotanode')),
            ],
            options={
                'db_table': 'quota_version',
            },
        ),
        migrations.AddIndex(
            model_name='quotachange',
            index=models.Index(fields=['-changed_at', '-id'], name='quota_change_changed'),
        ),
        migrations.AddIndex(
            model_name='quotachange',
            index=models.Index(condition=models.Q(('state', 'scheduled')), fields=['apply_at'], name='quota_change_due'),
        ),
        migrations.AddIndex(
            model_name='quotaversion',
            index=models.Index(fields=['node', '-at', '-id'], name='quota_version_of_node'),
        ),
    ]
