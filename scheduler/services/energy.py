"""Energy rates and forecasts: stated, changed, removed and sent by operators. Jobs that are deferred by them are judged anew."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction

from gpufleet.core.audit import audit_record
from gpufleet.core.faults import Missing
from gpufleet.core.times import millis
from quotas.permissions import Access, Can
from quotas.rules import Faults, note
from scheduler.models import EnergyForecast, EnergyRate
from scheduler.services.jobs.deferring import deferrals_doubt
from scheduler.services.loop.lease import lease_want
from scheduler.services.pooled import Pooled, pool_taken, said

MOST_PRICE = 1000 * 10**6  # micro-units for a kWh
MOST_GRAMS = 10_000
MOST_STEPS = 2000
FORECAST = timedelta(days=14)
HOUR_MS = 3_600_000


def _read(found: EnergyRate, given: Mapping[str, Any], faults: Faults) -> None:
    for field in ("price_micros", "grams"):
        if field in given:
            setattr(found, field, given[field])
    _judge(found.price_micros, found.grams, "", faults)
    if found.price_micros is None and found.grams is None:
        note(faults, "price_micros", "State a price, grams of CO2, or both.")


def _judge(price: int | None, grams: int | None, before: str, faults: Faults) -> None:
    if price is not None and not -MOST_PRICE <= price <= MOST_PRICE:
        note(faults, f"{before}price_micros", "State at most 1,000 for a kWh.")
    if grams is not None and not 0 <= grams <= MOST_GRAMS:
        note(faults, f"{before}grams", f"State 0 to {MOST_GRAMS:,} g.")


RATES = Pooled(
    EnergyRate,
    "er",
    "rates",
    ("energy.rate", "energy.change", "energy.remove"),
    ("price_micros", "grams"),
    _read,
    lambda now: deferrals_doubt(now=now),
)
rate_drawn, rate_set, rate_change, rate_remove = RATES.drawn, RATES.set, RATES.change, RATES.remove


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
        deferrals_doubt(now=now)
        lease_want()
    return found


def forecast_remove(*, access: Access, pool: str, reason: str = "", now: datetime) -> None:
    access.must_everywhere(Can.OPERATE)
    with transaction.atomic():
        found = EnergyForecast.objects.select_for_update().filter(pool=pool.strip()).first()
        if found is None:
            raise Missing("There is no such forecast.")
        found.delete()
        _record_forecast(access, "energy.forecast_remove", pool.strip(), None, reason)
        deferrals_doubt(now=now)
        lease_want()


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


def _told(moment: int | None) -> str:
    return datetime.fromtimestamp((moment or 0) / 1000, UTC).isoformat()


def _record_forecast(access: Access, action: str, pool: str, after: dict[str, Any] | None, reason: str) -> None:
    audit_record(actor=access.actor, action=action, kind="energy_forecast", object_id=pool or "fleet", after=after, reason=said(reason))
