"""What beat asks of the whole program."""

from celery import shared_task

from gpufleet.core.times import now
from gpufleet.retention import retention_prune
from quotas.services.ledger import ledger_hour
from scheduler.services.loop.usage import timeline_review


@shared_task
def retention_prune_step() -> dict[str, int]:
    return retention_prune(now=now())


@shared_task
def ledger_hour_turn() -> int:
    return ledger_hour(now=now())


@shared_task
def timeline_review_step() -> int:
    return timeline_review(now=now())
