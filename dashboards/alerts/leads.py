"""Where an alert leads: the pages on which one sees what its figure is about, and acts on it."""

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode

from django.db.models import QuerySet
from django.urls import reverse

from dashboards.alerts.figures import PROMETHEUS, WHOLE
from dashboards.alerts.models import Alert
from dashboards.health.models import Incident
from dashboards.selectors import NO_POOL
from dashboards.slo.models import ServiceBreach
from gpufleet.core.times import now
from quotas.permissions import Access, Can, at_or_below
from scheduler.models import Node
from scheduler.selectors.readiness import replicas_not_ready
from scheduler.selectors.scaling import scale_ups_late

SERVICES_NAMED = 3
MOST_ROWS = 300  # several may be of one service


class Lead(NamedTuple):
    """A page, and what the link to it says."""

    label: str
    address: str


def leads_of(access: Access, alert: Alert) -> list[Lead]:
    """Those that the reader may open, the nearest first."""
    subject = alert.subject
    match alert.rule.figure:
        case "gap_percent" | "gap_cost":
            return [_lead("Utilization gap", "gap", {"type": subject})]
        case "fragmented_gpus":
            return [_lead("Fragmentation", "fragmentation", {"type": subject})]
        case "queue_wait" | "queue_gpus":
            return [_lead("Waiting jobs", "jobs", {"state": "queued", "class": subject})]
        case "floor_gap":
            return [_lead("Waiting jobs of the team", "jobs", {"state": "queued", "team": subject})]
        case "guarantee_shortage":
            return [_lead("Quotas", "quotas"), _lead("Nodes", "nodes", {"type": subject})]
        case "budget_percent":
            return [_lead("Budgets", "budgets")]
        case "idle_gpus":
            return [_lead("Idle GPUs of the team", "idle", {"open": "yes", "team": subject})]
        case "nodes_out":
            return [_lead("Nodes of the pool", "nodes", {"pool": "" if subject == NO_POOL else subject})]
        case "service_breaches":
            # Those that are over their objective longest.
            return _services(access, subject, ServiceBreach.objects.filter(until__isnull=True).order_by("since", "pk"))
        case "scale_ups_late":
            return _services(access, subject, scale_ups_late(now()))
        case "replicas_not_ready":
            return _services(access, subject, replicas_not_ready(now()), job="attempt__job")
        case "incidents":
            return _of_node(subject)
        case "stragglers":
            return [Lead("Stragglers", f"{reverse('incidents')}#stragglers"), *_of_node(subject)[-1:]]
        case "telemetry_age" if subject.startswith(PROMETHEUS):
            return [_lead("Telemetry", "sources")] if access.can_everywhere(Can.OPERATE) else []
        case "telemetry_age" if subject != WHOLE:
            return [Lead(f"Cluster {subject}", reverse("cluster", args=[subject]))]
        case "scheduler_overdue" if access.can_everywhere(Can.SEE):
            return [_lead("Scheduler", "scheduler")]
    return []


def _lead(label: str, page: str, asked: Mapping[str, str] | None = None) -> Lead:
    query = urlencode({key: value for key, value in (asked or {}).items() if value})
    return Lead(label, reverse(page) + (f"?{query}" if query else ""))


def _services(access: Access, team: str, rows: QuerySet[Any], *, job: str = "job") -> list[Lead]:
    """The first of them that the reader may see. `job` leads from a row to its job."""
    rows = rows.filter(access.visible(Can.SEE, f"{job}__quota__path"))
    if team:
        rows = rows.filter(at_or_below(team, f"{job}__quota__path"))
    named = dict.fromkeys(rows.values_list(f"{job}__name", f"{job}__public_id")[:MOST_ROWS])
    return [Lead(f"Service {name}", reverse("job", args=[one])) for name, one in [*named][:SERVICES_NAMED]]


def _of_node(subject: str) -> list[Lead]:
    """Its newest incident, and itself: there it is drained."""
    cluster, _, name = subject.rpartition("/")
    node = Node.objects.filter(cluster__name=cluster, name=name, removed_at__isnull=True).first()
    if node is None:
        return []
    incident = Incident.objects.filter(node=node).order_by("-opened_at").values_list("public_id", flat=True).first()
    found = [Lead(f"Node {node.name}", reverse("node", args=[node.public_id]))]
    return [Lead("Incident", reverse("incident", args=[incident])), *found] if incident else found
