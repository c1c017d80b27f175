"""Energy rates and forecasts: stated, changed, removed and sent by operators. Jobs that are deferred by them are judged anew."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction

from gpufleet.core.audit import audit_record
from gpufleet.core.faults import Conflict, Missing
from gpufleet.core.ids import public_id
from gpufleet.core.times import millis
from quotas.permissions import Access, Can
from quotas.rules import Faults, note
from scheduler.models import EnergyForecast, EnergyRate
from scheduler.services.jobs.deferring import deferrals_doubt
from scheduler.services.jobs.revisions import row_locked
from scheduler.services.loop.lease import lease_want
from scheduler.services.power import pool_taken, said, take_place, take_times

MOST_PRICE = 1000 * 10**6  # micro-units for a kWh
MOST_GRAMS = 10_000
MOST_RATES = 200
MOST_STEPS = 2000
FORECAST = timedelta(days=14)
HOUR_MS = 3_600_000
FACTS = ("pool", "price_micros", "grams", "zone", "starts_at", "ends_at", "rule", "note")


def rate_drawn(given: Mapping[str, Any], *, now: datetime, instead_of: EnergyRate | None = None) -> tuple[EnergyRate, Faults]:
    """The rate as it would be, and what is wrong with it by field. What is not given stays."""
    faults: Faults = {}
    found = EnergyRate(starts_at=now) if instead_of is None else EnergyRate.objects.get(pk=instead_of.pk)
    take_place(found, given, faults)
    for field in ("price_micros", "grams"):
        if field in given:
            setattr(found, field, given[field])
    _judge(found.price_micros, found.grams, "", faults)
    if found.price_micros is None and found.grams is None:
        note(faults, "price_micros", "State a price, grams of CO2, or both.")
    take_times(found, given, now, faults)
    return found, faults


def _judge(price: int | None, grams: int | None, before: str, faults: Faults) -> None:
    if price is not None and not -MOST_PRICE <= price <= MOST_PRICE:
        note(faults, f"{before}price_micros", "State at most 1,000 for a kWh.")
    if grams is not None and not 0 <= grams <= MOST_GRAMS:
        note(faults, f"{before}grams", f"State 0 to {MOST_GRAMS:,} g.")


def rate_set(*, access: Access, given: Mapping[str, Any], now: datetime) -> EnergyRate:
    """Every fault is told at its field."""
    access.must_everywhere(Can.OPERATE)
    found, faults = rate_drawn(given, now=now)
    with transaction.atomic():
        if EnergyRate.objects.count() >= MOST_RATES:
            note(faults, "pool", f"There are {MOST_RATES} rates already. Remove some first.")
        if faults:
            raise ValidationError(faults)
        found.public_id, found.created_by, found.created_at = public_id("er"), access.actor.user, now
        found.save(force_insert=True)
        _record(access, "energy.rate", found, after=rate_facts(found), reason=str(given.get("reason") or ""))
        _changed(now)
    return found


def rate_change(*, access: Access, rate: EnergyRate, given: Mapping[str, Any], revision: int | None = None, now: datetime) -> EnergyRate:
    access.must_everywhere(Can.OPERATE)
    with transaction.atomic():
        before = rate_facts(_locked(rate, revision))
        found, faults = rate_drawn(given, now=now, instead_of=rate)
        if faults:
            raise ValidationError(faults)
        found.revision += 1
        found.save()
        _record(access, "energy.change", found, before, rate_facts(found), str(given.get("reason") or ""))
        _changed(now)
    return found


def rate_remove(*, access: Access, rate: EnergyRate, reason: str = "", revision: int | None = None, now: datetime) -> None:
    access.must_everywhere(Can.OPERATE)
    with transaction.atomic():
        found = _locked(rate, revision)
        _record(access, "energy.remove", found, before=rate_facts(found), reason=reason)
        found.delete()
        _changed(now)


def forecast_put(
    *, access: Access, pool: str, steps: Sequence[Mapping[str, Any]], ends_at: datetime | None = None, reason: str = "", now: datetime
) -> EnergyForecast:
    """A forecast of a pool, or of the fleet, in the place of the one before. Without an end the last step is as long as the one before it."""
    access.must_everywhere(Can.OPERATE)
    faults: Faults = {}
    pool = pool.strip()
    with transaction.atomic():
        before = EnergyForecast.objects.filter(pool=pool).first()
        pool_taken(pool, before.pool if before else "", faults)
        rows = _steps_read(steps, now, faults)
        if faults:
            raise ValidationError(faults)
        end = _end_of(rows, ends_at, now)
        said_now = {"steps": rows, "ends_at": end, "sent_at": now, "sent_by": access.actor.user}
        found, _ = EnergyForecast.objects.update_or_create(pool=pool, defaults=said_now)
        after = {"steps": len(rows), "starts_at": _told(rows[0][0]), "ends_at": end.isoformat()}
        _record_forecast(access, "energy.forecast", pool, after, reason)
        _changed(now)
    return found


def forecast_remove(*, access: Access, pool: str, reason: str = "", now: datetime) -> None:
    access.must_everywhere(Can.OPERATE)
    with transaction.atomic():
        found = EnergyForecast.objects.select_for_update().filter(pool=pool.strip()).first()
        if found is None:
            raise Missing("There is no such forecast.")
        found.delete()
        _record_forecast(access, "energy.forecast_remove", pool.strip(), None, reason)
        _changed(now)


def _steps_read(steps: Sequence[Mapping[str, Any]], now: datetime, faults: Faults) -> list[list[int | None]]:
    """As the row keeps them: [start, micro-units, grams], in order."""
    if not 1 <= len(steps) <= MOST_STEPS:
        note(faults, "steps", f"Send 1 to {MOST_STEPS:,} steps.")
        return []
    rows: list[list[int | None]] = []
    for place, step in enumerate(steps):
        start, price, grams = step["start"], step.get("price_micros"), step.get("grams")
        if not now - FORECAST <= start <= now + FORECAST:
            note(faults, f"steps[{place}].start", "Start within 14 days from now.")
            continue
        if price is None and grams is None:
            note(faults, f"steps[{place}].price_micros", "State a price, grams of CO2, or both.")
        _judge(price, grams, f"steps[{place}].", faults)
        if rows and millis(start) <= (rows[-1][0] or 0):
            note(faults, f"steps[{place}].start", "Start after the step before it.")
        rows.append([millis(start), price, grams])
    return rows


def _end_of(rows: Sequence[Sequence[int | None]], stated: datetime | None, now: datetime) -> datetime:
    last = rows[-1][0] or 0
    before = rows[-2][0] or 0 if len(rows) > 1 else last - HOUR_MS
    end = datetime.fromtimestamp((2 * last - before) / 1000, UTC) if stated is None else stated
    if millis(end) <= last:
        raise ValidationError({"ends_at": ["End after the last step has started."]})
    if end <= now:
        raise ValidationError({"ends_at" if stated is not None else "steps": ["This is in the past."]})
    if end > now + 2 * FORECAST:
        raise ValidationError({"ends_at": ["End within 28 days from now."]})
    return end


def _changed(now: datetime) -> None:
    deferrals_doubt(now=now)
    lease_want()


def _told(moment: int | None) -> str:
    return datetime.fromtimestamp((moment or 0) / 1000, UTC).isoformat()


def rate_facts(found: EnergyRate) -> dict[str, Any]:
    facts = {name: getattr(found, name) for name in FACTS}
    return facts | {name: facts[name].isoformat() if facts[name] is not None else None for name in ("starts_at", "ends_at")}


def _locked(rate: EnergyRate, revision: int | None) -> EnergyRate:
    return row_locked(EnergyRate.objects.all(), rate.pk, revision=revision, gone=Conflict(f"{rate.public_id} was removed meanwhile."))


def _record(
    access: Access, action: str, found: EnergyRate, before: dict[str, Any] | None = None, after: dict[str, Any] | None = None, reason: str = ""
) -> None:
    audit_record(actor=access.actor, action=action, kind="energy_rate", object_id=found.public_id, before=before, after=after, reason=said(reason))


def _record_forecast(access: Access, action: str, pool: str, after: dict[str, Any] | None, reason: str) -> None:
    audit_record(actor=access.actor, action=action, kind="energy_forecast", object_id=pool or "fleet", after=after, reason=said(reason))
