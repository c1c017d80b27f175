"""To which hour a job is deferred and what that saves, in words and for programs. Prices are told to those who may see them."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gpufleet.core.templatetags.shell import money
from scheduler.jobs.waiting import DEFERRED_FOR
from scheduler.models import Job
from scheduler.selectors.energy import CARBON, PRICE
from scheduler.services.jobs.deferring import Deferral, is_deferred

NOT_DEFERRED = {
    "no_rate": "Not deferred: no rate of energy is known for now.",
    "no_time": "Not deferred: the deadline leaves no time to wait.",
    "no_gain": "Not deferred: no later start is much cheaper.",
    "ran": "Not deferred: it has run before.",
}
NO_CARBON_GAIN = "Not deferred: no later start has much less CO2."
BY = {PRICE: "by price", CARBON: "by CO2"}


@dataclass(frozen=True, slots=True)
class DeferralView:
    """`to` None: `why` says why it is not deferred. `figures` compares the rates, and says what it saves."""

    to: datetime | None
    latest: datetime | None
    reason: str  # for a lower price of energy
    figures: str
    why: str = ""


def deferral_view(found: Deferral, *, sees: bool) -> DeferralView:
    if found.to is None:
        why = NO_CARBON_GAIN if (found.by, found.why) == (CARBON, "no_gain") else NOT_DEFERRED.get(found.why, "Not deferred.")
        return DeferralView(None, None, "", "", why)
    return DeferralView(found.to, found.latest, f"for {DEFERRED_FOR[found.by]}", _figures(found, sees=sees))


def deferral_shown(job: Job, now: datetime, *, sees: bool) -> DeferralView | None:
    """Of a job that waits, is deferred or would have been; None where there is nothing to say."""
    if job.defer is None or not job.deferral:
        return None
    found = Deferral.kept(job.deferral)
    return deferral_view(found, sees=sees) if is_deferred(job, now) or found.to is None else None


def deferral_past(job: Job, now: datetime, *, sees: bool) -> str:
    """What was estimated of a job whose hour has come; empty: it was not deferred, or was started before."""
    if not job.deferral or job.deferred_to is None or is_deferred(job, now) or job.deferral.get("ended"):
        return ""
    found = Deferral.kept(job.deferral)
    return _figures(found, sees=sees) if found.to is not None else ""


def _figures(found: Deferral, *, sees: bool) -> str:
    energy = kwh_told(found.watt_hours)
    if found.by == CARBON:
        saves = f"; saves about {grams_told(found.saved)} ({energy})" if found.saved else ""
        return f"{found.rate:,} instead of {found.rate_now:,} g CO2 per kWh{saves}."
    if not sees:
        return f"It takes about {energy}." if found.watt_hours else ""
    saves = f"; saves about {money(found.saved)} ({energy})" if found.saved else ""
    return f"{price_told(found.rate)} instead of {price_told(found.rate_now)} per kWh{saves}."


def price_told(micros: int) -> str:
    """Of a kWh: in two decimals, or in three where these say more."""
    return money(micros, 2 if micros % 10_000 == 0 else 3)


def kwh_told(watt_hours: int) -> str:
    return f"{watt_hours / 1_000_000:,.1f} MWh" if watt_hours >= 10_000_000 else f"{watt_hours / 1000:,.1f} kWh"


def grams_told(grams: int) -> str:
    if abs(grams) < 1000:
        return f"{grams:,} g CO2"
    return f"{grams / 1000:,.1f} kg CO2" if abs(grams) < 1_000_000 else f"{grams / 1_000_000:,.1f} t CO2"


def deferral_facts(found: Deferral | None, *, sees: bool) -> dict[str, Any] | None:
    """The same for programs."""
    if found is None:
        return None
    view = deferral_view(found, sees=sees)
    is_price, shown = found.by == PRICE, found.to is not None
    prices, grams = shown and is_price and sees, shown and not is_price
    return {
        "by": found.by,
        "to": found.to,
        "latest_start": found.latest,
        "pool": found.pool,
        "price_micros": found.rate if prices else None,
        "price_now_micros": found.rate_now if prices else None,
        "saved_micros": found.saved if prices else None,
        "grams": found.rate if grams else None,
        "grams_now": found.rate_now if grams else None,
        "saved_grams": found.saved if grams else None,
        "watt_hours": found.watt_hours if shown else None,
        "text": view.why or view.figures,
    }
