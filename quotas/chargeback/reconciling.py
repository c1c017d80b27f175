"""Reconciliations: the books of a month held against a supplier's invoice, kept with the table that explains the difference (`variance`)."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import date, datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import QuerySet, Sum
from django.http import Http404

from gpufleet.core.audit import audit_record
from gpufleet.core.ids import public_id
from gpufleet.core.live.feed import feed_publish
from gpufleet.core.times import millis
from quotas.chargeback.months import Span
from quotas.chargeback.pricing import Kind, amount_nanos
from quotas.chargeback.variance import CENT, Account, Basis, Billed, Invoice, Step, TypeUse, variance
from quotas.models import ChargeLine, ChargeMonth, Reconciliation
from quotas.permissions import Access, Can
from quotas.rules import Faults, note
from quotas.selectors.rates import price_book

REFERENCE_LENGTH, NOTE_LENGTH = 80, 280
MOST_NANOS = 10**18  # a billion of the currency
MOST_MICROS = 10**12
MOST_MILLI_MILLIS = 10**18
MOST_LINES = 100


# Reading


def month_to_reconcile(access: Access, first: date) -> ChargeMonth:
    """Those who see the costs of the whole fleet: an invoice is for all of it."""
    access.must_everywhere(Can.SEE_COSTS)
    return _month(first)


def _month(first: date) -> ChargeMonth:
    month = ChargeMonth.objects.filter(first=first).first()
    if month is None:
        raise Http404(f"{first:%Y-%m} has not been rated: there is no usage in it.")
    return month


def reconciliations_of(access: Access, first: date) -> QuerySet[Reconciliation]:
    """The newest first."""
    return month_to_reconcile(access, first).reconciliations.select_related("month").order_by("-id")


def newest_of(access: Access, first: date) -> Reconciliation | None:
    """None too for a reader who sees a part of the fleet only."""
    if not access.can_everywhere(Can.SEE_COSTS):
        return None
    return Reconciliation.objects.filter(month__first=first).order_by("-id").first()


def account_of(month: ChargeMonth) -> Account:
    """The books of a month as they stand: its lines, what later months correct of it, and its idle time."""
    amounts = ("milli_millis", "list_nanos", "contracted_nanos", "effective_nanos")
    columns = ("gpu_type", "card", "list_micros", "contracted_micros")

    def summed(found: QuerySet[ChargeLine]) -> list[dict[str, Any]]:
        rows = found.order_by().values(*columns).annotate(**{f"sum_{name}": Sum(name) for name in amounts})
        return [{name: int(value or 0) if name.startswith("sum_") else value for name, value in row.items()} for row in rows]

    own = summed(month.lines.filter(corrects__isnull=True))
    earlier = summed(month.lines.filter(corrects__isnull=False))
    later = summed(ChargeLine.objects.filter(corrects=month))
    types: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in [*own, *later]:
        _add(types[row["gpu_type"]], row["sum_milli_millis"], row["sum_contracted_nanos"], row["sum_list_nanos"])
        if not row["card"]:
            types[row["gpu_type"]]["bare"] += row["sum_milli_millis"]
            continue
        for name, price in (("free", row["contracted_micros"]), ("list_free", row["list_micros"])):
            types[row["gpu_type"]][name] += 0 if price else row["sum_milli_millis"]
    return Account(
        charged=sum(row["sum_effective_nanos"] for row in [*own, *earlier]),
        charged_for=sum(row["sum_milli_millis"] for row in [*own, *earlier]),
        of_earlier=sum(row["sum_effective_nanos"] for row in earlier),
        corrected=sum(row["sum_effective_nanos"] for row in later),
        idle=_idle(month, types),
        types={name: TypeUse(**facts) for name, facts in types.items()},
    )


def _add(facts: dict[str, int], used: int, contracted: int, listed: int) -> None:
    facts["milli_millis"] += used
    facts["contracted_nanos"] += contracted
    facts["list_nanos"] += listed


def _idle(month: ChargeMonth, types: Mapping[str, dict[str, int]]) -> dict[str, tuple[int, int]]:
    """By cause; its hours and costs go into `types` too, at the general price of the type at the end of the month."""
    book, at = price_book(), millis(Span(month.first).end) - 1
    found: dict[str, tuple[int, int]] = {}
    for one in month.idle.order_by("gpu_type", "cause"):
        used, cost = found.get(one.cause, (0, 0))
        found[one.cause] = used + one.milli_millis, cost + one.effective_nanos
        price = book.at(Kind(one.gpu_type), at)
        facts = types[one.gpu_type]
        if price is None or (price.effective_micros and not one.effective_nanos):  # the second: it had none when it was written
            _add(facts, one.milli_millis, one.effective_nanos, one.effective_nanos)
            facts["bare"] += 0 if one.effective_nanos else one.milli_millis
            continue
        costs = (amount_nanos(one.milli_millis, micros) for micros in (price.contracted_micros, price.list_micros))
        _add(facts, one.milli_millis, *costs)
        for name, micros in (("free", price.contracted_micros), ("list_free", price.list_micros)):
            facts[name] += 0 if micros else one.milli_millis
    return found


def invoice_of(made: Reconciliation) -> Invoice:
    return Invoice(made.amount_nanos, made.fees_nanos, made.basis, tuple(Billed(**line) for line in made.lines))


def steps_of(made: Reconciliation) -> list[Step]:
    return [Step(**step) for step in made.steps]


def is_outdated(made: Reconciliation) -> bool:
    """Whether the books of its month say something else by now."""
    return variance(account_of(made.month), invoice_of(made)) != steps_of(made)


# Writing


def month_reconcile(*, access: Access, first: date, given: Mapping[str, Any], now: datetime) -> Reconciliation:
    """Hold a month, closed or estimated, against an invoice. It changes no cost."""
    access.must_everywhere(Can.MANAGE_COSTS)
    month = _month(first)
    faults: Faults = {}
    invoice = _invoice(given, faults)
    said = {name: str(given.get(name) or "").strip() for name in ("reference", "note")}
    for name, longest in (("reference", REFERENCE_LENGTH), ("note", NOTE_LENGTH)):
        if len(said[name]) > longest or not all(letter.isprintable() for letter in said[name]):
            note(faults, name, f"Use at most {longest} printable characters.")
    if not said["reference"]:
        note(faults, "reference", "The supplier's reference is required.")
    currency = str(given.get("currency") or month.currency)
    if currency != month.currency:
        note(faults, "currency", f"{month} is counted in {month.currency}: nothing is converted.")
    if faults:
        raise ValidationError(faults)
    with transaction.atomic():
        steps = variance(account_of(month), invoice)
        made = Reconciliation.objects.create(
            public_id=public_id("rn"),
            month=month,
            currency=currency,
            amount_nanos=invoice.amount,
            fees_nanos=invoice.fees,
            basis=invoice.basis,
            lines=[asdict(line) for line in invoice.lines],
            steps=[asdict(step) for step in steps],
            left_nanos=steps[-1].nanos,
            closed_digest=month.digest,
            author_name=access.actor.name,
            created_at=now,
            **said,
        )
        facts = {name: getattr(made, name) for name in ("public_id", "reference", "currency", "amount_nanos", "left_nanos", "closed_digest")}
        audit_record(actor=access.actor, action="month.reconcile", kind="charge_month", object_id=str(month), after=facts, reason=said["note"])
        feed_publish(changes={"costs": [{"id": month.pk}]})
    return made


def _invoice(given: Mapping[str, Any], faults: Faults) -> Invoice:
    amount, fees = given.get("amount_nanos"), given.get("fees_nanos") or 0
    if amount is None:
        note(faults, "amount", "Amount is required.")
        amount = 0
    for name, value in (("amount", amount), ("fees", fees)):
        if not 0 <= value <= MOST_NANOS or value % CENT:
            note(faults, name, f"Write a number from 0 to {MOST_NANOS // 10**9:,} with at most 2 decimals.")
    basis = str(given.get("basis") or Basis.CONTRACTED)
    if basis not in set(Basis):
        note(faults, "basis", f"Basis is {' or '.join(Basis)}.")
    return Invoice(amount, fees, basis, _lines(given.get("lines") or (), faults))


def _lines(lines: Sequence[Mapping[str, Any]], faults: Faults) -> tuple[Billed, ...]:
    if len(lines) > MOST_LINES:
        note(faults, "lines", f"An invoice has at most {MOST_LINES} GPU types here.")
        return ()
    found: dict[str, Billed] = {}
    for number, line in enumerate(lines, 1):
        gpu_type, used, micros = str(line.get("gpu_type") or ""), line.get("milli_millis"), line.get("unit_micros")
        if not 0 < len(gpu_type) <= 60 or not gpu_type.isprintable():
            note(faults, "lines", f"Line {number}: GPU type is required.")
        if gpu_type in found:
            note(faults, "lines", f"Line {number}: {gpu_type} has a line already.")
        if used is not None and not 0 <= used <= MOST_MILLI_MILLIS:
            note(faults, "lines", f"Line {number}: hours are not negative.")
        if micros is not None and not 0 <= micros <= MOST_MICROS:
            note(faults, "lines", f"Line {number}: unit price is a number from 0 to {MOST_MICROS // 10**6:,}.")
        if used is not None or micros is not None:
            found[gpu_type] = Billed(gpu_type, used, micros)
    return tuple(found.values())
