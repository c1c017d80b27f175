"""Prices stand on cards. The rates that there were become cards, one from each moment on at which a rate changed; a way back keeps the general prices."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

import gpufleet.core.times


def cards_of_rates(apps, schema_editor):
    rates = list(apps.get_model("quotas", "Rate").objects.order_by("valid_from").values_list("gpu_type", "valid_from", "micros_per_gpu_hour"))
    moments = sorted({since for _, since, _ in rates})
    if not moments:
        return
    with schema_editor.connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO sequence (name, last) VALUES ('public', %s)"
            " ON CONFLICT (name) DO UPDATE SET last = sequence.last + excluded.last RETURNING last",
            [len(moments)],
        )
        (last,) = cursor.fetchone()
    cards, lines = apps.get_model("quotas", "RateCard").objects, apps.get_model("quotas", "RateLine").objects
    for number, (since, until) in enumerate(zip(moments, [*moments[1:], None], strict=True)):
        card = cards.create(
            public_id=f"rc-{last - len(moments) + 1 + number}",
            name="Rates",
            currency=settings.CURRENCY,
            valid_from=since,
            valid_to=until,
            state="active",
            author_name="gpufleet",
            approved_name="gpufleet",
            approved_at=since,
            note="Made from the rates that there were.",
        )
        prices = {gpu_type: micros for gpu_type, at, micros in rates if at <= since}
        for gpu_type, micros in sorted(prices.items()):
            lines.create(card=card, gpu_type=gpu_type, list_micros=micros, contracted_micros=micros)


def rates_of_cards(apps, schema_editor):
    rates = apps.get_model("quotas", "Rate").objects
    lines = apps.get_model("quotas", "RateLine").objects.filter(card__state="active", share_class="", tier="", pool="")
    for line in lines.select_related("card").order_by("card__valid_from", "gpu_type"):
        micros = (line.contracted_micros * (1_000_000 - line.discount_ppm) + 500_000) // 1_000_000
        rates.create(gpu_type=line.gpu_type, valid_from=line.card.valid_from, micros_per_gpu_hour=micros)


class Migration(migrations.Migration):

    dependencies = [
        ('quotas', '0010_the_ledger_names_tier_and_pool'),
    ]

    operations = [
        migrations.CreateModel(
            name='RateCard',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('public_id', models.CharField(max_length=24, unique=True)),
                ('name', models.CharField(max_length=80)),
                ('currency', models.CharField(max_length=3)),
                ('valid_from', gpufleet.core.times.MomentField()),
                ('valid_to', gpufleet.core.times.MomentField(blank=True, help_text='Exclusive; null: until another card begins.', null=True)),
                ('state', models.CharField(choices=[('draft', 'Draft'), ('active', 'Active'), ('replaced', 'Replaced'), ('discarded', 'Discarded')], default='draft', max_length=10)),
                ('version', models.PositiveIntegerField(default=1)),
                ('note', models.CharField(blank=True, max_length=280)),
                ('author_name', models.CharField(max_length=160)),
                ('created_at', gpufleet.core.times.MomentField(default=gpufleet.core.times.now)),
                ('approved_name', models.CharField(blank=True, max_length=160)),
                ('approved_at', gpufleet.core.times.MomentField(blank=True, null=True)),
                ('revision', models.PositiveIntegerField(default=1)),
                ('replaces', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='replaced_by', to='quotas.ratecard')),
            ],
            options={
                'db_table': 'rate_card',
            },
        ),
        migrations.CreateModel(
            name='RateLine',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('gpu_type', models.CharField(max_length=60)),
                ('share_class', models.CharField(blank=True, choices=[('', 'Any class'), ('guaranteed', 'Guaranteed'), ('reserved', 'Reserved'), ('borrowed', 'Borrowed'), ('preemptible', 'Preemptible')], max_length=12)),
                ('tier', models.CharField(blank=True, help_text='whole, share, mig, or mig:PROFILE.', max_length=60)),
                ('pool', models.CharField(blank=True, help_text='CLUSTER/POOL.', max_length=130)),
                ('list_micros', models.PositiveBigIntegerField()),
                ('contracted_micros', models.PositiveBigIntegerField(help_text='What was agreed; the list price where nothing was.')),
                ('discount_ppm', models.PositiveIntegerField(default=0, help_text='Off the contracted price, in millionths.')),
                ('card', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='lines', to='quotas.ratecard')),
            ],
            options={
                'db_table': 'rate_line',
            },
        ),
        migrations.AddIndex(
            model_name='ratecard',
            index=models.Index(fields=['state', 'valid_from'], name='rate_card_state'),
        ),
        migrations.AddConstraint(
            model_name='ratecard',
            constraint=models.CheckConstraint(condition=models.Q(('valid_to__isnull', True), ('valid_to__gt', models.F('valid_from')), _connector='OR'), name='rate_card_ends_after_start'),
        ),
        migrations.AddConstraint(
            model_name='ratecard',
            constraint=models.UniqueConstraint(condition=models.Q(('state', 'active')), fields=('valid_from',), name='rate_card_once_per_moment'),
        ),
        migrations.AddConstraint(
            model_name='rateline',
            constraint=models.UniqueConstraint(fields=('card', 'gpu_type', 'share_class', 'tier', 'pool'), name='rate_line_once'),
        ),
        migrations.AddConstraint(
            model_name='rateline',
            constraint=models.CheckConstraint(condition=models.Q(('discount_ppm__lte', 1000000)), name='rate_line_discount'),
        ),
        migrations.RunPython(cards_of_rates, rates_of_cards),
        migrations.DeleteModel(
            name='Rate',
        ),
    ]
