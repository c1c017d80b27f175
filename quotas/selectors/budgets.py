"""Budgets: which there are, what of them is used, what the end of the period will be, and which of them stop work now.

A day's usage is counted once and kept (`BudgetDay`); what came since is counted when it is asked for.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import reduce
from operator import or_
from typing import NamedTuple
from zoneinfo import ZoneInfo

from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet, Sum
from django.http import Http404

from gpufleet.core.prepared import Prepared
from gpufleet.core.recurrence import moment_of
from gpufleet.core.times import millis
from quotas.chargeback.pricing import Kind, PriceBook
from quotas.models import CHARGED, Budget, BudgetDay, BudgetException, BudgetPeriod, BudgetUnit, LedgerEntry, QuotaNode, QuotaPath
from quotas.permissions import Access, Can, at_or_below

MILLI_MILLIS_PER_MILLI_HOUR = 3_600_000  # of a GPU: thousandths of a GPU times milliseconds in a thousandth of a GPU-hour
PACE_OVER = timedelta(days=7)
BATCH = 2000
STOPPED: Prepared[tuple[str, str]] = Prepared(
    lambda: (
        Budget.objects.filter(stopped_at__isnull=False, removed_at__isnull=True, excepted=False)
        .order_by("id")
        .values_list("public_id", "quota__path")
    )
)
MONTHS = {BudgetPeriod.MONTH: 1, BudgetPeriod.QUARTER: 3, BudgetPeriod.YEAR: 12}


@dataclass(frozen=True, slots=True)
class Period:
    start: datetime
    end: datetime
    is_over: bool = False  # of a custom period

    def part(self, now: datetime) -> float:
        """How much of it has passed, 0 to 1."""
        return min(1.0, max(0.0, (now - self.start) / (self.end - self.start)))


def period_at(budget: Budget, now: datetime) -> Period:
    """The period of a budget at a moment, by the clock of its zone."""
    if budget.period == BudgetPeriod.CUSTOM:
        assert budget.starts_at is not None and budget.ends_at is not None, "the database holds it"
        return Period(budget.starts_at, budget.ends_at, now >= budget.ends_at)
    zone = ZoneInfo(budget.zone)
    months = MONTHS[BudgetPeriod(budget.period)]
    local = now.astimezone(zone)
    first = local.month - 1 - (local.month - 1) % months
    start = datetime(local.year, first + 1, 1)  # noqa: DTZ001 (of the zone's clock)
    year, month = divmod(first + months, 12)
    end = datetime(local.year + year, month + 1, 1)  # noqa: DTZ001
    return Period(moment_of(start, zone), moment_of(end, zone))


@dataclass(frozen=True, slots=True)
class Used:
    """Exact: thousandths of a GPU times milliseconds, and micro-units of money."""

    milli_millis: int = 0
    micros: Decimal = Decimal(0)

    def plus(self, other: "Used") -> "Used":
        return Used(self.milli_millis + other.milli_millis, self.micros + other.micros)

    def of(self, unit: str) -> int:
        """In the unit of a budget: thousandths of a GPU-hour, or micro-units."""
        return int(self.micros) if unit == BudgetUnit.MONEY else self.milli_millis // MILLI_MILLIS_PER_MILLI_HOUR


@dataclass(frozen=True, slots=True)
class Standing:
    """How a budget stands. Amounts are in its unit; percents are rounded down, so that 100 means used up."""

    budget: Budget
    period: Period
    used: int
    forecast: int
    pace_per_day: int
    exception: BudgetException | None
    days: tuple[tuple[date, int], ...]  # used by the end of each day

    @property
    def percent(self) -> int:
        return 100 * self.used // self.budget.amount

    @property
    def forecast_percent(self) -> int:
        return 100 * self.forecast // self.budget.amount

    @property
    def left(self) -> int:
        return max(0, self.budget.amount - self.used)

    @property
    def stops_at(self) -> int | None:
        """The amount at which nothing new starts; None: it never stops."""
        stop = self.budget.stop_percent
        if stop is None or (self.exception is not None and self.exception.extra is None):
            return None
        extra = self.exception.extra or 0 if self.exception is not None else 0
        return self.budget.amount * stop // 100 + extra

    @property
    def state(self) -> str:
        if self.period.is_over:
            return "ended"
        if self.budget.stop_percent is not None and self.used >= self.budget.amount * self.budget.stop_percent // 100:
            return "stopped" if self.stops_at is not None and self.used >= self.stops_at else "excepted"
        return "warned" if self.percent >= self.budget.warn_percent else "within"

    @property
    def out_at(self) -> datetime | None:
        """When it is used up at the present pace, if that is inside the period."""
        stop = self.stops_at
        if stop is None or not self.pace_per_day or self.used >= stop or self.budget.counted_to is None:
            return None
        days = (stop - self.used) / self.pace_per_day
        at = self.budget.counted_to + timedelta(days=min(days, 3660))
        return at if at < self.period.end else None


# Which there are


def budgets_listed(access: Access) -> QuerySet[Budget]:
    """Those of the subtrees where the reader may see; of money only for those who may see costs there."""
    access.must_somewhere(Can.SEE)
    money = Q(unit=BudgetUnit.MONEY)
    seen = (access.visible(Can.SEE, "quota__path") & ~money) | (access.visible(Can.SEE_COSTS, "quota__path") & money)
    return Budget.objects.filter(seen, removed_at__isnull=True).select_related("quota").prefetch_related("exceptions")


def budget_for(access: Access, public_id: str) -> Budget:
    found = budgets_listed(access).filter(public_id=public_id).first()
    if found is None:
        raise Http404(f"There is no budget {public_id}.")
    return found


def may_budget(access: Access, node: QuotaNode) -> bool:
    """Whether the reader sets the budgets of a node: what a node may use is decided above it."""
    return access.can(Can.EDIT_QUOTA, node.parent.path if node.parent is not None else node.path)


def must_budget(access: Access, node: QuotaNode) -> None:
    if not may_budget(access, node):
        raise PermissionDenied("Quota admins of the node above set its budgets.")


# What is used


class Stay(NamedTuple):
    """A path in the ledger of what a node, and all below it, began to hold from one moment to another."""

    path: str
    since: datetime | None
    until: datetime | None

    def asked(self) -> Q:
        held = at_or_below(self.path, "quota_path")
        held &= Q() if self.since is None else Q(since__gte=self.since)
        return held & (Q() if self.until is None else Q(since__lt=self.until))


def stays(nodes: Iterable[QuotaNode]) -> dict[int, list[Stay]]:
    """The paths of nodes, by their keys: also those that they had before, but not while a path was somebody else's."""
    paths = {node.pk: node.path for node in nodes}
    had, left = defaultdict[int, list[tuple[str, datetime]]](list), defaultdict[str, list[tuple[int, datetime]]](list)
    for key, path, until in QuotaPath.objects.filter(node__in=paths).order_by("until", "id").values_list("node_id", "path", "until"):
        had[key].append((path, until))
    named = {*paths.values(), *(path for each in had.values() for path, _ in each)}
    for path, key, until in QuotaPath.objects.filter(path__in=named).values_list("path", "node_id", "until"):
        left[path].append((key, until))
    found: dict[int, list[Stay]] = {}
    for node, now in paths.items():
        steps: list[tuple[str, datetime | None]] = [*had[node], (now, None)]
        begins = [None, *(until for _, until in had[node])]
        for (path, ends), since in zip(steps, begins, strict=True):
            others = [gone for key, gone in left[path] if key != node and (ends is None or gone < ends)]
            found.setdefault(node, []).append(Stay(path, max([*others, *([] if since is None else [since])], default=None), ends))
    return found


def used_between(budget: Budget, start: datetime, end: datetime, rates: PriceBook, at: Sequence[Stay] | None = None) -> Used:
    """From the ledger. What stood in the subtree then counts, wherever it stands now, and under whatever name."""
    return _used_between(budget, [start, end], rates, at)[0] if start < end else Used()


def used_by_day(budget: Budget, start: datetime, end: datetime, rates: PriceBook) -> dict[date, Used]:
    """The same of each of the days, in one reading of the ledger. Only what lies between the two moments counts of the first and the last."""
    days, edges = [], [start]
    while edges[-1] < end:
        days.append(day_of(edges[-1], budget.zone))
        edges.append(min(end, day_start(days[-1] + timedelta(days=1), budget.zone)))
    return dict(zip(days, _used_between(budget, edges, rates), strict=True)) if days else {}


def _used_between(budget: Budget, edges: Sequence[datetime], rates: PriceBook, at: Sequence[Stay] | None = None) -> list[Used]:
    """From each edge to the next. Workers that held alike are added up by the database."""
    places = reduce(or_, (stay.asked() for stay in (at or stays([budget.quota])[budget.quota_id])))
    rows = LedgerEntry.objects.filter(CHARGED, places, since__lt=edges[-1])
    rows = rows.filter(Q(until__isnull=True) | Q(until__gt=edges[0]))
    if budget.gpu_type:
        rows = rows.filter(gpu_type=budget.gpu_type)
    bounds = [millis(edge) for edge in edges]
    total, money = [0] * (len(bounds) - 1), [0] * (len(bounds) - 1)
    columns = ("gpu_type", "share_class", "preemptible", "tier", "pool", "since", "until")
    found = rows.order_by().values_list(*columns).annotate(Sum("gpu_milli")).iterator(BATCH)
    for gpu_type, share_class, preemptible, tier, pool, since, until, milli in found:
        kind = Kind(gpu_type, share_class, preemptible == "yes", tier, pool)
        begins, ends = max(bounds[0], millis(since)), bounds[-1] if until is None else min(bounds[-1], millis(until))
        part = bisect_right(bounds, begins) - 1
        while begins < ends:
            to = min(ends, bounds[part + 1])
            total[part] += milli * (to - begins)
            money[part] += milli * rates.charged(kind, begins, to)[1]
            begins, part = to, part + 1
    # `money` is thousandths of a GPU times milliseconds times what an hour costs.
    return [Used(held, Decimal(cost) / Decimal(1000 * 3_600_000)) for held, cost in zip(total, money, strict=True)]


def day_of(moment: datetime, zone: str) -> date:
    return moment.astimezone(ZoneInfo(zone)).date()


def day_start(day: date, zone: str) -> datetime:
    return moment_of(datetime(day.year, day.month, day.day), ZoneInfo(zone))  # noqa: DTZ001


def standings(budgets: Iterable[Budget], rates: PriceBook, now: datetime, *, fresh: bool = True) -> list[Standing]:
    """How budgets stand at a moment; with `fresh` what the turn has not counted yet is added."""
    found = list(budgets)
    days: dict[int, list[BudgetDay]] = defaultdict(list)
    first = min((day_of(period_at(budget, now).start, budget.zone) for budget in found), default=date.max)
    for row in BudgetDay.objects.filter(budget__in=[budget.pk for budget in found], day__gte=first).order_by("day"):
        days[row.budget_id].append(row)
    places = stays({budget.quota_id: budget.quota for budget in found}.values()) if fresh and found else {}
    return [_standing(budget, days[budget.pk], rates, now, places.get(budget.quota_id) if fresh else None) for budget in found]


def _standing(budget: Budget, rows: list[BudgetDay], rates: PriceBook, now: datetime, at: Sequence[Stay] | None) -> Standing:
    """`at`: where to look for what was not counted yet; None: that is left out."""
    period = period_at(budget, now)
    first, last = day_of(period.start, budget.zone), day_of(period.end - timedelta(milliseconds=1), budget.zone)
    by_day: dict[date, Used] = {row.day: Used(int(row.milli_millis), row.micros) for row in rows if first <= row.day <= last}
    counted = budget.counted_to if budget.counted_to is not None and budget.period_start == period.start else period.start
    end = min(now, period.end)
    if at is not None and end > counted:
        today = day_of(end, budget.zone)
        by_day[today] = by_day.get(today, Used()).plus(used_between(budget, max(counted, period.start), end, rates, at))
    running, line = Used(), []
    for day in sorted(by_day):
        running = running.plus(by_day[day])
        line.append((day, running.of(budget.unit)))
    pace = _pace(by_day, period, now, budget)
    left = max(timedelta(0), period.end - now)
    used = running.of(budget.unit)
    forecast = used + int(pace * (left / timedelta(days=1)))
    exception = next((one for one in sorted(budget.exceptions.all(), key=lambda one: one.pk) if one.ended_at is None and one.until > now), None)
    return Standing(budget, period, used, forecast, pace, exception, tuple(line))


def _pace(by_day: Mapping[date, Used], period: Period, now: datetime, budget: Budget) -> int:
    """A day's use at the pace of the last week, or of what has passed of the period."""
    since = max(period.start, now - PACE_OVER)
    length = min(now, period.end) - since
    if length <= timedelta(0):
        return 0
    first = day_of(since, budget.zone)
    recent = Used()
    for day, used in by_day.items():
        if day > first or (day == first and since == period.start):
            recent = recent.plus(used)
        elif day == first:
            # The first day counts as far as it lies inside.
            part = 1 - (since - day_start(day, budget.zone)) / timedelta(days=1)
            recent = recent.plus(Used(int(used.milli_millis * part), used.micros * Decimal(part)))
    return int(recent.of(budget.unit) / (length / timedelta(days=1)))


# What they stop


@dataclass(frozen=True, slots=True)
class Stop:
    """A budget that is used up, and the subtree in which nothing new starts."""

    budget: str
    path: str


def stops_now() -> list[Stop]:
    return [Stop(*row) for row in STOPPED()]


def stopped_above(path: str, stops: Iterable[Stop]) -> Stop | None:
    """The budget that keeps new jobs of a node from starting."""
    return next((one for one in stops if path == one.path or path.startswith(f"{one.path}/")), None)


def above_of(path: str) -> list[str]:
    steps = path.split("/")
    return ["/".join(steps[: depth + 1]) for depth in range(len(steps))]


def budgets_over(path: str) -> QuerySet[Budget]:
    """All budgets that a job of a node is charged to."""
    return Budget.objects.filter(quota__path__in=above_of(path), removed_at__isnull=True).select_related("quota").prefetch_related("exceptions")
