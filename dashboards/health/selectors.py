"""Incidents, findings and rules as people and programs ask for them. Hardware is no team's secret; jobs and costs are."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Avg, Count, Exists, F, OuterRef, QuerySet, Sum
from django.http import Http404

from dashboards.health.counting import OWN
from dashboards.health.detect import LEAST_RANKS
from dashboards.health.incidents import jobs_hurt
from dashboards.health.models import HealthFinding, HealthFrame, HealthRule, Incident, Straggler
from dashboards.health.round import rule_of
from dashboards.health.rules import Hit, said
from dashboards.health.state import SIGNALS, sources_followed
from dashboards.idle.selectors import cost_of, hours_milli, hours_told
from dashboards.prometheus.models import PrometheusServer
from dashboards.selectors import rates_visible
from quotas.permissions import Access, Can
from scheduler.models import Cluster, Gpu, Health, Job, Node, OutsideSeat, Placement, PromisedSeat

MONTH = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class IncidentRow:
    """An incident as lists show it. Money is None for readers who may not see the fleet's costs."""

    incident: Incident
    cost_micros: int | None

    @property
    def node(self) -> Node:
        return self.incident.node

    @property
    def state(self) -> str:
        return "closed" if self.incident.closed_at else self.incident.node.health

    @property
    def hours_milli(self) -> int:
        return hours_milli(self.incident.out_milli_millis + self.incident.lost_milli_millis)

    @property
    def hours_told(self) -> str:
        return hours_told(self.hours_milli)

    @property
    def took(self) -> timedelta | None:
        return self.incident.closed_at - self.incident.opened_at if self.incident.closed_at else None


def incidents_listed(access: Access) -> QuerySet[Incident]:
    access.must_somewhere(Can.SEE)
    return Incident.objects.select_related("node__cluster", "node__pool", "rule")


def incident_rows(access: Access, incidents: Sequence[Incident], *, now: datetime) -> list[IncidentRow]:
    """One query, for the rates."""
    rates = rates_visible(access, now=now) if access.can_everywhere(Can.SEE_COSTS) else None
    return [IncidentRow(one, cost_of(one.out_milli_millis + one.lost_milli_millis, one.node.gpu_type_id or "", rates)) for one in incidents]


def incident_for(access: Access, public_id: str) -> Incident:
    found = incidents_listed(access).select_related("burn_in").filter(public_id=public_id).first()
    if found is None:
        raise Http404(f"There is no incident {public_id}.")
    return found


@dataclass(frozen=True, slots=True)
class Step:
    """A line of an incident. Its text leaves out what stands beside it: the health, and the title of the incident."""

    at: datetime
    health: str
    text: str
    by: str


def steps_told(incident: Incident) -> list[Step]:
    """What happened, the oldest first. One query."""
    title, rule = incident.title.rstrip("."), incident.rule.name if incident.rule is not None else ""
    found = []
    for step in incident.steps.order_by("at", "id"):
        health = f"{incident.node.name}: {Health(step.health).label.lower()}. " if step.health in Health.values else ""
        text = step.text.removeprefix(health)
        rest = text.rstrip(".").removesuffix(title).rstrip(" .:")
        if rest != text.rstrip("."):
            held = "" if step.health else "The rule held."
            told = {"": "", "Rule": held, f"Rule {rule}": held}
            text = told.get(rest, f"{rest}.")
        found.append(Step(step.at, step.health, text, step.by))
    return found


@dataclass(frozen=True, slots=True)
class HurtJob:
    """A job that lost GPUs in an incident. `job` is None where the reader may not see it."""

    job: Job | None
    outcome: str
    gpus_milli: int
    lost_hours_milli: int

    @property
    def lost_told(self) -> str:
        return hours_told(self.lost_hours_milli)


def incident_jobs(access: Access, incident: Incident, *, now: datetime) -> list[HurtJob]:
    return [
        HurtJob(one.attempt.job if access.can(Can.SEE, one.attempt.job.quota.path) else None, one.how, one.milli, hours_milli(one.lost_milli_millis))
        for one in jobs_hurt([incident], now=now)[incident.pk]
    ]


@dataclass(frozen=True, slots=True)
class FindingRow:
    """A finding in words."""

    finding: HealthFinding
    text: str


def findings_open(access: Access) -> list[FindingRow]:
    access.must_somewhere(Can.SEE)
    rows = HealthFinding.objects.filter(cleared_at__isnull=True).select_related("rule", "node", "gpu", "incident").order_by("-since", "pk")
    return [FindingRow(row, said(Hit(rule_of(row.rule), row.device, row.value, row.code))) for row in rows]


@dataclass(frozen=True, slots=True)
class HealthSummary:
    """Thirty days of incidents."""

    open: int
    month: int
    node_days_between: float | None  # mean time between incidents, of one node
    repair: timedelta | None  # mean time that an incident took
    hours_milli: int
    cost_micros: int | None
    jobs: int
    worst: Sequence[tuple[Node, int]]

    @property
    def hours_told(self) -> str:
        return hours_told(self.hours_milli)

    @property
    def between_told(self) -> str:
        return "–" if self.node_days_between is None else f"{self.node_days_between:,.0f}"


def health_summary(access: Access, *, now: datetime) -> HealthSummary:
    rates = rates_visible(access, now=now) if access.can_everywhere(Can.SEE_COSTS) else None
    rows = Incident.objects.filter(opened_at__gte=now - MONTH)
    nodes = Node.objects.filter(removed_at__isnull=True).count()
    first = Incident.objects.order_by("opened_at").values_list("opened_at", flat=True).first()
    days = min(MONTH, now - first).total_seconds() / 86_400 if first else 0.0
    sums = list(
        rows.order_by().values_list("node__gpu_type_id").annotate(Sum("out_milli_millis"), Sum("lost_milli_millis"), Sum("jobs"), Count("pk"))
    )
    month = sum(row[4] for row in sums)
    repair = rows.filter(closed_at__isnull=False).aggregate(mean=Avg(F("closed_at") - F("opened_at")))["mean"]
    counts = rows.order_by().values_list("node").annotate(n=Count("pk")).filter(n__gt=1).order_by("-n", "node")[:5]
    named = Node.objects.in_bulk([node for node, _ in counts])
    return HealthSummary(
        open=Incident.objects.filter(closed_at__isnull=True).count(),
        month=month,
        node_days_between=nodes * days / month if month else None,
        repair=repair,
        hours_milli=hours_milli(sum(row[1] + row[2] for row in sums)),
        cost_micros=None if rates is None else sum(cost_of(row[1] + row[2], row[0] or "", rates) or 0 for row in sums),
        jobs=sum(row[3] for row in sums),
        worst=[(named[node], count) for node, count in counts if node in named],
    )


@dataclass(frozen=True, slots=True)
class CountedFrom:
    """Who tells a counter now, and of how many devices."""

    label: str
    of_node: bool
    sources: Sequence[tuple[str, int]]


def counters_followed(cluster: Cluster) -> list[CountedFrom]:
    """Of each counter of a cluster the sources that count it, each for other devices. Two queries."""
    frame = HealthFrame.objects.filter(cluster=cluster).first()
    if frame is None:
        return []
    servers = dict(PrometheusServer.objects.values_list("pk", "name"))
    simulated = frame.source == "simulated"
    found = []
    for key, whose in sources_followed(frame).items():
        own = "simulation" if simulated else {"xid": "kernel log", "nic_errors": "kernel"}.get(key, "NVML")
        told = [(own if source == OWN else servers.get(source, "removed server"), count) for source, count in whose.items()]
        found.append(CountedFrom(SIGNALS[key].label, SIGNALS[key].of_node, told))
    return found


def rules_listed(access: Access) -> list[HealthRule]:
    access.must_somewhere(Can.SEE)
    return list(HealthRule.objects.filter(removed_at__isnull=True).order_by("signal", "threshold", "pk"))


def rule_for(access: Access, public_id: str) -> HealthRule:
    access.must_somewhere(Can.SEE)
    found = HealthRule.objects.filter(public_id=public_id, removed_at__isnull=True).first()
    if found is None:
        raise Http404(f"There is no health rule {public_id}.")
    return found


def signal_choices() -> list[tuple[str, str]]:
    return [(key, f"{signal.label} ({signal.unit})" if signal.unit else signal.label) for key, signal in SIGNALS.items()]


@dataclass(frozen=True, slots=True)
class StragglerRow:
    """A straggler. `job` is None where the reader may not see it. `replacement` names a node that could take its place."""

    straggler: Straggler
    job: Job | None
    replacement: Node | None


def stragglers_open(access: Access) -> list[StragglerRow]:
    access.must_somewhere(Can.SEE)
    rows = list(Straggler.objects.filter(ended_at__isnull=True).select_related("job__quota", "gpu", "node").order_by("-percent", "pk"))
    spare = replacements({row.node.gpu_type_id for row in rows}) if rows else {}
    return [
        StragglerRow(row, row.job if access.can(Can.SEE, row.job.quota.path) else None, spare.get((row.node.cluster_id, row.node.gpu_type_id)))
        for row in rows
    ]


def job_stragglers(job: Job) -> list[StragglerRow]:
    """Ranks that slow a job down now, the slowest first, for whoever may see the job."""
    if job.gpus_milli < 1000 * LEAST_RANKS:
        return []
    rows = list(job.stragglers.filter(ended_at__isnull=True).select_related("gpu", "node").order_by("-percent", "pk"))
    spare = replacements({row.node.gpu_type_id for row in rows}) if rows else {}
    return [StragglerRow(row, job, spare.get((row.node.cluster_id, row.node.gpu_type_id))) for row in rows]


def replacements(types: set[str | None]) -> dict[tuple[int, str | None], Node]:
    """By cluster and type a healthy node, all of its GPUs too, on which nothing runs and nothing is about to, spares first. One query."""
    here = {"node": OuterRef("pk")}
    not_free = (
        Placement.objects.filter(until__isnull=True, **here),
        PromisedSeat.objects.filter(**here),
        OutsideSeat.objects.filter(job__until__isnull=True, **here),
        Gpu.objects.filter(removed_at__isnull=True, **here).exclude(health=Health.HEALTHY),
    )
    nodes = Node.objects.filter(*(~Exists(rows) for rows in not_free), removed_at__isnull=True, health=Health.HEALTHY, gpu_type__in=types)
    found: dict[tuple[int, str | None], Node] = {}
    for node in nodes.order_by("-spare", "name"):
        found.setdefault((node.cluster_id, node.gpu_type_id), node)
    return found
