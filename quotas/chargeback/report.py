"""A month or any other period of charges as people read it: by what they choose, inside the subtrees whose costs they may see."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from typing import Any, NamedTuple

from django.core.exceptions import ValidationError
from django.db.models import Count, Exists, OuterRef, Q, QuerySet, Sum, TextField
from django.db.models import Window as Over
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast
from django.db.models.lookups import Exact, IsNull
from django.http import Http404

from gpufleet.core.rounding import rounded
from gpufleet.core.times import millis
from quotas.chargeback.months import Span, month_at
from quotas.chargeback.periods import YEARS, Period
from quotas.chargeback.pricing import CENT, HOUR, cents, half_even
from quotas.chargeback.rating import shared
from quotas.chargeback.sums import AMOUNTS, SUMMED, Sums, day_costs, line_sums, sums_of
from quotas.models import (
    CHARGED,
    Budget,
    BudgetUnit,
    ChargeIdle,
    ChargeIdleDay,
    ChargeLine,
    ChargeMode,
    ChargeMonth,
    LedgerEntry,
    NodeKind,
    QuotaNode,
    QuotaShare,
    Window,
)
from quotas.permissions import Access, Can, at_or_below
from quotas.selectors.budgets import standings
from quotas.selectors.rates import price_book

# What a report may be by: the key of an address, its label, and the column of a line, where it is one.
BY: dict[str, tuple[str, str]] = {
    "team": ("Team", ""),
    "department": ("Department", ""),
    "project": ("Project", "quota_path"),
    "owner": ("Person", "owner"),
    "job": ("Job", "job"),
    "cost_centre": ("Cost centre", "cost_centre"),
    "gpu_type": ("GPU type", "gpu_type"),
    "share_class": ("Class", "share_class"),
    "tier": ("Tier", "tier"),
    "day": ("Day", "day"),
}
DEPTH_OF = {"department": NodeKind.DEPARTMENT, "team": NodeKind.TEAM}
RULES = {"apart": "Keep apart", "use": "By use", "guarantee": "By guarantee", "even": "Even"}
MOST_ROWS = 500
MOST_BARS = 62
LABELLED, LONGEST_LABEL, MOST_LABELS = 500, 60, 12
NOTHING = "(none)"


@dataclass(frozen=True, slots=True)
class Row:
    """One part of a period. Use is thousandths of a GPU times milliseconds, money nano-units."""

    key: str
    milli_millis: int = 0
    borrowed: int = 0
    list_nanos: int = 0
    contracted_nanos: int = 0
    effective_nanos: int = 0
    unpriced: int = 0
    before_nanos: int = 0
    idle_nanos: int = 0
    budget_percent: int | None = None
    budget: str = ""  # whose percentage it is, and up to when it was counted
    measured: int = 0  # how much of the use has telemetry
    computing: int = 0  # how much of that was SM-active
    reserved_unused: int = 0  # of the windows of its reservations
    exact_use: int = 0  # where its use is rounded for a table

    @property
    def efficiency_percent(self) -> int | None:
        """SM-active GPU-hours over paid ones, as far as there is telemetry; None where there is none."""
        return round(100 * self.computing / self.measured) if self.measured else None

    @property
    def measured_percent(self) -> int:
        used = self.exact_use or self.milli_millis
        return round(100 * self.measured / used) if used else 0

    @property
    def label(self) -> str:
        return self.key or NOTHING

    @property
    def with_idle_nanos(self) -> int:
        return self.effective_nanos + self.idle_nanos


class Budgeted(NamedTuple):
    percent: int
    name: str


@dataclass(frozen=True, slots=True)
class Idle:
    """GPU time that no job used, by type and cause."""

    gpu_type: str
    cause: str
    milli_millis: int
    effective_nanos: int


@dataclass(frozen=True, slots=True)
class Report:
    period: Period
    months: Sequence[ChargeMonth]  # those of the period that are rated
    by: str
    rows: Sequence[Row]
    total: Row
    days: Sequence[tuple[date, Mapping[str, int]]]
    idle: Sequence[Idle] = field(default_factory=list)
    idle_left: int = 0  # of the idle cost, what no row took
    more: int = 0
    lines: int = 0

    @property
    def month(self) -> ChargeMonth | None:
        """The month that it is of, if it is of one and that is rated."""
        return self.months[0] if self.period.month and self.months else None

    @property
    def currency(self) -> str:
        return self.months[0].currency if self.months else ""

    @property
    def is_budgeted(self) -> bool:
        return any(row.budget for row in self.rows)

    @property
    def closed(self) -> Sequence[ChargeMonth]:
        return [month for month in self.months if month.closed_at is not None]

    @property
    def open(self) -> Sequence[ChargeMonth]:
        """Months are closed in their order: one before a closed one had no usage, and stays as it is."""
        since = self.closed[-1].first if self.closed else None
        return [month for month in self.months if month.closed_at is None and (since is None or month.first > since)]

    @property
    def is_estimate(self) -> bool:
        """Months are closed in their order, so what is not rated yet comes after the last that is closed."""
        return not self.closed or bool(self.open) or self.closed[-1].first < self.period.months[-1]

    @property
    def rated_to(self) -> datetime | None:
        """Up to when usage is in an estimate."""
        return max((month.rated_to for month in self.open if month.rated_to is not None), default=None)

    @property
    def standing(self) -> str:
        """Whether it is an estimate or closed, as files say it."""
        closed = self.closed
        if self.is_estimate:
            rated = f", usage until {self.rated_to:%Y-%m-%d %H:%M} UTC" if self.rated_to else ""
            if self.period.month:
                return f"Estimate: the month is open{rated}."
            return f"Estimate: {f'months after {closed[-1]} are' if closed else 'its months are'} open{rated}."
        last = closed[-1]
        assert last.closed_at is not None
        how = "Charged back" if last.mode == ChargeMode.CHARGEBACK else "Showback: nothing is billed"
        if self.period.month:
            return f"{how}. Closed {last.closed_at.astimezone(UTC):%Y-%m-%d}, SHA-256 {last.digest[:16]}."
        return f"All its months are closed, {last} with SHA-256 {last.digest[:16]}."

    @property
    def ahead_nanos(self) -> int | None:
        """What it costs by its end, its own days at this pace and corrections once. None where it has not begun or is over: nothing is ahead then."""
        if self.rated_to is None or not self.period.start < self.rated_to < self.period.end:
            return None
        passed, length = (millis(end) - millis(self.period.start) for end in (self.rated_to, self.period.end))
        own = sum(sum(costs.values()) for _, costs in self.days)
        return self.total.effective_nanos - own + half_even(own * length, passed)

    @property
    def change_percent(self) -> int | None:
        """Against the period before: of one that goes on, at this pace. Some of its days against all of those would always be less."""
        if self.total.before_nanos <= 0:
            return None
        cost = self.total.effective_nanos if self.ahead_nanos is None else self.ahead_nanos
        return round(100 * (cost - self.total.before_nanos) / self.total.before_nanos)

    @property
    def idle_total(self) -> int:
        return sum(one.effective_nanos for one in self.idle)


def lines_seen(access: Access, period: Period) -> QuerySet[ChargeLine]:
    access.must_somewhere(Can.SEE_COSTS)
    lines = ChargeLine.objects.filter(period.lines)
    return lines if access.can_everywhere(Can.SEE_COSTS) else lines.filter(access.visible(Can.SEE_COSTS, "quota_path"))


def months_of(period: Period) -> list[ChargeMonth]:
    """Those that are rated. All are in one currency, as sums would mean nothing otherwise."""
    found = list(ChargeMonth.objects.filter(first__in=period.months).order_by("first"))
    currencies = sorted({month.currency for month in found})
    if len(currencies) > 1:
        raise ValidationError({"from": [f"The period has months in {' and '.join(currencies)}. Choose months in one currency."]})
    return found


def _comparable(period: Period, months: Sequence[ChargeMonth]) -> bool:
    """Whether the period before is in the same currency."""
    before = set(ChargeMonth.objects.filter(first__in=period.before.months).values_list("currency", flat=True))
    return before <= {month.currency for month in months}


def closed_after(day: date) -> bool:
    """Whether a later month is closed, so that none up to this day can be any more."""
    return ChargeMonth.objects.filter(first__gt=day, closed_at__isnull=False).exists()


def month_read(text: str) -> date:
    """`2026-10` as its first day."""
    try:
        found = datetime.strptime(text, "%Y-%m").date()  # noqa: DTZ007 (a month has no zone)
    except ValueError:
        raise Http404("A month is written YYYY-MM.") from None
    if found.year not in YEARS:
        raise Http404(f"The year is not between {YEARS[0]} and {YEARS[-1]}.")
    return found


def labels_known(access: Access, period: Period) -> list[str]:
    """Keys of labels that a report of the period may be by, out of its newest lines."""
    newest = lines_seen(access, period).order_by("-day").values_list("labels", flat=True)[:LABELLED]
    return sorted({key for labels in newest for key in labels if len(key) <= LONGEST_LABEL})[:MOST_LABELS]


def months_known() -> list[ChargeMonth]:
    used = Exists(ChargeLine.objects.filter(month=OuterRef("pk")))
    return list(ChargeMonth.objects.filter(used | Q(closed_at__isnull=False)).order_by("-first")[:60])


def by_checked(by: str) -> None:
    if by not in BY and not by.startswith("label:"):
        raise ValidationError({"by": [f"Choose {', '.join(BY)} or label:KEY."]})


def report(access: Access, period: Period, *, by: str = "team", rule: str = "apart", most: int | None = MOST_ROWS, now: datetime) -> Report:
    """With its `most` expensive rows, or all of them. Its total is of all in any case."""
    by_checked(by)
    if rule not in RULES:
        raise ValidationError({"idle": [f"Choose {', '.join(RULES)}."]})
    months = months_of(period)
    if most is not None and rule == "apart" and (by == "job" or by not in BY):
        return _largest(access, period, months, by, most)
    rows = _rows(access, period, by)
    before = _rows(access, period.before, by, ("effective_nanos",)) if _comparable(period, months) else {}
    if by in ("team", "department", "project"):
        for path, unused in _reserved_unused(access, period, now).items():
            rows[above(DEPTH_OF[by])(path) if by in DEPTH_OF else path]["reserved_unused"] += unused
    idle = _idle(access, period)
    parts = _idle_parts(rows, by, rule, sum(one.effective_nanos for one in idle))
    # Days, jobs and labels of the period before are others.
    keys = list({**rows, **(before if by in BY and by not in ("day", "job") else {}), **parts})
    keys.sort(key=(lambda key: (0, key)) if by == "day" else (lambda key: (-rows[key]["effective_nanos"] if key in rows else 0, key)))
    shown = keys[:most]
    budgets = _budgets(access, period, frozenset(shown), now) if by in ("team", "department", "project") else {}
    made = [_row(key, rows.get(key, {}), before.get(key, {}).get("effective_nanos", 0), parts.get(key, 0), budgets.get(key)) for key in shown]
    sums = _added(rows.values())
    total = _row("", sums, _added(before.values())["effective_nanos"], sum(parts.values()))
    left = sum(one.effective_nanos for one in idle) - sum(parts.values())
    return Report(period, months, by, made, total, days_seen(access, period), idle, left, len(keys) - len(made), sums["lines"])


def _largest(access: Access, period: Period, months: Sequence[ChargeMonth], by: str, most: int) -> Report:
    """By job or label, which are too many to read all of them: the database ranks them, and only the most expensive are added up in full."""
    column = "job" if by == "job" else "label"

    def lines(of: Period) -> QuerySet[ChargeLine]:
        found = lines_seen(access, of).order_by()
        return found if by == "job" else found.annotate(label=_label(by))

    ranked = lines(period).values_list(column).annotate(cost=Sum("effective_nanos"), count=Over(Count("*"))).order_by("-cost", column)[:most]
    found = [(key, int(cost), count) for key, cost, count in ranked]
    named = Q(**{f"{column}__in": [key for key, *_ in found if key is not None]})
    wanted = named | Q(**{f"{column}__isnull": True}) if any(key is None for key, *_ in found) else named
    if found and found[0][2] == len(found):
        wanted = Q()  # all of them: the database guesses badly how many lines have one of some keys
    rows = _by_key(line_sums(lines(period).filter(wanted), column), AMOUNTS)
    comparable, cost = _comparable(period, months), ("effective_nanos",)
    before = _by_key(line_sums(lines(period.before).filter(wanted), column, only=cost), cost) if comparable else {}
    made = [_row(key, facts, before.get(key, {}).get("effective_nanos", 0), 0, None) for key, facts in rows.items()]
    made.sort(key=lambda row: (-row.effective_nanos, row.key))
    sums = _added(amounts for _, _, amounts in _sums(access, period, "share_class"))
    total_before = _added(amounts for _, _, amounts in _sums(access, period.before, "share_class", cost)) if comparable else _added(())
    total = _row("", sums, total_before["effective_nanos"], 0, None)
    idle = _idle(access, period)
    left, more = sum(one.effective_nanos for one in idle), found[0][2] - len(made) if found else 0
    return Report(period, months, by, made, total, days_seen(access, period), idle, left, more, sums["lines"])


def _label(by: str) -> Cast:
    """What the job of a line has under a label, as text: a lookup of what is in JSON would take what it is compared with for JSON."""
    return Cast(KeyTextTransform(by.removeprefix("label:"), "labels"), TextField())


def _added(rows: Iterable[Mapping[str, int]]) -> dict[str, int]:
    sums: defaultdict[str, int] = defaultdict(int)
    for facts in rows:
        for name, amount in facts.items():
            sums[name] += amount
    return sums


def _idle(access: Access, period: Period) -> list[Idle]:
    """For readers of all of it."""
    if not access.can_everywhere(Can.SEE_COSTS):
        return []
    asked: list[QuerySet[Any]] = [ChargeIdle.objects.filter(month__first__in=period.whole_months)] if period.whole_months else []
    asked += [ChargeIdleDay.objects.filter(month__first=part.month, day__gte=part.first, day__lte=part.last) for part in period.parts]
    found: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for rows in asked:
        sums = rows.order_by().values_list("gpu_type", "cause").annotate(Sum("milli_millis"), Sum("effective_nanos"))
        for gpu_type, cause, used, cost in sums:
            found[gpu_type, cause][0] += int(used)
            found[gpu_type, cause][1] += int(cost)
    return [Idle(*key, *amounts) for key, amounts in sorted(found.items())]


def idle_unknown(access: Access, period: Period) -> list[ChargeMonth]:
    """Months whose idle cost is not in a period that has some of their days: they were closed before it was stored by day."""
    if not access.can_everywhere(Can.SEE_COSTS):
        return []
    cut = ChargeMonth.objects.filter(first__in=[part.month for part in period.parts], idle__isnull=False, idle_days__isnull=True)
    return list(cut.distinct().order_by("first"))


def _row(key: str, facts: Mapping[str, int], before: int, idle: int, budget: Budgeted | None = None) -> Row:
    columns = (
        "milli_millis",
        "borrowed",
        "list_nanos",
        "contracted_nanos",
        "effective_nanos",
        "unpriced",
        "measured",
        "computing",
        "reserved_unused",
    )
    percent, named = budget or (None, "")
    return Row(key, before_nanos=before, idle_nanos=idle, budget_percent=percent, budget=named, **{name: facts.get(name, 0) for name in columns})


def _rows(access: Access, period: Period, by: str, only: tuple[str, ...] = AMOUNTS) -> dict[str, dict[str, int]]:
    """Sums by key: those stored with whole months for readers of all of it; of their own lines for others, and of lines where a month is cut. Teams
    and departments are made of paths here, as there are few."""
    column = BY[by][1] or "quota_path" if by in BY else by
    place = above(DEPTH_OF[by]) if by in DEPTH_OF else str
    found: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for key, _, amounts in _sums(access, period, column, only):
        facts = found[place(key)]
        for name in only:
            facts[name] += amounts[name]
    return found


def _by_key(sums: Sums, only: tuple[str, ...]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for (key, _), amounts in sums.items():
        for name in only:
            found[key][name] += amounts[name]
    return found


def _sums(access: Access, period: Period, column: str, only: tuple[str, ...] = AMOUNTS) -> list[tuple[str, str, dict[str, int]]]:
    """What those lines of a period that the reader may see add up to: key, class and amounts; a key may come more than once."""
    access.must_somewhere(Can.SEE_COSTS)
    pieces, found = period.pieces, list[Sums]()
    if column in SUMMED and period.whole_months and access.can_everywhere(Can.SEE_COSTS):
        found.append(sums_of(period.whole_months, column))
        pieces = pieces[1:]
    seen = access.visible(Can.SEE_COSTS, "quota_path")
    for piece in pieces:
        lines = ChargeLine.objects.filter(piece)
        lines = lines if access.can_everywhere(Can.SEE_COSTS) else lines.filter(seen)
        if column.startswith("label:"):
            lines = lines.annotate(label=_label(column))
        found.append(line_sums(lines, "label" if column.startswith("label:") else column, only=only))
    return [(key, share_class, amounts) for sums in found for (key, share_class), amounts in sums.items()]


@dataclass(frozen=True, slots=True)
class NodeCosts:
    """What nodes with all below them cost in the month that runs, in nano-units, as far as it is rated; and at this pace by its end."""

    span: Span
    currency: str
    rated_to: datetime
    so_far: Mapping[str, int]
    corrected: Mapping[str, int]  # the part that corrects closed months

    def ahead(self, path: str) -> int:
        """Its own days at this pace, and corrections once."""
        passed, corrected = millis(min(self.rated_to, self.span.end)) - millis(self.span.start), self.corrected.get(path, 0)
        own = self.so_far.get(path, 0) - corrected
        return corrected + half_even(own * (millis(self.span.end) - millis(self.span.start)), passed) if passed > 0 else 0


def node_costs(access: Access, *, now: datetime) -> NodeCosts | None:
    """Those of the nodes whose costs the reader may see. None: of no node, or nothing is rated yet."""
    month = ChargeMonth.objects.filter(first=month_at(now), rated_to__isnull=False).first()
    if month is None or month.rated_to is None or not access.can_somewhere(Can.SEE_COSTS):
        return None
    period = Period.of(month.first)
    parts = _sums(access, period, "quota_path", ("effective_nanos",))
    corrections = lines_seen(access, period).filter(corrects__isnull=False).order_by().values("quota_path").annotate(nanos=Sum("effective_nanos"))
    so_far = _with_all_below(access, ((path, amounts["effective_nanos"]) for path, _, amounts in parts))
    corrected = _with_all_below(access, corrections.values_list("quota_path", "nanos"))
    return NodeCosts(Span(month.first), month.currency, month.rated_to, so_far, corrected)


def _with_all_below(access: Access, parts: Iterable[tuple[str, int]]) -> dict[str, int]:
    found: dict[str, int] = defaultdict(int)
    for path, nanos in parts:
        steps = path.split("/")
        for depth in range(1, len(steps) + 1):
            found["/".join(steps[:depth])] += nanos
    return {path: nanos for path, nanos in found.items() if access.can(Can.SEE_COSTS, path)}


def above(kind: str) -> Any:
    """Of a path, the node of this kind at or above it; the path itself where there is none."""
    paths = set(QuotaNode.objects.filter(kind=kind).values_list("path", flat=True))

    def place(path: str) -> str:
        steps = path.split("/")
        uppers = ("/".join(steps[:depth]) for depth in range(len(steps), 0, -1))
        return next((upper for upper in uppers if upper in paths), path)

    return place


def _reserved_unused(access: Access, period: Period, now: datetime) -> dict[str, int]:
    """By node that reserves: its windows in the period, as far as they held GPUs, less what was used of the class reserved there or below."""
    end = min(now, period.end)
    windows = Window.objects.filter(access.visible(Can.SEE_COSTS, "reservation__quota__path"), starts_at__lt=end)
    windows = windows.filter(Q(ends_at__isnull=True) | Q(ends_at__gt=period.start), reservation__quota__isnull=False)
    held: dict[str, int] = defaultdict(int)
    columns = ("reservation__quota__path", "reservation__gpus_milli", "starts_at", "ends_at", "released_at")
    for path, milli, starts, ends, released in windows.values_list(*columns):
        until = min(moment for moment in (ends, released, end) if moment is not None)
        held[path] += milli * max(0, millis(until) - millis(max(starts, period.start)))
    if not held:
        return {}
    for path, share_class, amounts in _sums(access, period, "quota_path", ("milli_millis",)):
        if share_class != "reserved":
            continue
        steps = path.split("/")
        owner = next((upper for depth in range(len(steps), 0, -1) if (upper := "/".join(steps[:depth])) in held), None)
        if owner is not None:
            held[owner] -= amounts["milli_millis"]
    return {path: unused for path, unused in held.items() if unused > 0}


def days_seen(access: Access, period: Period) -> list[tuple[date, dict[str, int]]]:
    """The cost of each day by class, as far as the reader may see it. Corrections are of another month's days."""
    found: dict[date, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    if access.can_everywhere(Can.SEE_COSTS):
        costs = [one for one in day_costs(period.months) if period.first <= one[0] <= period.last]
    else:
        rows = lines_seen(access, period).filter(corrects__isnull=True).order_by().values_list("day", "share_class")
        costs = [(day, share_class, int(cost)) for day, share_class, cost in rows.annotate(Sum("effective_nanos"))]
    for day, share_class, cost in costs:
        found[day][share_class] += cost
    return sorted(found.items())


def bars_of(period: Period, days: Iterable[tuple[date, Mapping[str, int]]]) -> tuple[str, dict[date, Mapping[str, int]]]:
    """What a plot of costs has a bar for, a day or a month, and the costs of each by class."""
    if (period.last - period.first).days < MOST_BARS:
        return "day", dict(days)
    found: dict[date, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for day, costs in days:
        for key, cost in costs.items():
            found[day.replace(day=1)][key] += cost
    return "month", dict(found)


def _idle_parts(rows: Mapping[str, Mapping[str, int]], by: str, rule: str, amount: int) -> dict[str, int]:
    """How a stated rule divides the idle cost; the parts add up to it exactly, or nobody takes any."""
    if rule == "apart" or not amount:
        return {}
    if rule == "use":
        return shared(amount, {key: facts["milli_millis"] for key, facts in rows.items() if facts["milli_millis"] > 0})
    if rule == "even":
        return shared(amount, dict.fromkeys(rows, 1))
    if by not in DEPTH_OF:
        return {}
    place = above(DEPTH_OF[by])
    weights: dict[str, int] = defaultdict(int)
    for path, milli in QuotaShare.objects.filter(guaranteed_milli__gt=0, node__archived_at__isnull=True).values_list(
        "node__path", "guaranteed_milli"
    ):
        if milli and place(path) == path:  # what lies below is part of it
            weights[path] += milli
    return shared(amount, weights)


def _budgets(access: Access, period: Period, paths: Set[str], now: datetime) -> dict[str, Budgeted]:
    """In the month that runs, of each of these nodes the budget for all types that is used most, of hours or money, whatever its own period.

    As the turn counted it last: to add what came since is a query of the ledger for each budget.
    """
    if period.month is None or not period.start <= now < period.end:
        return {}
    money, hours = Q(access.visible(Can.SEE_COSTS, "quota__path"), unit=BudgetUnit.MONEY), access.visible(Can.SEE, "quota__path")
    found = Budget.objects.filter(money | Q(hours, unit=BudgetUnit.GPU_HOURS), removed_at__isnull=True, gpu_type="").select_related("quota")
    most: dict[str, Budgeted] = {}
    of_rows = [one for one in found.order_by("pk").prefetch_related("exceptions") if one.quota.path in paths]
    for one in standings(of_rows, price_book(), now, fresh=False):
        path, known = one.budget.quota.path, most.get(one.budget.quota.path)
        if not one.period.is_over and (known is None or one.percent > known.percent):
            until = f", usage until {one.budget.counted_to:%Y-%m-%d %H:%M} UTC" if one.budget.counted_to else ""
            most[path] = Budgeted(one.percent, f"{one.budget.name}{until}")
    return most


# Tables

# The units in which tables show what a row has.
SHOWN_IN = {
    **dict.fromkeys(("list_nanos", "contracted_nanos", "effective_nanos", "before_nanos", "idle_nanos"), CENT),
    **dict.fromkeys(("milli_millis", "borrowed", "reserved_unused"), HOUR // 10),
}


def rows_shown(rows: Sequence[Row], total: Row, shown: Row | None = None) -> list[Row]:
    """Rows in whole cents and tenths of GPU-hours that add up to the total as it is shown, by largest remainder. What the total has beyond these
    rows counts as one more row. `shown`: the total in the same units, where it is itself a row of another table."""
    told: list[dict[str, Any]] = [{"exact_use": row.milli_millis} for row in rows]
    for name, unit in SHOWN_IN.items():
        whole = half_even(getattr(shown or total, name), unit)
        parts = _parts_shown([getattr(row, name) for row in rows], getattr(total, name), unit, whole)
        for facts, part in zip(told, parts, strict=True):
            facts[name] = part
    return [replace(row, **facts) for row, facts in zip(rows, told, strict=True)]


def idle_shown(report: Report) -> list[Idle]:
    """The same of the uncharged time, by type and cause."""
    costs = _parts_shown([one.effective_nanos for one in report.idle], report.idle_total, CENT, cents(report.idle_total))
    return [replace(one, effective_nanos=cost) for one, cost in zip(report.idle, costs, strict=True)]


def _parts_shown(parts: Sequence[int], exact: int, unit: int, whole: int) -> list[int]:
    return [unit * part for part in rounded([*parts, exact - sum(parts)], unit, whole)[:-1]]


# Drill-down


def lines_of(access: Access, period: Period, by: str, key: str) -> QuerySet[ChargeLine]:
    """The lines behind one row of a report."""
    lines = lines_seen(access, period)
    if by in DEPTH_OF:
        return lines.filter(at_or_below(key, "quota_path"))
    if by.startswith("label:"):
        return lines.filter(Exact(_label(by), key)) if key else lines.filter(IsNull(_label(by), True))
    if by not in BY:
        return lines
    if by == "day":
        try:
            return lines.filter(day=date.fromisoformat(key))
        except ValueError:
            raise Http404("A day is written YYYY-MM-DD.") from None
    return lines.filter(**{BY[by][1]: key})


def line_for(access: Access, pk: int) -> ChargeLine:
    found = ChargeLine.objects.filter(access.visible(Can.SEE_COSTS, "quota_path"), pk=pk).select_related("month", "corrects").first()
    if found is None:
        raise Http404(f"There is no line {pk}.")
    return found


@dataclass(frozen=True, slots=True)
class Piece:
    """A row of the ledger, and the part of it that a line charges."""

    entry: LedgerEntry
    since: datetime
    until: datetime
    milli_millis: int


def pieces_of(line: ChargeLine) -> list[Piece]:
    """The rows of the ledger that a line is made of. Their use adds up to the line's, where no card changed on that day."""
    start = datetime.combine(line.day, datetime.min.time(), tzinfo=Span(line.day).start.tzinfo)
    end = min(datetime.fromtimestamp(start.timestamp() + 86_400, start.tzinfo), line.month.rated_to or start)
    if line.corrects is not None:
        end = datetime.fromtimestamp(start.timestamp() + 86_400, start.tzinfo)
    kind = {"gpu_type": line.gpu_type, "share_class": line.share_class, "tier": line.tier, "pool": line.pool}
    rows = LedgerEntry.objects.filter(CHARGED, job=line.job, quota_path=line.quota_path, cost_centre=line.cost_centre, since__lt=end, **kind)
    rows = rows.filter(Q(until__isnull=True) | Q(until__gt=start))
    found = []
    for entry in rows.order_by("since", "id"):
        since, until = max(entry.since, start), min(entry.until or end, end)
        found.append(Piece(entry, since, until, entry.gpu_milli * (millis(until) - millis(since))))
    return found
