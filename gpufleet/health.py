"""What a load balancer asks: is this process able to answer from the database?"""

import shutil

import structlog
from django.conf import settings
from django.db import DatabaseError, InterfaceError, connection
from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_safe
from psycopg_pool import PoolTimeout

from gpufleet.core.faults import RETRY_SECONDS
from gpufleet.core.times import now
from scheduler.selectors.loop import scheduler_silent

log = structlog.get_logger(__name__)
# A balancer waits for two seconds; a connection for a page is waited for longer.
SECONDS = 1.5
LEAST_FREE_BYTES = 16 << 20


@require_safe
def healthz(request: HttpRequest) -> JsonResponse:
    try:
        silent = _silence()
    except (DatabaseError, InterfaceError, PoolTimeout):
        log.warning("healthz_without_database", exc_info=True)
        return _unavailable("The database does not answer.")
    if connection.vendor == "sqlite" and shutil.disk_usage(settings.DATA_DIR).free < LEAST_FREE_BYTES:
        return _unavailable("The disk of the data folder is full.")
    # Still 200: this process answers, and a balancer that took it away would help nobody.
    if silent:
        return JsonResponse({"status": "degraded", "findings": [f"The scheduler has not finished a tick for {silent} s."]})
    return JsonResponse({"status": "ok"})


def _silence() -> int:
    """How long the scheduler has been silent, from a database that gives a connection in time."""
    pool = getattr(connection, "pool", None)
    if pool is not None and connection.connection is None:
        pool.open()  # as Django does before it takes the first
        with pool.connection(timeout=SECONDS):
            pass
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        cursor.fetchone()
    return scheduler_silent(now()) or 0


def _unavailable(finding: str) -> JsonResponse:
    return JsonResponse({"status": "unavailable", "findings": [finding]}, status=503, headers={"Retry-After": str(RETRY_SECONDS)})
