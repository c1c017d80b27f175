"""Energy over HTTP: rates, forecasts, and what deferred jobs save."""

from datetime import UTC, datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from ninja import Query, Router, Schema, Status
from pydantic import Field

from gpufleet.core.etags import IF_MATCH, revision_wanted, stamped
from gpufleet.core.taken import Taken
from gpufleet.core.times import now
from gpufleet.web import access_of
from quotas.api.lists import ReasonQuery
from scheduler.api.pooled import PooledChange, PooledIn, PooledOut, changed_of, pooled_told
from scheduler.jobs.schema import Moment
from scheduler.models import EnergyForecast, EnergyRate
from scheduler.selectors.energy import deferred_now, forecasts_listed, rate_for, rates_listed, sees_prices
from scheduler.services.energy import MOST_GRAMS, MOST_PRICE, MOST_STEPS, forecast_put, forecast_remove, rate_change, rate_remove, rate_set

router = Router(tags=["Power"])


class EnergyRateOut(PooledOut):
    """Times of a rule are by the clock of its zone. `next_start` and `next_end`: when it applies now or next."""

    price_micros: int | None
    grams: int | None


class EnergyStepOut(Schema):
    start: datetime = Field(description="When it begins.")
    price_micros: int | None
    grams: int | None


class EnergyForecastOut(Schema):
    pool: str
    steps: list[EnergyStepOut]
    ends_at: datetime
    sent_at: datetime


class DeferredOut(Schema):
    """Jobs of the caller that are deferred now, and what they save by estimate."""

    jobs: int
    saved_micros: int | None
    saved_grams: int


class EnergyOut(Schema):
    rates: list[EnergyRateOut]
    forecasts: list[EnergyForecastOut]
    deferred: DeferredOut


class EnergyRateIn(PooledIn):
    price_micros: int | None = Field(None, ge=-MOST_PRICE, le=MOST_PRICE)
    grams: int | None = Field(None, ge=0, le=MOST_GRAMS)


class EnergyRateChange(PooledChange):
    """What is not named stays; an `ends_at` of null makes it standing, and a price or grams of null is no longer stated."""

    price_micros: int | None = Field(None, ge=-MOST_PRICE, le=MOST_PRICE)
    grams: int | None = Field(None, ge=0, le=MOST_GRAMS)


class EnergyStepIn(Taken):
    """Until the next step. It states a price, grams of CO2, or both."""

    start: Moment = Field(description="When it begins.")
    price_micros: int | None = Field(None, ge=-MOST_PRICE, le=MOST_PRICE)
    grams: int | None = Field(None, ge=0, le=MOST_GRAMS)


class EnergyForecastIn(Taken):
    pool: str = Field("", max_length=60, description="Empty: the whole fleet.")
    steps: list[EnergyStepIn] = Field(min_length=1, max_length=MOST_STEPS, description="In the order of their starts, at most 14 days ahead.")
    ends_at: Moment | None = Field(None, description="The end of the last step. Null: it is as long as the one before it.")
    reason: str = Field("", max_length=280)


class ForecastQuery(ReasonQuery):
    pool: str = Field("", max_length=60, description="Empty: that of the whole fleet.")


@router.get("/energy", response=EnergyOut, url_name="energy", summary="Energy rates and forecasts")
def energy(request: HttpRequest) -> dict[str, Any]:
    """Prices are null for those who may not see any."""
    access, moment = access_of(request), now()
    sees, found = sees_prices(access), deferred_now(access, moment)
    return {
        "rates": [rate_told(rate, moment, sees=sees) for rate in rates_listed(access)],
        "forecasts": [forecast_told(one, sees=sees) for one in forecasts_listed(access, moment)],
        "deferred": {"jobs": found.jobs, "saved_micros": found.saved_micros, "saved_grams": found.saved_grams},
    }


@router.post("/energy/rates", response={201: EnergyRateOut}, url_name="energy_rates", summary="Set an energy rate")
def energy_rate_make(request: HttpRequest, body: EnergyRateIn) -> Status[dict[str, Any]]:
    """By operators. Jobs that are deferred are judged anew."""
    return Status(201, rate_told(rate_set(access=access_of(request), given=body.dict(), now=now()), now(), sees=True))


@router.get("/energy/rates/{public_id}", response=EnergyRateOut, url_name="energy_rate", summary="An energy rate")
def energy_rate(request: HttpRequest, public_id: str, response: HttpResponse) -> dict[str, Any]:
    access = access_of(request)
    found = rate_for(access, public_id)
    stamped(response, found.revision)
    return rate_told(found, now(), sees=sees_prices(access))


@router.patch("/energy/rates/{public_id}", response=EnergyRateOut, url_name="energy_rate", openapi_extra=IF_MATCH, summary="Change an energy rate")
def energy_rate_update(request: HttpRequest, public_id: str, body: EnergyRateChange, response: HttpResponse) -> dict[str, Any]:
    access = access_of(request)
    given = changed_of(body, ("price_micros", "grams"))
    found = rate_change(access=access, one=rate_for(access, public_id), given=given, revision=revision_wanted(request), now=now())
    stamped(response, found.revision)
    return rate_told(found, now(), sees=True)


@router.delete("/energy/rates/{public_id}", response={204: None}, url_name="energy_rate", openapi_extra=IF_MATCH, summary="Remove an energy rate")
def energy_rate_delete(request: HttpRequest, public_id: str, query: Query[ReasonQuery]) -> Status[None]:
    access = access_of(request)
    rate_remove(access=access, one=rate_for(access, public_id), reason=query.reason, revision=revision_wanted(request), now=now())
    return Status(204, None)


@router.put("/energy/forecast", response=EnergyForecastOut, url_name="energy_forecast", summary="Send a forecast of energy")
def energy_forecast_put(request: HttpRequest, body: EnergyForecastIn) -> dict[str, Any]:
    """By operators: such as the hourly forecast of a grid operator. It takes the place of the one before, and goes before rates of the same pool."""
    given = body.dict()
    return forecast_told(forecast_put(access=access_of(request), **given, now=now()), sees=True)


@router.delete("/energy/forecast", response={204: None}, url_name="energy_forecast", summary="Remove a forecast of energy")
def energy_forecast_delete(request: HttpRequest, query: Query[ForecastQuery]) -> Status[None]:
    forecast_remove(access=access_of(request), pool=query.pool, reason=query.reason, now=now())
    return Status(204, None)


def rate_told(rate: EnergyRate, moment: datetime, *, sees: bool) -> dict[str, Any]:
    return pooled_told(rate, moment) | {"price_micros": rate.price_micros if sees else None, "grams": rate.grams}


def forecast_told(one: EnergyForecast, *, sees: bool) -> dict[str, Any]:
    steps = [
        {"start": datetime.fromtimestamp(start / 1000, UTC), "price_micros": price if sees else None, "grams": grams}
        for start, price, grams in one.steps
    ]
    return {"pool": one.pool, "steps": steps, "ends_at": one.ends_at, "sent_at": one.sent_at}
