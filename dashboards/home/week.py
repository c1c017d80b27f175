"""The tiles of Home: the fleet over its last week, from hours that are kept anyway. At most six queries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
from django.db.models import Max, Min
from django.urls import reverse
from numpy.typing import NDArray

from dashboards.fragmentation.store import largest_course
from dashboards.gap.causes import Cause
from dashboards.gap.store import Hours, gap_hours
from dashboards.telemetry.spans import HOUR, span_begin
from gpufleet.core.templatetags.shell import NOTHING, duration, money, plural
from quotas.chargeback.months import month_at
from quotas.chargeback.periods import Period
from scheduler.models import Attempt
from scheduler.selectors.spreads import spread

WEEK, DAY = timedelta(days=7), timedelta(days=1)
WEEK_HOURS = 168
WHOLE = 0.9  # of the hours of a figure
# Starts of two weeks are at most so many: of more each tenth, hundredth… is read.
SAMPLED = 2000
TYPES_SHOWN = 3

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Tile:
    """One figure of the week with its course. `rows` instead of `value`: one figure for each GPU type."""

    label: str
    meaning: str
    url: str
    value: str = ""
    note: str = ""
    tone: str = "used"
    course: Sequence[float | None] = ()
    rows: Sequence["TypeTile"] = ()
    more: int = 0


@dataclass(frozen=True, slots=True)
class TypeTile:
    """The largest job of a GPU type that fits now, beside the mean of a week."""

    name: str
    gpus: int
    change: str
    course: Sequence[float | None]


def week_tiles(*, rates: Mapping[str, int] | None, now: datetime) -> list[Tile]:
    """Rates are None for those who may see no costs: they have no tile of it."""
    end = span_begin(now, HOUR)
    begin = min(end - 2 * WEEK, Period.of(month_at(now)).start) if rates is not None else end - 2 * WEEK
    hours = gap_hours(begin, end)
    tiles = [_utilization(hours)]
    if rates is not None:
        tiles.append(_idle_cost(hours, rates, first=(Period.of(month_at(now)).start - begin) // timedelta(hours=1)))
    return [*tiles, _largest(end), _waiting(now)]


def _utilization(hours: Hours) -> Tile:
    computing, read = hours.of(Cause.COMPUTING), hours.of(*(cause for cause in Cause if cause != Cause.UNREAD))
    shares = np.divide(100 * computing, read, out=np.full(len(read), np.nan), where=read > 0)
    week, before = (_share(computing[part], read[part]) for part in (slice(-WEEK_HOURS, None), slice(-2 * WEEK_HOURS, -WEEK_HOURS)))
    return Tile(
        "Utilization, 7 days",
        "SM activity of allocated GPUs, of all GPUs",
        reverse("gap"),
        value=NOTHING if week is None else f"{week:.0f}%",
        note=_note(
            week,
            before,
            f"{week - before:+.0f} points on the week before" if week is not None and before is not None else "",
            few=_few(shares[-WEEK_HOURS:]),
        ),
        course=_drawn(shares[-WEEK_HOURS:]),
    )


def _share(computing: Floats, read: Floats) -> float | None:
    whole = float(np.nansum(read))
    return 100 * float(np.nansum(computing)) / whole if whole else None


@dataclass(frozen=True, slots=True)
class IdleOfMonth:
    """What GPUs cost in this month that were allocated and did not compute, in millionths and at today's rates. `few` says of how many hours
    there are figures, where many are missing."""

    micros: int
    few: str = ""


def idle_of_month(*, rates: Mapping[str, int], now: datetime) -> IdleOfMonth:
    hours = gap_hours(Period.of(month_at(now)).start, span_begin(now, HOUR))
    micros = _idle_micros(hours, rates)
    return IdleOfMonth(round(_sum(micros) or 0), _few(micros) if len(micros) else "")


def _idle_micros(hours: Hours, rates: Mapping[str, int]) -> Floats:
    per_gpu = np.array([rates.get(kind, 0) for kind in hours.types], np.float64)
    return hours.by_type(Cause.IDLE) @ per_gpu / 1000 if len(per_gpu) else np.full(len(hours.milli), np.nan)


def _idle_cost(hours: Hours, rates: Mapping[str, int], *, first: int) -> Tile:
    micros = _idle_micros(hours, rates)
    week, before = (_sum(micros[part]) for part in (slice(-WEEK_HOURS, None), slice(-2 * WEEK_HOURS, -WEEK_HOURS)))
    cost = "" if week is None else f"{money(round(week), 0)} in 7 days"
    told = "" if week is None or not before else f"{cost}, {100 * (week - before) / before:+.0f}%"
    few_of_week = _few(micros[-WEEK_HOURS:])
    few = _few(micros[first:]) or (few_of_week and f"{cost}, {few_of_week}")
    month = _sum(micros[first:]) if any(kind in rates for kind in hours.types) else None
    free = [kind for kind in hours.types if kind not in rates]
    return Tile(
        "Idle cost this month",
        "Allocated, not computing; at today's rates",
        reverse("idle"),
        value=NOTHING if month is None else money(round(month), 0),
        note=f"no rate for {', '.join(free)}" if free else _note(week, before or None, told, few=few),
        tone="warn",
        course=_drawn(micros[-WEEK_HOURS:]),
    )


def _sum(values: Floats) -> float | None:
    return float(np.nansum(values)) if not np.isnan(values).all() else None


def _note(week: float | None, before: float | None, told: str, *, few: str) -> str:
    """The comparison with the week before, unless figures are `few`."""
    if week is None:
        return "first figures after an hour"
    return few or (told if before is not None else "no figures of the week before")


def _few(hours: Floats) -> str:
    """Where more than a tenth of these hours is missing, a figure of them is none of the whole time, and says so."""
    read = int(np.count_nonzero(~np.isnan(hours)))
    return f"from {duration(3600 * read)} of figures" if read < WHOLE * len(hours) else ""


def _drawn(values: Floats) -> list[float | None]:
    """Means of three hours: 56 points are as fine as a sparkline shows."""
    table = values.reshape(-1, 3)
    read = ~np.isnan(table)
    means = np.where(read, table, 0).sum(axis=1) / np.maximum(read.sum(axis=1), 1)
    return [mean if some else None for mean, some in zip(means.tolist(), (read.sum(axis=1) > 0).tolist(), strict=True)]


def _largest(end: datetime) -> Tile:
    newest, course = largest_course(end - WEEK, end)
    rows = []
    for kind, gpus in sorted(newest.items(), key=lambda pair: (-pair[1], pair[0])):
        drawn = np.full(WEEK_HOURS, np.nan)
        for at, found in course:
            drawn[(at - (end - WEEK)) // timedelta(hours=1)] = found.get(kind, 0)
        mean = None if np.isnan(drawn).all() else float(np.nanmean(drawn))
        rows.append(TypeTile(kind, gpus, "" if mean is None else f"{gpus - mean:+.0f} on the mean of 7 days", _drawn(drawn)))
    return Tile(
        "Largest job that fits now",
        "GPUs that one job could start with now",
        reverse("fragmentation"),
        value="" if rows else NOTHING,
        note="" if rows else "first figures after a minute",
        rows=rows[:TYPES_SHOWN],
        more=len(rows[TYPES_SHOWN:]),
    )


def _waiting(now: datetime) -> Tile:
    starts = waits_sampled(now - 2 * WEEK)
    week = [seconds for at, seconds in starts if at >= now - WEEK]
    before = [seconds for at, seconds in starts if now - 2 * WEEK <= at < now - WEEK]
    days: list[list[float]] = [[] for _ in range(7)]
    for at, seconds in starts:
        if now - WEEK <= at <= now:
            days[min(6, (at - (now - WEEK)) // DAY)].append(seconds)
    p95 = spread(week).p95
    change = p95 - spread(before).p95
    if not week:
        note = "no job started in 7 days"
    elif before:
        note = f"{'+' if change >= 0 else '−'}{duration(abs(change))} on the week before"
    else:
        note = "no starts in the week before"
    return Tile(
        "Waiting p95, 7 days",
        f"95 of 100 jobs that first started in the week waited less; from {plural(len(week), 'start')}",
        reverse("queue"),
        value=duration(p95) if week else NOTHING,
        note=note,
        tone="held",
        course=[spread(day).p95 if day else None for day in days],
    )


def waits_sampled(since: datetime) -> list[tuple[datetime, float]]:
    """First starts of jobs since then, and the seconds that each had waited. Of many evenly spaced ones: two queries."""
    starts = Attempt.objects.filter(number=1, started_at__gte=since)
    ends = starts.aggregate(first=Min("pk"), last=Max("pk"))
    if ends["first"] is None:
        return []
    step = max(1, -(-(ends["last"] - ends["first"] + 1) // SAMPLED))
    rows = starts.filter(pk__among=list(range(ends["first"], ends["last"] + 1, step)))
    return [
        (at, max(0.0, (at - max(submitted, due or submitted, deferred or submitted)).total_seconds()))
        for at, submitted, due, deferred in rows.values_list("started_at", "job__submitted_at", "job__not_before", "job__deferred_to")
    ]
