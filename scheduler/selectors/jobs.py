"""Jobs as people and programs ask for them: the list, one job, and all that happened to it.

The one door to a job: outside the reader's subtrees there is none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.core.exceptions import PermissionDenied
from django.db.models import Count, Prefetch, Q, QuerySet
from django.http import Http404

from quotas.permissions import Access, Can, is_within
from quotas.selectors.nodes import leaves_where
from scheduler.models import ENDED, HOLDING, Attempt, Checkpoint, CheckpointShard, Dependency, Job, JobEvent, JobState, Outlook, Placement, Promise
from scheduler.selectors.discretion import Discretion

WAITING = (JobState.QUEUED, JobState.RESERVED, JobState.PREEMPTED)
PHASES = {"waiting": WAITING, "holding": HOLDING, "ended": ENDED}
EVENTS_SHOWN = 100
NODES_SHOWN = 3
MOST_PLACES = 500


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job as lists show it. `attempt` is its last; `nodes` are those where it holds something, each once, by name."""

    job: Job
    outlook: Outlook | None
    promise: Promise | None
    attempt: Attempt | None
    nodes: tuple[tuple[str, str], ...]  # public id, name
    unmet: int  # dependencies that have not ended
    discretion: Discretion


def phase_condition(phases: Sequence[str]) -> Q:
    return Q(state__in=[state for phase in phases for state in PHASES[phase]])


def jobs_listed(access: Access) -> QuerySet[Job]:
    """The jobs of the subtrees where the reader may see."""
    access.must_somewhere(Can.SEE)
    visible = Job.objects.filter(access.visible(Can.SEE, "quota__path"))
    return visible.select_related("quota", "owner", "outlook", "promise").defer("spec", "launch")


def job_rows(access: Access, jobs: Sequence[Job]) -> list[JobRow]:
    """Listed jobs with what lists show beside them, in at most five queries."""
    keys = [job.pk for job in jobs]
    last: dict[int, Attempt] = {}
    for attempt in Attempt.objects.filter(job__in=keys).order_by("job_id", "number"):
        last[attempt.job_id] = attempt
    nodes: dict[int, dict[str, str]] = {}
    held = Placement.objects.filter(job__in=keys, until__isnull=True).order_by("job_id", "node__name", "node_id")
    for key, public_id, name in held.values_list("job_id", "node__public_id", "node__name").distinct():
        nodes.setdefault(key, {})[public_id] = name
    unmet: dict[int, int] = {}
    for key in Dependency.objects.filter(job__in=keys).exclude(on__state__in=ENDED).values_list("job_id", flat=True):
        unmet[key] = unmet.get(key, 0) + 1
    said = [text for job in jobs for text in _sentences(job, last.get(job.pk))]
    discretion = Discretion(access, said)
    return [
        JobRow(
            job,
            getattr(job, "outlook", None),
            getattr(job, "promise", None),
            last.get(job.pk),
            tuple(nodes.get(job.pk, {}).items()),
            unmet.get(job.pk, 0),
            discretion,
        )
        for job in jobs
    ]


def _sentences(job: Job, attempt: Attempt | None) -> list[str]:
    outlook: Outlook | None = getattr(job, "outlook", None)
    promise: Promise | None = getattr(job, "promise", None)
    found = [str(outlook.reasons)] if outlook else []
    if promise:
        found += [promise.cause, *promise.after]
    return found + ([attempt.cause, attempt.stop_cause] if attempt else [])


def job_for(access: Access, public_id: str) -> Job:
    """One job, if it lies where the reader may see."""
    access.must_somewhere(Can.SEE)
    visible = Job.objects.filter(access.visible(Can.SEE, "quota__path"), public_id=public_id)
    found = visible.select_related("quota", "owner", "outlook", "promise").first()
    if found is None:
        raise Http404(f"There is no job {public_id}.")
    return found


def may_steer(access: Access, job: Job) -> bool:
    """Whether the reader may cancel, hold or release a job: its owner who still may submit there, and who manages jobs there."""
    path = job.quota.path
    if access.can(Can.MANAGE_JOBS, path):
        return True
    return job.owner_id is not None and access.actor.user is not None and job.owner_id == access.actor.user.pk and access.can(Can.SUBMIT, path)


def must_steer(access: Access, job: Job) -> None:
    if not may_steer(access, job):
        raise PermissionDenied("Only its owner and those who manage jobs of its team may do this.")


def job_attempts(job: Job) -> list[Attempt]:
    """Every run of a job, the latest first."""
    return list(job.attempts.select_related("resumed_from").order_by("-number"))


def job_events(job: Job, limit: int = EVENTS_SHOWN) -> list[JobEvent]:
    """What happened to a job, the latest first."""
    return list(job.events.select_related("attempt").order_by("-at", "-id")[:limit])


@dataclass(frozen=True, slots=True)
class Sitting:
    """One worker's part of one device."""

    role: str
    worker: int
    node_id: str
    node: str
    gpu_id: str
    index: int | None
    gpu_milli: int
    profile: str
    uuid: str
    since: datetime
    until: datetime | None
    leaving_since: datetime | None


def attempt_sittings(attempt: Attempt) -> list[Sitting]:
    """Where the workers of a run sit, or sat, by worker. What it gave back before it ended is told too, with its end."""
    return _sittings(Placement.objects.filter(attempt=attempt))


def _sittings(placements: QuerySet[Placement]) -> list[Sitting]:
    rows = placements.order_by("role", "worker", "node__name", "gpu__index", "id").values_list(
        "role",
        "worker",
        "node__public_id",
        "node__name",
        "gpu__public_id",
        "gpu__index",
        "gpu_milli",
        "mig__profile",
        "mig__uuid",
        "gpu__uuid",
        "since",
        "until",
        "leaving_since",
    )
    return [
        Sitting(role, worker, node_id, node, gpu_id or "", index, milli, profile or "", mig_uuid or uuid or "", since, until, leaving)
        for role, worker, node_id, node, gpu_id, index, milli, profile, mig_uuid, uuid, since, until, leaving in rows
    ]


@dataclass(frozen=True, slots=True)
class SavedState:
    checkpoint: Checkpoint
    shards: int

    @property
    def state(self) -> str:
        if self.checkpoint.removed_at:
            return "removed"
        return "complete" if self.checkpoint.verified_at else "partial"


def job_checkpoints(job: Job, limit: int = 20) -> list[SavedState]:
    """The newest checkpoints with how many shards of each are there. Two queries."""
    shards = Prefetch("shards", CheckpointShard.objects.only("id", "checkpoint_id"))
    rows = job.checkpoints.select_related("attempt").prefetch_related(shards).order_by("-step", "-id")[:limit]
    return [SavedState(checkpoint, len(checkpoint.shards.all())) for checkpoint in rows]


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A job that this one waits for, or that waits for this one. `named` is false where the reader may not know it."""

    job: Job
    if_completed: bool
    named: bool


def job_waits_for(access: Access, job: Job) -> list[Neighbour]:
    rows = job.dependencies.select_related("on__quota").order_by("id")
    return [Neighbour(row.on, row.if_completed, access.can(Can.SEE, row.on.quota.path)) for row in rows]


def job_waited_for_by(access: Access, job: Job) -> list[Neighbour]:
    rows = job.dependents.select_related("job__quota").order_by("id")
    return [Neighbour(row.job, row.if_completed, access.can(Can.SEE, row.job.quota.path)) for row in rows]


def job_state_counts(access: Access) -> dict[str, int]:
    """How many jobs wait and how many hold something. Ended ones are not counted: there is no end of them."""
    live = Job.objects.filter(access.visible(Can.SEE, "quota__path"), state__in=(*WAITING, *HOLDING))
    by_state = dict(live.order_by().values_list("state").annotate(Count("pk")))
    return {phase: sum(by_state.get(state, 0) for state in PHASES[phase]) for phase in ("waiting", "holding")}


def quota_last_used(access: Access, below: str) -> str:
    """Where somebody submitted last, as long as he still may; else the first team where he may. Only within the subtree `below`."""
    places = [path for path in leaves_where(access, Can.SUBMIT) if is_within(path, below)]
    mine = Job.objects.filter(owner=access.actor.user, quota__path__in=places[:MOST_PLACES]).order_by("-id").values_list("quota__path", flat=True)
    return mine.first() or (places[0] if places else "")
