"""Jobs as people and programs ask for them: the list, one job, and all that happened to it.

The one door to a job: outside the reader's subtrees there is none.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.db import DEFAULT_DB_ALIAS, connection
from django.db.models import Count, Exists, F, OuterRef, Prefetch, Q, QuerySet, Subquery, Sum
from django.http import Http404

from gpufleet.core.keyset import BadToken, Key, Slice, keyset_page
from gpufleet.core.models import User
from gpufleet.core.prepared import Prepared
from quotas.models import QuotaNode
from quotas.permissions import Access, Can, is_within
from quotas.selectors.nodes import leaves_where
from scheduler.models import (
    ENDED,
    HOLDING,
    WAITING,
    Attempt,
    Checkpoint,
    CheckpointShard,
    Dependency,
    Job,
    JobEvent,
    JobState,
    Outlook,
    Placement,
    PlannedJobChange,
    Promise,
    Wait,
)
from scheduler.selectors.discretion import Discretion

PHASES = {"waiting": WAITING, "holding": HOLDING, "ended": ENDED}
COUNTED = ("waiting", "holding")
EVENTS_SHOWN = 100
NODES_SHOWN = 3
WHOLE_MILLI = 1000
MOST_PLACES = 500
_QUOTA, _OWNER = Job._meta.get_field("quota"), Job._meta.get_field("owner")
# Of a phase: how many more there are nobody wants to know, and counting them would take as long as there are jobs.
MOST_COUNTED = 10_000


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
    gpus: tuple[int, ...] = ()  # keys of the whole GPUs that it holds, where they were asked for
    held_milli: int = 0  # of all that it holds


def phase_condition(phases: Sequence[str]) -> Q:
    return Q(state__in=[state for phase in phases for state in PHASES[phase]])


def jobs_listed(access: Access) -> QuerySet[Job]:
    """The jobs of the subtrees where the reader may see."""
    access.must_somewhere(Can.SEE)
    visible = Job.objects.filter(access.visible(Can.SEE, "quota__path"))
    # Names only, as thousands of jobs belong to a few people and quotas: `job_rows` gives each of these to all of its jobs.
    return visible.annotate(quota_named=F("quota__path"), owner_named=F("owner__username")).defer("spec", "launch", "parameters")


_later = Attempt.objects.filter(job=OuterRef("job"), number__gt=OuterRef("number"))
LAST_ATTEMPTS = Prepared[Attempt](lambda keys: Attempt.objects.filter(~Exists(_later), job__among=keys))
NODES: Prepared[tuple[int, str, str, int]] = Prepared(
    lambda keys: (
        Placement.objects.filter(job__among=keys, until__isnull=True)
        .order_by("job_id", "node__name", "node__public_id")
        .values_list("job_id", "node__public_id", "node__name")
        .annotate(milli=Sum("gpu_milli"))
    )
)
# The same by device, with whole GPUs by their keys: many more rows, for those who read what each GPU does.
SEATS: Prepared[tuple[int, str, str, int | None, int]] = Prepared(
    lambda keys: (
        Placement.objects.filter(job__among=keys, until__isnull=True)
        .order_by("job_id", "node__name", "node__public_id")
        .values_list("job_id", "node__public_id", "node__name", "gpu_id", "gpu_milli")
    )
)
# What the last plan said of each, what it was promised, and how many it waits for: in one question, as pages may ask few.
_OUTLOOK = [column.attname for column in Outlook._meta.concrete_fields]
_PROMISE = [column.attname for column in Promise._meta.concrete_fields]
_open = Dependency.objects.filter(job=OuterRef("pk")).exclude(on__state__in=ENDED).order_by().values("job").annotate(n=Count("pk")).values("n")
AHEAD: Prepared[tuple[Any, ...]] = Prepared(
    lambda keys: Job.objects.filter(pk__among=keys).values_list(
        "pk", *(f"outlook__{name}" for name in _OUTLOOK), *(f"promise__{name}" for name in _PROMISE), Subquery(_open)
    )
)


def _ahead(jobs: Sequence[Job]) -> dict[int, tuple[Outlook | None, Promise | None, int]]:
    found = {}
    for key, *values, unmet in AHEAD([job.pk for job in jobs if job.state not in ENDED]):
        outlook, promise = values[: len(_OUTLOOK)], values[len(_OUTLOOK) :]
        found[key] = (
            Outlook.from_db(DEFAULT_DB_ALIAS, _OUTLOOK, outlook) if outlook[0] is not None else None,
            Promise.from_db(DEFAULT_DB_ALIAS, _PROMISE, promise) if promise[0] is not None else None,
            unmet or 0,
        )
    return found


def _share_names(jobs: Sequence[Job]) -> None:
    """Give listed jobs of one quota or owner the same object of it, which knows its name."""
    quotas: dict[int, QuotaNode] = {}
    owners: dict[int, User] = {}
    for job in jobs:
        named = job.__dict__
        if "quota_named" not in named:
            continue  # it came by itself, with all of both
        if job.quota_id not in quotas:
            quotas[job.quota_id] = QuotaNode.from_db(DEFAULT_DB_ALIAS, ["id", "path"], [job.quota_id, named["quota_named"]])
        _QUOTA.set_cached_value(job, quotas[job.quota_id])
        if job.owner_id is not None:
            if job.owner_id not in owners:
                owners[job.owner_id] = User.from_db(DEFAULT_DB_ALIAS, ["id", "username"], [job.owner_id, named["owner_named"]])
            _OWNER.set_cached_value(job, owners[job.owner_id])


def job_rows(access: Access, jobs: Sequence[Job], *, with_gpus: bool = False) -> list[JobRow]:
    """Jobs with what lists show beside them, in at most five queries; asked for, with which GPUs each holds."""
    _share_names(jobs)
    last = {attempt.job_id: attempt for attempt in LAST_ATTEMPTS([job.pk for job in jobs])}
    nodes: dict[int, dict[str, str]] = {}
    gpus: dict[int, list[int]] = {}
    held: dict[int, int] = defaultdict(int)
    holding = [job.pk for job in jobs if job.state in HOLDING]
    if with_gpus:
        for key, public_id, name, gpu, milli in SEATS(holding):
            nodes.setdefault(key, {})[public_id] = name
            held[key] += milli
            if gpu is not None and milli >= WHOLE_MILLI:
                gpus.setdefault(key, []).append(gpu)
    else:
        for key, public_id, name, milli in NODES(holding):
            nodes.setdefault(key, {})[public_id] = name
            held[key] += milli
    ahead = _ahead(jobs)
    rows = []
    said: list[str] = []
    for job in jobs:
        outlook, promise, unmet = ahead.get(job.pk, (None, None, 0))
        attempt = last.get(job.pk)
        said += [str(outlook.reasons)] if outlook else []
        said += [promise.cause, *promise.after] if promise else []
        said += [attempt.cause, attempt.stop_cause] if attempt else []
        rows.append((job, outlook, promise, attempt, tuple(nodes.get(job.pk, {}).items()), unmet))
    discretion = Discretion(access, said)
    return [JobRow(*row, discretion, tuple(gpus.get(row[0].pk, ())), held[row[0].pk]) for row in rows]


def held_by(jobs: QuerySet[Job]) -> int:
    """The GPUs that jobs hold together, in thousandths."""
    held = Placement.objects.filter(until__isnull=True, job__in=jobs.order_by().values("pk")).aggregate(milli=Sum("gpu_milli"))
    return held["milli"] or 0


def job_for(access: Access, public_id: str) -> Job:
    """One job, if it lies where the reader may see."""
    access.must_somewhere(Can.SEE)
    visible = Job.objects.filter(access.visible(Can.SEE, "quota__path"), public_id=public_id)
    found = visible.select_related("quota", "owner", "wait").first()
    if found is None:
        raise Http404(f"There is no job {public_id}.")
    return found


def job_wait(job: Job) -> Wait | None:
    """What it waits for besides GPUs, or has; read along by `job_for`."""
    return getattr(job, "wait", None)


def jobs_named(access: Access, names: Sequence[str]) -> dict[str, Job]:
    """Jobs by their public ids, as far as the reader may see them: one query, with their quotas and owners."""
    readable = [name for name in names if name.isprintable() and len(name) <= 24]
    visible = Job.objects.filter(access.visible(Can.SEE, "quota__path"), public_id__among=readable)
    return {job.public_id: job for job in visible.select_related("quota", "owner").defer("labels", "launch")}


def may_steer(access: Access, job: Job) -> bool:
    """Whether the reader may cancel, hold or release a job: its owner who still may submit there, and who manages jobs there."""
    path = job.quota.path
    if access.can(Can.MANAGE_JOBS, path):
        return True
    return job.owner_id is not None and access.actor.user is not None and job.owner_id == access.actor.user.pk and access.can(Can.SUBMIT, path)


def must_steer(access: Access, job: Job) -> None:
    if not may_steer(access, job):
        own = access.actor.user is not None and job.owner_id == access.actor.user.pk
        wanted = (Can.MANAGE_JOBS, Can.SUBMIT) if own else (Can.MANAGE_JOBS,)
        raise access.refusal(*wanted, path=job.quota.path, otherwise="Only the owner and managers of the team's jobs can do this.")


def job_attempts(job: Job) -> list[Attempt]:
    """Every run of a job, the latest first."""
    return list(job.attempts.select_related("resumed_from").order_by("-number"))


def job_events(job: Job, limit: int = EVENTS_SHOWN) -> list[JobEvent]:
    """What happened to a job, the latest first."""
    return list(job.events.select_related("attempt").order_by("-at", "-id")[:limit])


def job_events_page(job: Job, *, size: int, after: str = "", since: datetime | None = None) -> Slice:
    """The same by pages, down to a moment."""
    events = job.events.select_related("attempt")
    try:
        return keyset_page(events.filter(at__gte=since) if since else events, order=[Key("at", descending=True)], size=size, after=after)
    except BadToken as fault:
        raise ValidationError({"after": [f"{fault}."]}) from fault


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
        return "complete" if self.checkpoint.verified_at else "partial"


def job_checkpoints(job: Job, limit: int = 20) -> list[SavedState]:
    """The newest checkpoints that are kept, with how many shards of each are there. Two queries."""
    shards = Prefetch("shards", CheckpointShard.objects.only("id", "checkpoint_id"))
    rows = job.checkpoints.filter(removed_at__isnull=True).select_related("attempt").prefetch_related(shards).order_by("-step", "-id")[:limit]
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


def job_held_by(job: Job) -> JobEvent | None:
    """The note of who holds it back, and why. No query for a job that nobody holds."""
    if job.held_at is None:
        return None
    return job.events.filter(at__gte=job.held_at, detail__held=True).order_by("-at", "-id").first()


def job_waited_for_by(access: Access, job: Job) -> list[Neighbour]:
    rows = job.dependents.select_related("job__quota").order_by("id")
    return [Neighbour(row.job, row.if_completed, access.can(Can.SEE, row.job.quota.path)) for row in rows]


def job_state_counts(access: Access) -> dict[str, int]:
    """How many jobs wait and how many hold something, up to one more than `MOST_COUNTED`, and how many changes of jobs are `planned`. Ended ones are
    not counted: there is no end of them."""
    visible = Job.objects.filter(access.visible(Can.SEE, "quota__path")).order_by().values("pk")
    counts: list[str] = []
    params: list[Any] = []
    plans = PlannedJobChange.objects.filter(planned_with(access)).order_by().values("pk")
    rows = {phase: visible.filter(state__in=PHASES[phase]) for phase in COUNTED} | {"planned": plans}
    for name, found in rows.items():
        sql, given = found[: MOST_COUNTED + 1].query.sql_with_params()
        counts.append(f"(SELECT COUNT(*) FROM ({sql}) AS {name})")  # noqa: S608 - made by the ORM
        params += given
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {', '.join(counts)}", params)
        return dict(zip(rows, cursor.fetchone(), strict=True))


def planned_with(access: Access, job: str = "", array: str = "") -> Q:
    """A filter for planned changes: of jobs that the reader may see, or that he planned; of one job or array, where it is named. A token for one
    subtree finds those for its jobs alone."""
    named = ({"job__public_id": job} if job else {}) | ({"job__array": array} if array else {})
    parts = PlannedJobChange.jobs.through.objects.filter(**named)
    found = Q(pk__in=parts.filter(access.visible(Can.SEE, "job__quota__path")).values("plannedjobchange_id"))
    if access.actor.user is None or access.within:
        return found
    own = Q(author=access.actor.user)
    return found | (own & Q(pk__in=parts.values("plannedjobchange_id")) if named else own)


def drafts_of(access: Access, limit: int = 8) -> list[Job]:
    """The reader's own drafts that he may submit, the newest first."""
    mine = Job.objects.filter(access.visible(Can.SUBMIT, "quota__path"), owner=access.actor.user, state=JobState.DRAFT)
    return list(mine.defer("spec", "launch").order_by("-id")[:limit])


def quota_last_used(access: Access, below: str) -> str:
    """Where somebody submitted last, as long as he still may; else the first team where he may. Only within the subtree `below`."""
    places = [path for path in leaves_where(access, Can.SUBMIT) if is_within(path, below)]
    mine = Job.objects.filter(owner=access.actor.user, quota__path__in=places[:MOST_PLACES]).order_by("-id").values_list("quota__path", flat=True)
    return mine.first() or (places[0] if places else "")
