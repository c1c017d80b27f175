"""Events on the time axis of charts, each only to those who may see it elsewhere: health of nodes, the scheduler, changes of the quota tree.

The latest first, and one more than a chart tells, so that it can say that there are older ones.
"""

from datetime import datetime
from operator import attrgetter

from django.db.models import Exists, OuterRef, QuerySet

from gpufleet.core.charts import MOST_MARKS, Mark
from gpufleet.core.models import AuditEntry
from quotas.models import QuotaNode
from quotas.permissions import Access, Can
from quotas.selectors.audit import audit_list
from scheduler.models import Gpu, InventoryEvent
from scheduler.presenters.hardware import event_told, health_told
from scheduler.selectors.nodes import node_events_since

MARKS = MOST_MARKS + 1
QUOTA = {"quota.create": "Created", "quota.move": "Moved", "quota.archive": "Archived", "quota.restore": "Restored"}
SCHEDULER = {"scheduler.pause": "Scheduler paused", "scheduler.resume": "Scheduler resumed"}


def fleet_marks(access: Access, *, since: datetime, gpu_type: str = "") -> list[Mark]:
    """Changes of health of whole nodes, or of those with GPUs of one type, and pauses of the scheduler for readers of its audit."""
    events = node_events_since(since)
    if gpu_type:
        events = events.filter(Exists(Gpu.objects.filter(node=OuterRef("node"), gpu_type__name=gpu_type)))
    marks = node_marks(events)
    if access.can_everywhere(Can.SEE_AUDIT):
        steered = audit_list(access).filter(object_kind="scheduler", action__in=SCHEDULER, at__gte=since)
        marks += [Mark(one.at, _told(SCHEDULER[one.action], one)) for one in _latest(steered)]
    return sorted(marks, key=attrgetter("at", "text"), reverse=True)[:MARKS]


def node_marks(events: QuerySet[InventoryEvent]) -> list[Mark]:
    """These changes of health of whole nodes, each with the name of its node."""
    rows = events.values_list("at", "node__name", "before", "after")[:MARKS]  # no object a row: there may be a thousand
    return [Mark(at, f"{name}: {health_told('Node', before, after)}") for at, name, before, after in rows]


def hardware_marks(events: QuerySet[InventoryEvent]) -> list[Mark]:
    """Events of one node or GPU, whose name the chart says already."""
    return [Mark(event.at, event_told(event)) for event in events[:MARKS]]


def quota_marks(access: Access, node: QuotaNode, *, since: datetime) -> list[Mark]:
    """Changes of a node of the quota tree, for readers of its audit."""
    changes = audit_list(access).filter(object_kind="quota", object_id=node.public_id, at__gte=since)
    return [Mark(one.at, _told(QUOTA.get(one.action, "Changed"), one)) for one in _latest(changes)]


def _latest(entries: QuerySet[AuditEntry]) -> QuerySet[AuditEntry]:
    return entries.select_related(None).only("at", "action", "actor_name", "reason").order_by("-at", "-id")[:MARKS]


def _told(what: str, entry: AuditEntry) -> str:
    return f"{what} by {entry.actor_name}{f': {entry.reason}' if entry.reason else ''}"
