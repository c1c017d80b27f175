"""Power caps and rated watts: set, changed and removed by operators."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction

from gpufleet.core.audit import audit_record
from gpufleet.core.faults import Conflict, Missing
from gpufleet.core.ids import public_id
from gpufleet.core.recurrence import rule_fault
from gpufleet.core.zones import zone_fault
from quotas.permissions import Access, Can
from quotas.rules import Faults, note
from scheduler.models import EnergyRate, GpuType, PowerCap
from scheduler.selectors.power import pools_known
from scheduler.services.jobs.revisions import row_locked
from scheduler.services.loop.lease import lease_want

MOST_WATTS = 10**10
MOST_CAPS = 200
NOTE_LENGTH, REASON_LENGTH = 200, 280
FURTHEST = timedelta(days=740)
FACTS = ("pool", "watts", "zone", "starts_at", "ends_at", "rule", "note")


def cap_drawn(given: Mapping[str, Any], *, now: datetime, instead_of: PowerCap | None = None) -> tuple[PowerCap, Faults]:
    """The cap as it would be, and what is wrong with it by field. What is not given stays."""
    faults: Faults = {}
    found = PowerCap(starts_at=now) if instead_of is None else PowerCap.objects.get(pk=instead_of.pk)
    take_place(found, given, faults)
    watts = given.get("watts", found.watts)
    if watts is None or not 0 <= watts <= MOST_WATTS:
        note(faults, "watts", "State 0 to 10,000,000 kW.")
    else:
        found.watts = watts
    take_times(found, given, now, faults)
    return found, faults


def take_place(found: PowerCap | EnergyRate, given: Mapping[str, Any], faults: Faults) -> None:
    """The pool and the note of what has times."""
    if "pool" in given or found.pk is None:
        found.pool = pool_taken(given.get("pool"), found.pool, faults)
    if "note" in given:
        text = str(given["note"] or "").strip()
        if len(text) > NOTE_LENGTH or not all(letter.isprintable() for letter in text):
            note(faults, "note", f"Use at most {NOTE_LENGTH} printable characters.")
        found.note = text[:NOTE_LENGTH]


def pool_taken(named: object, before: str, faults: Faults) -> str:
    pool = str(named or "").strip()
    if pool and pool != before and pool not in pools_known():
        note(faults, "pool", f"There is no pool {pool[:60]}.")
    return pool[:60]


def take_times(found: PowerCap | EnergyRate, given: Mapping[str, Any], now: datetime, faults: Faults) -> None:
    for field in ("starts_at", "ends_at", "rule", "zone"):
        if field in given:
            setattr(found, field, given[field])
    found.starts_at = found.starts_at or now
    found.rule = (found.rule or "").strip().removeprefix("RRULE:").upper()
    if fault := zone_fault(found.zone):
        note(faults, "zone", fault)
        return
    if not now - FURTHEST <= found.starts_at <= now + FURTHEST:
        note(faults, "starts_at", "Start within two years from now.")
    elif found.ends_at is not None and found.ends_at <= found.starts_at:
        note(faults, "ends_at", "End after the start.")
    elif found.ends_at is not None and found.ends_at > found.starts_at + FURTHEST:
        note(faults, "ends_at", "It lasts at most two years. Leave the end empty for a standing one.")
    elif found.rule and found.ends_at is None:
        note(faults, "ends_at", "What recurs needs an end.")
    elif found.rule and (fault := rule_fault(found.rule, found.times.start)):
        note(faults, "rule", fault)
    elif not list(islice(found.times.between(now, now + FURTHEST), 1)):
        note(faults, "rule" if found.rule else "ends_at", "This is in the past.")


def cap_set(*, access: Access, given: Mapping[str, Any], now: datetime) -> PowerCap:
    """Every fault is told at its field."""
    access.must_everywhere(Can.OPERATE)
    found, faults = cap_drawn(given, now=now)
    with transaction.atomic():
        if PowerCap.objects.count() >= MOST_CAPS:
            note(faults, "pool", f"There are {MOST_CAPS} caps already. Remove some first.")
        if faults:
            raise ValidationError(faults)
        found.public_id, found.created_by, found.created_at = public_id("pc"), access.actor.user, now
        found.save(force_insert=True)
        _record(access, "power.cap", found, after=cap_facts(found), reason=str(given.get("reason") or ""))
        lease_want()
    return found


def cap_change(*, access: Access, cap: PowerCap, given: Mapping[str, Any], revision: int | None = None, now: datetime) -> PowerCap:
    access.must_everywhere(Can.OPERATE)
    with transaction.atomic():
        before = cap_facts(_locked(cap, revision))
        found, faults = cap_drawn(given, now=now, instead_of=cap)
        if faults:
            raise ValidationError(faults)
        found.revision += 1
        found.save()
        _record(access, "power.change", found, before, cap_facts(found), str(given.get("reason") or ""))
        lease_want()
    return found


def cap_remove(*, access: Access, cap: PowerCap, reason: str = "", revision: int | None = None) -> None:
    access.must_everywhere(Can.OPERATE)
    with transaction.atomic():
        found = _locked(cap, revision)
        _record(access, "power.remove", found, before=cap_facts(found), reason=reason)
        found.delete()
        lease_want()


def rating_set(*, access: Access, gpu_type: str, watts: int | None, reason: str = "") -> GpuType:
    """The rated watts of a GPU type; None: as its maker states."""
    access.must_everywhere(Can.OPERATE)
    if watts is not None and not 1 <= watts <= 100_000:
        raise ValidationError({"watts": ["State 1 to 100,000 W."]})
    with transaction.atomic():
        found = GpuType.objects.select_for_update().filter(name=gpu_type).first()
        if found is None:
            raise Missing("There is no such GPU type.")
        before, found.rated_watts = found.rated_watts, watts
        found.save(update_fields=["rated_watts"])
        was, becomes = {"rated_watts": before}, {"rated_watts": watts}
        audit_record(actor=access.actor, action="power.rate", kind="gpu_type", object_id=gpu_type, before=was, after=becomes, reason=said(reason))
        lease_want()
    return found


def cap_facts(found: PowerCap) -> dict[str, Any]:
    facts = {name: getattr(found, name) for name in FACTS}
    return facts | {name: facts[name].isoformat() if facts[name] is not None else None for name in ("starts_at", "ends_at")}


def _locked(cap: PowerCap, revision: int | None) -> PowerCap:
    return row_locked(PowerCap.objects.all(), cap.pk, revision=revision, gone=Conflict(f"{cap.public_id} was removed meanwhile."))


def said(reason: str) -> str:
    return "".join(letter for letter in reason.strip() if letter.isprintable())[:REASON_LENGTH]


def _record(
    access: Access, action: str, found: PowerCap, before: dict[str, Any] | None = None, after: dict[str, Any] | None = None, reason: str = ""
) -> None:
    audit_record(actor=access.actor, action=action, kind="power_cap", object_id=found.public_id, before=before, after=after, reason=said(reason))
