"""Service levels of inference jobs, their history and breaches; and the servers that may be asked for them."""

import django.db.models.deletion
import gpufleet.core.times
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('dashboards', '0016_faults_of_idle_episodes'),
        ('scheduler', '0024_links_of_notices'),
    ]

    operations = [
        migrations.AddField(
            model_name='prometheusserver',
            name='for_services',
            field=models.BooleanField(default=False, help_text='Whether it is asked queries that owners of inference jobs write.'),
        ),
        migrations.CreateModel(
            name='ServiceLevel',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('title', models.CharField(help_text='What the latency is: p99 latency, time to first token.', max_length=40)),
                ('latency', models.CharField(help_text='PromQL that gives seconds.', max_length=1000)),
                ('objective_ms', models.PositiveIntegerField()),
                ('rate', models.CharField(blank=True, help_text='PromQL that gives requests a second.', max_length=1000)),
                ('wanted', models.CharField(blank=True, help_text='PromQL that gives replicas.', max_length=1000)),
                ('revision', models.PositiveIntegerField(default=1)),
                ('changed_at', gpufleet.core.times.MomentField(default=gpufleet.core.times.now)),
                ('changed_by', models.CharField(blank=True, max_length=160)),
                ('looked_at', gpufleet.core.times.MomentField(blank=True, help_text='When it was asked for last.', null=True)),
                ('read_at', gpufleet.core.times.MomentField(blank=True, help_text='When its latency was read last.', null=True)),
                ('latency_ms', models.FloatField(blank=True, null=True)),
                ('requests', models.FloatField(blank=True, null=True)),
                ('replicas_wanted', models.FloatField(blank=True, null=True)),
                ('replicas', models.PositiveIntegerField(default=0)),
                ('faults', models.JSONField(default=dict)),
                ('over', models.PositiveSmallIntegerField(default=0, help_text='Rounds in a row over the objective, as far as they matter.')),
                ('calm', models.PositiveSmallIntegerField(default=0, help_text='Rounds in a row within it.')),
                ('job', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, related_name='service_level', to='scheduler.job')),
            ],
            options={
                'db_table': 'service_level',
            },
        ),
        migrations.CreateModel(
            name='ServiceBreach',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('since', gpufleet.core.times.MomentField()),
                ('until', gpufleet.core.times.MomentField(blank=True, null=True)),
                ('end', models.CharField(blank=True, choices=[('met', 'Objective met'), ('ended', 'The job ended'), ('unread', 'No reading'), ('removed', 'Objective changed or removed')], max_length=8)),
                ('objective_ms', models.PositiveIntegerField()),
                ('worst_ms', models.FloatField()),
                ('cause', models.CharField(choices=[('capacity', 'Missing capacity'), ('co_tenant', 'Co-tenant'), ('unknown', 'Unknown')], default='unknown', max_length=10)),
                ('said', models.CharField(blank=True, help_text='The cause in words. It may name jobs of others.', max_length=400)),
                ('job', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='service_breaches', to='scheduler.job')),
            ],
            options={
                'db_table': 'service_breach',
                'indexes': [models.Index(fields=['until'], name='service_breach_until')],
                'constraints': [models.UniqueConstraint(condition=models.Q(('until__isnull', True)), fields=('job',), name='service_breach_one_open')],
            },
        ),
        migrations.CreateModel(
            name='ServiceSample',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', gpufleet.core.times.MomentField()),
                ('objective_ms', models.PositiveIntegerField()),
                ('latency_ms', models.FloatField(blank=True, null=True)),
                ('requests', models.FloatField(blank=True, null=True)),
                ('replicas_wanted', models.FloatField(blank=True, null=True)),
                ('replicas', models.PositiveIntegerField(default=0)),
                ('job', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='service_samples', to='scheduler.job')),
            ],
            options={
                'db_table': 'service_sample',
                'indexes': [models.Index(fields=['at'], name='service_sample_at')],
                'constraints': [models.UniqueConstraint(fields=('job', 'at'), name='service_sample_once')],
            },
        ),
    ]
