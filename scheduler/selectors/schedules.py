"""Schedules as people and programs ask for them. The one door to a schedule: outside the reader's subtrees there is none."""

from datetime import datetime
from itertools import islice
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404

from quotas.permissions import Access, Can
from scheduler.models import Job, Schedule, ScheduleRun
from scheduler.schedules.recurrence import NoTimes, Rhythm

TIMES_AHEAD = 5


def schedules_listed(access: Access) -> QuerySet[Schedule]:
    """Those of the subtrees where the reader may see."""
    access.must_somewhere(Can.SEE)
    return Schedule.objects.filter(access.visible(Can.SEE, "quota__path")).select_related("quota", "owner")


def schedule_for(access: Access, public_id: str) -> Schedule:
    found = schedules_listed(access).filter(public_id=public_id).first()
    if found is None:
        raise Http404(f"There is no schedule {public_id}.")
    return found


def schedule_of(access: Access, job: Job) -> Schedule | None:
    """That which submitted a job, as long as there is one."""
    return schedules_listed(access).filter(public_id=job.schedule).first() if job.schedule else None


def schedule_runs(schedule: Schedule) -> QuerySet[ScheduleRun]:
    return ScheduleRun.objects.filter(schedule=schedule)


def is_owner(access: Access, schedule: Schedule) -> bool:
    return access.actor.user is not None and schedule.owner_id == access.actor.user.pk


def may_steer_schedule(access: Access, schedule: Schedule) -> bool:
    """Whether the reader may pause, change, run or remove it: its owner who still may submit there, and who manages jobs there."""
    path = schedule.quota.path
    return access.can(Can.MANAGE_JOBS, path) or (is_owner(access, schedule) and access.can(Can.SUBMIT, path))


def must_steer_schedule(access: Access, schedule: Schedule) -> None:
    if not may_steer_schedule(access, schedule):
        raise PermissionDenied("Only the owner and managers of the team's jobs can do this.")


def times_ahead(schedule: Schedule, now: datetime) -> list[datetime]:
    """The next times at which it is due; none while it is paused."""
    if schedule.next_due is None or schedule.paused_at is not None:
        return []
    rhythm = Rhythm(schedule.cron, schedule.zone, schedule.ends_at)
    try:
        return [schedule.next_due, *islice(rhythm.following(schedule.next_due), TIMES_AHEAD - 1)]
    except NoTimes:
        return [schedule.next_due]


def description_told(access: Access, schedule: Schedule) -> dict[str, Any]:
    """The job as it is submitted. What it starts is only for those who may steer it."""
    steers = may_steer_schedule(access, schedule)
    told = {key: value for key, value in schedule.description.items() if steers or key != "launch"}
    return {"name": told.pop("name", schedule.name), "quota": schedule.quota.path, **told}
