"""What the forms of power caps and energy rates send. The services decide what is allowed; a form only reads."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, ClassVar

from django import forms

from quotas.forms import ZonePicker
from scheduler.models import EnergyRate, PowerCap
from scheduler.windows.forms import CHOICES, LocalField, TimedForm, times_written

FLEET = "All pools"


class PooledForm(TimedForm):
    """What holds for a pool, or for the fleet, over time. Fields of its own stand behind the pool."""

    pool = forms.ChoiceField(required=False)
    start = LocalField(label="Start")
    end = LocalField(required=False, label="End", help_text="Empty: it has no end (standing).")
    zone = forms.CharField(max_length=60, label="Time zone", help_text="Times and repeats follow this clock.", widget=ZonePicker)
    repeats = forms.ChoiceField(choices=CHOICES, required=False)
    rule = forms.CharField(max_length=300, required=False, label="RFC 5545 rule", help_text="Such as FREQ=WEEKLY;BYDAY=MO,WE.")
    note = forms.CharField(max_length=200, required=False)
    reason = forms.CharField(max_length=280, required=False)
    revision = forms.IntegerField(widget=forms.HiddenInput, required=False)

    MORE = ("rule", "note")
    OWN: ClassVar[tuple[str, ...]] = ()

    def __init__(self, data: Any = None, *, pools: Sequence[str], **options: Any) -> None:
        super().__init__(data, field_order=("pool", *self.OWN), **options)
        self.fields["pool"].choices = [("", FLEET), *((name, name) for name in pools)]  # type: ignore[attr-defined]

    def given(self) -> dict[str, Any]:
        """As the services take it."""
        data = self.cleaned_data
        return {"pool": data["pool"], **self.own_given(), **self.times_given(), "note": data["note"], "reason": data["reason"]}

    def own_given(self) -> dict[str, Any]:
        raise NotImplementedError


class CapForm(PooledForm):
    kilowatts = forms.DecimalField(
        min_value=Decimal(0),
        max_value=Decimal(10**7),
        max_digits=11,
        decimal_places=3,
        label="Cap (kW)",
        help_text="Of the GPUs, without their hosts.",
    )

    OWN = ("kilowatts",)
    SHOWN = TimedForm.SHOWN | {"watts": "kilowatts"}

    def own_given(self) -> dict[str, Any]:
        return {"watts": int(self.cleaned_data["kilowatts"] * 1000)}


def written(of: PowerCap) -> dict[str, Any]:
    """What a form begins with for a cap that there is."""
    return _common(of) | {"kilowatts": f"{Decimal(of.watts) / 1000:f}"}


class RatingForm(forms.Form):
    watts = forms.IntegerField(min_value=1, max_value=100_000, required=False, label="Rated power (W)", help_text="Empty: as the maker states.")
    reason = forms.CharField(max_length=280, required=False)


class RateForm(PooledForm):
    price = forms.DecimalField(
        required=False,
        min_value=Decimal(-1000),
        max_value=Decimal(1000),
        max_digits=10,
        decimal_places=6,
        label="Price of a kWh",
        help_text="In the currency of the rate cards. Empty: not stated.",
    )
    grams = forms.IntegerField(required=False, min_value=0, max_value=10_000, label="CO2 of a kWh (g)", help_text="Empty: not stated.")

    OWN = ("price", "grams")
    SHOWN = TimedForm.SHOWN | {"price_micros": "price"}

    def own_given(self) -> dict[str, Any]:
        price = self.cleaned_data["price"]
        return {"price_micros": None if price is None else int(price * 1_000_000), "grams": self.cleaned_data["grams"]}


def rate_written(of: EnergyRate) -> dict[str, Any]:
    """What a form begins with for a rate that there is."""
    price = None if of.price_micros is None else f"{(Decimal(of.price_micros) / 1_000_000).normalize():f}"
    return _common(of) | {"price": price, "grams": of.grams}


def _common(of: PowerCap | EnergyRate) -> dict[str, Any]:
    return {"pool": of.pool, **times_written(of), "note": of.note, "revision": of.revision}
