"""What a job's workers wrote, as its back-end has it."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.http import Http404

from scheduler.backends.base import BackendError, NotFound, attempt_key
from scheduler.backends.registry import backend_for
from scheduler.models import Attempt, Cluster, Job, Placement

# Of one answer. A reader that wants more asks again from `next_offset`.
MOST_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Writer:
    """A worker that wrote, or may yet write."""

    role: str
    index: int


@dataclass(frozen=True, slots=True)
class Log:
    """A part of a worker's log. `note` says why there is no text where there should be some; `ended`: nothing will be added to it."""

    attempt: int
    role: str
    index: int
    text: str
    next_offset: int
    ended: bool
    note: str = ""


def job_writers(attempt: Attempt) -> list[Writer]:
    """The workers of an attempt, in order."""
    rows = Placement.objects.filter(attempt=attempt).order_by("role", "worker").values_list("role", "worker").distinct()
    return [Writer(role, index) for role, index in rows]


def job_log(job: Job, *, attempt: int | None, role: str, index: int, offset: int, limit: int) -> Log:
    """A part of what one worker of an attempt wrote; of the latest attempt and the first role where none is named."""
    run = _attempt(job, attempt)
    if run is None:
        if attempt is not None:
            raise Http404(f"{job.public_id} had no attempt {attempt}.")
        return Log(0, role, index, "", 0, job.ended_at is not None, "It has not been started yet.")
    role = role or _first_role(run)
    where = Cluster.objects.filter(nodes__placements__attempt=run).first()
    over = run.ended_at is not None
    start = max(offset, 0)
    if where is None:
        return Log(run.number, role, index, "", start, over, "It held nothing, so nothing was written.")
    try:
        part = backend_for(where).logs(
            key=attempt_key(job=job.public_id, attempt=run.number), role=role, index=index, offset=offset, limit=min(limit, MOST_BYTES)
        )
    except NotFound:
        return Log(run.number, role, index, "", start, over, "Nothing is kept of it any more." if over else "It has written nothing yet.")
    except BackendError as fault:
        return Log(run.number, role, index, "", start, over, f"The back-end of {where.name} does not give it: {fault}")
    # Whoever wrote can write no more once the attempt is over, and everything that was written has been read.
    return Log(run.number, role, index, part.text, part.next_offset, part.ended or (over and not part.text))


def _attempt(job: Job, number: int | None) -> Attempt | None:
    attempts = job.attempts.order_by("-number")
    return (attempts if number is None else attempts.filter(number=number)).first()


def _first_role(attempt: Attempt) -> str:
    writers: Sequence[Writer] = job_writers(attempt)[:1]
    return writers[0].role if writers else "worker"
