"""What the pages of Home hold: a team's jobs and quota, and what needs an operator. Each part is read inside the reader's own subtrees."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from math import isnan
from typing import Any

from django.db.models import Count, Min, Q, QuerySet, Sum

from dashboards.alerts.models import AlertState
from dashboards.alerts.selectors import AlertRow, alert_rows, alerts_listed
from dashboards.idle.selectors import IdleRow, episodes_listed, idle_rows
from dashboards.job_list import JobNow, jobs_now
from dashboards.selectors import SickNode, fleet_read, nodes_needing_attention
from dashboards.telemetry.spans import QUARTER, Course, job_courses
from gpufleet.core.templatetags.shell import plural
from quotas.chargeback.months import month_at
from quotas.chargeback.periods import Period
from quotas.chargeback.report import Row, lines_seen
from quotas.models import QuotaNode
from quotas.permissions import Access, Can
from quotas.presenters import Cell, cells_of, summed, types_of
from quotas.selectors.budgets import Standing, budgets_listed, standings
from quotas.selectors.nodes import tree_list
from quotas.selectors.rates import price_book
from scheduler.hardware.lifecycle import next_verb
from scheduler.models import HOLDING, Health, Job, JobState, WaitKind
from scheduler.selectors.jobs import WAITING, held_by, jobs_listed
from scheduler.selectors.usage import gpu_types_known, held_by_quota
from scheduler.services.forecasts.standing import standing_known

WAITING_SHOWN, RUNNING_SHOWN, FAILED_SHOWN, IDLE_SHOWN = 5, 5, 3, 3
TEAMS_SHOWN, BUDGETS_SHOWN, ALERTS_SHOWN, NODES_SHOWN = 3, 2, 6, 8
DAY = timedelta(hours=24)
COURSE = timedelta(hours=12)


@dataclass(frozen=True, slots=True)
class Load:
    """Jobs of one kind: how many, and what they hold or ask for."""

    jobs: int
    milli: int
    since: datetime | None  # the earliest of them


@dataclass(frozen=True, slots=True)
class TeamRow:
    """A node of the quota tree with what it has of each GPU type that it may use."""

    node: QuotaNode
    cells: Sequence[tuple[Cell, int]]  # and what waits for it


@dataclass(frozen=True, slots=True)
class TeamHome:
    """What somebody who submits jobs asks first: what waits and why, what runs, and what is left."""

    own_only: bool
    waiting: Load
    waiting_for_quota: int
    running: Load
    failed: int
    waiting_jobs: Sequence[JobNow]
    running_jobs: Sequence[JobNow]
    failed_jobs: Sequence[JobNow]
    teams: Sequence[TeamRow]
    budgets: Sequence[Standing]
    idle: Sequence[IdleRow]
    spent_nanos: int | None

    @property
    def answer(self) -> str:
        return team_answer(waiting=self.waiting.jobs, for_quota=self.waiting_for_quota, running=self.running.jobs)


def team_answer(*, waiting: int, for_quota: int, running: int) -> str:
    """How the jobs stand, in at most eight words."""
    if not waiting:
        return f"{plural(running, 'job')} running, none waiting." if running else "No jobs running or waiting."
    if for_quota:
        return f"{plural(waiting, 'job')} waiting, {for_quota:,} for quota; {running:,} running."
    return f"{plural(waiting, 'job')} waiting for GPUs; {running:,} running."


def team_home(access: Access, *, now: datetime) -> TeamHome:
    """The jobs of the subtrees where the reader submits; only the reader's own where others' jobs are not the reader's to manage."""
    manages = access.can_somewhere(Can.MANAGE_JOBS)
    mine = jobs_listed(access).filter(access.visible(Can.MANAGE_JOBS if manages else Can.SUBMIT, "quota__path"))
    if not manages:
        mine = mine.filter(owner=access.actor.user)
    waiting, running = mine.filter(state__in=WAITING), mine.filter(state__in=HOLDING)
    failed = mine.filter(state=JobState.FAILED, ended_at__gte=now - DAY)
    episodes = episodes_listed(access).filter(access.visible(Can.SUBMIT, "quota__path"), ended_at__isnull=True)
    if not manages:
        episodes = episodes.filter(owner=access.actor.user)
    return TeamHome(
        own_only=not manages,
        waiting=_load(waiting),
        waiting_for_quota=waiting.filter(wait__kind=WaitKind.QUOTA).count(),
        running=_load(running, held_milli=held_by(running)),
        failed=failed.count(),
        waiting_jobs=_shown(access, waiting.order_by("state_since", "id"), WAITING_SHOWN),
        running_jobs=_with_courses(_shown(access, running.order_by("-gpus_milli", "state_since", "id"), RUNNING_SHOWN), now),
        failed_jobs=_shown(access, failed.order_by("-ended_at", "-id"), FAILED_SHOWN),
        teams=_team_rows(access, _nodes(access), now),
        budgets=_budgets(access, now),
        idle=idle_rows(access, list(episodes.order_by("-wasted_milli_millis", "id")[:IDLE_SHOWN]), now=now),
        spent_nanos=_spent(access, now),
    )


def _load(jobs: QuerySet[Job], *, held_milli: int | None = None) -> Load:
    """`held_milli`: what they hold; None: what they need at least counts."""
    found = jobs.order_by().aggregate(jobs=Count("pk"), milli=Sum("gpus_milli"), since=Min("state_since"))
    return Load(found["jobs"], (found["milli"] or 0) if held_milli is None else held_milli, found["since"])


def _shown(access: Access, jobs: QuerySet[Job], most: int) -> list[JobNow]:
    return jobs_now(access, list(jobs[:most]))


def _with_courses(rows: Sequence[JobNow], now: datetime) -> list[JobNow]:
    """The same with the utilization of the last hours."""
    courses = job_courses(jobs=[row.job.pk for row in rows], since=now - COURSE, until=now, span=QUARTER) if rows else {}
    return [replace(row, course=_percent(*courses[row.job.pk])) for row in rows]


def _percent(held: Course, computing: Course) -> list[float | None]:
    parts = zip(held.values.tolist(), computing.values.tolist(), strict=True)
    return [100 * used / all_of_it if all_of_it > 0 and not isnan(used) else None for all_of_it, used in parts]


def _nodes(access: Access) -> list[QuotaNode]:
    """The topmost nodes where the reader submits; the empty path stands for the tops of all trees."""
    paths = access.paths(Can.SUBMIT)
    at = Q(depth=0) if "" in paths else Q(path__in=paths)
    return list(tree_list(access, capability=Can.SUBMIT).filter(at)[:TEAMS_SHOWN])


def _team_rows(access: Access, nodes: Sequence[QuotaNode], now: datetime) -> list[TeamRow]:
    paths = dict(tree_list(access, capability=Can.SUBMIT).values_list("pk", "path"))
    sums = summed(paths, held_by_quota())
    types = types_of(nodes, gpu_types_known())
    standing = standing_known(now)
    asked = standing.waiting if standing is not None else {}
    rows = []
    for node in nodes:
        cells = [(cell, asked.get((node.path, cell.gpu_type), 0)) for cell in cells_of(node, types, sums.get(node.path, {}))]
        rows.append(TeamRow(node, [(cell, waiting) for cell, waiting in cells if waiting or not cell.says_nothing]))
    return [row for row in rows if row.cells]


def _budgets(access: Access, now: datetime) -> list[Standing]:
    """The budgets of the reader's subtrees, the fullest first."""
    found = standings(budgets_listed(access).filter(access.visible(Can.SUBMIT, "quota__path")), price_book(), now)
    return sorted(found, key=lambda one: (-one.percent, one.budget.public_id))[:BUDGETS_SHOWN]


def _spent(access: Access, now: datetime) -> int | None:
    """Nano-units of this month so far, in the subtrees where the reader submits; None for those who may see no costs there."""
    if not any(access.can(Can.SEE_COSTS, path) for path in access.paths(Can.SUBMIT)):
        return None
    lines = lines_seen(access, Period.of(month_at(now))).filter(access.visible(Can.SUBMIT, "quota_path"))
    return int(lines.aggregate(total=Sum("effective_nanos"))["total"] or 0)


# On call


@dataclass(frozen=True, slots=True)
class Ailing:
    """A node that needs somebody, with the step that an operator takes next."""

    node: SickNode
    verb: str

    @property
    def drains(self) -> bool:
        """Whether the next step is a drain. A bad GPU of a healthy node is drained by itself, on its own page."""
        return self.node.node_health == Health.SUSPECT


@dataclass(frozen=True, slots=True)
class CallHome:
    """What needs an operator now, the worst first."""

    nodes: Sequence[Ailing]
    nodes_total: int
    gpus_hurt: int
    jobs_hurt: int
    alerts: Sequence[AlertRow]
    alerts_total: int
    idle: Sequence[IdleRow]

    @property
    def answer(self) -> str:
        return call_answer(nodes=self.nodes_total, alerts=self.alerts_total)


def call_answer(*, nodes: int, alerts: int) -> str:
    """What needs an operator, in at most eight words."""
    if not nodes and not alerts:
        return "Nothing needs you: nodes healthy, no alerts."
    if not nodes:
        return f"All nodes healthy, {plural(alerts, 'alert')} firing."
    return f"{plural(nodes, 'node')} need{'s' if nodes == 1 else ''} attention, {plural(alerts, 'alert')} firing."


def call_home(access: Access, *, now: datetime) -> CallHome:
    sick = nodes_needing_attention(fleet_read(now=now))
    firing = alerts_firing_now(access)
    idle = episodes_listed(access).filter(ended_at__isnull=True)
    return CallHome(
        nodes=[Ailing(node, next_verb(node.health)) for node in sick[:NODES_SHOWN]],
        nodes_total=len(sick),
        gpus_hurt=sum(node.gpus_hurt for node in sick),
        jobs_hurt=sum(node.jobs for node in sick),
        alerts=alert_rows(list(firing.order_by("-fired_at", "-id")[:ALERTS_SHOWN])),
        alerts_total=firing.count(),
        idle=idle_rows(access, list(idle.order_by("-wasted_milli_millis", "id")[:IDLE_SHOWN]), now=now),
    )


def alerts_firing_now(access: Access) -> QuerySet[Any]:
    return alerts_listed(access).filter(state=AlertState.FIRING)


# Month


def month_answer(*, spent: str, change_percent: int | None, over: int) -> str:
    """How the month stands, in at most eight words. `spent` is an amount with its currency; `change_percent` is against last month, at this pace;
    `over`: budgets that are used up."""
    if over:
        return f"{spent} this month, {plural(over, 'budget')} used up."
    if change_percent is None:
        return f"{spent} this month."
    return f"{spent} this month, {change_percent:+d}% at this pace."


def budgeted_now(rows: Sequence[Row], budgets: Sequence[Standing]) -> list[Row]:
    """Rows of a report with their budgets as they are now, as elsewhere on the page; the report has them as the turn counted them last."""
    most: dict[str, int] = {}
    for one in budgets:
        if not one.period.is_over and not one.budget.gpu_type:
            most[one.budget.quota.path] = max(one.percent, most.get(one.budget.quota.path, 0))
    return [row if row.budget_percent is None else replace(row, budget_percent=most.get(row.key, row.budget_percent)) for row in rows]


def idle_by_cause(uncharged: Iterable[Any], *, allocated: int) -> list[tuple[str, int]]:
    """Nano-units of GPU time that did not compute, by cause, the dearest first. `allocated`: of GPUs that jobs held, and that teams pay for."""
    sums = {"idle": allocated} if allocated else {}
    for one in uncharged:
        sums[one.cause] = sums.get(one.cause, 0) + one.effective_nanos
    return sorted(sums.items(), key=lambda pair: (-pair[1], pair[0]))
