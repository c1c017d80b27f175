"""What the forms of power caps send. The services decide what is allowed; a form only reads."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from django import forms

from quotas.forms import ZonePicker
from scheduler.models import PowerCap
from scheduler.windows.forms import CHOICES, LocalField, TimedForm, times_written

FLEET = "All pools"


class CapForm(TimedForm):
    pool = forms.ChoiceField(required=False)
    kilowatts = forms.DecimalField(
        min_value=Decimal(0),
        max_value=Decimal(10**7),
        max_digits=11,
        decimal_places=3,
        label="Cap (kW)",
        help_text="Of the GPUs, without their hosts.",
    )
    start = LocalField(label="Start")
    end = LocalField(required=False, label="End", help_text="Empty: it has no end (standing).")
    zone = forms.CharField(max_length=60, label="Time zone", help_text="Times and repeats follow this clock.", widget=ZonePicker)
    repeats = forms.ChoiceField(choices=CHOICES, required=False)
    rule = forms.CharField(max_length=300, required=False, label="RFC 5545 rule", help_text="Such as FREQ=WEEKLY;BYDAY=MO,WE.")
    note = forms.CharField(max_length=200, required=False)
    reason = forms.CharField(max_length=280, required=False)
    revision = forms.IntegerField(widget=forms.HiddenInput, required=False)

    MORE = ("rule", "note")
    SHOWN = TimedForm.SHOWN | {"watts": "kilowatts"}

    def __init__(self, data: Any = None, *, pools: Sequence[str], **options: Any) -> None:
        super().__init__(data, **options)
        self.fields["pool"].choices = [("", FLEET), *((name, name) for name in pools)]  # type: ignore[attr-defined]

    def given(self) -> dict[str, Any]:
        """As the services take it."""
        data = self.cleaned_data
        return {"pool": data["pool"], "watts": int(data["kilowatts"] * 1000), **self.times_given(), "note": data["note"], "reason": data["reason"]}


def written(of: PowerCap) -> dict[str, Any]:
    """What a form begins with for a cap that there is."""
    return {"pool": of.pool, "kilowatts": f"{Decimal(of.watts) / 1000:f}", **times_written(of), "note": of.note, "revision": of.revision}


class RatingForm(forms.Form):
    watts = forms.IntegerField(min_value=1, max_value=100_000, required=False, label="Rated power (W)", help_text="Empty: as the maker states.")
    reason = forms.CharField(max_length=280, required=False)
