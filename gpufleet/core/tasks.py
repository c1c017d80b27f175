"""Work of the ground floor that beat asks for."""

from celery import shared_task

from gpufleet.core.models import Progress
from gpufleet.core.times import now

HEARTBEAT_QUEUES = ("default", "scheduler")


def heartbeat_name(queue: str) -> str:
    return f"heartbeat {queue}"


@shared_task
def heartbeat(queue: str) -> None:
    """Beat asked and a worker of this queue has answered: what `gpufleet doctor` looks for."""
    Progress.objects.update_or_create(name=heartbeat_name(queue), defaults={"reached_at": now()})
