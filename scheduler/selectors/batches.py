"""What people did to many jobs at once. A batch is told to whoever took the action; everybody else has the audit log."""

from collections.abc import Mapping
from typing import Any

from django.http import Http404

from quotas.permissions import Access
from scheduler.models import JobBatch
from scheduler.selectors.jobs import jobs_named

NOT_THERE = "This job does not exist, or you cannot view its team."


def batch_for(access: Access, public_id: str) -> JobBatch:
    found = JobBatch.objects.filter(user=access.actor.user, public_id=public_id).first() if access.actor.user is not None else None
    if found is None:
        raise Http404(f"There is no batch {public_id} of yours.")
    return found


def batches_of_run(access: Access, run: str) -> list[JobBatch]:
    """The parts of one action on a whole, in their order; also one that was under way when it was stopped."""
    return list(JobBatch.objects.filter(user=access.actor.user, key__startswith=f"{run}:").order_by("pk")) if access.actor.user is not None else []


def verdicts_seen(access: Access, batch: JobBatch) -> list[Mapping[str, Any]]:
    """What became of each job, of those that the reader may see now: a token may be for less of the tree, and roles end."""
    seen = jobs_named(access, [verdict["id"] for verdict in batch.verdicts])
    blank = {"name": "", "state": "", "revision": None, "effect": "unknown", "detail": NOT_THERE}
    return [verdict if verdict["id"] in seen else verdict | blank for verdict in batch.verdicts]
