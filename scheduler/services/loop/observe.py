"""Looks at what truly runs and writes down what has changed: runs that came up, ended, lost a worker or saved their work.

What runs wins over what was meant. It looks at news each time, and at everything at the start and twice a minute; then it also ends what nobody knows
of and finds out that a run is gone of which nobody told.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db import InterfaceError, OperationalError, transaction
from django.db.models import Exists, Max, OuterRef
from django.dispatch import Signal

from gpufleet.core.live.feed import feed_publish
from gpufleet.core.live.news import News
from gpufleet.core.prepared import Prepared
from gpufleet.core.spans import span
from gpufleet.core.times import Seconds
from quotas.services.ledger import LATE
from scheduler.backends.base import Backend, BackendError, BackendSilent, FolderSilent, RunState, SeenRun, SeenSteps, SeenWorker, attempt_key
from scheduler.backends.registry import Backends, Silence
from scheduler.loop.measures import CALL, CALL_FAULTS
from scheduler.models import Attempt, Checkpoint, Cluster, Gpu, GpuMode, JobState, MigInstance, Node, Order, OrderKind, Placement
from scheduler.services.hardware.refusing import nodes_refused
from scheduler.services.jobs.checkpoints import Told, checkpoints_tell, told_of
from scheduler.services.jobs.readiness import WorkerTold, workers_told
from scheduler.services.loop.holds import WHOLE_MILLI
from scheduler.services.loop.lease import Fenced, lease_want
from scheduler.services.loop.measuring import tally
from scheduler.services.loop.runs import WHOLE_SECONDS, Ended, attempts_ended, attempts_seen, workers_left, workers_lost, workers_up
from scheduler.services.loop.usage import silence_follow, usage_follow, usage_moment

log = logging.getLogger(__name__)

# A back-end that leaves out a run once may be mistaken. So long it has to be gone before its GPUs are given to others.
MISSING_FOR = timedelta(seconds=45)
# Sent with what files of all clusters say of step times: pairs of an attempt's key and `SeenSteps`. Whoever keeps them knows which are new.
steps_seen = Signal()
# So long a back-end may be silent before nothing new is placed on its cluster: a call may fail once.
SILENT_FOR = timedelta(seconds=10)
# Calls further apart than this are not one silence. Longer than a tick takes in which every call of all clusters runs into its time limit.
STALE_AFTER = timedelta(seconds=60)
STALE_AFTER_EACH = timedelta(seconds=20)
PROBED_EACH = timedelta(seconds=10)  # once nothing new is placed there
STRAY_SEQUENCE = 1 << 30
# Faults that say nothing of a back-end or a run: the database is away, or another scheduler leads by now.
OUR_OWN = (OperationalError, InterfaceError, Fenced)


class _Known(NamedTuple):
    """What is looked at of an attempt that a back-end tells of."""

    pk: int
    job_id: int
    sequence: int
    state: str  # of its job
    running_at: int | None  # in seconds since 1970
    is_over: bool
    is_short: bool  # of workers

    @property
    def is_running(self) -> bool:
        return self.running_at is not None


SEEN = ("job__public_id", "number", "pk", "job_id", "sequence", "job__state", Seconds("running_at"), "ended_at", "job__degraded_since")
ATTEMPTS: Prepared[tuple[Any, ...]] = Prepared(
    lambda jobs, numbers: Attempt.objects.filter(job__public_id__among=jobs, number__among=numbers).order_by().values_list(*SEEN)
)
REACHED: Prepared[tuple[int, int]] = Prepared(
    lambda attempts: (
        Checkpoint.objects.filter(attempt__among=attempts, verified_at__isnull=False)
        .order_by()
        .values("attempt")
        .annotate(step=Max("step"))
        .values_list("attempt", "step")
    )
)
# A row a worker: it may hold several GPUs.
WORKERS: Prepared[tuple[Any, ...]] = Prepared(
    lambda attempts, cluster: (
        Placement.objects.filter(attempt__among=attempts, until__isnull=True, node__cluster=cluster)
        .order_by()
        .distinct()
        .values_list("attempt_id", "role", "worker", "leaving_since", "joining")
    )
)
# Which GPUs each worker sits on, as it is written down.
SITTING: Prepared[tuple[int, str, int, int, int, int | None]] = Prepared(
    lambda attempts, cluster: (
        Placement.objects.filter(attempt__among=attempts, node__cluster=cluster, until__isnull=True, gpu__isnull=False)
        .order_by()
        .values_list("attempt_id", "role", "worker", "gpu__index", "gpu_id", "mig_id")
    )
)
# Read in each tick: another process may have led since the last one, and have written it.
TOLD_SILENT: Prepared[tuple[int, Any]] = Prepared(
    lambda: Cluster.objects.filter(silent_since__isnull=False).order_by().values_list("pk", "silent_since")
)
STARTS = Order.objects.filter(attempt=OuterRef("pk"), kind=OrderKind.START)
# Open attempts that a back-end was told to begin.
BEGUN: Prepared[tuple[int, str, int]] = Prepared(
    lambda cluster: Attempt.objects.filter(
        Exists(STARTS.filter(cluster=cluster, done_at__isnull=False)),
        ~Exists(STARTS.filter(cluster=cluster, done_at__isnull=True)),
        ended_at__isnull=True,
    ).values_list("pk", "job__public_id", "number")
)


@dataclass(slots=True)
class Observed:
    seen: int = 0
    came_up: int = 0
    ended: int = 0
    lost_workers: int = 0
    checkpoints: int = 0
    strays: int = 0
    silent: list[int] = field(default_factory=list)  # clusters whose back-end did not answer
    steps: dict[int, list[tuple[int, SeenSteps]]] = field(default_factory=dict)  # by cluster, each with its attempt

    @property
    def changed(self) -> bool:
        return bool(self.came_up or self.ended or self.lost_workers or self.strays)


def runs_observe(*, backends: Mapping[int, Backend], now: datetime, full: bool | None = None) -> Observed:
    """Ask every back-end and write down what it says. `full` None: everything where that is due, else only news."""
    found = Observed()
    news = News()
    answered: list[int] = []
    faults: dict[int, Exception] = {}
    told = dict(TOLD_SILENT()) if isinstance(backends, Backends) else {}
    unseen = backends.unseen if isinstance(backends, Backends) else {}
    for cluster, backend in backends.items():
        if cluster in told and not _probe_due(backends, cluster, now):
            found.silent.append(cluster)
            continue
        whole = full if full is not None else _full_look(backends, cluster, told, now)
        asked = "observe" if whole else "news"
        try:
            with tally.timing(CALL, cluster, asked), span(asked, cluster=cluster):
                if cluster in told:
                    backend.probe()
                seen = backend.observe(now=now) if whole else backend.news(now=now)
        except OUR_OWN:
            raise
        except Exception as fault:
            # What runs there goes on running; it is only not known how it does.
            log.warning("the back-end of cluster %s does not answer: %s", cluster, fault, exc_info=not isinstance(fault, BackendError))
            found.silent.append(cluster)
            faults[cluster] = fault
            tally.count(CALL_FAULTS, cluster, asked)
            continue
        if whole or seen:  # else it may not have been asked at all
            answered.append(cluster)
        if cluster in told:
            unseen |= dict.fromkeys(_begun(cluster), told[cluster])
        _take_in_each(found, backend, cluster, seen, now, news, unseen)
        if whole:
            missing = backends.missing if isinstance(backends, Backends) else None
            _miss(found, cluster, backend, {run.key for run in seen}, now, missing, news, unseen)
            if isinstance(backends, Backends):
                backends.looked(cluster, now)
    if isinstance(backends, Backends):
        _follow_silence(backends, told, faults, answered, now)
    news.publish()
    due = [cluster for cluster in found.steps if not isinstance(backends, Backends) or backends.steps_due(cluster, now)]
    if due:
        _tell_steps([one for cluster in due for one in found.steps[cluster]], now)
    return found


def _tell_steps(steps: Sequence[tuple[int, SeenSteps]], now: datetime) -> None:
    """Last, and whatever becomes of it: what a job writes into its folder does not keep runs of others from ending."""
    for receiver, fault in steps_seen.send_robust(SeenRun, told=steps, now=now):
        if isinstance(fault, Exception):
            log.error("step times that files tell cannot be taken in by %r", receiver, exc_info=fault)


def _full_look(backends: Mapping[int, Backend], cluster: int, told: Mapping[int, datetime], now: datetime) -> bool:
    """Also where a back-end was silent: that there is no news may mean that nothing was asked, so only a full look is an answer for certain."""
    if not isinstance(backends, Backends):
        return True
    return backends.full_look_due(cluster, now) or cluster in told or cluster in backends.silent


def _probe_due(backends: Mapping[int, Backend], cluster: int, now: datetime) -> bool:
    """Whether a back-end of which it is written down that it is silent is asked again. Each time may cost the other clusters a second."""
    last = backends.silent.get(cluster) if isinstance(backends, Backends) else None
    return last is None or abs(now - last.last) >= PROBED_EACH


def _follow_silence(
    backends: Backends, told: Mapping[int, datetime], silent: Mapping[int, Exception], answered: Sequence[int], now: datetime
) -> None:
    """A back-end that has not answered for a while gets nothing new; the next answer ends that. `told` are those of which that is written down,
    `silent` says of those that did not answer now why."""
    stale = max(STALE_AFTER, STALE_AFTER_EACH * len(backends))
    for cluster in answered:
        backends.silent.pop(cluster, None)
    for cluster, fault in silent.items():
        before = backends.silent.get(cluster)
        # Another process may have led since, and have had an answer: what is that long ago does not count.
        since = before.since if before is not None and now - before.last < stale else now
        hangs = str(fault) if isinstance(fault, BackendSilent) else ""
        backends.silent[cluster] = Silence(since, now, hangs, is_folder=isinstance(fault, FolderSilent))
    gone = {cluster for cluster in silent if now - backends.silent[cluster].since >= SILENT_FOR} - told.keys()
    back = told.keys() & set(answered)
    if not gone and not back:
        return
    with transaction.atomic():
        moment = usage_moment(now=now)
        for cluster in sorted(gone):  # one that has been removed since is missed by nobody
            Cluster.objects.filter(pk=cluster, removed_at__isnull=True).update(silent_since=backends.silent[cluster].since)
        Cluster.objects.filter(pk__in=back).update(silent_since=None)
        silence_follow(at=moment)
        # What was put off because of the silence is sent now.
        Order.objects.filter(cluster__in=back, done_at__isnull=True, tries__gt=0, due_at__gt=now).update(due_at=now)
        nodes = Node.objects.filter(cluster__in=gone | back, removed_at__isnull=True).order_by("pk").values_list("pk", flat=True)
        there = Placement.objects.filter(node__cluster__in=gone | back, until__isnull=True).order_by("job_id").values_list("job_id", flat=True)
        keys = {"nodes": nodes, "jobs": there.distinct(), "overview": [1]}
        feed_publish(changes={topic: [{"id": key} for key in rows] for topic, rows in keys.items()})
        lease_want()


def _take_in_each(
    found: Observed, backend: Backend, cluster: int, seen: Sequence[SeenRun], now: datetime, news: News, unseen: dict[str, datetime]
) -> None:
    """All together; should anything be wrong with one of them, each by itself, so that its fault concerns that run alone."""
    try:
        _take_in(found, backend, cluster, seen, now, news, unseen)
        return
    except OUR_OWN:
        raise
    except Exception as fault:
        if len(seen) == 1:
            log.exception("what the back-end of cluster %s says of %s cannot be taken in", cluster, seen[0].key)
            tally.count(CALL_FAULTS, cluster, "observe")
            return
        log.warning("what the back-end of cluster %s says cannot be taken in together: %r", cluster, fault)
    for run in seen:
        _take_in_each(found, backend, cluster, (run,), now, news, unseen)


def _take_in(
    found: Observed, backend: Backend, cluster: int, seen: Sequence[SeenRun], now: datetime, news: News, unseen: dict[str, datetime]
) -> None:
    attempts = _attempts(seen)
    known = [(run, attempt) for run in seen if (attempt := attempts.get(run.key)) is not None and not attempt.is_over]
    found.seen += len(seen)
    _tell_checkpoints(found, known, now, news)
    # Before the ends: a job that waits again is not to be placed on the same node in this very tick.
    nodes_refused(cluster=cluster, refusals=[refusal for run, _ in known for refusal in run.refusals], now=now)
    # Also one that has ended already: so short that nobody saw it run, or it ended while it was asked to leave.
    alive = (RunState.RUNNING, RunState.STOPPING)
    up: dict[int, datetime | None] = {
        attempt.pk: run.started_at for run, attempt in known if not attempt.is_running and run.started_at is not None and run.state in alive
    }
    up |= {
        attempt.pk: run.started_at
        for run, attempt in known
        if attempt.is_running and attempt.state == JobState.DEGRADED and not attempt.is_short and _is_whole(run)
    }
    ends = [
        Ended(
            attempt.pk,
            run.exit_code,
            run.why,
            run.node_lost,
            run.started_at,
            run.ended_at,
            limit_over=run.limit_over,
            waited_for=run.waited_for,
            end_is_told=run.end_is_told,
        )
        for run, attempt in known
        if run.state == RunState.ENDED
    ]
    anew = {attempt.pk: run.started_at for run, attempt in known if run.started_at is not None and _began_anew(run, attempt, now)}
    if up or ends or anew:
        since = {attempt.pk: unseen[run.key] for run, attempt in known if run.key in unseen}
        came_up, ended = attempts_seen(up=up | anew, ends=ends, anew=anew, unseen=since, now=now, news=news)
        found.came_up += came_up
        found.ended += ended
    for run, attempt in known:
        if run.state != RunState.STARTING or not attempt.is_running:  # one that was up and is starting may be one that its back-end has forgotten
            unseen.pop(run.key, None)
    here = [(run, attempt) for run, attempt in known if run.state != RunState.ENDED]
    _look_at_workers(found, here, cluster, now, news)
    _look_who_is_ready(here, now, news)
    if not backend.facts.pins_gpus:
        _adopt_gpus(here, cluster, now)
    if steps := [(attempt.pk, one) for run, attempt in known for one in run.steps]:
        found.steps.setdefault(cluster, []).extend(steps)
    _strays(found, backend, [run for run in seen if (known_as := attempts.get(run.key)) is None or known_as.is_over], now)
    done = [run.key for run in seen if run.state == RunState.ENDED]
    if done:
        # After the commit of their ends: whoever is killed in between is told once more.
        backend.forget(keys=done, now=now)


def _attempts(seen: Sequence[SeenRun]) -> dict[str, _Known]:
    """Attempts by key, for runs that the scheduler has ever begun."""
    wanted = {run.key for run in seen}
    jobs = {key.rpartition(".")[0] for key in wanted}
    numbers = {int(number) for key in wanted if (number := key.rpartition(".")[2]).isdigit()}
    found = {}
    for job, number, *known, running_at, ended_at, degraded_since in ATTEMPTS.raw(jobs, numbers):
        known += (running_at, ended_at is not None, degraded_since is not None)
        found[attempt_key(job=job, attempt=number)] = _Known(*known)
    return {key: row for key, row in found.items() if key in wanted}


def _tell_checkpoints(found: Observed, known: Sequence[tuple[SeenRun, _Known]], now: datetime, news: News) -> None:
    # A back-end tells the last few again and again; only what is further than what is known is written.
    reached = dict(REACHED([attempt.pk for run, attempt in known if run.checkpoints]))
    told: list[Told] = [told_of(attempt, one) for run, attempt in known for one in run.checkpoints if one.step > reached.get(attempt.pk, -1)]
    found.checkpoints += checkpoints_tell(told=told, now=now, news=news)


def _began_anew(run: SeenRun, attempt: _Known, now: datetime) -> bool:
    """A controller that forgot its last minute may start again what it had started. Behind what the ledger may still change nothing is taken back."""
    if not run.is_one_start or attempt.running_at is None or run.started_at is None or now - run.started_at > LATE:
        return False
    return run.started_at.timestamp() > attempt.running_at + WHOLE_SECONDS.total_seconds()


def _is_whole(run: SeenRun) -> bool:
    return run.state == RunState.RUNNING and all(worker.state == RunState.RUNNING for worker in run.workers)


def _look_at_workers(found: Observed, here: Sequence[tuple[SeenRun, _Known]], cluster: int, now: datetime, news: News) -> None:
    """Workers that should be there and are not: those that were asked to go have left, the others are lost."""
    held = _workers_held([attempt.pk for _, attempt in here], cluster)
    for run, attempt in here:
        alive = {(worker.seat.role, worker.seat.index) for worker in run.workers if worker.state != RunState.ENDED}
        # One that has done its part is not missed: what it holds is free with the others'.
        dead = {(worker.seat.role, worker.seat.index): worker for worker in run.workers if worker.state == RunState.ENDED and worker.exit_code != 0}
        staying, leaving, joining = held.get(attempt.pk, (set(), set(), set()))
        if left := sorted(leaving - alive):
            workers_left(attempt=attempt, workers=left, now=now, news=news)
        if run.sequence < attempt.sequence:
            continue  # it has not been told all yet, so whom it misses may be one that is about to be replaced
        # One that has done its part before anybody looked was up.
        up = {(one.seat.role, one.seat.index) for one in run.workers if one.state == RunState.RUNNING or one.exit_code == 0}
        if joined := sorted(joining & up):
            workers_up(attempt=attempt, workers=joined, now=now, news=news)
        if lost := sorted(staying & dead.keys()):
            nodes = ", ".join(sorted({dead[worker].seat.node for worker in lost}))
            found.lost_workers += workers_lost(
                attempt=attempt, workers=lost, now=now, cause=f"{_count(len(lost))} on {nodes} gone; the rest stays.", news=news
            )


def _look_who_is_ready(here: Sequence[tuple[SeenRun, _Known]], now: datetime, news: News) -> None:
    """Of runs that have no probe, and of which no worker was replaced, nothing is asked of the database."""
    told = [
        WorkerTold(
            attempt=attempt.pk,
            job=attempt.job_id,
            role=one.seat.role,
            worker=one.seat.index,
            up=one.state == RunState.RUNNING,
            began=one.began,
            ready=one.ready,
            since=one.ready_since,
            why=one.ready_why,
        )
        for run, attempt in here
        for one in run.workers
        if (one.ready is not None or one.began) and one.state != RunState.ENDED
    ]
    workers_told(told=told, now=now, news=news)


def _count(workers: int) -> str:
    return "1 worker" if workers == 1 else f"{workers} workers"


Workers = tuple[set[tuple[str, int]], set[tuple[str, int]], set[tuple[str, int]]]


def _workers_held(attempts: Sequence[int], cluster: int) -> dict[int, Workers]:
    """By attempt: the workers that stay, those that are leaving, and of those that stay those that joined and are not known to be up.

    A worker that moves inside its gang is told by its new place.
    """
    found: dict[int, Workers] = defaultdict(lambda: (set(), set(), set()))
    for attempt, role, worker, since, joining in WORKERS.raw(attempts, cluster):
        found[attempt][since is not None].add((role, worker))
        if joining and since is None:
            found[attempt][2].add((role, worker))
    return found


Place = tuple[int, int | None]  # a GPU, or an instance of it


class _Move(NamedTuple):
    """A seat, and the place that its worker uses instead."""

    seat: Placement
    to: Place


def _adopt_gpus(here: Sequence[tuple[SeenRun, _Known]], cluster: int, now: datetime) -> None:
    """A back-end that chooses the GPUs of a node itself has the last word on which they are. All of a look together: it may have swapped them."""
    written: dict[tuple[int, str, int], set[int]] = defaultdict(set)
    places: dict[tuple[int, str, int], set[Place]] = defaultdict(set)
    for key, role, index, number, gpu, mig in SITTING([attempt.pk for _, attempt in here], cluster):
        written[key, role, index].add(number)
        places[key, role, index].add((gpu, mig))
    told = _places_told(here, cluster)
    elsewhere = [(run, attempt.pk) for run, attempt in here if _sits_elsewhere(run, attempt, written, places, told)]
    if not elsewhere:
        return
    with transaction.atomic():
        moment = usage_moment(now=now)
        seats = _seats_of([attempt for _, attempt in elsewhere], cluster)
        moves: list[_Move] = []
        for run, attempt in elsewhere:
            for worker in run.workers:
                if worker.state != RunState.ENDED and worker.seat.gpus:
                    name = (attempt, worker.seat.role, worker.seat.index)
                    moves += _moves(seats.get((*name, worker.seat.node), []), told.get(name) if worker.parts else _gpus_named(worker, cluster))
        moves = _possible(moves)
        attempts = {move.seat.attempt_id for move in moves}
        gpus = [gpu for move in moves for gpu in (move.seat.gpu_id, move.to[0]) if gpu is not None]
        _take_seats(moves, moment)
        usage_follow(attempts=attempts, gpus=gpus, at=moment)


def _places_told(here: Sequence[tuple[SeenRun, _Known]], cluster: int) -> dict[tuple[int, str, int], list[Place]]:
    """What workers have whose back-end numbers the parts of a node: its third instance of a profile is the third by GPU and by place on it."""
    numbered = [(attempt.pk, worker) for run, attempt in here for worker in run.workers if worker.parts and worker.state != RunState.ENDED]
    if not numbered:
        return {}
    nodes = sorted({worker.seat.node for _, worker in numbered})
    there: dict[tuple[str, str], list[Place]] = defaultdict(list)
    gpus = Gpu.objects.filter(node__name__in=nodes, node__cluster=cluster, removed_at__isnull=True)
    for node, gpu in gpus.exclude(mode=GpuMode.MIG).order_by("index").values_list("node__name", "pk"):
        there[node, ""].append((gpu, None))
    instances = MigInstance.objects.filter(gpu__in=gpus, removed_at__isnull=True).order_by("gpu__index", "start")
    for node, profile, gpu, mig in instances.values_list("gpu__node__name", "profile", "gpu_id", "pk"):
        there[node, profile].append((gpu, mig))
    found = {}
    for attempt, worker in numbered:
        own = [there[worker.seat.node, profile][number] for profile, number in worker.parts if number < len(there[worker.seat.node, profile])]
        if len(own) == len(worker.parts):  # else the inventory has other parts than the back-end
            found[attempt, worker.seat.role, worker.seat.index] = own
    return found


def _gpus_named(worker: SeenWorker, cluster: int) -> list[Place]:
    seat = worker.seat
    gpus = Gpu.objects.filter(node__name=seat.node, node__cluster=cluster, index__in=seat.gpus, removed_at__isnull=True)
    return [(gpu, None) for gpu in gpus.order_by("index").values_list("pk", flat=True)]


def _seats_of(attempts: Sequence[int], cluster: int) -> dict[tuple[int, str, int, str], list[Placement]]:
    """Open seats by attempt, role, worker and node, in the order of their places."""
    rows = Placement.objects.select_for_update(of=("self",)).filter(attempt__in=attempts, node__cluster=cluster, until__isnull=True)
    found: dict[tuple[int, str, int, str], list[Placement]] = defaultdict(list)
    for row in rows.select_related("mig", "gpu", "node").order_by("pk"):
        found[row.attempt_id, row.role, row.worker, row.node.name].append(row)
    for group in found.values():
        group.sort(key=lambda row: (row.gpu.index if row.gpu else -1, row.mig.start if row.mig else -1))
    return found


def _moves(seats: Sequence[Placement], told: Sequence[Place] | None) -> list[_Move]:
    """Where the seats of a worker are that has these places."""
    if told is None or len(told) != len(seats):
        return []
    fresh = [place for place in told if place not in {(seat.gpu_id, seat.mig_id) for seat in seats}]
    profiles = dict(MigInstance.objects.filter(pk__in=[mig for _, mig in fresh if mig is not None]).values_list("pk", "profile"))
    found = []
    for seat in seats:
        if seat.gpu_id is None or (seat.gpu_id, seat.mig_id) in told:
            continue
        same = seat.mig.profile if seat.mig is not None else None
        place = next((one for one in fresh if profiles.get(one[1] or 0) == same), None)
        if place is not None:
            fresh.remove(place)
            found.append(_Move(seat, place))
    return found


def _possible(moves: list[_Move]) -> list[_Move]:
    """Those whose places nobody keeps: what a job is known to hold stays its own, and a seat that stays may keep another from moving."""
    rows = Placement.objects.filter(gpu__in={move.to[0] for move in moves}, until__isnull=True).order_by("pk") if moves else ()
    held = [(row.pk, row.gpu_id, row.mig_id, row.gpu_milli) for row in rows]
    while True:
        going = {move.seat.pk for move in moves}
        milli: Counter[int | None] = Counter()
        instances = set()
        for key, gpu, mig, share in held:
            if key not in going:
                milli[gpu] += share
                instances.add(mig)
        kept = []
        for move in moves:
            gpu, mig = move.to
            if mig in instances if mig is not None else milli[gpu] + move.seat.gpu_milli > WHOLE_MILLI:
                continue
            kept.append(move)
            milli[gpu] += move.seat.gpu_milli
            instances.add(mig)
        if len(kept) == len(moves):
            return moves
        moves = kept


def _sits_elsewhere(
    run: SeenRun,
    attempt: _Known,
    written: Mapping[tuple[int, str, int], set[int]],
    places: Mapping[tuple[int, str, int], set[Place]],
    told: Mapping[tuple[int, str, int], Sequence[Place]],
) -> bool:
    """Whether any worker uses other GPUs than those that are written down. Looked at first, as it hardly ever is so."""
    for worker in run.workers:
        key = attempt.pk, worker.seat.role, worker.seat.index
        if worker.state == RunState.ENDED or not worker.seat.gpus:
            continue
        if worker.parts:
            if key in told and set(told[key]) != places.get(key, set()):
                return True
        elif written.get(key, set()) != set(worker.seat.gpus):
            return True
    return False


def _take_seats(moves: Sequence[_Move], moment: datetime) -> None:
    """From now on they hold another GPU, or instance. That each held its own until now stays written, as nobody else could have it. All are closed
    before one is opened, since one may take the place of another."""
    Placement.objects.filter(pk__in=[move.seat.pk for move in moves]).update(until=moment)
    for seat, (gpu, mig) in moves:
        seat.pk, seat.gpu_id, seat.mig_id, seat.since = None, gpu, mig, moment
        seat.save(force_insert=True)


def _strays(found: Observed, backend: Backend, runs: Sequence[SeenRun], now: datetime) -> None:
    """Runs of attempts that are over or that nobody knows: ended, as nothing accounts for them."""
    for run in runs:
        if run.state == RunState.ENDED:
            continue
        try:
            backend.stop(key=run.key, sequence=max(STRAY_SEQUENCE, run.sequence + 1), force=True, now=now)
        except BackendError as fault:
            log.warning("the stray run %s could not be ended: %s", run.key, fault)
        else:
            log.warning("the stray run %s was ended", run.key)
            found.strays += 1


def _begun(cluster: int) -> dict[str, int]:
    """Attempts by the keys of their runs."""
    return {attempt_key(job=job, attempt=number): pk for pk, job, number in BEGUN.raw(cluster)}


def _miss(
    found: Observed,
    cluster: int,
    backend: Backend,
    seen: set[str],
    now: datetime,
    missing: dict[str, datetime] | None,
    news: News,
    unseen: dict[str, datetime],
) -> None:
    """Attempts that were begun and of which their back-end knows nothing, for long enough: they are lost, and kept away if they come back."""
    gone = {key: pk for key, pk in _begun(cluster).items() if key not in seen}
    if missing is not None:
        for key in [key for key in missing if key in seen]:
            del missing[key]
        gone = {key: pk for key, pk in gone.items() if now - missing.setdefault(key, now) >= MISSING_FOR}
    for key in gone:
        try:
            backend.stop(key=key, sequence=STRAY_SEQUENCE, force=True, now=now)
        except BackendError as fault:
            log.warning("the missing run %s could not be kept away: %s", key, fault)
    if gone:
        ends = [Ended(pk, None, "Its back-end knows nothing of it any more.", node_lost=True) for pk in gone.values()]
        found.ended += attempts_ended(ends=ends, unseen={gone[key]: unseen.pop(key) for key in gone.keys() & unseen}, now=now, news=news)
        if missing is not None:
            for key in gone:
                missing.pop(key, None)
