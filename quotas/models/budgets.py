"""Budgets: how many GPU-hours or how much money a subtree may use in a period, and what it has used of that by day (QTA-9)."""

from django.db import models
from django.db.models import F, Q

from gpufleet.core.models import User
from gpufleet.core.times import MomentField, now
from quotas.models.tree import QuotaNode


class BudgetUnit(models.TextChoices):
    GPU_HOURS = "gpu_hours", "GPU-hours"
    MONEY = "money", "Money"


class BudgetPeriod(models.TextChoices):
    MONTH = "month", "Month"
    QUARTER = "quarter", "Quarter"
    YEAR = "year", "Year"
    CUSTOM = "custom", "Custom"


class AtStop(models.TextChoices):
    """What happens to work when a budget is used up."""

    NOTHING_NEW = "nothing_new", "Start nothing new"
    WIND_DOWN = "wind_down", "Start nothing new and wind running jobs down"


class Budget(models.Model):
    """`amount` is in thousandths of a GPU-hour, or in micro-units of the currency."""

    public_id = models.CharField(max_length=24, unique=True)
    name = models.CharField(max_length=80)
    quota = models.ForeignKey(QuotaNode, on_delete=models.PROTECT, related_name="budgets")
    gpu_type = models.CharField(max_length=60, blank=True, help_text="Empty: all types together.")
    unit = models.CharField(max_length=10, choices=BudgetUnit.choices)
    amount = models.PositiveBigIntegerField()
    period = models.CharField(max_length=8, choices=BudgetPeriod.choices)
    zone = models.CharField(max_length=60, default="UTC", help_text="By whose clock its periods begin.")
    starts_at = MomentField(null=True, blank=True, help_text="Of a custom period.")
    ends_at = MomentField(null=True, blank=True)
    warn_percent = models.PositiveIntegerField(default=80)
    stop_percent = models.PositiveIntegerField(null=True, blank=True, default=100, help_text="Null: it only warns.")
    at_stop = models.CharField(max_length=12, choices=AtStop.choices, default=AtStop.NOTHING_NEW)
    created_by = models.ForeignKey(User, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    created_at = MomentField(default=now)
    removed_at = MomentField(null=True, blank=True)
    period_start = MomentField(null=True, blank=True, help_text="Of the period that was counted last.")
    counted_to = MomentField(null=True, blank=True, help_text="Up to when usage is in its days.")
    warned_at = MomentField(null=True, blank=True, help_text="In this period.")
    stopped_at = MomentField(null=True, blank=True, help_text="Since when it is used up, in this period.")
    excepted = models.BooleanField(default=False, help_text="An exception lets work start although it is used up.")
    untold = models.CharField(max_length=8, blank=True, default="", help_text="What it has turned to, on which nobody has acted yet.")
    revision = models.PositiveIntegerField(default=1)

    class Meta:
        db_table = "budget"
        indexes = [models.Index(fields=["stopped_at"], name="budget_stopped", condition=Q(stopped_at__isnull=False, removed_at__isnull=True))]
        constraints = [
            models.CheckConstraint(condition=Q(amount__gt=0), name="budget_has_amount"),
            models.CheckConstraint(
                condition=Q(period="custom", starts_at__isnull=False, ends_at__gt=F("starts_at")) | ~Q(period="custom"), name="budget_custom_times"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.public_id} {self.name}"


class BudgetDay(models.Model):
    """What a budget's subtree used on one day of its zone: exact thousandths of a GPU times milliseconds, and what that cost."""

    budget = models.ForeignKey(Budget, on_delete=models.CASCADE, related_name="days")
    day = models.DateField()
    milli_millis = models.DecimalField(max_digits=24, decimal_places=0, default=0)
    micros = models.DecimalField(max_digits=24, decimal_places=6, default=0)

    class Meta:
        db_table = "budget_day"
        constraints = [models.UniqueConstraint(fields=["budget", "day"], name="budget_day_once")]

    def __str__(self) -> str:
        return f"{self.budget_id} on {self.day}"


class BudgetException(models.Model):
    """Until it expires, a budget's stop threshold is higher by an amount, or does not stop at all."""

    budget = models.ForeignKey(Budget, on_delete=models.CASCADE, related_name="exceptions")
    extra = models.PositiveBigIntegerField(null=True, blank=True, help_text="In the budget's unit; null: no stop.")
    until = MomentField()
    reason = models.CharField(max_length=300)
    granted_name = models.CharField(max_length=160)
    granted_at = MomentField(default=now)
    ended_at = MomentField(null=True, blank=True)

    class Meta:
        db_table = "budget_exception"

    def __str__(self) -> str:
        return f"{self.budget_id} until {self.until:%Y-%m-%d}"
