"""The figures that alert rules watch, now: one value for each subject, read together in a bounded number of queries.

Figures that can't be known now (telemetry is stale, no budget is set) have no value: a rule neither fires nor ends on them.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Count, Sum

from dashboards.figures import Figures, figures_by_type, gap_cost
from dashboards.health.models import HealthFrame, Incident
from dashboards.health.models import Straggler as Slow
from dashboards.idle.models import IdleEpisode
from dashboards.models import TelemetryFrame
from dashboards.prometheus.models import PrometheusServer
from dashboards.selectors import NO_POOL, Fleet, fleet_read
from dashboards.slo.models import ServiceBreach
from gpufleet.core.templatetags.shell import duration
from quotas.chargeback.weeks import weeks_by_team
from quotas.drafts import over_capacity
from quotas.models import Budget, NodeKind, QuotaNode, QuotaShare
from quotas.selectors.budgets import standings
from quotas.selectors.rates import price_book, rates_now
from quotas.services.writing import tree_read
from scheduler.jobs.stored import roles_of, takes_gpus
from scheduler.models import IN_SERVICE, CapacityEntry, Cluster, Gpu, Job, JobState, Node, Placement
from scheduler.selectors.clusters import has_gpus
from scheduler.selectors.loop import scheduler_silent
from scheduler.selectors.measures import queue_figures
from scheduler.selectors.readiness import replicas_not_ready
from scheduler.selectors.scaling import scale_ups_late
from scheduler.selectors.windows import capacity_now

PROMETHEUS = "Prometheus "  # before the name of a server, where it is a subject
WHOLE = ""  # the subject of what concerns the whole fleet


@dataclass(frozen=True, slots=True)
class Figure:
    """What a rule may watch. `subjects` says what its values are by: GPU type, class, team, pool, node, cluster."""

    key: str
    label: str
    unit: str
    subjects: str
    higher_is_worse: bool = True
    is_cost: bool = False
    amount: str = ""  # the figure that a rule's floor is held against
    is_count: bool = False  # what is counted: a subject that has no value has none of it
    gone: str = ""  # why a subject has no value any more, where that ends its alert


FIGURES: dict[str, Figure] = {
    one.key: one
    for one in (
        Figure("gap_percent", "Idle share of allocated GPUs", "%", "GPU type"),
        Figure("gap_cost", "Cost of idle allocated GPUs", "per hour", "", is_cost=True),
        Figure("fragmented_gpus", "Free GPUs that waiting jobs cannot use", "GPUs", "GPU type", is_count=True),
        Figure("queue_wait", "Longest wait in the queue", "min", "job class", is_count=True),
        Figure("queue_gpus", "GPUs that waiting jobs ask for", "GPUs", "job class", is_count=True),
        Figure("floor_gap", "Guaranteed GPUs that a team waits for", "GPUs", "team", is_count=True),
        Figure("guarantee_shortage", "Guaranteed GPUs beyond the healthy ones", "GPUs", "GPU type", is_count=True),
        Figure("budget_percent", "Budget used", "%", "team", gone="The budget was removed, or its period is over."),
        Figure("cost_rise", "Cost of the last week against four weeks before", "times", "team", is_cost=True, amount="cost_week"),
        Figure("cost_week", "Cost of the last week", "", "team", is_cost=True),
        Figure("nodes_out", "Nodes out of service", "%", "pool", is_count=True),
        Figure("incidents", "Open incidents", "", "node", is_count=True),
        Figure("idle_gpus", "GPUs in idle episodes", "GPUs", "team", is_count=True),
        Figure("stragglers", "Stragglers", "", "node", is_count=True),
        Figure("service_breaches", "Services over their objective", "", "team", is_count=True),
        Figure("scale_ups_late", "Scale-ups over their bound", "", "team", is_count=True),
        Figure("replicas_not_ready", "Replicas not ready for longer than the bound", "", "team", is_count=True),
        Figure("telemetry_age", "Age of the newest reading", "s", "cluster or Prometheus server"),
        Figure("scheduler_overdue", "Scheduler overdue", "s", ""),
    )
}


def figure_told(figure: str, value: float) -> str:
    """A value with its unit."""
    unit = FIGURES[figure].unit if figure in FIGURES else ""
    if unit == "min" and value >= LONG_MINUTES:
        return duration(60 * round(value))
    shown = f"{value:,.1f}".removesuffix(".0")
    unit = unit.removesuffix("s") if shown == "1" and unit == "GPUs" else unit
    return f"{shown}{unit}" if unit == "%" else f"{shown} {unit}".strip()


LONG_MINUTES = 120  # from here on nobody reads minutes
COSTS = tuple(key for key, figure in FIGURES.items() if figure.is_cost)

Values = Mapping[str, float]
Types = tuple[str, ...] | None


def figures_now(*, now: datetime, wanted: Iterable[str] | None = None) -> dict[str, dict[str, float]]:
    """By figure and subject. Only what is wanted is read."""
    asked = set(FIGURES if wanted is None else wanted) & set(FIGURES)
    asked |= {FIGURES[key].amount for key in asked} - {""}
    found: dict[str, dict[str, float]] = {}
    if asked & {"gap_percent", "gap_cost"}:
        found |= _gap(fleet_read(now=now), now)
    if asked & {"cost_rise", "cost_week"}:
        found |= _cost(now)
    if asked & _OF_TEAMS.keys():
        teams = _teams()
        found |= {key: read(teams, now) for key, read in _OF_TEAMS.items() if key in asked}
    for key, read in _READERS.items():
        if key in asked:
            found[key] = read(now)
    return {key: values for key, values in found.items() if key in asked}


def _gap(fleet: Fleet, now: datetime) -> dict[str, dict[str, float]]:
    by_type = figures_by_type(fleet)
    whole = sum(by_type.values(), Figures())
    gone = Gpu.objects.exclude(gpu_type__in=by_type).order_by().values_list("gpu_type_id", flat=True).distinct()
    shares = {WHOLE: whole, **by_type, **dict.fromkeys(gone, Figures())}
    # Where nothing is allocated nothing of it is idle, whether anything is read or not.
    known = {name: one for name, one in shares.items() if one.held_read or not one.held}
    percent = {name: 100 * one.gap / one.held_read if one.held else 0.0 for name, one in known.items()}
    cost = {WHOLE: gap_cost(by_type, rates_now(now=now)) / 1_000_000} if WHOLE in known else {}
    return {"gap_percent": percent, "gap_cost": cost}


def _cost(now: datetime) -> dict[str, dict[str, float]]:
    """Of each team: its cost in the last seven whole days, and that over the mean week of the 28 days before, where it had any."""
    weeks = weeks_by_team(now)
    rise = {path: week.cost / (week.before / 4) for path, week in weeks.items() if week.before > 0}
    return {"cost_rise": rise, "cost_week": {path: week.cost / 10**9 for path, week in weeks.items()}}


def _fragmented(now: datetime) -> dict[str, float]:
    rows = CapacityEntry.objects.filter(until__isnull=True, blocked_milli__gt=0).order_by().values_list("gpu__gpu_type_id")
    types = Gpu.objects.filter(removed_at__isnull=True, node__removed_at__isnull=True).order_by().values_list("gpu_type_id", flat=True).distinct()
    by_type = dict.fromkeys(types, 0.0) | {name: milli / 1000 for name, milli in rows.annotate(Sum("blocked_milli"))}
    return {WHOLE: sum(by_type.values()), **by_type}


def _queue_wait(now: datetime) -> dict[str, float]:
    rows = {row.job_class: row.waited.longest / 60 for row in queue_figures(now)}
    return {WHOLE: max(rows.values(), default=0.0), **rows}


def _queue_gpus(now: datetime) -> dict[str, float]:
    rows = {row.job_class: row.asked_milli / 1000 for row in queue_figures(now)}
    return {WHOLE: sum(rows.values()), **rows}


def _floor(teams: Mapping[str, int], now: datetime) -> dict[str, float]:
    """Of each team: what its waiting jobs ask for of the types that they accept, as far as its guarantees there are not used."""
    promised: dict[tuple[str, str], int] = {}
    for path, gpu_type, milli in QuotaShare.objects.filter(node__in=teams.values()).values_list("node__path", "gpu_type", "guaranteed_milli"):
        if milli:
            promised[path, gpu_type] = milli
    used: dict[tuple[str, str], int] = defaultdict(int)
    held = Placement.objects.filter(until__isnull=True, gpu__isnull=False).order_by().values_list("job__quota__path", "gpu__gpu_type_id")
    for path, gpu_type, milli in held.annotate(Sum("gpu_milli")):
        used[_team_of(path, teams), gpu_type] += milli
    asked: dict[str, dict[Types, int]] = defaultdict(lambda: defaultdict(int))
    waiting = Job.objects.filter(state__in=(JobState.QUEUED, JobState.PREEMPTED), held_at__isnull=True)
    for path, spec, milli in waiting.values_list("quota__path", "spec", "gpus_milli"):
        asked[_team_of(path, teams)][_accepted(spec)] += milli
    left: dict[str, dict[str, int]] = defaultdict(dict)
    for (path, gpu_type), milli in promised.items():
        left[path][gpu_type] = max(0, milli - used[path, gpu_type])
    return {path: _met(left[path], asked[path]) / 1000 for path in teams}


def _shortage(now: datetime) -> dict[str, float]:
    """Of each GPU type: how much more the tree guarantees than is healthy."""
    healthy = capacity_now().by_type
    by_type = dict.fromkeys(healthy, 0.0)
    by_type |= {gpu_type: (total - has) / 1000 for gpu_type, (total, has) in over_capacity(tree_read(), healthy).items()}
    return {WHOLE: sum(by_type.values()), **by_type}


def _accepted(spec: Mapping[str, Any]) -> Types:
    """The GPU types that a job accepts; None: any. Roles without GPUs, as that of a driver, accept none."""
    found: set[str] = set()
    for role in roles_of(spec):
        if not takes_gpus(role):
            continue
        if not role.get("gpu_types"):
            return None
        found.update(role["gpu_types"])
    return tuple(sorted(found)) or None


def _met(left: dict[str, int], asked: Mapping[Types, int]) -> int:
    """How much of what is asked for fits what is left of each type. Whoever accepts the fewest types comes first, so that no GPU counts twice."""
    met = 0
    for types, milli in sorted(asked.items(), key=lambda one: (one[0] is None, len(one[0] or ()), one[0] or ())):
        for name in sorted(left) if types is None else types:
            taken = min(milli, left.get(name, 0))
            if taken:
                left[name] -= taken
                milli -= taken
                met += taken
    return met


def _teams() -> dict[str, int]:
    return dict(QuotaNode.objects.filter(kind=NodeKind.TEAM, archived_at__isnull=True).order_by("path").values_list("path", "pk"))


def _team_of(path: str, teams: Mapping[str, int]) -> str:
    steps = path.split("/")
    return next((here for depth in range(len(steps), 0, -1) if (here := "/".join(steps[:depth])) in teams), path)


def _budgets(now: datetime) -> dict[str, float]:
    """Of each node of the tree: the budget that is used up most."""
    found: dict[str, float] = {}
    budgets = Budget.objects.filter(removed_at__isnull=True).select_related("quota").prefetch_related("exceptions").order_by("pk")
    for one in standings(budgets, price_book(), now, fresh=False):
        if not one.period.is_over:
            path = one.budget.quota.path
            found[path] = max(found.get(path, 0.0), float(one.percent))
    return found


def _nodes_out(now: datetime) -> dict[str, float]:
    rows = Node.objects.filter(removed_at__isnull=True).order_by().values_list("pool__name", "health").annotate(Count("pk"))
    size: dict[str, int] = defaultdict(int)
    out: dict[str, int] = defaultdict(int)
    for pool, health, count in rows:
        for name in (WHOLE, pool or NO_POOL):
            size[name] += count
            out[name] += count if health not in IN_SERVICE else 0
    return {name: 100 * out[name] / count for name, count in size.items()}


def _incidents(now: datetime) -> dict[str, float]:
    return _by_node(Incident.objects.filter(closed_at__isnull=True).values_list("node__cluster__name", "node__name"))


def _idle(teams: Mapping[str, int], now: datetime) -> dict[str, float]:
    """Of each team, its projects included."""
    rows = IdleEpisode.objects.filter(ended_at__isnull=True).order_by().values_list("quota__path").annotate(Sum("idle_milli"))
    by_team = dict.fromkeys(teams, 0.0)
    for path, milli in rows:
        team = _team_of(path, teams)
        by_team[team] = by_team.get(team, 0.0) + milli / 1000
    return {WHOLE: sum(by_team.values()), **by_team}


def _breaches(teams: Mapping[str, int], now: datetime) -> dict[str, float]:
    return _by_team(list(ServiceBreach.objects.filter(until__isnull=True).values_list("job__quota__path", flat=True)), teams)


def _late(teams: Mapping[str, int], now: datetime) -> dict[str, float]:
    return _by_team(list(scale_ups_late(now).values_list("job__quota__path", flat=True)), teams)


def _not_ready(teams: Mapping[str, int], now: datetime) -> dict[str, float]:
    return _by_team(list(replicas_not_ready(now).values_list("attempt__job__quota__path", flat=True)), teams)


def _by_team(paths: Sequence[str], teams: Mapping[str, int]) -> dict[str, float]:
    """Of each team, its projects included."""
    counted = Counter(_team_of(path, teams) for path in paths)
    return {WHOLE: float(len(paths)), **dict.fromkeys(teams, 0.0), **{team: float(count) for team, count in counted.items()}}


def _stragglers(now: datetime) -> dict[str, float]:
    return _by_node(Slow.objects.filter(ended_at__isnull=True).values_list("node__cluster__name", "node__name"))


def _by_node(rows: Iterable[tuple[str, str]]) -> dict[str, float]:
    """How many there are, and how many of each node. Nodes of two clusters may have the same name."""
    nodes = Counter(f"{cluster}/{node}" for cluster, node in rows)
    return {WHOLE: float(nodes.total()), **{name: float(count) for name, count in nodes.items()}}


def _telemetry(now: datetime) -> dict[str, float]:
    """Of each cluster, and of each server that is to be read: others may still tell of its cluster while its own GPUs have no reading."""
    newest: dict[str, datetime] = {}
    for frames in (TelemetryFrame, HealthFrame):
        for name, at, is_there in frames.objects.annotate(there=has_gpus()).values_list("cluster__name", "at", "there"):
            newest.setdefault(name, at if is_there else now)  # a cluster without GPUs has nothing to be read
    read: dict[bool, dict[str, datetime]] = {True: {}, False: {}}  # what is not to be read any more is silent for no time: an alert about it ends
    for name, read_at, changed_at, enabled, removed_at in PrometheusServer.objects.values_list(*SERVER):
        is_read = enabled and removed_at is None
        read[is_read][f"{PROMETHEUS}{name}"] = max(read_at or changed_at, changed_at) if is_read else now
    newest |= read[False] | read[True]
    ages = {name: max(0.0, (now - at).total_seconds()) for name, at in newest.items()}
    return {WHOLE: max(ages.values(), default=0.0), **ages} if ages and Cluster.objects.exists() else {}


def _scheduler(now: datetime) -> dict[str, float]:
    return {WHOLE: float(scheduler_silent(now))}


SERVER = ("name", "read_at", "changed_at", "enabled", "removed_at")

_OF_TEAMS: dict[str, Callable[[dict[str, int], datetime], dict[str, float]]] = {
    "floor_gap": _floor,
    "idle_gpus": _idle,
    "service_breaches": _breaches,
    "scale_ups_late": _late,
    "replicas_not_ready": _not_ready,
}
_READERS: dict[str, Callable[[datetime], dict[str, float]]] = {
    "fragmented_gpus": _fragmented,
    "queue_wait": _queue_wait,
    "queue_gpus": _queue_gpus,
    "guarantee_shortage": _shortage,
    "budget_percent": _budgets,
    "nodes_out": _nodes_out,
    "incidents": _incidents,
    "stragglers": _stragglers,
    "telemetry_age": _telemetry,
    "scheduler_overdue": _scheduler,
}
