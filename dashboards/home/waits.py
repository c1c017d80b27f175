"""The jobs that wait longest, as Home lists them: why, until when, and what the reader may do about each."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from quotas.permissions import Access
from scheduler.jobs.stored import types_of
from scheduler.presenters.jobs import JobLine, job_lines
from scheduler.selectors.jobs import job_rows, may_steer
from scheduler.selectors.queue import jobs_waiting_longest

SHOWN = 8


@dataclass(frozen=True, slots=True)
class LongWait:
    """A job of the list."""

    row: JobLine
    since: datetime
    types: tuple[str, ...]  # none: any
    may_act: bool


@dataclass(frozen=True, slots=True)
class LongWaits:
    """The longest waits. `are_more`: further jobs wait."""

    rows: Sequence[LongWait]
    are_more: bool


def long_waits(access: Access, *, now: datetime) -> LongWaits:
    """Of the jobs that the reader may see. At most five queries."""
    jobs: list[Any] = list(jobs_waiting_longest(access, now=now)[: SHOWN + 1])
    lines = job_lines(job_rows(access, jobs[:SHOWN]), now)
    rows = [LongWait(line, job.waits_since, tuple(types_of(job.spec)), may_steer(access, job)) for job, line in zip(jobs, lines, strict=False)]
    return LongWaits(rows, len(jobs) > SHOWN)
