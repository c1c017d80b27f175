"""What a load balancer asks: is this process able to answer from the database?"""

from django.db import connection
from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_safe

from gpufleet.core.times import now
from scheduler.selectors.loop import scheduler_silent


@require_safe
def healthz(request: HttpRequest) -> JsonResponse:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        cursor.fetchone()
    # Still 200: this process answers, and a balancer that took it away would help nobody.
    if silent := scheduler_silent(now()):
        return JsonResponse({"status": "degraded", "findings": [f"The scheduler has not finished a tick for {silent} s."]})
    return JsonResponse({"status": "ok"})
