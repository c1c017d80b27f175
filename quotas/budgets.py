"""What the pages of budgets show and what their forms send."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

from django import forms

from gpufleet.core.recurrence import moment_of
from gpufleet.core.zones import zone_fault
from quotas.forms import ZonePicker
from quotas.models import AtStop, Budget, BudgetPeriod, BudgetUnit
from quotas.selectors.budgets import Standing

CLOCK = "%Y-%m-%dT%H:%M"
WIDTH = 320.0
PLOT_WIDTH, PLOT_HEIGHT = 720, 180


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


@dataclass(frozen=True, slots=True)
class Line:
    """The use of a period as a curve, with the straight line on which the budget would last to its end."""

    points: str
    ahead: str  # from now to the forecast
    even_y: float
    amount_y: float
    now_x: float


def line(standing: Standing, now: datetime) -> Line | None:
    """Nothing where nothing was used yet."""
    if not standing.days:
        return None
    period, budget = standing.period, standing.budget
    zone = ZoneInfo(budget.zone)
    length = (period.end - period.start).total_seconds()
    top = 1.05 * max(budget.amount, standing.used, standing.forecast)

    def x(moment: datetime) -> float:
        return round(PLOT_WIDTH * min(1.0, max(0.0, (moment - period.start).total_seconds() / length)), 1)

    def y(amount: float) -> float:
        return round(PLOT_HEIGHT * (1 - amount / top), 1)

    end = min(now, period.end)
    places = [(0.0, y(0))]
    for day, amount in standing.days:
        until = moment_of(datetime(day.year, day.month, day.day, 23, 59), zone)  # noqa: DTZ001 (of the zone's clock)
        places.append((x(min(until, end)), y(amount)))
    drawn = " ".join(f"{left},{high}" for left, high in places)
    ahead = f"{places[-1][0]},{places[-1][1]} {PLOT_WIDTH},{y(standing.forecast)}"
    return Line(drawn, ahead, y(budget.amount), y(budget.amount), x(end))


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
