"""The state machine of a job (JOB-1): which state may follow which. Only `scheduler.services.jobs.jobs` changes states."""

from scheduler.models import HOLDING, JobState

FOLLOWING: dict[str, frozenset[JobState]] = {
    JobState.DRAFT: frozenset({JobState.QUEUED, JobState.CANCELLED}),
    JobState.QUEUED: frozenset({JobState.RESERVED, JobState.STARTING, JobState.CANCELLED, JobState.FAILED}),
    # A promise that is not taken up in time goes back to where the job waited.
    JobState.RESERVED: frozenset({JobState.STARTING, JobState.RESUMING, JobState.QUEUED, JobState.PREEMPTED, JobState.FAILED, JobState.CANCELLED}),
    JobState.STARTING: frozenset({JobState.RUNNING, JobState.CHECKPOINTING, JobState.QUEUED, JobState.FAILED, JobState.CANCELLED}),
    JobState.RUNNING: frozenset(
        {
            JobState.CHECKPOINTING,
            JobState.DEGRADED,
            JobState.PREEMPTED,
            JobState.QUEUED,
            JobState.COMPLETED,
            JobState.FAILED,
            JobState.CANCELLED,
        }
    ),
    # A job may also end, or be let off, while it saves its work.
    # One that moves has its next place promised already.
    JobState.CHECKPOINTING: frozenset(
        {
            JobState.PREEMPTED,
            JobState.RESERVED,
            JobState.RUNNING,
            JobState.QUEUED,
            JobState.COMPLETED,
            JobState.FAILED,
            JobState.CANCELLED,
        }
    ),
    JobState.PREEMPTED: frozenset({JobState.RESERVED, JobState.RESUMING, JobState.CANCELLED, JobState.FAILED}),
    JobState.RESUMING: frozenset(
        {JobState.RUNNING, JobState.CHECKPOINTING, JobState.PREEMPTED, JobState.QUEUED, JobState.FAILED, JobState.CANCELLED}
    ),
    # It lost a member: a replacement joins, it ends, or what is left goes too.
    JobState.DEGRADED: frozenset(
        {JobState.RUNNING, JobState.CHECKPOINTING, JobState.PREEMPTED, JobState.QUEUED, JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED}
    ),
    JobState.COMPLETED: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.CANCELLED: frozenset(),
}
FIRST = frozenset({JobState.DRAFT, JobState.QUEUED})

# How an attempt ended, by the state that its job went to.
OUTCOMES: dict[str, frozenset[str]] = {
    JobState.COMPLETED: frozenset({"completed"}),
    JobState.FAILED: frozenset({"failed", "lost"}),
    JobState.CANCELLED: frozenset({"cancelled"}),
    JobState.PREEMPTED: frozenset({"preempted", "lost"}),
    JobState.RESERVED: frozenset({"moved"}),
    JobState.QUEUED: frozenset({"lost", "failed", "preempted"}),
}


def may_become(state: str, to: str) -> bool:
    return to in FOLLOWING[state]


def takes_gpus(state: str, to: str) -> bool:
    """From waiting to holding: an attempt begins."""
    return state not in HOLDING and to in HOLDING


def gives_back(state: str, to: str) -> bool:
    """From holding to waiting or ended: the attempt is over."""
    return state in HOLDING and to not in HOLDING
