"""From what teams were charged to what a supplier billed, step by step. Values in, values out: no database, no clock.

Every step is the difference between two sums that are exact in nano-units, so the steps add up to the amount of the invoice whatever it is; what no
step explains is the last one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum

from quotas.chargeback.pricing import CENT, HOUR, amount_nanos, cents, half_even


class Basis(StrEnum):
    """At which of its prices the rate card is held against the invoice."""

    CONTRACTED = "contracted"
    LIST = "list"


LABELS = {
    "charged": "Charged to teams",
    "of_earlier": "Corrections of earlier months",
    "corrected": "Corrections after closing",
    "idle": "Uncharged time",
    "discount": "Discounts for teams",
    "list": "List over contracted prices",
    "bare": "Hours without a rate card",
    "free": "Free hours",
    "hours": "Hours billed, not in the books",
    "price": "Unit price against rate card",
    "fees": "Taxes and fees",
    "rounding": "Rounding to the cent",
    "left": "Not explained",
}


@dataclass(frozen=True, slots=True)
class TypeUse:
    """What the books say of a GPU type: used, idle and corrected. Use is thousandths of a GPU times milliseconds."""

    milli_millis: int = 0
    free: int = 0  # of it, at a contracted price of zero
    list_free: int = 0  # of it, at a list price of zero
    bare: int = 0  # of it, without a card
    contracted_nanos: int = 0
    list_nanos: int = 0

    def at(self, basis: str) -> tuple[int, int, int]:
        """At a price of the card: what is free of it, what is neither free nor without a card, and what that costs."""
        free, cost = (self.list_free, self.list_nanos) if basis == Basis.LIST else (self.free, self.contracted_nanos)
        return free, self.milli_millis - free - self.bare, cost


@dataclass(frozen=True, slots=True)
class Account:
    """A month as its books stand."""

    charged: int
    charged_for: int  # thousandths of a GPU times milliseconds
    of_earlier: int = 0  # of what was charged, corrections of months before
    corrected: int = 0  # what later months charge for this one
    idle: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # by cause: use, and its cost
    types: Mapping[str, TypeUse] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Billed:
    """What an invoice says of a GPU type; None where it says nothing."""

    gpu_type: str
    milli_millis: int | None = None
    micros: int | None = None  # for a GPU hour


@dataclass(frozen=True, slots=True)
class Invoice:
    amount: int
    fees: int = 0
    basis: str = Basis.CONTRACTED
    lines: Sequence[Billed] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """One row of a variance table. `key` names its kind, `part` the cause or GPU type that it is of."""

    key: str
    nanos: int
    part: str = ""
    milli_millis: int = 0
    note: str = ""

    @property
    def label(self) -> str:
        return LABELS.get(self.key, self.key)


def variance(account: Account, invoice: Invoice) -> list[Step]:
    """The steps from what was charged to the invoice. They add up to its amount exactly; the last one is what is not explained."""
    steps = [
        Step("charged", account.charged, milli_millis=account.charged_for),
        Step("of_earlier", -account.of_earlier),
        Step("corrected", account.corrected),
        *_idle(account),
    ]
    contracted = sum(one.contracted_nanos for one in account.types.values())
    listed = sum(one.list_nanos for one in account.types.values())
    steps.append(Step("discount", contracted - _sum(steps)))
    steps.append(Step("list", listed - contracted if invoice.basis == Basis.LIST else 0, note=_list_note(invoice, listed - contracted)))
    steps += _of_types(account, invoice)
    steps.append(Step("fees", invoice.fees))
    steps.append(Step("rounding", cents(_sum(steps)) * CENT - _sum(steps)))
    left = invoice.amount - _sum(steps)
    steps.append(Step("left", left, note=_hint(account, invoice, left, listed - contracted)))
    return steps


def _sum(steps: Sequence[Step]) -> int:
    return sum(step.nanos for step in steps)


def _idle(account: Account) -> list[Step]:
    found = [Step("idle", cost, cause, used) for cause, (used, cost) in sorted(account.idle.items())]
    return found or [Step("idle", 0)]


def _list_note(invoice: Invoice, gap: int) -> str:
    return "" if invoice.basis == Basis.LIST or not gap else f"At list prices the invoice would be {money(gap)} higher."


def _of_types(account: Account, invoice: Invoice) -> list[Step]:
    """Hours at no price of the card, then what the invoice says of each type: its hours, then its unit price."""
    said = {line.gpu_type: line for line in invoice.lines}
    uncovered: dict[str, list[Step]] = {"bare": [], "free": []}
    further: list[Step] = []
    for gpu_type in sorted({*account.types, *said}):
        use, line = account.types.get(gpu_type, TypeUse()), said.get(gpu_type, Billed(gpu_type))
        free, priced, base = use.at(invoice.basis)
        for key, used in (("bare", use.bare), ("free", free)):
            if used:
                note = "" if line.micros is not None else "Enter the invoice's unit price to see what they cost."
                uncovered[key].append(Step(key, amount_nanos(used, line.micros or 0), gpu_type, used, note))
        further += _hours(use, line, priced, base) + _price(line, priced, base)
    return [*(uncovered["bare"] or [Step("bare", 0)]), *(uncovered["free"] or [Step("free", 0)]), *further]


def _hours(use: TypeUse, line: Billed, priced: int, base: int) -> list[Step]:
    """Hours that were billed and are not in the books, at the invoice's price, else at the average of the card."""
    if line.milli_millis is None:
        return []
    more = line.milli_millis - use.milli_millis
    if line.micros is not None:
        cost = amount_nanos(more, line.micros)
    else:
        cost = half_even(more * base, priced) if priced > 0 else 0
    return [Step("hours", cost, line.gpu_type, more, f"Invoice {hours(line.milli_millis)} GPU-hours, books {hours(use.milli_millis)}.")]


def _price(line: Billed, priced: int, base: int) -> list[Step]:
    if line.micros is None or priced <= 0:
        return []
    average = half_even(base * HOUR, priced * 1000)
    percent = f" ({Decimal(half_even((line.micros - average) * 10_000, average)) / 100:+.2f}%)" if average else ""
    note = f"Invoice {price(line.micros)} a GPU-hour, rate card {price(average)} on average{percent}."
    return [Step("price", amount_nanos(priced, line.micros) - base, line.gpu_type, priced, note)]


def _hint(account: Account, invoice: Invoice, left: int, gap: int) -> str:
    """What would come to the part that nothing explains."""
    if not left:
        return ""
    idle = sum(cost for _, cost in account.idle.values())
    bare = sum(one.bare for one in account.types.values())
    supposed = [
        (idle and -idle, "It equals the uncharged time: this invoice may bill used hours alone."),
        (gap if invoice.basis == Basis.CONTRACTED else 0, "It equals list less contracted prices: this invoice may be at list prices."),
        (-gap if invoice.basis == Basis.LIST else 0, "It equals list less contracted prices: this invoice may be at contracted prices."),
        (-account.corrected, "It equals the corrections after closing: this invoice may be from before them."),
    ]
    for amount, text in supposed:
        if amount and abs(left - amount) <= CENT:
            return text
    base = sum(one.at(invoice.basis)[2] for one in account.types.values())
    texts = []
    if base and not invoice.lines:
        texts.append(f"A unit price {Decimal(half_even(left * 10_000, base)) / 100:+.2f}% off the rate card would explain it.")
    if bare and not invoice.lines:
        texts.append(f"{hours(bare)} GPU-hours have no card.")
    return " ".join(texts)


def money(nanos: int) -> str:
    return f"{Decimal(cents(nanos)) / 100:,.2f}"


def hours(milli_millis: int) -> str:
    return f"{Decimal(half_even(milli_millis * 1000, HOUR)) / 1000:,.3f}"


def price(micros: int) -> str:
    return f"{Decimal(micros) / 1_000_000:,.4f}"
