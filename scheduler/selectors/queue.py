"""The part of the queue that a reader may see: his jobs at their true places, and how many of others stand between them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q, QuerySet
from django.db.models.functions import Coalesce, Greatest

from quotas.permissions import Access, Can, is_within
from scheduler.engine.tell.turns import Turn
from scheduler.models import Job, WaitKind
from scheduler.selectors.jobs import WAITING, JobRow, job_rows, jobs_listed


@dataclass(frozen=True, slots=True)
class Queued:
    """A job at its turn. `others`: how many jobs that are not shown stand between it and the one that is shown before it."""

    turn: Turn
    row: JobRow
    others: int


@dataclass(frozen=True, slots=True)
class QueuePart:
    """Some of those whom the reader may see, from a place on. `behind`: jobs of others behind the last of all."""

    items: tuple[Queued, ...]
    first: int
    visible: int
    behind: int

    @property
    def extent(self) -> str:
        """Which of them these are, counted as people count."""
        return f"{self.first + 1:,}–{self.first + len(self.items):,}"


def turns_visible(access: Access, turns: Sequence[Turn]) -> list[Turn]:
    """Of the subtrees where the reader may see."""
    access.must_somewhere(Can.SEE)
    paths = access.paths(Can.SEE)
    teams = {turn.job.quota for turn in turns}
    seen = {path for path in teams if any(is_within(path, mine) for mine in paths)}
    return [turn for turn in turns if turn.job.quota in seen]


def turns_matching(turns: Sequence[Turn], jobs: QuerySet[Job]) -> Sequence[Turn]:
    """Those of a query of jobs, in their order. One query."""
    found = set(jobs.order_by().filter(public_id__among=[turn.job.name for turn in turns]).values_list("public_id", flat=True))
    return [turn for turn in turns if turn.job.name in found]


def queue_part(access: Access, turns: Sequence[Turn], visible: Sequence[Turn], *, first: int, size: int) -> QueuePart:
    """So many of `visible` from a place on, in a number of queries that does not grow with them. Who has been deleted since is left out."""
    shown = visible[first : first + size]
    found = jobs_listed(access).filter(public_id__in=[turn.job.name for turn in shown])
    rows = {row.job.public_id: row for row in job_rows(access, list(found))}
    before = visible[first - 1].number if first else 0
    items = []
    for turn in shown:
        row = rows.get(turn.job.name)
        if row is None:
            continue
        items.append(Queued(turn, row, turn.number - before - 1))
        before = turn.number
    return QueuePart(tuple(items), first, len(visible), len(turns) - before if first + size >= len(visible) else 0)


def jobs_waiting_longest(access: Access, *, now: datetime) -> QuerySet[Job]:
    """Jobs that wait for GPUs or quota, the longest wait first, with `waits_since` and what they ask for.

    One that a person holds, that is not due, or that is behind other jobs waits for none of these. A job with a date waits since that date.
    """
    due = (Q(not_before__isnull=True) | Q(not_before__lte=now)) & (Q(deferred_to__isnull=True) | Q(deferred_to__lte=now))
    found = jobs_listed(access).filter(due, state__in=WAITING, held_at__isnull=True).exclude(wait__kind=WaitKind.ASIDE)
    since = Greatest("state_since", Coalesce("not_before", "state_since"), Coalesce("deferred_to", "state_since"))
    return found.annotate(waits_since=since).order_by("waits_since", "id").defer(None).defer("launch", "parameters")
