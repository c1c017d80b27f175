"""Events on the time axis of charts, each only to those who may see it elsewhere: health of nodes, the scheduler, changes of the quota tree."""

from collections.abc import Iterable
from datetime import datetime
from operator import attrgetter

from django.db.models import Exists, OuterRef, QuerySet

from gpufleet.core.charts import Mark
from gpufleet.core.models import AuditEntry
from quotas.models import QuotaNode
from quotas.permissions import Access, Can
from quotas.selectors.audit import audit_list
from scheduler.models import Gpu, InventoryEvent
from scheduler.presenters.hardware import event_told
from scheduler.selectors.nodes import node_events_since

MARKS = 20
QUOTA = {"quota.create": "Created", "quota.move": "Moved", "quota.archive": "Archived", "quota.restore": "Restored"}
SCHEDULER = {"scheduler.pause": "Scheduler paused", "scheduler.resume": "Scheduler resumed"}


def fleet_marks(access: Access, *, since: datetime, gpu_type: str = "") -> list[Mark]:
    """The latest changes of health of whole nodes, or of those with GPUs of one type, and pauses of the scheduler for readers of its audit."""
    events = node_events_since(since)
    if gpu_type:
        events = events.filter(Exists(Gpu.objects.filter(node=OuterRef("node"), gpu_type__name=gpu_type)))
    marks = node_marks(events)
    if access.can_everywhere(Can.SEE_AUDIT):
        steered = audit_list(access).filter(object_kind="scheduler", action__in=SCHEDULER, at__gte=since).order_by("-at", "-id")[:MARKS]
        marks += [Mark(one.at, _told(SCHEDULER[one.action], one)) for one in steered]
    return sorted(marks, key=attrgetter("at", "text"), reverse=True)[:MARKS]


def node_marks(events: QuerySet[InventoryEvent]) -> list[Mark]:
    """The latest of these events, each with the name of its node."""
    return [Mark(event.at, f"{event.node.name}: {event_told(event)}") for event in events[:MARKS] if event.node]


def hardware_marks(events: Iterable[InventoryEvent]) -> list[Mark]:
    """Events of one node or GPU, whose name the chart says already."""
    return [Mark(event.at, event_told(event)) for event in events]


def quota_marks(access: Access, node: QuotaNode, *, since: datetime) -> list[Mark]:
    """The latest changes of a node of the quota tree, for readers of its audit."""
    changes = audit_list(access).filter(object_kind="quota", object_id=node.public_id, at__gte=since).order_by("-at", "-id")[:MARKS]
    return [Mark(one.at, _told(QUOTA.get(one.action, "Changed"), one)) for one in changes]


def _told(what: str, entry: AuditEntry) -> str:
    return f"{what} by {entry.actor_name}{f': {entry.reason}' if entry.reason else ''}"
