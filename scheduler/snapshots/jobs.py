"""Jobs as the engine's: what each asks for, and where it stands."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import orjson
from django.db.models import Exists, Max, OuterRef, Q

from gpufleet.core.bulk import moment_read
from gpufleet.core.prepared import Prepared, Question
from gpufleet.core.times import millis
from quotas.models import QuotaNode
from quotas.selectors.budgets import stopped_above, stops_now
from scheduler.engine.model.values import QUEUED, Job, Kind, Placed, Run, Topology
from scheduler.engine.model.values import Checkpoint as Saving
from scheduler.jobs.stored import IN_IMAGE, PREEMPTIBLE, roles_of
from scheduler.loop.policy import DEFAULT_GRACE_SECONDS
from scheduler.models import ENDED, HOLDING, Attempt, Checkpoint, Dependency, JobState, Placement, PromisedSeat, Wait, WaitKind
from scheduler.models import Job as JobRow
from scheduler.models import Promise as PromiseRow
from scheduler.scenarios.checkers import moment as moment_codec
from scheduler.scenarios.faults import Bad, Fault
from scheduler.scenarios.jobs import checkpoint_codec
from scheduler.scenarios.kinds import kind_codec
from scheduler.snapshots.fleet import RUNS_IMAGES, SHARES

# What the engine shares between jobs, and what says so in `Job.spec`.
SHARED = ("topology", "sharing", "node_labels", "needs", "tolerates_suspect", "preemption_delay_s", "grace_s", "throughput", "type_choice")
COLUMNS = (
    "id",
    "public_id",
    "quota_id",
    "job_class",
    "priority",
    "preemptible",
    "state",
    "revision",
    "submitted_at",
    "estimate_seconds",
    "limit_seconds",
    "deadline",
    "evictions",
    "last_evicted_at",
    "last_moved_at",
    "degraded_since",
    "set_aside_until",
)
ID, NAME, QUOTA, CLASS, PRIORITY, PREEMPT, STATE, REVISION, SUBMITTED = range(9)
ESTIMATE, LIMIT, DEADLINE, EVICTIONS, EVICTED, MOVED, DEGRADED, ASIDE = range(9, 17)
MOST_KEPT = 50_000
WAITING = (JobState.QUEUED, JobState.PREEMPTED)

Row = tuple[Any, ...]


def unmet_dependencies() -> Exists:
    """Whether a job still waits for another one. One that can never be met is ended by the timers."""
    unfinished = ~Q(on__state__in=ENDED) | Q(if_completed=True) & ~Q(on__state=JobState.COMPLETED)
    return Exists(Dependency.objects.filter(unfinished, job=OuterRef("pk")))


def due_filter(now: datetime) -> Q:
    """Waiting jobs that are demand: not held, due, not deferred, and free of others."""
    due = (Q(not_before__isnull=True) | Q(not_before__lte=now)) & (Q(retry_at__isnull=True) | Q(retry_at__lte=now))
    # A deferrable job that nobody has judged yet is no demand: the timers judge it in the same tick.
    undeferred = Q(deferred_to__lte=now) | Q(deferred_to__isnull=True) & (Q(defer__isnull=True) | Q(deferral__isnull=False))
    return Q(state__in=WAITING, held_at__isnull=True) & due & undeferred & ~Q(unmet_dependencies())


def barred_quotas() -> list[int]:
    """The nodes of the tree in which a budget that is used up lets nothing new start. Mostly there are none."""
    stops = stops_now()
    if not stops:
        return []
    return [key for key, path in QUOTAS() if stopped_above(path, stops) is not None]


# Most are read as the database's driver gives them: thousands of times that nobody looks at need not become Python's. `moment` reads them.
RUNNING = Prepared(lambda: JobRow.objects.filter(state__in=(*HOLDING, JobState.RESERVED)).order_by().values_list("id", "revision"))
DUE = Prepared(lambda now: JobRow.objects.filter(due_filter(now)).order_by().values_list("id", "revision"))
DUE_BUT = Prepared(lambda now, barred: JobRow.objects.filter(due_filter(now)).exclude(quota__among=barred).order_by().values_list("id", "revision"))
QUOTAS: Prepared[tuple[int, str]] = Prepared(lambda: QuotaNode.objects.order_by("id").values_list("id", "path"))
# Of jobs that wait: how long they were held, not due or behind other jobs; of one that still is, since when.
SET_ASIDE: Prepared[tuple[int, str, datetime, datetime, int]] = Prepared(
    lambda: (
        Wait.objects.filter(Q(aside_ms__gt=0) | Q(kind=WaitKind.ASIDE), job__state__in=(*WAITING, JobState.RESERVED, *HOLDING))
        .order_by()
        .values_list("job_id", "kind", "since", "job__state_since", "aside_ms")
    )
)
JOBS = Prepared(lambda keys: JobRow.objects.filter(pk__among=keys).order_by().values_list(*COLUMNS))
OPEN_ATTEMPTS = Prepared(
    lambda: (
        Attempt.objects.filter(ended_at__isnull=True)
        .order_by()
        .values_list("job_id", "started_at", "running_at", "stop_to", "stop_asked_at", "stop_until", "backfilled", "reclaimed_at")
    )
)
HELD = Prepared(
    lambda: (
        Placement.objects.filter(until__isnull=True)
        .order_by("id")
        .values_list("job_id", "role", "worker", "node_id", "gpu_id", "mig_id", "gpu_milli", "leaving_since")
    )
)
PROMISES = Prepared(lambda: PromiseRow.objects.order_by().values_list("job_id", "kind", "made_at", "until", "backfilled", "reclaimed_at"))
PROMISED_SEATS = Prepared(
    lambda: PromisedSeat.objects.order_by("id").values_list("promise__job_id", "role", "worker", "node_id", "gpu_id", "mig_id", "gpu_milli")
)
SAVED = Prepared(
    lambda: (
        Checkpoint.objects.filter(verified_at__isnull=False, removed_at__isnull=True, job__state__in=HOLDING)
        .order_by()
        .values("job")
        .annotate(last=Max("verified_at"))
        .values_list("job", "last")
    )
)


def jobs_asked(now: datetime) -> list[Question]:
    """The jobs that are to be planned, with their revisions: those that hold or are promised something, and those that are demand."""
    barred = barred_quotas()
    return [RUNNING.asking(), DUE_BUT.asking(now, barred) if barred else DUE.asking(now)]


def set_aside(now: datetime) -> dict[int, int]:
    """By job, for how many milliseconds of its wait no scheduler could have started it."""
    found = {}
    for key, kind, since, waits, past in SET_ASIDE():
        still = millis(now) - millis(max(since, waits)) if kind == WaitKind.ASIDE else 0
        found[key] = past + max(0, still)
    return found


def job_rows(seen: Sequence[tuple[int, int]], known: Mapping[int, Row]) -> tuple[dict[int, Row], list[Row]]:
    """The rows of these jobs, and those of them that are new. What is known at its revision is not read again: whoever changes a job raises it."""
    rows = {key: row for key, revision in seen if (row := known.get(key)) is not None and row[REVISION] == revision}
    fresh = JOBS.raw([key for key, _ in seen if key not in rows]) if len(rows) < len(seen) else []
    rows.update((row[ID], row) for row in fresh)
    return rows, fresh


Standing = tuple[dict[int, Row], dict[int, list[Row]], dict[int, Row], dict[int, list[Row]], dict[int, Any]]


def standing_asked() -> list[Question]:
    return [OPEN_ATTEMPTS.asking_raw(), HELD.asking_raw(), PROMISES.asking_raw(), PROMISED_SEATS.asking(), SAVED.asking_raw()]


def standing_of(attempts: list[Row], held: list[Row], promises: list[Row], seats: list[Row], saved: list[Row]) -> Standing:
    """By job: its open attempt, what it holds, what it is promised (and where), and its newest whole checkpoint."""
    holds: dict[int, list[Row]] = defaultdict(list)
    for row in held:
        holds[row[0]].append(row)
    promised: dict[int, list[Row]] = defaultdict(list)
    for seat in seats:
        promised[seat[0]].append((*seat, None))
    return {row[0]: row for row in attempts}, holds, {row[0]: row for row in promises}, promised, {row[0]: row[1] for row in saved}


def _kind_document(spec: Mapping[str, Any], job_class: str, priority: int, preemptible: str) -> dict[str, Any]:
    """What the engine shares between jobs, from a job's columns and its spec."""
    document: dict[str, Any] = {key: spec[key] for key in SHARED if spec.get(key) is not None}
    document |= {"class": job_class, "priority": priority, "preemptible": PREEMPTIBLE.get(preemptible, True)}
    document.setdefault("grace_s", DEFAULT_GRACE_SECONDS)
    if spec.get(IN_IMAGE):
        document["needs"] = {**document.get("needs", {}), RUNS_IMAGES: 1}
    document["roles"] = list(roles_of(spec))
    shared = any(role.get("gpu_share") or role.get("gpu_memory_gb") for role in document["roles"])
    if shared and (way := SHARES.get(document.get("sharing") or "mps")):
        document["needs"] = {**document.get("needs", {}), way: 1}
    return document


class Asks(NamedTuple):
    """What a job asks for, as the engine plans it, and how it saves its work. It is not moved where it says that it saves nothing."""

    kind: Kind
    saving: Saving | None
    movable: bool


class Kinds:
    """What jobs ask for: judged, and one value for all that ask for the same. Levels are part of what is judged: another topology begins anew."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._read_kind = kind_codec(topology.all_levels).read
        self._read_saving = checkpoint_codec(moment_codec(0)).read
        self._kinds: dict[bytes, Kind | str] = {}
        self._tenants: dict[tuple[Kind, str], Kind] = {}
        self._savings: dict[bytes, tuple[Saving | None, bool] | str] = {}
        self._kept: dict[tuple[str, str, int, str], Asks | str] = {}

    def kept(self, spec: str, job_class: str, priority: int, preemptible: str) -> Asks | str:
        """Of a job as its row keeps it, the spec as it is written there: what was read of such a row once is not read again."""
        key = spec, job_class, priority, preemptible
        known = self._kept.get(key)
        if known is None:
            if len(self._kept) >= MOST_KEPT:
                self._kept.clear()
            known = self._kept[key] = self.asks(json.loads(spec), job_class, priority, preemptible)
        return known

    def asks(self, spec: Mapping[str, Any], job_class: str, priority: int, preemptible: str) -> Asks | str:
        """Of a job, by its columns; or why the engine can't be shown it."""
        try:
            kind, saving = self.kind(_kind_document(spec, job_class, priority, preemptible)), self._saving(spec)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            return f"it can't be read: {error}"
        if isinstance(kind, str):
            return kind
        return saving if isinstance(saving, str) else Asks(kind, *saving)

    def as_tenant(self, kind: Kind, tenant: str) -> Kind:
        """The kind of a job that `Scenario.apart` speaks of."""
        key = kind, tenant
        if key not in self._tenants:
            self._tenants[key] = replace(kind, tenant=tenant)
        return self._tenants[key]

    def judge(self, spec: Mapping[str, Any], job_class: str, priority: int, preemptible: str) -> Kind | list[Fault]:
        """What a job that is submitted or changed asks for, or every fault by its path."""
        return self._judge(_kind_document(spec, job_class, priority, preemptible))

    def kind(self, document: Mapping[str, Any]) -> Kind | str:
        """The kind, or what is wrong with it."""
        key = orjson.dumps(document, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
        known = self._kinds.get(key)
        if known is None:
            made = self._judge(document)
            known = self._kinds[key] = made if isinstance(made, Kind) else "; ".join(map(str, made))
        return known

    def _judge(self, document: Mapping[str, Any]) -> Kind | list[Fault]:
        try:
            return self._read_kind(dict(document))
        except Bad as bad:
            return bad.faults()

    def _saving(self, spec: Mapping[str, Any]) -> tuple[Saving | None, bool] | str:
        """How it saves its work, and whether it may be moved."""
        if "checkpoint" not in spec:
            return None, True
        raw = spec["checkpoint"]
        if raw is None:
            return None, False
        key = orjson.dumps(raw, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
        known = self._savings.get(key)
        if known is None:
            try:
                known = (self._read_saving(raw), True)
            except Bad as bad:
                known = "; ".join(map(str, bad.faults("checkpoint")))
            self._savings[key] = known
        return known


class Unreadable(Exception):
    """A job that the engine can't be shown, and why."""


def workers_of(
    rows: Iterable[Row], kind: Kind, names: Mapping[int, str], places: Mapping[int, tuple[int, int]], slices: Mapping[int, Row]
) -> tuple[Placed, ...]:
    """Placements, a row a GPU, as workers."""
    roles = {role.name: place for place, role in enumerate(kind.roles)}
    grouped: dict[tuple[int, int, int], list[Row]] = defaultdict(list)
    for row in rows:
        if row[1] not in roles:
            raise Unreadable(f"it has a worker of a role {row[1]} that it does not state")
        grouped[roles[row[1]], row[2], row[3]].append(row)
    found = []
    for (role, index, node), group in grouped.items():
        if node not in names:
            raise Unreadable("it is on a node that is no longer in the fleet")
        found.append(_worker(group, kind, role, index, names[node], places, slices))
    found.sort(key=lambda worker: (worker.role, worker.index))
    if len({(worker.role, worker.index) for worker in found}) < len(found):
        raise Unreadable("one of its workers is on two nodes")
    return tuple(found)


def _worker(
    group: Sequence[Row], kind: Kind, role: int, index: int, node: str, places: Mapping[int, tuple[int, int]], slices: Mapping[int, Row]
) -> Placed:
    wanted = kind.roles[role]
    mask, parts = 0, []
    for _, _, _, _, gpu, mig, _, _ in group:
        if gpu is None:
            continue
        if gpu not in places or (mig is not None and mig not in slices):
            raise Unreadable("it holds a GPU that is no longer in the fleet")
        mask |= 1 << places[gpu][1]
        if mig is not None:
            parts.append((places[gpu][1], *slices[mig]))
    if index >= wanted.most or mask.bit_count() != (wanted.devices if wanted.parted else wanted.gpus) or (kind.sharing == "mig") != bool(parts):
        raise Unreadable("it holds other GPUs than it asks for")
    if parts:
        return Placed(role, index, node, mask, mig=tuple(sorted(parts)))
    return Placed(role, index, node, mask, share_milli=group[0][6] if wanted.parted else None)


def moment(value: Any) -> int | None:
    """A time of a row in milliseconds."""
    read = moment_read(value)
    return None if read is None else millis(read)


def run_of(
    row: Row,
    attempt: Row | None,
    held: tuple[Placed, ...],
    leaving: tuple[Placed, ...],
    promise: Row | None,
    promised: tuple[Placed, ...],
    start_timeout: timedelta,
) -> Run:
    """Where a job stands, in the engine's five states."""
    state = row[STATE]
    evicted, moved, evictions = moment(row[EVICTED]), moment(row[MOVED]), row[EVICTIONS]
    if state in WAITING:
        return QUEUED if evicted is None and moved is None and not evictions else Run(last_evicted=evicted, last_moved=moved, evictions=evictions)
    reclaimed = moment(promise[5]) if promise is not None else None
    if reclaimed is None and attempt is not None:
        reclaimed = moment(attempt[7])
    if promise is not None and (state == JobState.RESERVED or (attempt is not None and attempt[3])):
        # Promised its next place; what it still holds it is leaving.
        made, until = moment(promise[2]), moment(promise[3])
        return Run("reserved", made, made, until, promised, (*held, *leaving), bool(promise[4]), None, evicted, moved, evictions, reclaimed)
    if attempt is None:
        raise Unreadable("it holds GPUs without an open attempt")
    _, started_at, running_at, stop_to, stop_asked, stop_until, lent, _ = attempt
    backfilled = bool(lent)
    if stop_to:
        asked, until = moment(stop_asked), moment(stop_until)
        return Run("stopping", asked, moment(running_at), until, held, leaving, backfilled, None, evicted, moved, evictions, reclaimed)
    workers = tuple(sorted((*held, *promised), key=lambda worker: (worker.role, worker.index)))
    if running_at is None:
        started = moment(started_at) or 0
        until = started + start_timeout // timedelta(milliseconds=1)
        return Run("starting", started, started, until, workers, leaving, backfilled, None, evicted, moved, evictions, reclaimed)
    degraded, up = moment(row[DEGRADED]), moment(running_at)
    return Run("running", up, up, None, workers, leaving, backfilled, degraded, evicted, moved, evictions, reclaimed)


def job_of(row: Row, path: str, kind: Kind, saving: Saving | None, movable: bool, last: Any, run: Run, aside_ms: int = 0) -> Job:
    """`aside_ms`: for so much of its wait it was held, not due or behind other jobs."""
    checkpoint = saving
    if saving is not None and last is not None:
        checkpoint = Saving(saving.interval_ms, moment(last), saving.save_ms, saving.restore_ms)
    submitted = moment(row[SUBMITTED])
    assert submitted is not None
    return Job(
        name=row[NAME],
        quota=path,
        kind=kind,
        submitted=submitted,
        estimate_ms=None if row[ESTIMATE] is None else 1000 * row[ESTIMATE],
        limit_ms=None if row[LIMIT] is None else 1000 * row[LIMIT],
        deadline=moment(row[DEADLINE]),
        not_before=None,
        checkpoint=checkpoint,
        movable=movable,
        work_ms=None,
        run=run,
        waits_since=submitted + aside_ms if aside_ms else None,
    )
