"""The forms of rate cards. Rules live in the services; forms read what was typed."""

from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from django import forms

from quotas.chargeback.cards import amount_read, written
from quotas.chargeback.pricing import MILLION, Price
from quotas.models import ChargeMode, RateCard, RateClass

MORE = 3
CLOCK = "%Y-%m-%dT%H:%M"
CLASSES = [("", "Any"), *((value, label) for value, label in RateClass.choices if value)]


class CardForm(forms.Form):
    name = forms.CharField(max_length=80)
    valid_from = forms.DateTimeField(label="Start (UTC)", widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format=CLOCK))
    valid_to = forms.DateTimeField(
        label="End (UTC)",
        required=False,
        help_text="Empty: until another card begins.",
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format=CLOCK),
    )
    note = forms.CharField(max_length=280, required=False, help_text="Where the prices come from.")
    file = forms.CharField(
        max_length=200_000,
        required=False,
        label="Prices as CSV",
        help_text="The CSV of a card, edited. It replaces the rows below.",
        widget=forms.Textarea(attrs={"rows": 3, "spellcheck": "false"}),
    )
    revision = forms.IntegerField(widget=forms.HiddenInput, required=False)

    def __init__(self, data: Any = None, *, fixed: bool = False, **options: Any) -> None:
        """`fixed`: of a version, whose times are those of the card that it replaces."""
        super().__init__(data, **options)
        if fixed:
            del self.fields["valid_from"], self.fields["valid_to"]

    def given(self) -> dict[str, Any]:
        data = {name: value for name, value in self.cleaned_data.items() if name not in ("revision", "file")}
        return data | {name: data[name].replace(tzinfo=UTC) for name in ("valid_from", "valid_to") if data.get(name) is not None}


class LineForm(forms.Form):
    gpu_type = forms.CharField(max_length=60, required=False, label="GPU type")
    share_class = forms.ChoiceField(choices=CLASSES, required=False, label="Class")
    tier = forms.CharField(max_length=60, required=False, label="Tier", widget=forms.TextInput(attrs={"size": 9, "list": "tiers"}))
    pool = forms.CharField(max_length=130, required=False, label="Pool", widget=forms.TextInput(attrs={"size": 12}))
    listed = forms.CharField(max_length=20, required=False, label="List", widget=forms.TextInput(attrs={"inputmode": "decimal", "size": 8}))
    contracted = forms.CharField(max_length=20, required=False, label="Contracted", widget=forms.TextInput(attrs={"inputmode": "decimal", "size": 8}))
    discount = forms.CharField(max_length=8, required=False, label="Discount (%)", widget=forms.TextInput(attrs={"inputmode": "decimal", "size": 5}))

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        place = str(self.prefix or "").rpartition("-")[2]
        number = int(place) + 1 if place.isdigit() else 0
        for field in self.fields.values():
            field.widget.attrs["aria-label"] = f"{field.label}, price {number}"

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        for name, scale in (("listed", MILLION), ("contracted", MILLION), ("discount", 10_000)):
            try:
                data[f"{name}_read"] = amount_read(data.get(name, ""), scale)
            except ValueError as fault:
                self.add_error(name, str(fault))
        return data

    def line(self) -> dict[str, Any] | None:
        """As the services take it; None for an empty row."""
        data = self.cleaned_data
        if not any(data.get(name) for name in ("gpu_type", "listed", "contracted", "discount", "tier", "pool")):
            return None
        said = {name: data.get(name, "") for name in ("gpu_type", "share_class", "tier", "pool")}
        return said | {"list_micros": data["listed_read"], "contracted_micros": data["contracted_read"], "discount_ppm": data["discount_read"]}


LineForms = forms.formset_factory(LineForm, extra=MORE, max_num=500, absolute_max=510)


def lines_typed(prices: Sequence[Price]) -> list[dict[str, Any]]:
    return [
        {
            "gpu_type": price.gpu_type,
            "share_class": price.share_class,
            "tier": price.tier,
            "pool": price.pool,
            "listed": written(price.list_micros),
            "contracted": written(price.contracted_micros),
            "discount": f"{(Decimal(price.discount_ppm) / 10_000).normalize():f}" if price.discount_ppm else "",
        }
        for price in prices
    ]


def card_typed(card: RateCard) -> dict[str, Any]:
    def clock(moment: datetime | None) -> datetime | None:
        return moment.astimezone(UTC).replace(tzinfo=None) if moment else None

    times = {"valid_from": clock(card.valid_from), "valid_to": clock(card.valid_to)}
    return {"name": card.name, "note": card.note, "revision": card.revision} | times


class CloseForm(forms.Form):
    mode = forms.ChoiceField(
        choices=ChargeMode.choices, help_text="Chargeback: an invoice for each team. A closed month never changes; corrections go into the next."
    )
    reason = forms.CharField(max_length=280, required=False, help_text="Kept in the audit log with your name.")
