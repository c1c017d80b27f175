"""What beat asks of the dashboards."""

from celery import shared_task

from dashboards.telemetry.local import local_collect
from dashboards.telemetry.rollups import telemetry_rollup
from gpufleet.core.times import now


@shared_task
def telemetry_rollup_write() -> None:
    telemetry_rollup(now=now())


@shared_task
def telemetry_local_collect() -> None:
    local_collect(now=now())
