"""The forms of rate cards and months. Rules live in the services; forms read what was typed."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from django import forms

from gpufleet.core.amounts import ungrouped
from quotas.chargeback.cards import amount_read, written
from quotas.chargeback.pricing import HOUR, MILLION, Price
from quotas.chargeback.variance import Basis
from quotas.models import ChargeMode, RateCard, RateClass, Reconciliation

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


MOST_BILLED = 1_000_000_000


class DecimalNumber(forms.CharField):
    """A decimal number in whole parts of `scale`, thousands separated or not."""

    def __init__(self, *, scale: int, places: int, **options: Any) -> None:
        options["widget"] = forms.TextInput(attrs={"inputmode": "decimal", "size": 12})
        super().__init__(max_length=24, **options)
        self.scale, self.places = scale, places

    def clean(self, value: Any) -> int | None:
        text = super().clean(value)
        if not text:
            return None
        text = ungrouped(text)
        if not re.fullmatch(rf"\d{{1,12}}(\.\d{{1,{self.places}}})?", text) or Decimal(text) > MOST_BILLED:
            raise forms.ValidationError(f"Write a number such as 1234.56, with at most {self.places} decimals.")
        return int(Decimal(text) * self.scale)


class InvoiceForm(forms.Form):
    amount = DecimalNumber(scale=10**9, places=2, help_text="What the supplier bills for the month, with everything.")
    reference = forms.CharField(max_length=80, label="Supplier's reference", help_text="The number of the invoice.")
    basis = forms.ChoiceField(
        choices=[(Basis.CONTRACTED, "Contracted prices"), (Basis.LIST, "List prices")],
        label="Compare with",
        help_text="The prices of the rate card that this invoice should follow.",
    )
    fees = DecimalNumber(scale=10**9, places=2, required=False, label="Taxes and fees", help_text="The part of the amount that is not GPU time.")
    note = forms.CharField(max_length=280, required=False, help_text="Kept with the table and in the audit log.")

    def __init__(self, data: Any = None, *, currency: str, **options: Any) -> None:
        super().__init__(data, **options)
        for name in ("amount", "fees"):
            self.fields[name].label = f"{self.fields[name].label or name.capitalize()} ({currency})"

    def given(self) -> dict[str, Any]:
        data = self.cleaned_data
        return {"amount_nanos": data["amount"], "fees_nanos": data["fees"]} | {name: data[name] for name in ("reference", "basis", "note")}


class BilledForm(forms.Form):
    gpu_type = forms.CharField(max_length=60, required=False, label="GPU type", widget=forms.TextInput(attrs={"size": 18}))
    hours = DecimalNumber(scale=HOUR, places=6, required=False, label="GPU-hours billed")
    unit = DecimalNumber(scale=MILLION, places=6, required=False, label="Unit price")

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        place = str(self.prefix or "").rpartition("-")[2]
        for field in self.fields.values():
            field.widget.attrs["aria-label"] = f"{field.label}, line {int(place) + 1 if place.isdigit() else 0}"

    def line(self) -> dict[str, Any] | None:
        """As the services take it; None for an empty row."""
        data = self.cleaned_data
        if data.get("hours") is None and data.get("unit") is None:
            return None
        return {"gpu_type": data.get("gpu_type", ""), "milli_millis": data.get("hours"), "unit_micros": data.get("unit")}


BilledForms = forms.formset_factory(BilledForm, extra=1, max_num=100, absolute_max=110)


def invoice_typed(made: Reconciliation) -> dict[str, Any]:
    """The invoice again, to be sent once more."""
    money = {name: f"{Decimal(amount) / 10**9:.2f}" for name, amount in (("amount", made.amount_nanos), ("fees", made.fees_nanos))}
    return money | {"reference": made.reference, "basis": made.basis}


def billed_typed(types: Sequence[str], made: Reconciliation | None) -> list[dict[str, Any]]:
    """A row for each GPU type of the month and of the invoice."""
    said = {line["gpu_type"]: line for line in made.lines} if made is not None else {}
    found = []
    for gpu_type in sorted({*types, *said}):
        line = said.get(gpu_type, {})
        used, micros = line.get("milli_millis"), line.get("micros")
        hours = "" if used is None else f"{(Decimal(used) / HOUR).normalize():f}"
        found.append({"gpu_type": gpu_type, "hours": hours, "unit": "" if micros is None else written(micros)})
    return found
