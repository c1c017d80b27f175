"""What holds for a pool, or for the fleet, over time and is stated by operators: power caps and energy rates. One way to set, change and remove."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Generic, TypeVar

from django.core.exceptions import ValidationError
from django.db import transaction

from gpufleet.core.audit import audit_record
from gpufleet.core.faults import Conflict
from gpufleet.core.ids import public_id
from gpufleet.core.recurrence import rule_fault
from gpufleet.core.zones import zone_fault
from quotas.permissions import Access, Can
from quotas.rules import Faults, note
from scheduler.models import EnergyRate, PowerCap
from scheduler.selectors.power import pools_known
from scheduler.services.jobs.revisions import row_locked
from scheduler.services.loop.lease import lease_want

MOST = 200
NOTE_LENGTH, REASON_LENGTH = 200, 280
FURTHEST = timedelta(days=740)
FACTS = ("pool", "zone", "starts_at", "ends_at", "rule", "note")
One = TypeVar("One", PowerCap, EnergyRate)


@dataclass(frozen=True, slots=True)
class Pooled(Generic[One]):
    """A kind of them. `read` takes over its own fields (`own`) from what is given; `actions` are those of the audit log."""

    model: type[One]
    prefix: str
    named: str  # several of them
    actions: tuple[str, str, str]  # set, changed, removed
    own: tuple[str, ...]
    read: Callable[[One, Mapping[str, Any], Faults], None]
    changed: Callable[[datetime], None] = lambda now: None

    def drawn(self, given: Mapping[str, Any], *, now: datetime, instead_of: One | None = None) -> tuple[One, Faults]:
        """It as it would be, and what is wrong with it by field. What is not given stays."""
        faults: Faults = {}
        found = self.model(starts_at=now) if instead_of is None else self.model.objects.get(pk=instead_of.pk)
        _take_place(found, given, faults)
        self.read(found, given, faults)
        _take_times(found, given, now, faults)
        return found, faults

    def set(self, *, access: Access, given: Mapping[str, Any], now: datetime) -> One:
        """Every fault is told at its field."""
        access.must_everywhere(Can.OPERATE)
        found, faults = self.drawn(given, now=now)
        with transaction.atomic():
            if self.model.objects.count() >= MOST:
                note(faults, "pool", f"There are {MOST} {self.named} already. Remove some first.")
            if faults:
                raise ValidationError(faults)
            found.public_id, found.created_by, found.created_at = public_id(self.prefix), access.actor.user, now
            found.save(force_insert=True)
            self._written(access, self.actions[0], found, None, self.facts(found), given.get("reason"), now)
        return found

    def change(self, *, access: Access, one: One, given: Mapping[str, Any], revision: int | None = None, now: datetime) -> One:
        access.must_everywhere(Can.OPERATE)
        with transaction.atomic():
            before = self.facts(self._locked(one, revision))
            found, faults = self.drawn(given, now=now, instead_of=one)
            if faults:
                raise ValidationError(faults)
            found.revision += 1
            found.save()
            self._written(access, self.actions[1], found, before, self.facts(found), given.get("reason"), now)
        return found

    def remove(self, *, access: Access, one: One, reason: str = "", revision: int | None = None, now: datetime) -> None:
        access.must_everywhere(Can.OPERATE)
        with transaction.atomic():
            found = self._locked(one, revision)
            before = self.facts(found)
            found.delete()
            self._written(access, self.actions[2], found, before, None, reason, now)

    def facts(self, found: One) -> dict[str, Any]:
        facts = {name: getattr(found, name) for name in (*FACTS, *self.own)}
        return facts | {name: facts[name].isoformat() if facts[name] is not None else None for name in ("starts_at", "ends_at")}

    def _locked(self, one: One, revision: int | None) -> One:
        return row_locked(self.model.objects.all(), one.pk, revision=revision, gone=Conflict(f"{one.public_id} was removed meanwhile."))

    def _written(
        self, access: Access, action: str, found: One, before: dict[str, Any] | None, after: dict[str, Any] | None, reason: object, now: datetime
    ) -> None:
        kind, why = self.model._meta.db_table, said(str(reason or ""))
        audit_record(actor=access.actor, action=action, kind=kind, object_id=found.public_id, before=before, after=after, reason=why)
        self.changed(now)
        lease_want()


def pool_taken(named: object, before: str, faults: Faults) -> str:
    pool = str(named or "").strip()
    if pool and pool != before and pool not in pools_known():
        note(faults, "pool", f"There is no pool {pool[:60]}.")
    return pool[:60]


def said(reason: str) -> str:
    return "".join(letter for letter in reason.strip() if letter.isprintable())[:REASON_LENGTH]


def _take_place(found: PowerCap | EnergyRate, given: Mapping[str, Any], faults: Faults) -> None:
    if "pool" in given or found.pk is None:
        found.pool = pool_taken(given.get("pool"), found.pool, faults)
    if "note" in given:
        text = str(given["note"] or "").strip()
        if len(text) > NOTE_LENGTH or not all(letter.isprintable() for letter in text):
            note(faults, "note", f"Use at most {NOTE_LENGTH} printable characters.")
        found.note = text[:NOTE_LENGTH]


def _take_times(found: PowerCap | EnergyRate, given: Mapping[str, Any], now: datetime, faults: Faults) -> None:
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
