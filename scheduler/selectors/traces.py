"""Which traces there are."""

from django.db.models import QuerySet
from django.shortcuts import get_object_or_404

from quotas.models import QuotaNode
from quotas.permissions import Access, Can
from scheduler.models import Trace


def traces_listed(access: Access) -> QuerySet[Trace]:
    """Without their documents. Of a trace sums alone are shown, as of what-ifs."""
    access.must_somewhere(Can.SEE)
    return Trace.objects.defer("document", "fleet").select_related("created_by")


def trace_for(access: Access, public_id: str) -> Trace:
    return get_object_or_404(traces_listed(access), public_id=public_id)


def node_paths(access: Access) -> list[str]:
    """Quota nodes that queues of a trace can be replayed in, as far as the reader sees them."""
    paths = QuotaNode.objects.filter(archived_at__isnull=True).order_by("path").values_list("path", flat=True)
    return [path for path in paths if access.can(Can.SEE, path)]
