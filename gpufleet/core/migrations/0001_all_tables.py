"""People, their sessions, the audit log and how far background work has come.

It stands for all migrations that there were on 29 November 2026, and for those that these stood for; a console that has applied all of them has applied it.
"""

import django.contrib.auth.models
import django.contrib.auth.validators
import django.db.models.deletion
import django.utils.timezone
import gpufleet.core.times
from django.conf import settings
from django.db import migrations, models

from gpufleet.core.tables_at_once import TablesAtOnce


class Migration(TablesAtOnce):

    replaces = [
        ("core", "0001_people_audit_and_feed"),
        ("core", "0003_progress"),
        ("core", "0004_audit_keeps_the_node"),
        ("core", "0001_tables"),
        ("core", "0003_home_order"),
    ]

    initial = True

    dependencies = [
        ('auth', '0012_alter_user_first_name_max_length'),
    ]

    operations = [
        migrations.CreateModel(
            name='Progress',
            fields=[
                ('name', models.CharField(max_length=40, primary_key=True, serialize=False)),
                ('reached_at', gpufleet.core.times.MomentField()),
            ],
            options={
                'db_table': 'progress',
            },
        ),
        migrations.CreateModel(
            name='Sequence',
            fields=[
                ('name', models.CharField(max_length=20, primary_key=True, serialize=False)),
                ('last', models.PositiveBigIntegerField(default=0)),
            ],
            options={
                'db_table': 'sequence',
            },
        ),
        migrations.CreateModel(
            name='User',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('password', models.CharField(max_length=128, verbose_name='password')),
                ('last_login', models.DateTimeField(blank=True, null=True, verbose_name='last login')),
                ('is_superuser', models.BooleanField(default=False, help_text='Designates that this user has all permissions without explicitly assigning them.', verbose_name='superuser status')),
                ('username', models.CharField(error_messages={'unique': 'A user with that username already exists.'}, help_text='Required. 150 characters or fewer. Letters, digits and @/./+/-/_ only.', max_length=150, unique=True, validators=[django.contrib.auth.validators.UnicodeUsernameValidator()], verbose_name='username')),
                ('first_name', models.CharField(blank=True, max_length=150, verbose_name='first name')),
                ('last_name', models.CharField(blank=True, max_length=150, verbose_name='last name')),
                ('email', models.EmailField(blank=True, max_length=254, verbose_name='email address')),
                ('is_staff', models.BooleanField(default=False, help_text='Designates whether the user can log into this admin site.', verbose_name='staff status')),
                ('is_active', models.BooleanField(default=True, help_text='Designates whether this user should be treated as active. Unselect this instead of deleting accounts.', verbose_name='active')),
                ('date_joined', models.DateTimeField(default=django.utils.timezone.now, verbose_name='date joined')),
                ('public_id', models.CharField(max_length=24, unique=True)),
                ('display_name', models.CharField(blank=True, max_length=120)),
                ('clock_utc', models.BooleanField(default=False, help_text="Show times in UTC rather than in the browser's zone.")),
                ('home_order', models.JSONField(blank=True, default=dict, help_text='The two columns of each page of Home.')),
                ('groups', models.ManyToManyField(blank=True, help_text='The groups this user belongs to. A user will get all permissions granted to each of their groups.', related_name='user_set', related_query_name='user', to='auth.group', verbose_name='groups')),
                ('user_permissions', models.ManyToManyField(blank=True, help_text='Specific permissions for this user.', related_name='user_set', related_query_name='user', to='auth.permission', verbose_name='user permissions')),
            ],
            options={
                'db_table': 'user',
            },
            managers=[
                ('objects', django.contrib.auth.models.UserManager()),
            ],
        ),
        migrations.CreateModel(
            name='Change',
            fields=[
                ('rev', models.PositiveBigIntegerField(primary_key=True, serialize=False)),
                ('at', gpufleet.core.times.MomentField()),
                ('topic', models.CharField(max_length=40)),
                ('rows', models.JSONField(default=list, help_text="Changed rows as the topic's snapshot has them.")),
            ],
            options={
                'db_table': 'change',
                'indexes': [models.Index(fields=['at'], name='change_at')],
            },
        ),
        migrations.CreateModel(
            name='Feed',
            fields=[
                ('id', models.PositiveSmallIntegerField(default=1, primary_key=True, serialize=False)),
                ('rev', models.PositiveBigIntegerField(default=0)),
            ],
            options={
                'db_table': 'feed',
                'constraints': [models.CheckConstraint(condition=models.Q(('id', 1)), name='feed_one_row')],
            },
        ),
        migrations.CreateModel(
            name='Installation',
            fields=[
                ('id', models.PositiveSmallIntegerField(default=1, primary_key=True, serialize=False)),
                ('installed_at', gpufleet.core.times.MomentField(default=gpufleet.core.times.now)),
                ('demo', models.CharField(default='none', max_length=10)),
                ('demo_seed', models.PositiveIntegerField(default=0)),
            ],
            options={
                'db_table': 'installation',
                'constraints': [models.CheckConstraint(condition=models.Q(('id', 1)), name='installation_one_row')],
            },
        ),
        migrations.CreateModel(
            name='AuditEntry',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', gpufleet.core.times.MomentField(default=gpufleet.core.times.now)),
                ('actor_name', models.CharField(max_length=160)),
                ('via', models.CharField(help_text='session, token:<prefix>, system or sign-on', max_length=40)),
                ('action', models.CharField(max_length=60)),
                ('object_kind', models.CharField(max_length=40)),
                ('object_id', models.CharField(max_length=120)),
                ('quota_path', models.CharField(blank=True, help_text='The subtree it concerns; empty: the whole fleet.', max_length=500)),
                ('quota_id', models.BigIntegerField(help_text="Its key, which moving and renaming don't change.", null=True)),
                ('before', models.JSONField(null=True)),
                ('after', models.JSONField(null=True)),
                ('reason', models.CharField(blank=True, max_length=500)),
                ('request_id', models.CharField(blank=True, max_length=36)),
                ('actor', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'db_table': 'audit_entry',
                'indexes': [models.Index(fields=['-at', '-id'], name='audit_at'), models.Index(fields=['object_kind', 'object_id', '-id'], name='audit_object'), models.Index(fields=['quota_id', '-id'], name='audit_quota')],
            },
        ),
    ]
