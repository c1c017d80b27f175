"""What the forms of power caps send. The services decide what is allowed; a form only reads."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

from django import forms

from gpufleet.core.recurrence import moment_of
from gpufleet.core.zones import zone_fault
from quotas.forms import ZonePicker
from scheduler.models import PowerCap
from scheduler.windows.forms import CHOICES, LocalField

FLEET = "All pools"


class CapForm(forms.Form):
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
    end = LocalField(required=False, label="End", help_text="Empty: standing.")
    zone = forms.CharField(max_length=60, label="Time zone", help_text="Times and repeats follow this clock.", widget=ZonePicker)
    repeats = forms.ChoiceField(choices=CHOICES, required=False)
    rule = forms.CharField(max_length=300, required=False, label="RFC 5545 rule", help_text="Such as FREQ=WEEKLY;BYDAY=MO,WE.")
    note = forms.CharField(max_length=200, required=False)
    reason = forms.CharField(max_length=280, required=False)
    revision = forms.IntegerField(widget=forms.HiddenInput, required=False)

    MORE = ("rule", "note")

    def __init__(self, data: Any = None, *, pools: Sequence[str], **options: Any) -> None:
        super().__init__(data, **options)
        self.fields["pool"].choices = [("", FLEET), *((name, name) for name in pools)]  # type: ignore[attr-defined]

    @property
    def first_fields(self) -> list[Any]:
        return [field for field in self.visible_fields() if field.name not in (*self.MORE, "reason")]

    @property
    def more_fields(self) -> list[Any]:
        return [field for field in self.visible_fields() if field.name in self.MORE]

    @property
    def more_is_open(self) -> bool:
        return any(self[name].errors for name in self.MORE) or self["repeats"].value() == "custom"

    def clean(self) -> dict[str, Any]:
        data = self.cleaned_data
        if "zone" in data and (fault := zone_fault(data["zone"])):
            self.add_error("zone", fault)
        if data.get("repeats") == "custom" and not data.get("rule"):
            self.add_error("rule", "State the rule.")
        return data

    def given(self) -> dict[str, Any]:
        """As the services take it."""
        data = self.cleaned_data
        zone = ZoneInfo(data["zone"])
        return {
            "pool": data["pool"],
            "watts": int(data["kilowatts"] * 1000),
            "zone": data["zone"],
            "starts_at": moment_of(data["start"], zone),
            "ends_at": moment_of(data["end"], zone) if data["end"] is not None else None,
            "rule": data["rule"] if data["repeats"] == "custom" else data["repeats"],
            "note": data["note"],
            "reason": data["reason"],
        }

    def show(self, faults: Mapping[str, Sequence[str]]) -> None:
        """Faults of the services at the fields that people see."""
        fields = {"watts": "kilowatts", "starts_at": "start", "ends_at": "end"}
        for path, texts in faults.items():
            name = fields.get(path, path)
            self.add_error(name if name in self.fields else None, list(texts))


def written(of: PowerCap) -> dict[str, Any]:
    """What a form begins with for a cap that there is."""
    times, known = of.times, dict(CHOICES)
    return {
        "pool": of.pool,
        "kilowatts": f"{Decimal(of.watts) / 1000:f}",
        "start": times.start,
        "end": times.end,
        "zone": of.zone,
        "repeats": of.rule if of.rule in known else "custom",
        "rule": "" if of.rule in known else of.rule,
        "note": of.note,
        "revision": of.revision,
    }


class RatingForm(forms.Form):
    watts = forms.IntegerField(min_value=1, max_value=100_000, required=False, label="Rated power (W)", help_text="Empty: as the maker states.")
    reason = forms.CharField(max_length=280, required=False)
