"""Power caps: how many watts the GPUs of a pool, or of the fleet, may draw, and when. Energy rates: what a kWh costs or stands for there."""

from zoneinfo import ZoneInfo

from django.db import models
from django.db.models import F, Q

from gpufleet.core.models import User
from gpufleet.core.recurrence import Times
from gpufleet.core.times import MomentField, now


class Timed(models.Model):
    """Of a pool or of the fleet: once, again and again by a rule, or without an end (standing)."""

    public_id = models.CharField(max_length=24, unique=True)
    pool = models.CharField(max_length=60, blank=True, help_text="Of nodes, by name or by the label pool; empty: the whole fleet.")
    zone = models.CharField(max_length=60, default="UTC")
    starts_at = MomentField(help_text="When it applies first.")
    ends_at = MomentField(null=True, blank=True, help_text="When that ends; null: standing.")
    rule = models.CharField(max_length=300, blank=True, help_text="RFC 5545, over the wall clock of its zone.")
    note = models.CharField(max_length=200, blank=True)
    created_by = models.ForeignKey(User, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    created_at = MomentField(default=now)
    revision = models.PositiveIntegerField(default=1)

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self.public_id} of {self.pool or 'the fleet'}"

    @property
    def times(self) -> Times:
        zone = ZoneInfo(self.zone)
        start, end = (None if at is None else at.astimezone(zone).replace(tzinfo=None) for at in (self.starts_at, self.ends_at))
        assert start is not None
        return Times(self.zone, start, end, self.rule)


class PowerCap(Timed):
    watts = models.PositiveBigIntegerField()

    class Meta:
        db_table = "power_cap"
        ordering = ["pool", "starts_at", "id"]
        constraints = [models.CheckConstraint(condition=Q(ends_at__isnull=True) | Q(ends_at__gt=F("starts_at")), name="power_cap_ends_after_start")]


class EnergyRate(Timed):
    """What a kWh costs, how much CO2 it stands for, or both."""

    price_micros = models.BigIntegerField(null=True, blank=True, help_text="Of a kWh, in millionths of the currency.")
    grams = models.PositiveIntegerField(null=True, blank=True, help_text="Of CO2 for a kWh.")

    class Meta:
        db_table = "energy_rate"
        ordering = ["pool", "starts_at", "id"]
        constraints = [
            models.CheckConstraint(condition=Q(ends_at__isnull=True) | Q(ends_at__gt=F("starts_at")), name="energy_rate_ends_after_start"),
            models.CheckConstraint(condition=Q(price_micros__isnull=False) | Q(grams__isnull=False), name="energy_rate_says_something"),
        ]


class EnergyForecast(models.Model):
    """What somebody who knows expects of a pool, or of the fleet: the newest, which takes the place of the one before."""

    pool = models.CharField(max_length=60, blank=True, unique=True, help_text="Empty: the whole fleet.")
    steps = models.JSONField(default=list, help_text="[start in milliseconds, micro-units or null, grams or null], each until the next one.")
    ends_at = MomentField(help_text="The end of the last step.")
    sent_at = MomentField(default=now)
    sent_by = models.ForeignKey(User, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")

    class Meta:
        db_table = "energy_forecast"
        ordering = ["pool"]

    def __str__(self) -> str:
        return f"Forecast of {self.pool or 'the fleet'}"
