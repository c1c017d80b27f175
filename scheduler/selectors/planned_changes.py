"""Planned changes of jobs: each is told as far as its reader may see its jobs."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Count, Prefetch, QuerySet
from django.http import Http404

from quotas.permissions import Access, Can
from scheduler.models import Job, PlannedJobChange
from scheduler.selectors.jobs import may_steer, planned_with

MOST_SHOWN = 100


@dataclass(frozen=True, slots=True)
class PlannedSeen:
    """A planned change with those of its jobs that the reader may see; `others` are the rest. `may_call_off`: at least for some of them."""

    plan: PlannedJobChange
    jobs: tuple[Job, ...]
    others: int
    may_call_off: bool


def plans_seen(access: Access, *, job: str = "") -> tuple[list[PlannedSeen], bool]:
    """Those that begin next first, and whether there are more; of one job, where it is named."""
    found = _seen(access, job).select_related("author").prefetch_related(_jobs(access))
    rows = list(found[: MOST_SHOWN + 1])
    # Not with the jobs that the reader sees, whose rows would be counted again for each.
    whole = PlannedJobChange.objects.filter(pk__among=[row.pk for row in rows]).annotate(count=Count("jobs")).order_by()
    counts = dict(whole.values_list("pk", "count")) if rows else {}
    return [_told(access, row, counts[row.pk]) for row in rows[:MOST_SHOWN]], len(rows) > MOST_SHOWN


def plan_for(access: Access, public_id: str) -> PlannedSeen:
    row = _seen(access).filter(public_id=public_id).select_related("author").prefetch_related(_jobs(access)).first()
    if row is None:
        raise Http404(f"There is no planned change {public_id} that you may see.")
    return _told(access, row, row.jobs.count())


def is_author(access: Access, plan: PlannedJobChange) -> bool:
    return access.actor.user is not None and plan.author_id == access.actor.user.pk


def _seen(access: Access, job: str = "") -> QuerySet[PlannedJobChange]:
    access.must_somewhere(Can.SEE)
    return PlannedJobChange.objects.filter(planned_with(access, job))


def _jobs(access: Access) -> "Prefetch[str, QuerySet[Job], str]":
    visible = Job.objects.filter(access.visible(Can.SEE, "quota__path")).select_related("quota").order_by("pk")
    return Prefetch("jobs", visible.only("public_id", "name", "state", "owner_id", "quota__path"), to_attr="seen_jobs")


def _told(access: Access, plan: PlannedJobChange, count: int) -> PlannedSeen:
    jobs: Sequence[Job] = plan.seen_jobs  # type: ignore[attr-defined]
    steers = is_author(access, plan) or any(may_steer(access, job) for job in jobs)
    can = access.can_somewhere(Can.SUBMIT) or access.can_somewhere(Can.MANAGE_JOBS)
    return PlannedSeen(plan, tuple(jobs), count - len(jobs), can and steers)
