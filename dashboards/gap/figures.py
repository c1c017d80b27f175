"""The gap as a viewer sees it: by cause and by team, class, type or pool, in GPUs and money. Every column adds up as printed."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Literal

from dashboards.gap.causes import Cause, Part
from dashboards.gap.store import Gap, gap_newest, gap_over
from dashboards.selectors import NO_POOL, NOBODYS, OTHER_TEAMS, OUTSIDE_TEAMS, Owner, owners_named, rates_visible
from dashboards.telemetry.spans import QUARTER, span_begin
from gpufleet.core.money import MILLIS_PER_HOUR, cost_micros
from gpufleet.core.rounding import rounded
from quotas.permissions import Access, Can
from scheduler.models import JobClass

WEEK = timedelta(days=7)
HOURS_A_MONTH = 730
TENTH = 100  # milli-GPU
CENT, UNIT = 10_000, 1_000_000  # micro-units
Dimension = Literal["team", "class", "type", "pool"]
DIMENSIONS: Mapping[Dimension, str] = {"team": "Team", "class": "Class", "type": "GPU type", "pool": "Pool"}


@dataclass(frozen=True, slots=True)
class Told:
    """How a cause is named, what it means, its colour in charts, and the page with the rows behind it."""

    label: str
    meaning: str
    colour: str
    link: str


CAUSES: Mapping[Cause, Told] = {
    Cause.COMPUTING: Told("Computing", "SM activity of allocated GPUs", "used", "/jobs/?state=running"),
    Cause.IDLE: Told("Allocated, idle", "Allocated, but not computing", "waste", "/idle/"),
    Cause.UNREAD: Told("No reading", "Allocated; no source reads it now", "rest", "/fleet/"),
    Cause.STARTING: Told("Starting", "Allocated to jobs that are not up yet", "series-6", "/jobs/?state=starting"),
    Cause.FAILED: Told("Failed", "Down or in repair", "bad", "/nodes/?health=down&health=repairing"),
    Cause.RESERVED: Told("Reserved, unused", "Kept for a reservation that is unused or about to start", "series-8", "/reservations/"),
    Cause.DRAINED: Told("Drained", "Draining, drained or in burn-in", "series-9", "/nodes/?health=draining&health=drained&health=burn_in"),
    Cause.WANTED: Told("Free, wanted", "Fits a waiting job: a quota or the next plan decides", "series-2", "/jobs/queue/"),
    Cause.FRAGMENTED: Told("Free, fragmented", "Would serve waiting jobs if it lay together", "series-3", "/jobs/?blocker=fragmentation"),
    Cause.UNWANTED: Told("Free, unwanted", "No job waits for it", "held", "/gpus/"),
}


@dataclass(frozen=True, slots=True)
class Row:
    """One cause, or one value of a dimension. `milli` is exact; `tenths` are tenths of GPUs as printed, which add up.

    Money is in whole cents an hour and whole units a month, weeks in tenths of GPUs, so that these columns add up, too. Money is None unseen.
    """

    key: str
    milli: int
    tenths: int
    hour_micros: int | None
    month_micros: int | None = None
    this_week: int | None = None
    last_week: int | None = None
    causes: Mapping[Cause, int] | None = None

    @property
    def change(self) -> int | None:
        return None if self.this_week is None or self.last_week is None else self.this_week - self.last_week


@dataclass(frozen=True, slots=True)
class Report:
    """One snapshot, and the weeks around it. `whole` is all that there is; `lost` what of it does not compute."""

    at: datetime
    causes: Sequence[Row]
    whole: Row
    lost: Row
    unpriced: Sequence[str]
    until: datetime  # where this week ends


@dataclass(frozen=True, slots=True)
class Weeks:
    """All snapshots of this week, which ends with `until`, and of the one before."""

    until: datetime
    this: Gap
    last: Gap


def gap_weeks(*, now: datetime) -> Weeks:
    until = span_begin(now, QUARTER)
    return Weeks(until, gap_over(until - WEEK, until), gap_over(until - 2 * WEEK, until - WEEK))


def gap_report(access: Access, *, now: datetime, weeks: Weeks, gpu_type: str = "") -> Report | None:
    """The newest snapshot by cause; None before the first."""
    newest = gap_newest()
    if newest is None:
        return None
    at, gap = newest
    rates = rates_visible(access, now=now)
    parts = _of_type(gap.sums, gpu_type)
    this, last = (_week(one, gpu_type, Cause, lambda part: part.cause) for one in (weeks.this, weeks.last))
    milli = [sum(amount for part, amount in parts.items() if part.cause == cause) for cause in Cause]
    tenths = rounded(milli, TENTH)
    costs = [cost_of({part: amount for part, amount in parts.items() if part.cause == cause}, rates) for cause in Cause]
    hours, months = _in_units(costs, CENT), _in_units([None if cost is None else cost * HOURS_A_MONTH for cost in costs], UNIT)
    causes = [
        Row(cause, milli[number], tenths[number], hours[number], months[number], this[cause], last[cause]) for number, cause in enumerate(Cause)
    ]
    unpriced = sorted({part.gpu_type for part in parts} - set(rates)) if rates is not None else []
    return Report(at, causes, _sum(causes), _sum([row for row in causes if row.key != Cause.COMPUTING]), unpriced, weeks.until)


def gap_by(access: Access, dimension: Dimension, *, weeks: Weeks, gpu_type: str = "", now: datetime) -> list[Row]:
    """The newest snapshot by team, class, type or pool, the most that does not compute first; money and weeks are of what does not compute.

    By team and by class, teams that the viewer may not see are one row: the rows behind it are single GPUs, and what runs there is not the viewer's.
    """
    newest = gap_newest()
    if newest is None:
        return []
    parts = _of_type(newest[1].sums, gpu_type)
    rates = rates_visible(access, now=now)
    named = part_names(access, dimension)
    groups: dict[str, dict[Part, int]] = defaultdict(dict)
    for part, amount in parts.items():
        groups[named(part)][part] = amount
    for one in (weeks.this, weeks.last):
        for part in _of_type(one.sums, gpu_type):
            groups[named(part)].setdefault(part, 0)
    this, last = (_week(_lost(one), gpu_type, sorted(groups), named) for one in (weeks.this, weeks.last))
    found = []
    for key, mine in groups.items():
        causes = {cause: sum(amount for part, amount in mine.items() if part.cause == cause) for cause in Cause}
        lost = {part: amount for part, amount in mine.items() if part.cause != Cause.COMPUTING}
        found.append(Row(key, sum(mine.values()), 0, cost_of(lost, rates), causes=causes))
    found.sort(key=lambda row: (row.causes[Cause.COMPUTING] - row.milli if row.causes else 0, row.key))
    tenths = rounded([row.milli for row in found], TENTH)
    costs = [row.hour_micros for row in found]
    hours, months = _in_units(costs, CENT), _in_units([None if cost is None else cost * HOURS_A_MONTH for cost in costs], UNIT)
    return [
        Row(row.key, row.milli, tenths[number], hours[number], months[number], this[row.key], last[row.key], row.causes)
        for number, row in enumerate(found)
    ]


def _of_type(parts: Mapping[Part, int], gpu_type: str) -> dict[Part, int]:
    return {part: amount for part, amount in parts.items() if not gpu_type or part.gpu_type == gpu_type}


def part_names(access: Access, dimension: Dimension, owners: Mapping[int, Owner | None] | None = None) -> Callable[[Part], str]:
    """How this reader sees a part named. `owners` are those of `owners_named`, where they are known already."""
    if owners is None and dimension in ("team", "class"):
        owners = owners_named(access)
    return partial(_named, dimension, owners or {}, dict(JobClass.choices))


def _named(dimension: Dimension, owners: Mapping[int, Owner | None], labels: Mapping[str, str], part: Part) -> str:
    match dimension:
        case "type":
            return part.gpu_type
        case "pool":
            return part.pool or NO_POOL
    if part.quota is None:
        return _nobody(part)
    owner = owners.get(part.quota)
    if owner is None:
        return OTHER_TEAMS
    if dimension == "team":
        return owner.name
    return labels.get(part.job_class, part.job_class) if part.job_class else _nobody(part)


def _nobody(part: Part) -> str:
    """What is held and of no quota is held by a job that is not ours."""
    return OUTSIDE_TEAMS if part.cause in (Cause.COMPUTING, Cause.IDLE, Cause.UNREAD) else NOBODYS


def cost_of(parts: Mapping[Part, int], rates: Mapping[str, int] | None) -> int | None:
    """What these parts cost an hour, in micro-units: by type, so that the rows of a column have the sum that its types have."""
    if rates is None:
        return None
    return sum(
        cost_micros(gpu_milli=amount, millis=MILLIS_PER_HOUR, micros_per_gpu_hour=rates.get(part.gpu_type, 0)) for part, amount in parts.items()
    )


def _week(gap: Gap, gpu_type: str, keys: Iterable[str], named: Callable[[Part], str]) -> Mapping[str, int | None]:
    """Milli-GPU by key on average, in tenths of GPUs that add up; None where there is no snapshot."""
    if not gap.snapshots:
        return dict.fromkeys(keys)
    found = dict.fromkeys(keys, 0)
    for part, amount in _of_type(gap.sums, gpu_type).items():
        found[named(part)] += amount
    tenths = rounded(list(found.values()), TENTH * gap.snapshots)
    return {key: TENTH * tenth for key, tenth in zip(found, tenths, strict=True)}


def _lost(gap: Gap) -> Gap:
    return Gap(gap.snapshots, {part: amount for part, amount in gap.sums.items() if part.cause != Cause.COMPUTING})


def _in_units(costs: Sequence[int | None], unit: int) -> list[int | None]:
    """Micro-units as multiples of a unit whose sum is the rounded sum."""
    if any(cost is None for cost in costs):
        return [None] * len(costs)
    return [unit * units for units in rounded([cost for cost in costs if cost is not None], unit)]


def _sum(rows: Sequence[Row]) -> Row:
    def added(values: Sequence[int | None]) -> int | None:
        return None if any(value is None for value in values) else sum(value for value in values if value is not None)

    return Row(
        "",
        sum(row.milli for row in rows),
        sum(row.tenths for row in rows),
        added([row.hour_micros for row in rows]),
        added([row.month_micros for row in rows]),
        added([row.this_week for row in rows]),
        added([row.last_week for row in rows]),
    )


def sees_costs(access: Access) -> bool:
    return access.can_somewhere(Can.SEE_COSTS)
