"""Energy rates in words and as a chart, and what deferred jobs save."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.conf import settings

from gpufleet.core.charts import Chart, Series, over_time
from gpufleet.core.previews import Preview
from gpufleet.core.templatetags.shell import money, plural
from gpufleet.core.times import millis
from scheduler.models import EnergyForecast, EnergyRate
from scheduler.presenters.deferring import grams_told, price_told
from scheduler.presenters.power import pool_name, times_told
from scheduler.selectors.energy import CARBON, PRICE, Deferred, Tariffs
from scheduler.services.forecasts.energy import RatePreview

AHEAD, STEP = timedelta(hours=48), timedelta(minutes=15)
TONES = ("used", "move", "held", "warn")
HIDDEN = "Hidden"


@dataclass(frozen=True, slots=True)
class RateLine:
    """A row of the list. `state`: active, coming or past."""

    rate: EnergyRate
    pool: str
    price: str
    grams: str
    state: str
    start: datetime | None  # of the time at which it applies now or next
    end: datetime | None
    repeats: str
    note: str


@dataclass(frozen=True, slots=True)
class EnergyChart:
    title: str
    chart: Chart


@dataclass(frozen=True, slots=True)
class ForecastLine:
    pool: str
    what: str
    ends_at: datetime
    sent_at: datetime
    sent_by: str


def rate_lines(rates: Sequence[EnergyRate], now: datetime, *, sees: bool) -> list[RateLine]:
    lines = []
    for rate in rates:
        price = "" if rate.price_micros is None else price_told(rate.price_micros) if sees else HIDDEN
        grams = "" if rate.grams is None else f"{rate.grams:,} g"
        lines.append(RateLine(rate, pool_name(rate.pool), price, grams, *times_told(rate, now), rate.note))
    return lines


def forecast_lines(forecasts: Sequence[EnergyForecast], *, sees: bool) -> list[ForecastLine]:
    found = []
    for one in forecasts:
        price, grams = any(step[1] is not None for step in one.steps), any(step[2] is not None for step in one.steps)
        what = " and ".join([*(["price"] if price and sees else []), *(["CO2"] if grams else [])])
        whose, by = f"pool {one.pool}" if one.pool else pool_name("").lower(), one.sent_by.username if one.sent_by else ""
        if what:
            found.append(ForecastLine(whose, what, one.ends_at, one.sent_at, by))
    return found


def energy_charts(tariffs: Tariffs, *, sees: bool) -> list[EnergyChart]:
    """Of the next two days: a chart of prices and one of CO2, each with a line for the fleet and for each pool of its own."""
    grid = [tariffs.now + number * STEP for number in range(AHEAD // STEP + 1)]
    found = []
    for by, title, unit, scale in ((PRICE, "Price of a kWh", settings.CURRENCY, 1_000_000), (CARBON, "CO2 of a kWh", "g", 1)):
        if (by == PRICE and not sees) or not tariffs.spans(by):
            continue
        pools = [*(["", *tariffs.pools(by)] if any(not span.pool for span in tariffs.spans(by)) else tariffs.pools(by))]
        courses = {pool: tariffs.course(by, pool, grid[0], grid[-1] + STEP) for pool in pools}
        changes = {datetime.fromtimestamp(milli / 1000, UTC) for course in courses.values() for milli in course.at}
        at = sorted({*grid, *(moment for moment in changes if grid[0] < moment < grid[-1])})
        lines = []
        for number, (pool, course) in enumerate(courses.items()):
            values = [None if (value := course.value(millis(moment))) is None else value / scale for moment in at]
            if any(value is not None for value in values):
                lines.append(Series(pool_name(pool), values, TONES[number % len(TONES)]))
        if lines:
            chart = over_time(label=f"{title}, next 48 hours", unit=unit, at=at, series=lines, steps=True)
            found.append(EnergyChart(f"{title} ({unit})", chart))
    return found


def deferred_told(found: Deferred) -> str:
    """In a sentence; empty where none is deferred."""
    if not found.jobs:
        return ""
    saved = [*([money(found.saved_micros)] if found.saved_micros else []), *([grams_told(found.saved_grams)] if found.saved_grams else [])]
    told = f"{plural(found.jobs, 'job')} {'is' if found.jobs == 1 else 'are'} deferred now"
    return f"{told}. By estimate {'it saves' if found.jobs == 1 else 'they save'} {' and '.join(saved)}." if saved else f"{told}."


def preview_told(found: RatePreview) -> Preview:
    sentences = [f"{plural(found.deferred, 'job')} {'is' if found.deferred == 1 else 'are'} deferred now."]
    if found.moved:
        sentences.append(f"{plural(found.moved, 'job')} would be deferred to another hour.")
    if found.freed:
        sentences.append(f"{plural(found.freed, 'job')} would no longer be deferred.")
    if found.deferred and not found.moved and not found.freed:
        sentences.append("None of them would be deferred to another hour.")
    if found.looked_at < found.deferred:
        sentences.append(f"Only the first {found.looked_at:,} were looked at.")
    sentences.append("Running jobs and jobs whose hour has come are not affected.")
    return Preview(sentences=sentences)
