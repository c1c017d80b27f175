"""The last days under a drafted quota tree (QTA-7): what was submitted then is played with the tree as it is and as it would be, side by side.

Each of the two plays is a process of its own, so the scheduler's loop goes on undisturbed; both end when somebody cancels, and after so long.
"""

import json
import subprocess
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from queue import Empty, Queue
from typing import IO, Any

from django.db import IntegrityError, transaction
from django.db.models import Max, Q

from gpufleet.core.audit import SYSTEM, audit_record
from gpufleet.core.faults import Conflict
from gpufleet.core.live.feed import feed_publish
from gpufleet.core.times import MILLISECOND, millis
from quotas.drafts import Tree
from quotas.models import LedgerEntry, NodeKind, QuotaChange, QuotaNode
from quotas.permissions import Access, Can, Grant
from quotas.selectors.changes import change_standing
from scheduler.engine.model.values import Checkpoint, Kind, Scenario
from scheduler.engine.model.values import Job as EngineJob
from scheduler.loop.policy import policy, ruled
from scheduler.models import GOING_ON, Attempt, Dependency, Job, QuotaReplay, ReplayState
from scheduler.services.forecasts.previews import drafted_rows
from scheduler.services.forecasts.programs import program
from scheduler.simulation.calendar import Promised
from scheduler.simulation.futures import LENGTH_UNKNOWN
from scheduler.snapshots import Snapshots
from scheduler.snapshots.jobs import Kinds, unmet_dependencies
from scheduler.snapshots.spelling import Speller
from scheduler.snapshots.taking import Snapshot
from scheduler.snapshots.tree import TreeView, archived_nodes, inner_nodes, past_usage, policy_of, tree_view
from scheduler.snapshots.windows import windows_of_span

LENGTH = timedelta(days=7)
HOURS = LENGTH // timedelta(hours=1)
SECONDS = 24.0  # that the plays take at most; reading the past comes before
LAST_PLAN_SECONDS = 3.0  # until they are ended, where the plan that they are at takes longer
LOST_AFTER = timedelta(seconds=60)  # what has not gone on for so long was lost with its worker
SHORTEST = 60_000
MOST_NAMED = 500  # jobs in one question
PUT_OUT = ("preempted", "moved", "lost")  # outcomes of runs that others ended, or their node
NONE = (0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class TeamWeek:
    """A team's part of the days that were played, before and after: jobs that came, how many started, milliseconds waited, milli-GPU-milliseconds."""

    path: str
    jobs: int
    started: tuple[int, int]
    waited: tuple[int, int]
    held: tuple[int, int]

    @property
    def mean_wait_seconds(self) -> tuple[float, float]:
        return (self.waited[0] / self.jobs / 1000, self.waited[1] / self.jobs / 1000) if self.jobs else (0.0, 0.0)


# Asking


def replay_ask(*, access: Access, change: QuotaChange, now: datetime, begin: Callable[[int], Any]) -> QuotaReplay:
    """`begin` is given the key after the commit. One at a time of each change; the caller may see the change."""
    access.must_somewhere(Can.EDIT_QUOTA)
    if not change.is_open:
        raise Conflict(f"{change.public_id} is {change.get_state_display().lower()}: only an open change is previewed.")
    try:
        with transaction.atomic():
            _lost_ended(change, now)
            made = QuotaReplay.objects.create(change=change, change_revision=change.revision, asked_by=access.actor.user, asked_at=now, seen_at=now)
            audit_record(actor=access.actor, action="quota_change.replay", kind="quota_change", object_id=change.public_id)
            _tell(change)
            transaction.on_commit(lambda: begin(made.pk))
    except IntegrityError:
        raise Conflict(f"The last 7 days are being played for {change.public_id} already.") from None
    return made


def replay_cancel(*, access: Access, change: QuotaChange, now: datetime) -> bool:
    """Whether there was one to cancel. Its processes end within a second."""
    access.must_somewhere(Can.EDIT_QUOTA)
    with transaction.atomic():
        found = QuotaReplay.objects.filter(change=change, state__in=GOING_ON).update(state=ReplayState.CANCELLED, ended_at=now)
        if found:
            audit_record(actor=access.actor, action="quota_change.replay_cancel", kind="quota_change", object_id=change.public_id)
            _tell(change)
    return bool(found)


def replay_of(change: QuotaChange, now: datetime) -> QuotaReplay | None:
    """The newest of a change. What was lost with its worker is told as failed."""
    found = QuotaReplay.objects.filter(change=change).order_by("-id").first()
    if found is not None and found.goes_on and now - found.seen_at > LOST_AFTER:
        found.state, found.fault = ReplayState.FAILED, "It did not go on for a minute."
    return found


def _lost_ended(change: QuotaChange, now: datetime) -> None:
    lost = QuotaReplay.objects.filter(change=change, state__in=GOING_ON, seen_at__lt=now - LOST_AFTER)
    lost.update(state=ReplayState.FAILED, ended_at=now, fault="It did not go on for a minute.")


def _tell(change: QuotaChange) -> None:
    feed_publish(changes={"quota_replays": [{"id": change.pk}]})


def replay_teams(access: Access, replay: QuotaReplay) -> list[TeamWeek]:
    """By team where one is above, as far as the reader may see it; those whose wait changes most come first."""
    nodes = {key: (path, kind) for key, path, kind in QuotaNode.objects.values_list("pk", "path", "kind")}
    teams = {path for path, kind in nodes.values() if kind == NodeKind.TEAM}
    sums: dict[str, list[int]] = defaultdict(lambda: [0] * 7)
    for key, *figures in replay.rows:
        path = nodes[key][0] if key in nodes else ""
        steps = path.split("/")
        team = next((upper for depth in range(len(steps), 0, -1) if (upper := "/".join(steps[:depth])) in teams), path)
        if access.can(Can.SEE, path):
            sums[team] = [mine + theirs for mine, theirs in zip(sums[team], figures, strict=True)]
    found = [
        TeamWeek(path, jobs, (begun, begun_then), (waited, waited_then), (held, held_then))
        for path, (jobs, begun, begun_then, waited, waited_then, held, held_then) in sums.items()
    ]
    return sorted(found, key=lambda one: (-abs(one.waited[1] - one.waited[0]), one.path))


# The past


@dataclass(frozen=True, slots=True)
class Came:
    """A job of the last days: when it came, and how long it would run with its smallest gang, in milliseconds, the former from the beginning."""

    quota_id: int
    kind: Kind
    saving: Checkpoint | None
    movable: bool
    submitted: int
    work: int
    estimate_ms: int | None
    limit_ms: int | None
    name: str


COLUMNS = (
    "public_id",
    "spec",
    "job_class",
    "priority",
    "preemptible",
    "submitted_at",
    "not_before",
    "estimate_seconds",
    "limit_seconds",
    "ended_at",
    "held_at",
)


def jobs_came(kinds: Kinds, now: datetime, types: Collection[str], *, length: timedelta = LENGTH, left_out: Counter[str] | None = None) -> list[Came]:
    """What was submitted in the last days or was there when they began, as of when it was due and free of others.

    Jobs that left without having run or still wait for others are left out, as are drafts, and jobs of GPU types that there are no more. All but
    drafts are counted by reason.
    """
    left_out = Counter() if left_out is None else left_out
    begin = now - length
    ran: dict[int, list[tuple[datetime, datetime | None, str]]] = defaultdict(list)
    attempts = Attempt.objects.filter(Q(ended_at__isnull=True) | Q(ended_at__gt=begin))
    for job, started, running, ended, outcome in attempts.order_by("id").values_list("job_id", "started_at", "running_at", "ended_at", "outcome"):
        ran[job].append((running or started, ended, outcome))
    others = Dependency.objects.filter(on__ended_at__gt=begin).values("job").annotate(last=Max("on__ended_at")).values_list("job", "last")
    free_at = dict(others.order_by())
    rows = Job.objects.filter(Q(ended_at__isnull=True) | Q(ended_at__gt=begin), submitted_at__isnull=False, submitted_at__lte=now)
    rows = rows.annotate(for_others=unmet_dependencies())
    read = []
    for key, quota, name, spec, *facts in rows.order_by("submitted_at", "id").values_list("id", "quota_id", *COLUMNS, "for_others"):
        *asked, at, not_before, estimate, limit, ended, on_hold, for_others = facts
        mine = ran.get(key, [])
        if not mine and (ended is not None or on_hold is not None or for_others):
            left_out["ended without having run" if ended is not None else "held, or waits for other jobs"] += 1
            continue
        asks = kinds.asks(spec, *asked)
        if isinstance(asks, str):
            left_out["cannot be read any more"] += 1
            continue
        if any(role.gpu_types and not any(one in types for one in role.gpu_types) for role in asks.kind.roles):
            left_out["asks for GPU types that the fleet no longer has"] += 1
            continue
        due = max(moment for moment in (at, not_before, free_at.get(key)) if moment is not None)
        read.append((name, quota, asks, mine, due, estimate, limit, ended is not None))
    uneven = [name for name, _, asks, mine, *_ in read if mine and (asks.kind.elastic or asks.kind.throughput)]
    held = _held_since(uneven, begin, now)
    found = []
    for name, quota, asks, mine, due, estimate, limit, is_over in read:
        ran_for = sum(_overlap(since, until, begin, now) for since, until, _ in mine)
        if asks.saving is None:  # what was lost is not what it takes
            mine = [one for one in mine if one[2] not in PUT_OUT]
        work = sum(_overlap(since, until, begin, now) for since, until, _ in mine)
        did = _at_least(asks.kind, held[name]) if name in held else None
        if did is not None and ran_for:
            work = did * work // ran_for  # the ledger knows what was held in all of its runs
        if not is_over:  # what it states is left of it
            stated = 1000 * (estimate or limit or LENGTH_UNKNOWN // 1000)
            work += max(SHORTEST, stated - sum(max(0, ((until or now) - since) // MILLISECOND) for since, until, _ in mine))
        after = max(0, (due - begin) // MILLISECOND)
        found.append(Came(quota, *asks, after, max(1000, work), estimate and 1000 * estimate, limit and 1000 * limit, name))
    return found


def _overlap(since: datetime, until: datetime | None, begin: datetime, now: datetime) -> int:
    return max(0, (min(until or now, now) - max(since, begin)) // MILLISECOND)


def _held_since(jobs: Sequence[str], begin: datetime, now: datetime) -> dict[str, dict[str, int]]:
    """By job and GPU type: milli-GPU times milliseconds of the last days, by the ledger."""
    found: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for first in range(0, len(jobs), MOST_NAMED):
        entries = LedgerEntry.objects.filter(Q(until__isnull=True) | Q(until__gt=begin), job__in=jobs[first : first + MOST_NAMED])
        for job, gpu_type, milli, since, until in entries.values_list("job", "gpu_type", "gpu_milli", "since", "until"):
            found[job][gpu_type] += milli * _overlap(since, until, begin, now)
    return found


def _at_least(kind: Kind, held: Mapping[str, int]) -> int | None:
    """How long its smallest gang would have taken at speed 1.0 for what it held; nothing where that is not known."""
    milli = sum(role.least * (role.share_milli or 1000) * (role.devices if role.parted else role.gpus) for role in kind.roles)
    if not held or not milli or any(role.mig is not None or role.memory_mib is not None for role in kind.roles):
        return None
    return sum(amount * kind.speed(gpu_type) // 1_000_000 for gpu_type, amount in held.items()) // milli


def scenario_text(scenario: Scenario, came: Sequence[Came], paths: Mapping[int, str], calendar: Sequence[Promised]) -> bytes:
    """What a play reads: a scenario of specimens in one line, jobs that come in the next, and windows in the last."""
    specimens: dict[tuple[int, int, bool], int] = {}
    jobs: list[EngineJob] = []
    rows: list[list[int | str | None]] = []
    for one in came:
        if one.quota_id not in paths:
            continue
        place = specimens.setdefault((id(one.kind), id(one.saving), one.movable), len(specimens))
        if place == len(jobs):
            named = {"name": f"{place:09d}", "quota": paths[one.quota_id], "submitted": scenario.now}
            jobs.append(EngineJob(**named, kind=one.kind, checkpoint=one.saving, movable=one.movable))  # type: ignore[arg-type]
        rows.append([place, scenario.now + one.submitted, one.work, one.estimate_ms, one.limit_ms, paths[one.quota_id]])
    lines = [Speller().spell(replace(scenario, jobs=tuple(jobs))), *(json.dumps(part, separators=(",", ":")).encode() for part in (rows, calendar))]
    return b"".join(line + b"\n" for line in lines)


def scenarios(snapshot: Snapshot, after: Tree, came: Sequence[Came], now: datetime) -> list[tuple[bytes, dict[str, int]]]:
    """With the tree as it is and as it would be: what a play reads, and the node of each of its quotas."""
    found = []
    for rows in (snapshot.tree.rows, drafted_rows(snapshot, after, now)):
        scenario, tree, calendar = begun(snapshot, rows, {one.quota_id for one in came}, now - LENGTH, now)
        found.append((scenario_text(scenario, came, tree.paths, calendar), {path: key for key, path in tree.paths.items()}))
    return found


def begun(
    snapshot: Snapshot, rows: tuple[Any, ...], with_jobs: AbstractSet[int], begin: datetime, now: datetime
) -> tuple[Scenario, TreeView, list[Promised]]:
    """The fleet of today as of a moment of the past, without jobs, under a tree of such rows; and the windows that it had since."""
    settings = ruled(replace(policy().engine, forecast="none"), policy_of(rows))
    past = past_usage(begin, settings.fairness, None)
    tree = tree_view(rows, inner_nodes(rows) & with_jobs, archived_nodes(rows) & with_jobs, past)
    named = {quota.name for quota in tree.quotas}
    calendar = windows_of_span(
        begin,
        now + timedelta(milliseconds=settings.window_horizon_ms),
        paths={row[0]: row[2] for row in rows[0] if row[2] in named},
        types=snapshot.fleet.capacity_milli.keys(),
        levels=snapshot.fleet.topology.all_levels,
    )
    # What was split anew within the last hour was not by then.
    nodes = tuple(replace(node, repartitioned=()) if node.repartitioned else node for node in snapshot.scenario.nodes)
    scenario = replace(snapshot.scenario, now=millis(begin), settings=settings, nodes=nodes, quotas=tree.quotas, windows=(), jobs=())
    return scenario, tree, calendar


# Playing


def replay_run(*, key: int, clock: Callable[[], datetime]) -> str | None:
    """Play what was asked for; a doubled call finds that it is taken. Returns the state in which it ended."""
    if not QuotaReplay.objects.filter(pk=key, state=ReplayState.WAITING).update(state=ReplayState.PLAYING, seen_at=clock()):
        return None
    replay = QuotaReplay.objects.select_related("change", "asked_by").get(pk=key)
    try:
        return _run(replay, clock)
    except Exception as fault:
        _end(replay, ReplayState.FAILED, clock(), fault=f"{type(fault).__name__}: {fault}"[:300])
        raise


def _run(replay: QuotaReplay, clock: Callable[[], datetime]) -> str:
    at = clock()
    chosen = policy()
    standing = change_standing(_everything(), replay.change)
    if standing.faults:
        return _end(replay, ReplayState.FAILED, at, fault="The change no longer fits the tree.")
    snapshots = Snapshots()
    snapshot = snapshots.take(settings=chosen.engine, now=at, start_timeout=chosen.start_timeout)
    parts = scenarios(snapshot, standing.after, jobs_came(Kinds(snapshot.fleet.topology), at, snapshot.fleet.capacity_milli.keys()), at)
    with ExitStack() as stack:
        plays = [stack.enter_context(Play(text)) for text, _ in parts]
        hours: list[int] = [0, 0]
        tables: list[dict[int, dict[str, list[int]]]] = [{}, {}]
        told = 0
        latest = time.monotonic() + SECONDS + LAST_PLAN_SECONDS
        while any(play.is_on for play in plays) and time.monotonic() < latest:
            for number, play in enumerate(plays):
                for message in play.messages():
                    hours[number] = message["hour"]
                    if "table" in message:
                        tables[number][message["hour"]] = message["table"]
            if min(hours) > told or clock() - replay.seen_at >= timedelta(seconds=5):
                told = min(hours)
                if not _going_on(replay, told, clock()):
                    return ReplayState.CANCELLED
        codes = [play.code for play in plays if not play.is_on]
    if any(codes):
        return _end(replay, ReplayState.FAILED, clock(), fault=f"A play ended with status {next(filter(None, codes))}.")
    common = max(set(tables[0]) & set(tables[1]), default=0)
    if not common:
        return _end(replay, ReplayState.FAILED, clock(), fault=f"Less than 6 hours were played in {SECONDS:.0f} s.")
    rows = _rows(*({names[path]: row for path, row in table[common].items()} for table, (_, names) in zip(tables, parts, strict=True)))
    return _end(replay, ReplayState.DONE, clock(), hours=common, rows=rows)


def _everything() -> Access:
    """The play reads the whole tree; who looks at it sees his part."""
    return Access(SYSTEM, (Grant("", frozenset(Can)),))


def _rows(before: Mapping[int, Sequence[int]], after: Mapping[int, Sequence[int]]) -> list[list[int]]:
    found = []
    for key in sorted({*before, *after}):
        (came, begun, waited, held), (came_then, begun_then, waited_then, held_then) = before.get(key, NONE), after.get(key, NONE)
        found.append([key, max(came, came_then), begun, begun_then, waited, waited_then, held, held_then])
    return found


def _going_on(replay: QuotaReplay, hours: int, now: datetime) -> bool:
    with transaction.atomic():
        mine = QuotaReplay.objects.filter(pk=replay.pk, state=ReplayState.PLAYING).update(hours=hours, seen_at=now)
        _tell(replay.change)
    replay.seen_at = now
    return bool(mine)


def _end(replay: QuotaReplay, state: str, now: datetime, **facts: Any) -> str:
    with transaction.atomic():
        QuotaReplay.objects.filter(pk=replay.pk, state__in=GOING_ON).update(state=state, ended_at=now, seen_at=now, **facts)
        _tell(replay.change)
    return state


class Play:
    """One play in a process of its own, which ends with the block."""

    def __init__(self, text: bytes, *, hours: int = HOURS, seconds: float = SECONDS) -> None:
        played = program("scheduler.services.forecasts.apart", "--hours", str(hours), "--seconds", str(seconds))
        self._process = subprocess.Popen(**played, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._said: Queue[bytes | None] = Queue()
        self._ended = False
        self._threads = [
            threading.Thread(target=_write, args=(self._process.stdin, text), daemon=True),
            threading.Thread(target=_read, args=(self._process.stdout, self._said), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> "Play":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for thread in self._threads:
            thread.join()

    @property
    def is_on(self) -> bool:
        return not self._ended

    @property
    def code(self) -> int:
        return self._process.wait()

    def messages(self, wait: float = 0.25) -> Iterable[dict[str, Any]]:
        """What was said since; it waits a moment where nothing was."""
        while not self._ended:
            try:
                line = self._said.get(timeout=wait)
            except Empty:
                return
            if line is None:
                self._ended = True
                return
            yield json.loads(line)
            wait = 0.0


def _write(pipe: IO[bytes], text: bytes) -> None:
    try:
        with pipe:
            pipe.write(text)
    except BrokenPipeError:
        return  # it was ended; its status says so


def _read(pipe: IO[bytes], said: "Queue[bytes | None]") -> None:
    with pipe:
        for line in pipe:
            said.put(line)
    said.put(None)
