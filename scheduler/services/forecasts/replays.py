"""What-ifs (QTA-7, UI-10): what was submitted in the last days is played as the quota tree, the settings and the fleet are, and as they would be.

Each of the two plays is a process of its own, so the scheduler's loop goes on undisturbed; both end when somebody cancels, and after so long.
"""

import json
import math
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

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models import Max, Q

from gpufleet.core.audit import SYSTEM, audit_record
from gpufleet.core.faults import Conflict
from gpufleet.core.ids import public_id
from gpufleet.core.live.feed import feed_publish
from gpufleet.core.prepared import together
from gpufleet.core.times import MILLISECOND, millis
from quotas.drafts import Tree
from quotas.models import LedgerEntry, NodeKind, QuotaChange, QuotaNode
from quotas.permissions import Access, Can, Grant
from quotas.selectors.changes import change_standing
from scheduler.engine.model.values import Checkpoint, Kind, Scenario, Settings
from scheduler.engine.model.values import Job as EngineJob
from scheduler.loop.policy import TOP, policy, ruled
from scheduler.models import GOING_ON, LOST, LOST_AFTER, Attempt, Dependency, Job, QuotaReplay, ReplayState
from scheduler.services.forecasts.previews import drafted_rows, past_as_of
from scheduler.services.forecasts.programs import program
from scheduler.simulation.calendar import Promised
from scheduler.simulation.futures import LENGTH_UNKNOWN
from scheduler.simulation.span import HOUR, THERE, Cost, Pace, longest_step, pace_of, told_every
from scheduler.snapshots import Snapshots
from scheduler.snapshots.fleet import fleet_asked, fleet_view
from scheduler.snapshots.jobs import Kinds, unmet_dependencies
from scheduler.snapshots.spelling import Speller
from scheduler.snapshots.taking import Snapshot
from scheduler.snapshots.tree import TreeView, archived_nodes, inner_nodes, policy_of, tree_view
from scheduler.snapshots.windows import windows_of_span
from scheduler.whatifs.telling import TeamWait, changes_told
from scheduler.whatifs.wanted import (
    NodesThere,
    Wanted,
    capacity_of,
    differing,
    nodes_changed,
    nodes_there,
    settings_changed,
    wanted_faults,
    wanted_of,
)

LENGTH = timedelta(days=7)
SECONDS = 54.0  # that the plays take at most; reading the past comes before
LAST_PLAN_SECONDS = 3.0  # until they are ended, where the plan that they are at takes longer
MEASURED_MS = 4000  # of a play, the last of which say what plans cost
BEGUN_AGAIN = 0.5  # of the seconds are left at least where other hours are played
NEARLY = 0.9  # of the hours are enough to go on
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


def may_ask(access: Access) -> bool:
    return access.can_somewhere(Can.EDIT_QUOTA) or access.can_everywhere(Can.OPERATE)


def must_ask(access: Access) -> None:
    if not may_ask(access):
        raise access.refusal(Can.EDIT_QUOTA, Can.OPERATE)


def present(now: datetime) -> tuple[Settings, list[NodesThere]]:
    """What a what-if changes, as it is: the settings that the scheduler goes by, and the nodes by kind."""
    rules = next((rules or {} for (rules,) in TOP()), {})
    return ruled(policy().engine, rules), nodes_there(fleet_view(tuple(together(*fleet_asked(now)))).nodes)


def what_if_ask(*, access: Access, wanted: Wanted, change: QuotaChange | None, now: datetime, begin: Callable[[int], Any]) -> QuotaReplay:
    """`begin` is given the key after the commit. One at a time of each change, and of each person without one; the caller may see the change."""
    must_ask(access)
    settings, fleet = present(now)
    if faults := wanted_faults(wanted, fleet):
        raise ValidationError(faults)
    named = {name: value for name, value in wanted.policy.items() if value is not None}
    wanted = differing(wanted, settings, fleet)
    if change is not None:  # which may change the same settings
        wanted = replace(wanted, policy=named)
    if change is None and not wanted.policy and not wanted.changes_fleet:
        raise ValidationError({"": ["Nothing differs from today. Choose a quota draft, a setting or nodes to change."]})
    return _ask(access=access, wanted=wanted, told=changes_told(wanted, settings, fleet), change=change, now=now, begin=begin)


def replay_ask(*, access: Access, change: QuotaChange, now: datetime, begin: Callable[[int], Any]) -> QuotaReplay:
    """The last 7 days under a drafted tree, and nothing else changed."""
    access.must_somewhere(Can.EDIT_QUOTA)
    return _ask(access=access, wanted=Wanted(), told=[], change=change, now=now, begin=begin)


def _ask(
    *, access: Access, wanted: Wanted, told: Sequence[str], change: QuotaChange | None, now: datetime, begin: Callable[[int], Any]
) -> QuotaReplay:
    """`told`: what is changed beside the tree, in words."""
    if change is not None and not change.is_open:
        raise Conflict(f"{change.public_id} is {change.get_state_display().lower()}: only an open change is previewed.")
    revision = 0 if change is None else change.revision
    try:
        with transaction.atomic():
            _lost_ended(now)
            made = QuotaReplay.objects.create(
                public_id=public_id("wi"),
                change=change,
                change_revision=revision,
                asked=wanted.stored() | {"told": told},
                asked_by=access.actor.user,
                asked_at=now,
                seen_at=now,
            )
            after = wanted.stored() | ({} if change is None else {"change": change.public_id})
            audit_record(actor=access.actor, action="what_if.start", kind="what_if", object_id=made.public_id, after=after)
            _tell(made)
            transaction.on_commit(lambda: begin(made.pk))
    except IntegrityError:
        what = "Your last what-if" if change is None else f"A what-if of {change.public_id}"
        raise Conflict(f"{what} is still being simulated. Wait for it or cancel it.") from None
    return made


def what_if_cancel(*, access: Access, found: QuotaReplay, now: datetime) -> bool:
    """Whether it was going on. Its processes end within a second."""
    must_ask(access)
    with transaction.atomic():
        ended = QuotaReplay.objects.filter(pk=found.pk, state__in=GOING_ON).update(state=ReplayState.CANCELLED, ended_at=now)
        if ended:
            audit_record(actor=access.actor, action="what_if.cancel", kind="what_if", object_id=found.public_id)
            _tell(found)
    return bool(ended)


def replay_cancel(*, access: Access, change: QuotaChange, now: datetime) -> bool:
    """Whether there was one of a change to cancel."""
    access.must_somewhere(Can.EDIT_QUOTA)
    found = QuotaReplay.objects.filter(change=change, state__in=GOING_ON).first()
    return found is not None and what_if_cancel(access=access, found=found, now=now)


def replay_of(change: QuotaChange, now: datetime) -> QuotaReplay | None:
    """The newest of a change. What was lost with its worker is told as failed."""
    found = QuotaReplay.objects.filter(change=change).order_by("-id").first()
    return found and as_of(found, now)


def as_of(found: QuotaReplay, now: datetime) -> QuotaReplay:
    if found.is_lost(now):
        found.state, found.fault = ReplayState.FAILED, LOST[ReplayState(found.state)]
    return found


def _lost_ended(now: datetime) -> None:
    for state, after in LOST_AFTER.items():
        lost = QuotaReplay.objects.filter(state=state, seen_at__lt=now - after)
        lost.update(state=ReplayState.FAILED, ended_at=now, fault=LOST[state])


def _tell(replay: QuotaReplay) -> None:
    feed_publish(changes={"what_ifs": [{"id": replay.pk}]})


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


def team_waits(teams: Sequence[TeamWeek]) -> list[TeamWait]:
    return [TeamWait(one.path, *one.mean_wait_seconds) for one in teams if one.jobs]


# The past


@dataclass(frozen=True, slots=True)
class Came:
    """A job of the last days: when it came, and how long it would run with its smallest gang, in milliseconds, the former from the beginning.

    What ran when they began comes with them, and what waited then just after it: it finds taken what it found taken.
    """

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
        runs_then = any(since <= begin and (until is None or until > begin) for since, until, _ in mine)
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
        after = max(0 if runs_then else THERE, (due - begin) // MILLISECOND)
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


@dataclass(frozen=True, slots=True)
class Side:
    """What one play reads, and the node of each of its quotas."""

    text: bytes
    nodes_of: Mapping[str, int]


def sides(snapshot: Snapshot, after: Tree | None, wanted: Wanted, came: Sequence[Came], begin: datetime, now: datetime) -> list[Side]:
    """As it is and as it would be; `after` is the drafted tree."""
    found = []
    drafted = snapshot.tree.rows if after is None else drafted_rows(snapshot, after, now)
    for rows, changes in ((snapshot.tree.rows, Wanted(wanted.days)), (drafted, wanted)):
        scenario, tree, calendar = begun(snapshot, rows, {one.quota_id for one in came}, begin, now, changes)
        text = scenario_text(scenario, came, tree.paths, calendar)
        found.append(Side(text, {path: key for key, path in tree.paths.items()}))
    return found


def begun(
    snapshot: Snapshot, rows: tuple[Any, ...], with_jobs: AbstractSet[int], begin: datetime, now: datetime, wanted: Wanted | None = None
) -> tuple[Scenario, TreeView, list[Promised]]:
    """The fleet of today as of a moment of the past, without jobs, under a tree of such rows; and the windows that it had since."""
    wanted = wanted or Wanted()
    settings = settings_changed(ruled(replace(policy().engine, forecast="none"), policy_of(rows)), wanted)
    hardware = nodes_changed(snapshot.scenario.nodes, wanted)
    if wanted.changes_fleet:  # a guarantee without a number is of all GPUs of a type
        capacity = capacity_of(hardware)
        rows = (*rows[:2], tuple((gpu_type, capacity[gpu_type]) for gpu_type, _ in rows[2]))
    past = past_as_of(begin, settings)
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
    nodes = tuple(replace(node, repartitioned=()) if node.repartitioned else node for node in hardware)
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
        _end(replay, ReplayState.FAILED, clock(), fault=f"Internal error ({type(fault).__name__}). The log has the details.")
        raise


def _run(replay: QuotaReplay, clock: Callable[[], datetime]) -> str:
    at = clock()
    chosen, wanted, after = policy(), wanted_of(replay.asked), None
    if replay.change is not None:
        standing = change_standing(_everything(), replay.change)
        if standing.faults:
            return _end(replay, ReplayState.FAILED, at, fault="The change no longer fits the tree.")
        after = standing.after
    snapshots = Snapshots()
    snapshot = snapshots.take(settings=chosen.engine, now=at, start_timeout=chosen.start_timeout)
    if wanted_faults(wanted, nodes_there(snapshot.scenario.nodes)):
        return _end(replay, ReplayState.FAILED, at, fault="The change of nodes no longer fits the fleet.")
    kinds, types = Kinds(snapshot.fleet.topology), snapshot.fleet.capacity_milli.keys()
    stretch = stretch_of(kinds, types, at, wanted.hours)
    if stretch is None:
        return _end(replay, ReplayState.FAILED, at, fault="No job was submitted or ran in these days.")
    all_hours, longest = stretch.hours, longest_step([one.work for one in stretch.came])
    parts = sides(snapshot, after, wanted, stretch.came, stretch.begin, at)
    orders = ("tree", wanted.policy.get("order", "tree"))
    latest, step, most_plans, may_begin_again = time.monotonic() + SECONDS, 0, 0.0, True
    while True:
        replay.asked |= {"hours": stretch.hours, "skipped": all_hours - stretch.hours}
        replay.seen_at = clock()  # reading the past may take long
        QuotaReplay.objects.filter(pk=replay.pk).update(asked=replay.asked, hours=0, seen_at=replay.seen_at)
        options: dict[str, Any] = {"hours": stretch.hours, "step": step, "seconds": latest - time.monotonic()}
        told, again = 0, None
        with ExitStack() as stack:
            pair = Pair([stack.enter_context(Play(side.text, order=order, **options)) for side, order in zip(parts, orders, strict=True)])
            while pair.is_on and again is None and time.monotonic() < latest + LAST_PLAN_SECONDS:
                pair.listen()
                if pair.hours > told or clock() - replay.seen_at >= timedelta(seconds=1):
                    told = pair.hours
                    if not _going_on(replay, told, clock()):
                        return ReplayState.CANCELLED
                left = latest - time.monotonic()
                cost = pair.cost if may_begin_again and left > BEGUN_AGAIN * SECONDS and 2 * told < stretch.hours else None
                if cost is not None and cost.of_hour(step) * (NEARLY * stretch.hours - told) > 1000 * left:
                    most_plans = max(most_plans, cost.plans)  # a long step shows fewer
                    pace = pace_of(stretch.hours, Cost(cost.each, most_plans), longest=longest, spend=1000 * left)
                    again = stretch_of(kinds, types, at, pace.hours) if pace != Pace(stretch.hours, step) else None
                    may_begin_again = again is not None
            codes = pair.codes
        if again is None:
            break
        stretch, step = again, pace.step
        parts = sides(snapshot, after, wanted, stretch.came, stretch.begin, at)
    if any(codes):
        return _end(replay, ReplayState.FAILED, clock(), fault=f"A simulation ended with status {next(filter(None, codes))}.")
    common = pair.compared
    if not common:
        return _end(replay, ReplayState.FAILED, clock(), fault=_too_little(stretch.hours))
    last = [table[common] for table in pair.tables]
    rows = _rows(*({side.nodes_of[path]: row for path, row in one["table"].items()} for one, side in zip(last, parts, strict=True)))
    before, then = (_figures(one["figures"], course[:common]) for one, course in zip(last, pair.courses, strict=True))
    figures = {"from": millis(stretch.begin), "step": step, "before": before, "after": then}
    return _end(replay, ReplayState.DONE, clock(), hours=common, rows=rows, figures=figures)


@dataclass(frozen=True, slots=True)
class Stretch:
    """The last hours that are played, and what came in them."""

    hours: int
    begin: datetime
    came: Sequence[Came]


def stretch_of(kinds: Kinds, types: Collection[str], at: datetime, hours: int) -> Stretch | None:
    """Without the idle hours before the first job, which are most of those of a young fleet. None: no job came."""
    came = jobs_came(kinds, at, types, length=timedelta(hours=hours))
    if not came:
        return None
    idle = max(0, (min(one.submitted for one in came) - 1) // HOUR)
    hours -= idle
    return Stretch(hours, at - timedelta(hours=hours), [replace(one, submitted=one.submitted - idle * HOUR) for one in came])


def _too_little(hours: int) -> str:
    least = told_every(hours)
    told = "1 hour was" if least == 1 else f"{least} hours were"
    return f"Fewer than {told} simulated in {SECONDS:.0f} s. Try again when the machine is idle."


def _figures(told: Mapping[str, Any], course: Sequence[Sequence[int]]) -> dict[str, Any]:
    """With the GPUs that were held in each hour and the jobs that waited, in thousandths."""
    return {**told, "course": {"held": [held // HOUR for held, _ in course], "waiting": [1000 * queued // HOUR for _, queued in course]}}


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
        _tell(replay)
    replay.seen_at = now
    return bool(mine)


def _end(replay: QuotaReplay, state: str, now: datetime, **facts: Any) -> str:
    with transaction.atomic():
        QuotaReplay.objects.filter(pk=replay.pk, state__in=GOING_ON).update(state=state, ended_at=now, seen_at=now, **facts)
        _tell(replay)
    return state


class Pair:
    """What both plays have told."""

    def __init__(self, plays: Sequence["Play"]) -> None:
        self._plays = plays
        self.courses: list[list[Sequence[int]]] = [[] for _ in plays]
        self.tables: list[dict[int, dict[str, Any]]] = [{} for _ in plays]
        self._seen = [[(0.0, 0, 0)] for _ in plays]  # milliseconds, plans that were made by then, hours that were over

    @property
    def is_on(self) -> bool:
        return any(play.is_on for play in self._plays)

    @property
    def codes(self) -> list[int]:
        return [play.code for play in self._plays if not play.is_on]

    @property
    def hours(self) -> int:
        """Played by both."""
        return min(map(len, self.courses))

    @property
    def compared(self) -> int:
        """The last hour of which both have told figures; 0: none."""
        return max(set(self.tables[0]) & set(self.tables[1]), default=0)

    @property
    def cost(self) -> Cost | None:
        """Of late, as much as of either of those that go on: the first hours may be of an idle fleet. None: not known yet."""
        found = []
        for seen in (seen for play, seen in zip(self._plays, self._seen, strict=True) if play.is_on):
            took, plans, hours = seen[-1]
            before = next(((took - at, plans - made, hours - over) for at, made, over in reversed(seen) if took - at >= MEASURED_MS), None)
            if before is None or not before[1]:
                return None
            took, plans, hours = before
            found.append(Cost(took / plans, plans / hours if hours else math.inf))
        return Cost(max(one.each for one in found), max(one.plans for one in found)) if found else None

    def listen(self) -> None:
        for number, play in enumerate(self._plays):
            for message in play.messages():
                if "course" in message:
                    self.courses[number].append(message["course"])
                self._seen[number].append((message["ms"], message["plans"], len(self.courses[number])))
                if "table" in message:
                    self.tables[number][message["hour"]] = message


class Play:
    """One play in a process of its own, which ends with the block."""

    def __init__(self, text: bytes, *, hours: int, step: int, seconds: float, order: str = "tree") -> None:
        options = {"hours": hours, "seconds": seconds, "step": step, "policy": order}
        played = program("scheduler.services.forecasts.apart", *(f"--{name}={value}" for name, value in options.items()))
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
