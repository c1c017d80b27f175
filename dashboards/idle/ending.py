"""Jobs that asked to be ended when their GPUs have been idle for so long (`launch.idle_end_s`): a notebook that was left open over night."""

import logging
from datetime import datetime, timedelta

from django.db import InterfaceError, OperationalError

from dashboards.idle.detection import believed, idleness, of_parts
from dashboards.idle.episodes import TURN, Holding, holdings_open, holds_of
from dashboards.signals import Window, activity_window
from gpufleet.core.audit import SYSTEM
from gpufleet.core.faults import Conflict
from scheduler.loop.measures import ROUND_FAULTS
from scheduler.models import Attempt, Job, JobState
from scheduler.services.jobs.jobs import job_stop
from scheduler.services.loop.measuring import tally

logger = logging.getLogger(__name__)

THRESHOLD_PERCENT = 5.0
MINUTE = timedelta(minutes=1)


def idle_ends(*, now: datetime) -> int:
    """End the jobs whose GPUs all were idle for as long as they said. A GPU without readings keeps its job. Returns how many were ended.

    One that cannot be ended keeps no other from it.
    """
    asked = {
        key: (job, minutes_of(launch["idle_end_s"]))
        for key, job, launch, running_at in Attempt.objects.filter(
            ended_at__isnull=True, stop_to="", running_at__isnull=False, job__state=JobState.RUNNING, job__launch__has_key="idle_end_s"
        ).values_list("pk", "job_id", "job__launch", "running_at")
        if running_at is not None and launch.get("idle_end_s") and running_at <= now - MINUTE * minutes_of(launch["idle_end_s"])
    }
    if not asked:
        return 0
    holdings, clusters = holdings_open()
    longest = max(minutes for _, minutes in asked.values())
    holds = holds_of(holdings, clusters, now)
    window, lying = believed(activity_window(minutes=longest, now=now), holds)
    window = of_parts(window, holds)
    ended = 0
    for key, (job, minutes) in sorted(asked.items()):
        one = holdings.get(key)
        if one is not None and not any(clusters[gpu] in lying for gpu in one.gpus) and _is_idle(one, window, minutes, now):
            ended += _end(job, minutes, now)
    return ended


def minutes_of(seconds: int) -> int:
    return -(-seconds // 60)


def _is_idle(one: Holding, window: Window, minutes: int, now: datetime) -> bool:
    part = window.last(minutes)
    rows = part.places(sorted(one.gpus))
    idle = idleness(part, threshold_percent=THRESHOLD_PERCENT)
    long_enough = all(since <= now - MINUTE * minutes for since in one.since.values())
    return long_enough and bool((rows >= 0).all()) and bool(idle.opens[rows].all())


def _end(key: int, minutes: int, now: datetime) -> bool:
    job = Job.objects.get(pk=key)
    try:
        job_stop(
            job=job,
            to=JobState.CANCELLED,
            outcome="cancelled",
            cause=f"Its GPUs were idle for {minutes} min, as long as it allows.",
            now=now,
            actor=SYSTEM,
        )
    except Conflict:
        return False  # it has ended, or is about to, by now
    except (InterfaceError, OperationalError):
        raise
    except Exception:
        logger.exception("%s could not be ended, though its GPUs are idle.", job.public_id)
        tally.count(ROUND_FAULTS, TURN)
        return False
    return True
