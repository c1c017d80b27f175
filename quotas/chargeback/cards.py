"""Rate cards: drafted, checked against those that are active, activated, and replaced by newer versions.

Active cards stand in one line without overlap and without hole. Where a card would leave either, this is told before it is activated, and refused.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal, InvalidOperation
from itertools import pairwise
from typing import Any

from django.conf import settings
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import transaction
from django.db.models import QuerySet
from django.http import Http404

from gpufleet.core.audit import Actor, audit_record
from gpufleet.core.csvfile import harmless
from gpufleet.core.faults import Conflict, Stale
from gpufleet.core.ids import public_id
from gpufleet.core.live.feed import feed_publish
from quotas.chargeback.months import months_unsettle
from quotas.chargeback.pricing import MILLION, Price
from quotas.models import CardState, LedgerEntry, QuotaShare, RateCard, RateClass, RateLine
from quotas.permissions import Access, Can
from quotas.rules import Faults, note

NAME_LENGTH, NOTE_LENGTH = 80, 280
MOST_LINES = 500
MOST_MICROS = 10**12
TIERS = ("whole", "share", "mig")
COLUMNS = ("gpu_type", "class", "tier", "pool", "list", "contracted", "discount_percent")


@dataclass(frozen=True, slots=True)
class Problem:
    """What keeps a card from being activated. `kind`: overlap or hole."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Check:
    """What activating a card would do. `ends` is the card that would end where this one begins."""

    problems: tuple[Problem, ...]
    ends: RateCard | None

    @property
    def passes(self) -> bool:
        return not self.problems


# Reading


def cards_listed(access: Access) -> QuerySet[RateCard]:
    if not access.can_everywhere(Can.MANAGE_COSTS):
        access.must_somewhere(Can.SEE_COSTS)
    return RateCard.objects.exclude(state=CardState.DISCARDED).order_by("-valid_from", "-id")


def card_for(access: Access, public_id: str) -> RateCard:
    found = cards_listed(access).filter(public_id=public_id).first()
    if found is None:
        raise Http404(f"There is no rate card {public_id}.")
    return found


def may_price(access: Access) -> bool:
    return access.can_everywhere(Can.MANAGE_COSTS)


def prices_of(card: RateCard) -> tuple[Price, ...]:
    columns = ("gpu_type", "share_class", "tier", "pool", "list_micros", "contracted_micros", "discount_ppm")
    rows = card.lines.order_by(*columns[:4]).values_list(*columns)
    return tuple(Price(*said, card.public_id) for said in rows)  # type: ignore[call-arg]


def types_needed() -> list[str]:
    """Types that are used or promised: each needs a price."""
    shares = QuotaShare.objects.order_by().values_list("gpu_type", flat=True).distinct()
    used = LedgerEntry.objects.order_by().values_list("gpu_type", flat=True).distinct()
    return sorted({*shares, *used})


def card_check(card: RateCard) -> Check:
    """What activating this card would leave: it is told before."""
    others = list(RateCard.objects.filter(state=CardState.ACTIVE).exclude(pk=card.replaces_id or 0).exclude(pk=card.pk).order_by("valid_from"))
    problems: list[Problem] = []
    ends = next((other for other in reversed(others) if other.valid_to is None and other.valid_from < card.valid_from), None)
    for other in others:
        until = card.valid_from if other is ends else other.valid_to
        if (until is None or card.valid_from < until) and (card.valid_to is None or other.valid_from < card.valid_to):
            problems.append(Problem("overlap", f"{_said(other)} is active in the same time: {_span(other)}."))
    if not any(problem.kind == "overlap" for problem in problems):
        problems += _holes(card, others, ends)
    priced = {price.gpu_type for price in prices_of(card) if price.key[1:] == ("", "", "")}
    bare = [name for name in types_needed() if name not in priced]
    problems += [Problem("hole", f"{name} has no price for any class, tier and pool.") for name in bare]
    if not priced:
        problems.append(Problem("hole", "The card has no price."))
    return Check(tuple(problems), ends)


def _holes(card: RateCard, others: Sequence[RateCard], ends: RateCard | None) -> list[Problem]:
    line = sorted([*others, card], key=lambda one: one.valid_from)
    found = []
    for one, following in pairwise(line):
        until = following.valid_from if one is ends else one.valid_to
        if until is not None and until < following.valid_from and card in (one, following):
            found.append(Problem("hole", f"No card is active from {until:%Y-%m-%d %H:%M} to {following.valid_from:%Y-%m-%d %H:%M} UTC."))
    return found


def _said(card: RateCard) -> str:
    return f"{card.public_id} ({card.name})"


def _span(card: RateCard) -> str:
    return f"{card.valid_from:%Y-%m-%d %H:%M} to {'open' if card.valid_to is None else f'{card.valid_to:%Y-%m-%d %H:%M}'} UTC"


# Writing


def card_draft(*, access: Access, given: Mapping[str, Any], replaces: RateCard | None = None, now: datetime) -> RateCard:
    """A draft changes no cost. As a version of an active card (`replaces`) it has the same validity."""
    access.must_everywhere(Can.MANAGE_COSTS)
    faults: Faults = {}
    card = RateCard(author=access.actor.user, author_name=access.actor.name, created_at=now, replaces=replaces)
    if replaces is not None:
        given = {"name": replaces.name} | dict(given) | {"valid_from": replaces.valid_from, "valid_to": replaces.valid_to}
        card.version = replaces.version + 1
        if replaces.state != CardState.ACTIVE:
            raise Conflict(f"{replaces.public_id} is {replaces.get_state_display().lower()}: a version replaces an active card.")
    _take(card, given, faults)
    prices = _prices(given.get("lines") or (), faults)
    if faults:
        raise ValidationError(faults)
    with transaction.atomic():
        card.public_id = public_id("rc")
        card.save(force_insert=True)
        _write(card, prices)
        _record(access.actor, "rate_card.draft", card, after=card_facts(card))
    return card


def card_change(*, access: Access, card: RateCard, given: Mapping[str, Any], revision: int | None = None, now: datetime) -> RateCard:
    """A draft alone may be changed."""
    access.must_everywhere(Can.MANAGE_COSTS)
    with transaction.atomic():
        found = _locked(card, revision)
        if found.state != CardState.DRAFT:
            raise Conflict(f"{found.public_id} is {found.get_state_display().lower()}. Draft a new version instead.")
        before, faults = card_facts(found), Faults()
        if found.replaces is not None:
            given = dict(given) | {"valid_from": found.valid_from, "valid_to": found.valid_to}
        _take(found, given, faults)
        prices = _prices(given["lines"], faults) if "lines" in given else None
        if faults:
            raise ValidationError(faults)
        found.author, found.author_name = access.actor.user, access.actor.name
        found.revision += 1
        found.save()
        if prices is not None:
            found.lines.all().delete()
            _write(found, prices)
        _record(access.actor, "rate_card.change", found, before, card_facts(found))
    return found


def waits_for_another(access: Access, card: RateCard) -> bool:
    """Whether another person than the caller has to approve it."""
    return settings.RATE_APPROVAL and card.author_id is not None and access.actor.user is not None and access.actor.user.pk == card.author_id


def card_activate(*, access: Access, card: RateCard, reason: str = "", revision: int | None = None, now: datetime) -> RateCard:
    """From here on its prices hold. An open card before it ends where it begins; the version that it replaces is kept, and holds no longer."""
    access.must_everywhere(Can.MANAGE_COSTS)
    with transaction.atomic():
        list(RateCard.objects.select_for_update().filter(state=CardState.ACTIVE).order_by("id"))
        found = _locked(card, revision)
        if found.state != CardState.DRAFT:
            raise Conflict(f"{found.public_id} is {found.get_state_display().lower()}, not a draft.")
        if found.replaces is not None and found.replaces.state != CardState.ACTIVE:
            raise Conflict(f"{found.replaces.public_id} is no longer active: another version replaced it.")
        if waits_for_another(access, found):
            raise PermissionDenied("A rate card is approved by another person than its author (GPUFLEET_RATE_APPROVAL).")
        check = card_check(found)
        if check.problems:
            raise ValidationError({"card": [problem.text for problem in check.problems]})
        if check.ends is not None:
            RateCard.objects.filter(pk=check.ends.pk).update(valid_to=found.valid_from, revision=check.ends.revision + 1)
            _record(access.actor, "rate_card.end", check.ends, {"valid_to": None}, {"valid_to": found.valid_from.isoformat()})
        if found.replaces is not None:
            RateCard.objects.filter(pk=found.replaces.pk).update(state=CardState.REPLACED, revision=found.replaces.revision + 1)
        found.state, found.approved_name, found.approved_at = CardState.ACTIVE, access.actor.name, now
        found.revision += 1
        found.save(update_fields=["state", "approved_name", "approved_at", "revision"])
        months_unsettle(since=found.valid_from)
        _record(access.actor, "rate_card.activate", found, {"state": "draft"}, {"state": "active"}, reason[:NOTE_LENGTH])
    return found


def card_discard(*, access: Access, card: RateCard, reason: str = "", revision: int | None = None, now: datetime) -> None:
    access.must_everywhere(Can.MANAGE_COSTS)
    with transaction.atomic():
        found = _locked(card, revision)
        if found.state != CardState.DRAFT:
            raise Conflict(f"{found.public_id} is {found.get_state_display().lower()}: drafts alone are discarded.")
        found.state = CardState.DISCARDED
        found.revision += 1
        found.save(update_fields=["state", "revision"])
        _record(access.actor, "rate_card.discard", found, {"state": "draft"}, {"state": "discarded"}, reason[:NOTE_LENGTH])


def _locked(card: RateCard, revision: int | None) -> RateCard:
    found = RateCard.objects.select_for_update(of=("self",)).select_related("replaces").get(pk=card.pk)
    if revision is not None and revision != found.revision:
        raise Stale("Somebody else changed this card. Read it again.", found.revision)
    return found


def _take(card: RateCard, given: Mapping[str, Any], faults: Faults) -> None:
    card.currency = str(given.get("currency") or card.currency or settings.CURRENCY)
    if card.currency != settings.CURRENCY:
        note(faults, "currency", f"This installation counts in {settings.CURRENCY}: nothing is converted.")
    for name, longest in (("name", NAME_LENGTH), ("note", NOTE_LENGTH)):
        if name in given:
            text = str(given[name] or "").strip()
            if len(text) > longest or not all(letter.isprintable() for letter in text):
                note(faults, name, f"Use at most {longest} printable characters.")
            setattr(card, name, text[:longest])
    if not card.name:
        note(faults, "name", "Name is required.")
    for name in ("valid_from", "valid_to"):
        if name in given:
            setattr(card, name, given[name])
    if card.valid_from is None:
        note(faults, "valid_from", "Start is required.")
    elif card.valid_to is not None and card.valid_to <= card.valid_from:
        note(faults, "valid_to", "The end must be after the start.")


def _prices(lines: Sequence[Mapping[str, Any]], faults: Faults) -> list[Price]:
    if len(lines) > MOST_LINES:
        note(faults, "lines", f"A card has at most {MOST_LINES} prices.")
        return []
    found: dict[tuple[str, str, str, str], Price] = {}
    for number, line in enumerate(lines, 1):
        for text in _line_faults(line):
            note(faults, "lines", f"Price {number}: {text}")
        if faults:
            continue
        listed = line["list_micros"]
        agreed = listed if line.get("contracted_micros") is None else line["contracted_micros"]
        gpu_type, share_class, tier, pool = (str(line.get(name) or "") for name in ("gpu_type", "share_class", "tier", "pool"))
        price = Price(gpu_type, share_class, tier, pool, listed, agreed, line.get("discount_ppm") or 0)
        if price.key in found:
            note(faults, "lines", f"Price {number}: overlaps another one for {' '.join(filter(None, price.key))}.")
        found[price.key] = price
    return list(found.values())


def _line_faults(line: Mapping[str, Any]) -> list[str]:
    found = []
    gpu_type, tier = str(line.get("gpu_type") or ""), str(line.get("tier") or "")
    if not 0 < len(gpu_type) <= 60 or not gpu_type.isprintable():
        found.append("GPU type is required.")
    if str(line.get("share_class") or "") not in RateClass.values:
        found.append(f"Class is one of {', '.join(value for value in RateClass.values if value)}, or empty for any.")
    if tier and tier not in TIERS and not (tier.startswith("mig:") and len(tier) <= 60 and tier.isprintable()):
        found.append("Tier is whole, share, mig, mig:PROFILE, or empty for any.")
    pool = str(line.get("pool") or "")
    if pool and (len(pool) > 130 or pool.count("/") != 1 or not pool.isprintable()):
        found.append("Pool is written CLUSTER/POOL.")
    for name, label in (("list_micros", "List price"), ("contracted_micros", "Contracted price")):
        amount = line.get(name)
        if amount is None and name != "list_micros":
            continue
        if not isinstance(amount, int) or not 0 <= amount <= MOST_MICROS:
            found.append(f"{label} is a number from 0 to {MOST_MICROS // MILLION:,}.")
    if not 0 <= (line.get("discount_ppm") or 0) <= MILLION:
        found.append("Discount lies between 0 and 100%.")
    return found


def _write(card: RateCard, prices: Sequence[Price]) -> None:
    RateLine.objects.bulk_create(
        RateLine(
            card=card,
            gpu_type=price.gpu_type,
            share_class=price.share_class,
            tier=price.tier,
            pool=price.pool,
            list_micros=price.list_micros,
            contracted_micros=price.contracted_micros,
            discount_ppm=price.discount_ppm,
        )
        for price in prices
    )


def card_facts(card: RateCard) -> dict[str, Any]:
    return {
        "name": card.name,
        "currency": card.currency,
        "valid_from": card.valid_from.isoformat(),
        "valid_to": card.valid_to.isoformat() if card.valid_to else None,
        "prices": [
            f"{' '.join(filter(None, price.key))}: {written(price.list_micros)} {written(price.effective_micros)}" for price in prices_of(card)
        ],
    }


def _record(
    actor: Actor,
    action: str,
    card: RateCard,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
    reason: str = "",
) -> None:
    audit_record(actor=actor, action=action, kind="rate_card", object_id=card.public_id, before=before, after=after, reason=reason)
    feed_publish(changes={"costs": [{"id": card.pk}]})


# As a file


def written(micros: int) -> str:
    """Micro-units as a plain decimal number, without zeros that say nothing beyond cents."""
    text = f"{micros // MILLION}.{micros % MILLION:06}"
    return text[:-4] + text[-4:].rstrip("0")


def card_csv(card: RateCard) -> str:
    """The card's prices as they are imported again."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    for price in prices_of(card):
        said = [*price.key, written(price.list_micros), written(price.contracted_micros), f"{Decimal(price.discount_ppm) / 10_000:f}"]
        writer.writerow([harmless(cell) for cell in said])
    return text.getvalue()


def lines_read(text: str) -> list[dict[str, Any]]:
    """The prices of a file that `card_csv` wrote, or that people made alike. What cannot be read is told with its line."""
    rows = csv.DictReader(io.StringIO(text.removeprefix("\ufeff")))
    missing = [name for name in ("gpu_type", "list") if name not in (rows.fieldnames or ())]
    if missing:
        raise ValidationError({"lines": [f"The first line names the columns: {', '.join(COLUMNS)}. Missing: {', '.join(missing)}."]})
    faults: Faults = {}
    found: list[dict[str, Any]] = []
    for row in rows:
        if len(found) > MOST_LINES or not any(row.values()):
            continue
        said = {key: str(value or "").strip().removeprefix("'") for key, value in row.items() if key}
        line: dict[str, Any] = {"gpu_type": said["gpu_type"], "share_class": said.get("class", ""), "tier": said.get("tier", "")}
        line["pool"] = said.get("pool", "")
        for name, column, scale in (
            ("list_micros", "list", MILLION),
            ("contracted_micros", "contracted", MILLION),
            ("discount_ppm", "discount_percent", 10_000),
        ):
            try:
                line[name] = amount_read(said.get(column, ""), scale)
            except ValueError as fault:
                note(faults, "lines", f"Line {rows.line_num}, {column}: {fault}")
        found.append(line)
    if faults:
        raise ValidationError(faults)
    return found


def amount_read(text: str, scale: int) -> int | None:
    """A decimal number in whole parts of `scale`; None where nothing is written."""
    if not text.strip():
        return None
    try:
        amount = Decimal(text.strip()) * scale
    except InvalidOperation:
        raise ValueError("Write a number such as 3.10.") from None
    if not amount.is_finite() or amount != amount.to_integral_value() or not 0 <= amount <= MOST_MICROS:
        raise ValueError("Write a number of at least 0 with at most 6 decimals.")
    return int(amount)
