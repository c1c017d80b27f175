"""What-ifs (QTA-7, UI-10): what was submitted in the last days is played as the quota tree, the settings and the fleet are, and as they would be.

Each of the two plays is a process of its own, so the scheduler's loop goes on undisturbed; both end when somebody cancels, and after so long.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime, timedelta
from statistics import fmean
from typing import Any

from django.db import transaction

from gpufleet.core.audit import SYSTEM
from gpufleet.core.times import millis
from quotas.drafts import Tree
from quotas.permissions import Access, Can, Grant
from quotas.selectors.changes import change_standing
from scheduler.engine.model.values import Scenario
from scheduler.loop.policy import policy
from scheduler.models import GOING_ON, QuotaReplay, ReplayState
from scheduler.services.forecasts.pasts import Cut, Days, Past, TraceHere, TraceThere
from scheduler.services.forecasts.plays import Pair, Play
from scheduler.services.forecasts.traces import trace_scenario
from scheduler.services.forecasts.what_ifs import what_if_tell
from scheduler.simulation.paced import longest_step
from scheduler.simulation.span import HOUR, Cost, Pace, pace_of, told_every
from scheduler.snapshots import Snapshots
from scheduler.snapshots.taking import Snapshot
from scheduler.whatifs.wanted import (
    Wanted,
    nodes_there,
    wanted_faults,
    wanted_of,
)

SECONDS = 54.0  # of its first minute that the plays take at most; reading the past comes before
LAST_PLAN_SECONDS = 3.0  # until they are ended, where the plan that they are at takes longer
BEGUN_AGAIN = 0.5  # of the seconds are left at least where other hours are played
NEARLY = 0.9  # of the hours are enough to go on
NONE = (0, 0, 0, 0)
NO_JOB_OF_TRACE = "No job of the trace came in these hours, or its queues have no quota node."


def replay_run(*, key: int, clock: Callable[[], datetime]) -> str | None:
    """Play what was asked for; a doubled call finds that it is taken. Returns the state in which it ended."""
    if not QuotaReplay.objects.filter(pk=key, state=ReplayState.WAITING).update(state=ReplayState.PLAYING, seen_at=clock()):
        return None
    replay = QuotaReplay.objects.select_related("change", "asked_by", "trace").get(pk=key)
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
    snapshot = Snapshots().take(settings=chosen.engine, now=at, start_timeout=chosen.start_timeout)
    scenario = None
    if wanted.trace:
        if replay.trace is None:
            return _end(replay, ReplayState.FAILED, at, fault="The trace was removed.")
        scenario = trace_scenario(replay.trace)
    of_fleet = scenario if scenario is not None and wanted.on_own_fleet else snapshot.scenario
    if wanted_faults(wanted, nodes_there(of_fleet.nodes)):
        return _end(replay, ReplayState.FAILED, at, fault="The change of nodes no longer fits the fleet.")
    past = _past(scenario, snapshot, after, wanted, at)
    stretch = past.cut(wanted.hours)
    if stretch is None:
        return _end(replay, ReplayState.FAILED, at, fault=NO_JOB_OF_TRACE if wanted.trace else "No job was submitted or ran in these days.")
    all_hours, longest = stretch.hours, longest_step(fmean(stretch.works))
    orders = ("tree", wanted.policy.get("order", "tree"))
    seconds = SECONDS + 60 * (wanted.minutes - 1)
    latest, step, most_plans, may_begin_again = time.monotonic() + seconds, 0, 0.0, True
    while True:
        replay.asked |= {"hours": stretch.hours, "skipped": all_hours - stretch.hours}
        replay.seen_at = clock()  # reading the past may take long
        QuotaReplay.objects.filter(pk=replay.pk).update(asked=replay.asked, hours=0, seen_at=replay.seen_at)
        options: dict[str, Any] = {"hours": stretch.hours, "step": step, "seconds": latest - time.monotonic()}
        told, again = 0, None
        with ExitStack() as stack:
            pair = Pair([stack.enter_context(Play(side.text, order=order, **options)) for side, order in zip(stretch.parts, orders, strict=True)])
            while pair.is_on and again is None and time.monotonic() < latest + LAST_PLAN_SECONDS:
                pair.listen()
                if pair.hours > told or clock() - replay.seen_at >= timedelta(seconds=1):
                    told = pair.hours
                    if not _going_on(replay, told, clock()):
                        return ReplayState.CANCELLED
                left = latest - time.monotonic()
                cost = pair.cost if may_begin_again and left > BEGUN_AGAIN * seconds and 2 * told < stretch.hours else None
                if cost is not None and cost.of_hour(step) * (NEARLY * stretch.hours - told) > 1000 * left:
                    most_plans = max(most_plans, cost.plans)  # a long step shows fewer
                    pace = pace_of(stretch.hours, Cost(cost.each, most_plans), longest=longest, spend=1000 * left)
                    again = past.cut(pace.hours) if pace != Pace(stretch.hours, step) else None
                    may_begin_again = again is not None
            codes = pair.codes
        if again is None:
            break
        stretch, step = again, pace.step
    return _compared(replay, stretch, step, pair, codes, clock())


def _past(scenario: Scenario | None, snapshot: Snapshot, after: Tree | None, wanted: Wanted, at: datetime) -> Past:
    if scenario is None:
        return Days(snapshot, after, wanted, at)
    return TraceThere(scenario, wanted) if wanted.on_own_fleet else TraceHere(scenario, snapshot, after, wanted, at)


def _compared(replay: QuotaReplay, stretch: Cut, step: int, pair: Pair, codes: Sequence[int], now: datetime) -> str:
    """Keep what both sides have told of the same hours."""
    if any(codes):
        return _end(replay, ReplayState.FAILED, now, fault=f"A simulation ended with status {next(filter(None, codes))}.")
    common = pair.compared
    if not common:
        return _end(replay, ReplayState.FAILED, now, fault=_too_little(stretch.hours, replay.minutes))
    last = [table[common] for table in pair.tables]
    rows = _rows(*({side.nodes_of[path]: row for path, row in one["table"].items()} for one, side in zip(last, stretch.parts, strict=True)))
    before, then = (_figures(one["figures"], course[:common]) for one, course in zip(last, pair.courses, strict=True))
    overrun = dict(zip(("before", "after"), (side.overrun for side in stretch.parts), strict=True))
    figures = {"from": millis(stretch.begin), "step": step, "before": before, "after": then, "overrun": overrun}
    return _end(replay, ReplayState.DONE, now, hours=common, rows=rows, figures=figures)


def _too_little(hours: int, minutes: int) -> str:
    least = told_every(hours)
    told = "1 hour was" if least == 1 else f"{least} hours were"
    return f"Fewer than {told} simulated in {minutes} min. Give it more time, or try again when the machine is idle."


def _figures(told: Mapping[str, Any], course: Sequence[Sequence[int]]) -> dict[str, Any]:
    """With the GPUs that were held in each hour and the jobs that waited, in thousandths."""
    return {**told, "course": {"held": [held // HOUR for held, _ in course], "waiting": [1000 * queued // HOUR for _, queued in course]}}


def _everything() -> Access:
    """The play reads the whole tree; who looks at it sees his part."""
    return Access(SYSTEM, (Grant("", frozenset(Can)),))


def _rows(before: Mapping[Any, Sequence[int]], after: Mapping[Any, Sequence[int]]) -> list[list[Any]]:
    found = []
    for key in sorted({*before, *after}):
        (came, begun, waited, held), (came_then, begun_then, waited_then, held_then) = before.get(key, NONE), after.get(key, NONE)
        found.append([key, max(came, came_then), begun, begun_then, waited, waited_then, held, held_then])
    return found


def _going_on(replay: QuotaReplay, hours: int, now: datetime) -> bool:
    with transaction.atomic():
        mine = QuotaReplay.objects.filter(pk=replay.pk, state=ReplayState.PLAYING).update(hours=hours, seen_at=now)
        what_if_tell(replay)
    replay.seen_at = now
    return bool(mine)


def _end(replay: QuotaReplay, state: str, now: datetime, **facts: Any) -> str:
    with transaction.atomic():
        QuotaReplay.objects.filter(pk=replay.pk, state__in=GOING_ON).update(state=state, ended_at=now, seen_at=now, **facts)
        what_if_tell(replay)
    return state
