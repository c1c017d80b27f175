"""Planned changes of jobs: each is told as far as its reader may see its jobs."""

from dataclasses import dataclass
from typing import Any

from django.db.models import Count, Exists, OuterRef, Prefetch, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import Http404

from quotas.permissions import Access, Can
from scheduler.models import Job, PlannedJobChange
from scheduler.selectors.jobs import planned_with

PARTS = PlannedJobChange.jobs.through.objects.filter(plannedjobchange=OuterRef("pk")).order_by()
MOST_SHOWN = 100


@dataclass(frozen=True, slots=True)
class PlannedSeen:
    """A planned change with jobs of it that the reader may see: the first of as many as there are (`seen`). `others` are those that he may not see.
    `may_call_off`: at least for some of them; for the one that was asked about."""

    plan: PlannedJobChange
    jobs: tuple[Job, ...]
    seen: int
    others: int
    may_call_off: bool


def plans_seen(access: Access, *, job: str = "", array: str = "", shown: int | None = None) -> tuple[list[PlannedSeen], bool]:
    """Those that begin next first, and whether there are more; of one job or array, where it is named. With the first `shown` jobs of each, or
    all."""
    rows = list(_seen(access, job, shown, array)[: MOST_SHOWN + 1])
    return [_told(access, row) for row in rows[:MOST_SHOWN]], len(rows) > MOST_SHOWN


def plan_for(access: Access, public_id: str) -> PlannedSeen:
    row = _seen(access).filter(public_id=public_id).first()
    if row is None:
        raise Http404(f"There is no planned change {public_id} that you may see.")
    return _told(access, row)


def is_author(access: Access, plan: PlannedJobChange) -> bool:
    """Whether all of it is the caller's. With a token for one subtree only its jobs there are."""
    return not access.within and access.actor.user is not None and plan.author_id == access.actor.user.pk


def _seen(access: Access, job: str = "", shown: int | None = None, array: str = "") -> QuerySet[PlannedJobChange]:
    """With what is counted and may be called off, all in one query: a moment later it may have begun."""
    access.must_somewhere(Can.SEE)
    visible = PARTS.filter(access.visible(Can.SEE, "job__quota__path"))
    steered = visible.filter(_steered(access), **({"job__public_id": job} if job else {}))
    rows = PlannedJobChange.objects.filter(planned_with(access, job, array)).select_related("author")
    rows = rows.annotate(count=_count(PARTS), seen=_count(visible), steers=Exists(steered))
    return rows if shown == 0 else rows.prefetch_related(_jobs(access, shown))


def _count(parts: QuerySet[Any]) -> Coalesce:
    return Coalesce(Subquery(parts.values("plannedjobchange").annotate(count=Count("pk")).values("count")), 0)


def _steered(access: Access) -> Q:
    """As `may_steer` has it, for the jobs of planned changes."""
    own = Q(job__owner=access.actor.user) if access.actor.user is not None else Q(pk__in=[])
    return access.visible(Can.MANAGE_JOBS, "job__quota__path") | (own & access.visible(Can.SUBMIT, "job__quota__path"))


def _jobs(access: Access, shown: int | None) -> "Prefetch[str, QuerySet[Job], str]":
    visible = Job.objects.filter(access.visible(Can.SEE, "quota__path")).order_by("pk").only("public_id", "name")
    return Prefetch("jobs", visible[:shown], to_attr="seen_jobs")


def _told(access: Access, plan: PlannedJobChange) -> PlannedSeen:
    found: Any = plan  # with what the query adds
    can = access.can_somewhere(Can.SUBMIT) or access.can_somewhere(Can.MANAGE_JOBS)
    jobs = tuple(getattr(plan, "seen_jobs", ()))
    return PlannedSeen(plan, jobs, found.seen, found.count - found.seen, can and (found.steers or is_author(access, plan)))
