"""What of a job's life others are told: the kinds of happenings, and which step of the state machine is which."""

from enum import StrEnum

from scheduler.jobs.transitions import FOLLOWING
from scheduler.models.jobs import HOLDING, JobState

# Of the payload that receivers read; raised when something that they rely on goes or changes.
PAYLOAD_VERSION = 1


class Happened(StrEnum):
    SUBMITTED = "job.submitted"
    STARTED = "job.started"
    PREEMPTED = "job.preempted"
    REQUEUED = "job.requeued"
    MOVED = "job.moved"
    DEGRADED = "job.degraded"
    NEAR_LIMIT = "job.near_limit"
    COMPLETED = "job.completed"
    FAILED = "job.failed"
    CANCELLED = "job.cancelled"


# A delivery that somebody asked for, to see whether it arrives. No hook chooses it.
TEST = "test"
# What one person's own webhook is sent.
NOTICES = "notices"

LABELS: dict[str, str] = {
    Happened.SUBMITTED: "A job was submitted",
    Happened.STARTED: "It runs",
    Happened.PREEMPTED: "It lost its GPUs to others and waits to resume",
    Happened.REQUEUED: "Its run ended early and it waits again",
    Happened.MOVED: "It is moved to other GPUs",
    Happened.DEGRADED: "It lost workers and runs on",
    Happened.NEAR_LIMIT: "Its time limit is near",
    Happened.COMPLETED: "It completed",
    Happened.FAILED: "It failed",
    Happened.CANCELLED: "It was cancelled",
    TEST: "Test",
    NOTICES: "Notices",
}
_ENDS = {JobState.COMPLETED: Happened.COMPLETED, JobState.FAILED: Happened.FAILED, JobState.CANCELLED: Happened.CANCELLED}
_LEAVES = {JobState.PREEMPTED: Happened.PREEMPTED, JobState.QUEUED: Happened.REQUEUED, JobState.RESERVED: Happened.MOVED}


def _happened(before: str, after: JobState) -> Happened | None:
    if after in _ENDS:
        return _ENDS[after]
    if before in HOLDING and after in _LEAVES:
        return _LEAVES[after]
    if after == JobState.DEGRADED:
        return Happened.DEGRADED
    if after == JobState.RUNNING and before in (JobState.STARTING, JobState.RESUMING):
        return Happened.STARTED
    return Happened.SUBMITTED if after == JobState.QUEUED and before in ("", JobState.DRAFT) else None


# (before, after) of every step that is told. Looked at for each event of a tick, so it is made once.
TOLD: dict[tuple[str, str], Happened] = {
    (str(before), str(after)): kind
    for before, following in [("", (JobState.QUEUED,)), *FOLLOWING.items()]
    for after in following
    if (kind := _happened(before, after)) is not None
}
