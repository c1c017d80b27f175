"""What the scheduler did, as lines of the log: each step of a job and each plan, with the ids that a collector joins them by.

Lines are written after the commit, so the log never tells what did not happen. On a terminal they would bury everything else: there they are only
written with GPUFLEET_LOG_LEVEL=debug (`gpufleet.core.logs`).
"""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog
from django.db import transaction

from scheduler.models import Attempt, Job

NAME = "scheduler.story"
_plain = logging.getLogger(NAME)
log = structlog.stdlib.get_logger(NAME)


@dataclass(frozen=True, slots=True)
class Event:
    """A transition or a note in a job's life, as `JobEvent` keeps it."""

    job: Job
    attempt: Attempt | None
    at: datetime
    before: str
    after: str
    cause: str
    by: str
    detail: dict[str, Any]
    revision: int = 0  # the job's, after it
    told: str = ""  # what others are told of it, where its states alone don't say (`scheduler.notify.happenings`)

    @property
    def row(self) -> tuple[Any, ...]:
        attempt = self.attempt.pk if self.attempt is not None else None
        return self.job.pk, attempt, self.at, self.before, self.after, self.cause, self.by, self.detail


def steps_tell(*, events: Iterable[Event]) -> None:
    """A line for each event, once its transaction is committed. What surrounds it (the plan, the epoch, the request) is bound to the context."""
    if not _plain.isEnabledFor(logging.INFO):
        return
    bound = structlog.contextvars.get_contextvars()
    told = list(events)

    def write() -> None:
        with structlog.contextvars.bound_contextvars(**bound):
            for one in told:
                attempt = one.attempt.number if one.attempt is not None else None
                log.info("job_step", job=one.job.public_id, attempt=attempt, before=one.before, after=one.after, cause=one.cause, by=one.by)

    transaction.on_commit(write, robust=True)


@contextmanager
def within_tick(*, epoch: int) -> Iterator[None]:
    """Every line of a tick says under which epoch it was written, whatever module writes it."""
    with structlog.contextvars.bound_contextvars(epoch=epoch):
        yield


@contextmanager
def within_plan(plan: int | None) -> Iterator[None]:
    """Every line about what a plan brought about names the plan."""
    with structlog.contextvars.bound_contextvars(**({"plan": plan} if plan is not None else {})):
        yield


def plan_tell(*, plan: int | None, decided: int, dropped: int, waiting: int, phases: dict[str, int]) -> None:
    if decided or dropped:
        log.info("plan", plan=plan, decided=decided, dropped=dropped, waiting=waiting, **{f"{name}_ms": value for name, value in phases.items()})
