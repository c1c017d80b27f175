"""What the pages of budgets show and what their forms send."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

from django import forms
from django.conf import settings

from gpufleet.core.charts import Chart, Mark, Series, over_time
from gpufleet.core.ranges import RANGES, Range
from gpufleet.core.recurrence import moment_of
from gpufleet.core.zones import zone_fault
from quotas.forms import ZonePicker
from quotas.models import AtStop, Budget, BudgetPeriod, BudgetUnit
from quotas.selectors.budgets import Standing, day_of, day_start

CLOCK = "%Y-%m-%dT%H:%M"
WIDTH = 320.0
WHOLE = "all"
A_FEW_DAYS = timedelta(days=7)  # usage is counted by day


@dataclass(frozen=True, slots=True)
class Bullet:
    """Used, forecast, and the thresholds, on one scale from 0 to what is shown."""

    used: float
    forecast: float
    warn: float
    stop: float | None
    end: float  # where the amount lies
    label: str


def bullet(standing: Standing) -> Bullet:
    budget = standing.budget
    top = max(budget.amount, standing.stops_at or 0, min(standing.forecast, 2 * budget.amount), min(standing.used, 2 * budget.amount)) * 1.02

    def at(amount: float) -> float:
        return round(min(WIDTH, WIDTH * amount / top), 1)

    label = f"{standing.percent}% used, {standing.forecast_percent}% forecast for the end of the period"
    stop = standing.stops_at
    return Bullet(
        at(standing.used),
        at(standing.forecast),
        at(budget.amount * budget.warn_percent / 100),
        None if stop is None else at(stop),
        at(budget.amount),
        label,
    )


def burn_ranges(standing: Standing, now: datetime) -> list[Range]:
    """All of the period, and each range that is shorter than what has passed of it."""
    passed = min(now, standing.period.end) - standing.period.start
    shorter = [replace(one, over=standing.period.is_over) for one in RANGES if one.length >= A_FEW_DAYS and one.length < passed]
    return [*shorter, Range(WHOLE, standing.period.end - standing.period.start, timedelta(0), "whole period")]


def burn_range(asked: str, ranges: Sequence[Range]) -> Range:
    """The range of that key; the whole period where it is not offered."""
    return next((one for one in ranges if one.key == asked), ranges[-1])


def burn_chart(standing: Standing, chosen: Range, now: datetime) -> Chart:
    """Used by the end of each day, the forecast, and the even pace at which the budget lasts to the end of its period."""
    budget, period = standing.budget, standing.period
    end, is_money = min(now, period.end), budget.unit == BudgetUnit.MONEY
    used = _used_by(standing, end)
    ahead = [at for at in _day_ends(standing, period.end) if at > end]
    if chosen.key != WHOLE:
        used, ahead = [point for point in used if point[0] >= end - chosen.length], []
    at = [*(moment for moment, _ in used), *ahead]
    passed = [((moment - end) / (period.end - end)) if end < period.end else 0.0 for moment in ahead]
    forecast = [standing.used + (standing.forecast - standing.used) * part for part in passed]
    scale = 1_000_000 if is_money else 1000

    def told(amounts: Sequence[float | None]) -> list[float | None]:
        return [None if amount is None else round(amount / scale, 2) for amount in amounts]

    series = [
        Series("Used", told([*(amount for _, amount in used), *(None for _ in ahead)]), "used"),
        Series("Even pace", told([budget.amount * period.part(moment) for moment in at]), "rest"),
        Series("Budget", told([budget.amount for _ in at]), "bad"),
    ]
    if ahead:
        series.insert(1, Series("Forecast", told([*(None for _ in used[1:]), standing.used, *forecast]), "used", dashed=True))
    granted = [one for one in budget.exceptions.all() if at[0] <= one.granted_at <= at[-1]]
    marks = [Mark(one.granted_at, f"Exception by {one.granted_name}: {one.reason}") for one in granted]
    label = f"Use of {budget.name}, {chosen.text if chosen.key == WHOLE else f'last {chosen.text}'}"
    return over_time(label=label, unit=settings.CURRENCY if is_money else "GPU-hours", at=at, series=series, marks=marks)


def _used_by(standing: Standing, end: datetime) -> list[tuple[datetime, int]]:
    """What was used of the period by its start, by the end of each day, and by its end or now."""
    by_day, points, amount = dict(standing.days), [(standing.period.start, 0)], 0
    for until in _day_ends(standing, end):
        day = day_of(until - timedelta(milliseconds=1), standing.budget.zone)
        amount = by_day.get(day, amount)
        points.append((until, amount))
    return points


def _day_ends(standing: Standing, end: datetime) -> list[datetime]:
    """The end of each day of the period by the clock of the budget's zone, and as the last the end."""
    zone, found = standing.budget.zone, []
    day = day_of(standing.period.start, zone)
    while (until := day_start(day := day + timedelta(days=1), zone)) < end:
        found.append(until)
    return [*found, end] if end > standing.period.start else found


class BudgetForm(forms.Form):
    name = forms.CharField(max_length=80)
    quota = forms.ChoiceField(label="Team", help_text="With all below it.")
    unit = forms.ChoiceField(choices=BudgetUnit.choices, initial=BudgetUnit.GPU_HOURS)
    amount = forms.DecimalField(min_value=Decimal("0.001"), max_value=Decimal(10**9), help_text="GPU-hours, or money.")
    gpu_type = forms.CharField(max_length=60, required=False, label="GPU type", help_text="Empty: all types together.")
    period = forms.ChoiceField(choices=BudgetPeriod.choices, initial=BudgetPeriod.MONTH)
    zone = forms.CharField(max_length=60, initial="UTC", label="Time zone", help_text="By whose clock periods begin.", widget=ZonePicker)
    starts_at = forms.DateTimeField(
        required=False,
        label="Start",
        help_text="Of a custom period.",
        input_formats=[CLOCK, "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d"],
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format=CLOCK),
    )
    ends_at = forms.DateTimeField(
        required=False,
        label="End",
        help_text="Of a custom period.",
        input_formats=[CLOCK, "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d"],
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format=CLOCK),
    )
    warn_percent = forms.IntegerField(min_value=1, initial=80, label="Warn at (%)")
    stop_percent = forms.IntegerField(min_value=1, required=False, initial=100, label="Stop at (%)", help_text="Empty: it only warns.")
    at_stop = forms.ChoiceField(choices=AtStop.choices, initial=AtStop.NOTHING_NEW, label="When it is used up")
    reason = forms.CharField(max_length=280, required=False, help_text="Kept in the audit log with your name.")
    revision = forms.IntegerField(widget=forms.HiddenInput, required=False)

    def __init__(self, data: Any = None, *, teams: Sequence[str] = (), of: Budget | None = None, **options: Any) -> None:
        super().__init__(data, **options)
        self.fields["quota"].choices = [(path, path) for path in teams]  # type: ignore[attr-defined]
        if of is not None:
            del self.fields["quota"], self.fields["unit"]
        self.stated_unit = of.unit if of is not None else None

    def clean_zone(self) -> str:
        if fault := zone_fault(self.cleaned_data["zone"]):
            raise forms.ValidationError(fault)
        return str(self.cleaned_data["zone"])

    def given(self) -> dict[str, Any]:
        """As the services take it."""
        data = dict(self.cleaned_data)
        data.pop("revision", None)
        zone = ZoneInfo(data["zone"])
        for name in ("starts_at", "ends_at"):
            if data[name] is not None:
                data[name] = moment_of(data[name].replace(tzinfo=None), zone)
        scale = 1_000_000 if data.get("unit", self.stated_unit) == BudgetUnit.MONEY else 1000
        return data | {"amount": int(data["amount"] * scale)}


class ExceptionForm(forms.Form):
    extra = forms.DecimalField(required=False, min_value=Decimal("0.001"), max_value=Decimal(10**9), label="More", help_text="Empty: no stop at all.")
    until = forms.DateTimeField(
        label="Expires (UTC)",
        input_formats=[CLOCK, "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d"],
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format=CLOCK),
    )
    reason = forms.CharField(max_length=280)

    def __init__(self, data: Any = None, *, unit: str, **options: Any) -> None:
        super().__init__(data, **options)
        self.unit = unit

    def more(self) -> int | None:
        stated = self.cleaned_data["extra"]
        return None if stated is None else int(stated * (1_000_000 if self.unit == BudgetUnit.MONEY else 1000))
