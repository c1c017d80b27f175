"""The cost of each day by class, as bars: of the period of a report, or of so many days up to its end."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

from django.conf import settings

from gpufleet.core.charts import Chart, Series, bars
from gpufleet.core.ranges import BY_KEY, Range
from quotas.chargeback.periods import DAY, Period
from quotas.chargeback.report import Report, bars_of, days_seen
from quotas.models import ChargeMonth
from quotas.permissions import Access

WHOLE = "all"
OFFERED = ("7d", "30d", "90d")
COLOURS = (("guaranteed", "Guaranteed", "used"), ("reserved", "Reserved", "held"), ("borrowed", "Borrowed", "move"))


def day_ranges(period: Period, now: datetime) -> list[Range]:
    """Days up to the end of the period, or up to today, and all of the period."""
    is_over = period.end <= now
    name, text = ("Month", f"{period.first:%B %Y}") if period.month else ("All", "whole period")
    days = [replace(BY_KEY[key], over=is_over) for key in OFFERED]
    return [*days, Range(WHOLE, period.end - period.start, timedelta(0), text, name=name)]


def day_range(asked: str, ranges: Sequence[Range]) -> Range:
    """The range of that key; all of the period where it is not offered."""
    return next((one for one in ranges if one.key == asked), ranges[-1])


def days_chart(access: Access, period: Period, chosen: Range, now: datetime) -> Chart:
    """In at most two queries. Days of months in another currency than the last one are left out, as sums would mean nothing."""
    if chosen.key != WHOLE:
        last = min(period.last, now.astimezone(UTC).date())
        period = Period(last - chosen.length + DAY, last)
    currencies = dict(ChargeMonth.objects.filter(first__in=period.months).order_by("first").values_list("first", "currency"))
    currency = list(currencies.values())[-1] if currencies else settings.CURRENCY
    days = [(day, costs) for day, costs in days_seen(access, period) if currencies.get(day.replace(day=1)) == currency]
    if chosen.key == WHOLE:
        return _bars(period, days, currency)
    known = dict(days)
    return _bars(period, [(day, known.get(day, {})) for day in period.days], currency, by_day=True)


def report_chart(found: Report) -> Chart:
    """Of a report that has been read already; of a long period, a bar for each month."""
    return _bars(found.period, found.days, found.currency)


def _bars(period: Period, days: Iterable[tuple[date, Mapping[str, int]]], currency: str, *, by_day: bool = False) -> Chart:
    step, costs = ("day", dict(days)) if by_day else bars_of(period, days)
    series = [
        Series(label, [of_step.get(key, 0) / 10**9 for of_step in costs.values()], colour, kind="bar")
        for key, label, colour in COLOURS
        if any(of_step.get(key) for of_step in costs.values())
    ]
    names = [f"{one:%b %Y}" if step == "month" else f"{one:%d %b}" for one in costs]
    return bars(label=f"Cost by {step}", unit=currency, first=step.capitalize(), names=names, series=series, stacked=True)
