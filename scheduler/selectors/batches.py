"""What people did to many jobs at once. A batch is told to whoever took the action; everybody else has the audit log."""

from django.http import Http404

from quotas.permissions import Access
from scheduler.models import JobBatch


def batch_for(access: Access, public_id: str) -> JobBatch:
    found = JobBatch.objects.filter(user=access.actor.user, public_id=public_id).first() if access.actor.user is not None else None
    if found is None:
        raise Http404(f"There is no batch {public_id} of yours.")
    return found
