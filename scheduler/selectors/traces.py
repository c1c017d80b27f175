"""Which traces there are, and which of their queues a reader knows."""

import zlib
from collections.abc import Callable

from django.db.models import QuerySet
from django.shortcuts import get_object_or_404

from gpufleet.core.faults import Missing
from quotas.models import QuotaNode
from quotas.permissions import Access, Can, is_within
from scheduler.models import Trace, TraceState


def traces_listed(access: Access) -> QuerySet[Trace]:
    """Without their documents. Sums are shown to all, as of what-ifs; queues to those who may know them (`queues_seen`)."""
    access.must_somewhere(Can.SEE)
    return Trace.objects.defer("document", "fleet").select_related("created_by")


def trace_for(access: Access, public_id: str) -> Trace:
    return get_object_or_404(traces_listed(access), public_id=public_id)


def trace_ready(access: Access, public_id: str) -> Trace:
    """One that a what-if can replay. Raises Missing where a worker has yet to write it, or could not."""
    found = trace_for(access, public_id)
    if found.state != TraceState.DONE:
        raise Missing(f"{found.title} is not ready: its state is {found.outcome}.")
    return found


def trace_file(access: Access, public_id: str) -> bytes:
    """Its scenario. It names all queues and nodes of its fleet, so that readers of a part of this one are refused."""
    access.must_everywhere(Can.SEE)
    found = get_object_or_404(Trace, public_id=public_id)
    if found.state != TraceState.DONE:
        raise Missing(f"The file of {public_id} is not ready: its state is {found.outcome}.")
    return zlib.decompress(found.document)


def queues_seen(access: Access) -> Callable[[str], bool]:
    """Whether the reader may know a queue. Those of this fleet's own past are quota nodes, of another fleet all may."""
    if access.can_everywhere(Can.SEE):
        return lambda queue: True
    top = QuotaNode.objects.filter(parent=None).values_list("path", flat=True).first()
    return lambda queue: access.can(Can.SEE, queue) or top is None or not is_within(queue, top)


def node_paths(access: Access) -> list[str]:
    """Quota nodes that queues of a trace can be replayed in, as far as the reader sees them."""
    paths = QuotaNode.objects.filter(archived_at__isnull=True).order_by("path").values_list("path", flat=True)
    return [path for path in paths if access.can(Can.SEE, path)]
