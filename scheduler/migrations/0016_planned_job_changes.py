"""Actions on jobs that begin later."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

import gpufleet.core.times


class Migration(migrations.Migration):

    dependencies = [
        ('quotas', '0015_charged_from_the_start'),
        ('scheduler', '0015_planned_drains'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='PlannedJobChange',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('public_id', models.CharField(max_length=24, unique=True)),
                ('action', models.CharField(max_length=20)),
                ('priority', models.IntegerField(null=True)),
                ('reason', models.CharField(blank=True, max_length=280)),
                ('begins_at', gpufleet.core.times.MomentField(db_index=True)),
                ('made_at', gpufleet.core.times.MomentField(default=gpufleet.core.times.now)),
                ('key', models.CharField(blank=True, help_text="The caller's own name for it, if it gave one.", max_length=100)),
                ('digest', models.CharField(blank=True, help_text='Of what was asked under that name.', max_length=64)),
                ('author', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('jobs', models.ManyToManyField(db_table='planned_job_change_job', related_name='planned_changes', to='scheduler.job')),
                ('written_with', models.ForeignKey(blank=True, help_text='The token with which it was planned; once that is revoked or expired it does not begin.', null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='quotas.servicetoken')),
            ],
            options={
                'db_table': 'planned_job_change',
                'ordering': ['begins_at', 'id'],
                'constraints': [models.UniqueConstraint(condition=models.Q(('key', ''), _negated=True), fields=('author', 'key'), name='planned_job_change_once')],
            },
        ),
    ]
