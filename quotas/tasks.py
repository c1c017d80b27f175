"""What pages and the API ask of workers."""

from celery import shared_task

from gpufleet.core.times import now
from quotas.services.cost_exports import export_write


@shared_task
def cost_export_write(key: int) -> str | None:
    """Write a file of a month."""
    return export_write(key=key, clock=now)
