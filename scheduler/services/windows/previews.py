"""What a reservation comes to before it is written, and whether each coming window will be met: on the fleet as it is, by the engine's own rules."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from django.core.exceptions import PermissionDenied

from gpufleet.core.money import cost_micros
from gpufleet.core.times import millis
from quotas.lineup import BORROWED
from quotas.models import Reservation, ReservationState, Window
from quotas.permissions import Access, Can
from quotas.selectors.rates import rates_now
from quotas.selectors.windows import InForce
from quotas.services.ledger import ledger_classes_without
from scheduler.engine.cycle import make_plan
from scheduler.loop.policy import policy
from scheduler.models import Job
from scheduler.selectors.jobs import jobs_named
from scheduler.selectors.windows import bookings, lasting_windows, may_ask_on, may_decide_on, promised_milli, windows_between
from scheduler.services.forecasts.differences import Effect, differences
from scheduler.services.forecasts.previews import RECLAIMABLE, JobEffect, effects_named
from scheduler.services.windows.drawing import Drawn, reservation_draw
from scheduler.snapshots import Snapshot, Snapshots
from scheduler.snapshots.windows import Kept, parts_of
from scheduler.windows.capacity import peak
from scheduler.windows.clearing import Clearing, clearing_of

SHOWN_WINDOWS = 5
FLOOR_AHEAD = timedelta(days=7)
MOST_FLOORS = 16


@dataclass(frozen=True, slots=True)
class Leaving:
    """A job that must leave. `job` is None where the reader may not see it."""

    name: str
    job: Job | None
    milli: int
    shrinks: bool
    lost_seconds: int
    leave_at: datetime


@dataclass(frozen=True, slots=True)
class Preview:
    """`errors` is empty where it could be written. `over_guarantees` is by how much guarantees and windows then exceed the healthy capacity."""

    drawn: Drawn
    windows: tuple[tuple[datetime, datetime | None], ...]
    reserved_milli: int  # by others at the worst moment of its first window
    promised_milli: int  # by the tree
    over_guarantees: int
    clearing: Clearing | None
    leaving: tuple[Leaving, ...]
    displaced: tuple[tuple[str, Job | None], ...]
    approves: bool
    cost_micros: int | None = None  # of its first window at the guaranteed rate of now, where it ends and the reader may know it


@dataclass(frozen=True, slots=True)
class Outlook:
    """Whether a window will be met, by what, and who leaves for it."""

    window: Window
    clearing: Clearing
    leaving: tuple[Leaving, ...]
    displaced: tuple[tuple[str, Job | None], ...]


@dataclass(frozen=True, slots=True)
class Cancelling:
    """What a cancellation does. `window` is the one that lasts or comes next; the cost of what is left of it is at the guaranteed rate of now.

    `jobs` are those that the reader may see; `more` of them are not named, and `unseen` counts effects on others.
    """

    reservation: Reservation
    window: Window | None
    lasts: bool
    jobs: tuple[JobEffect, ...]
    more: int
    unseen: int
    counts: Mapping[str, int]
    cost_micros: int | None


def snapshot_now(now: datetime) -> tuple[Snapshot, Snapshots]:
    snapshots, chosen = Snapshots(), policy()
    return snapshots.take(settings=chosen.engine, now=now, start_timeout=chosen.start_timeout), snapshots


def reservation_preview(*, access: Access, given: Mapping[str, Any], now: datetime, instead_of: Reservation | None = None) -> Preview:
    """Nothing is written."""
    drawn = reservation_draw(access=access, given=given, now=now, instead_of=instead_of)
    found = drawn.reservation
    known = not {"quota", "job_class"} & drawn.faults.keys()
    if known and not (may_ask_on(access, found.quota) or may_decide_on(access, found.quota)):
        raise PermissionDenied("Team leads and quota admins of this subtree may do this.")
    if drawn.faults and not drawn.short:
        return Preview(drawn, (), 0, 0, 0, None, (), (), False)
    windows = tuple(islice(found.times.between(now, now + timedelta(days=740)), SHOWN_WINDOWS))
    others = bookings(found.gpu_type, now, but=found if found.pk else None)
    reserved = peak(others, *windows[0]).milli if windows else 0
    promised = promised_milli(found.gpu_type, drawn.capacity)
    over = max(0, promised + reserved + found.gpus_milli - drawn.capacity)
    clearing, leaving, displaced = None, (), ()
    if windows and not drawn.faults:
        outlook = _outlook_of(access, found, Window(reservation=found, starts_at=windows[0][0], ends_at=windows[0][1]), now)
        if outlook is not None:
            clearing, leaving, displaced = outlook.clearing, outlook.leaving, outlook.displaced  # type: ignore[assignment]
    cost = _cost(access, found, windows[0], now) if windows else None
    return Preview(drawn, windows, reserved, promised, over, clearing, leaving, displaced, may_decide_on(access, found.quota), cost)


def cancellation_preview(*, access: Access, reservation: Reservation, now: datetime) -> Cancelling:
    """The engine plans the present state twice, with the windows of the reservation and without. Nothing is written."""
    ahead = lasting_windows([reservation], now)[reservation.pk]
    window = next((one for one in ahead if one.released_at is None), None)
    if window is None:
        return Cancelling(reservation, None, False, (), 0, 0, {}, None)
    lasts = window.starts_at <= now
    snapshot, _ = snapshot_now(now)
    rest = tuple(one for one in snapshot.scenario.windows if not _is_of(reservation, one.name))
    plan, planned = make_plan(snapshot.scenario), make_plan(replace(snapshot.scenario, windows=rest))
    effects = [*differences(plan.decisions, planned.decisions, waiting=planned.waiting)]
    if lasts:
        path = reservation.quota.path if reservation.quota is not None else None
        own = InForce(path, reservation.job_class, reservation.gpu_type, reservation.gpus_milli)
        effects += [Effect(job, "borrows", RECLAIMABLE) for job, _, becomes in ledger_classes_without(window=own, at=now) if becomes == BORROWED]
    named, unseen, more, counts = effects_named(access, effects)
    cost = _cost(access, reservation, (max(now, window.starts_at), window.ends_at), now)
    return Cancelling(reservation, window, lasts, named, more, unseen, counts, cost)


def _is_of(found: Reservation, name: str) -> bool:
    """Whether a window of the engine is one of a reservation."""
    return name.startswith(f"{found.public_id or '?'}@")


def _cost(access: Access, found: Reservation, window: tuple[datetime, datetime | None], now: datetime) -> int | None:
    start, end = window
    may_see = access.can(Can.SEE_COSTS, found.quota.path) if found.quota is not None else access.can_everywhere(Can.SEE_COSTS)
    rate = rates_now(now=now).get(found.gpu_type) if may_see and end is not None else None
    if rate is None or end is None:
        return None
    return cost_micros(gpu_milli=found.gpus_milli, millis=millis(end) - millis(start), micros_per_gpu_hour=rate)


def _outlook_of(access: Access, found: Reservation, window: Window, now: datetime) -> Outlook | None:
    snapshot, snapshots = snapshot_now(now)
    kept = kept_of(found, window)
    mine = list(parts_of(replace_start(kept, now), millis(now)))
    if found.gpu_type not in snapshot.fleet.capacity_milli:
        return None
    others = tuple(one for one in snapshot.scenario.windows if not _is_of(found, one.name))
    scenario = replace(snapshot.scenario, windows=tuple(sorted((*others, *mine), key=lambda one: (one.start, one.name))))
    return _told(access, window, clearing_of(scenario, mine, snapshots.kinds), now)


def replace_start(kept: Kept, now: datetime) -> Kept:
    """As one whole, however near it is: no part of it is told apart."""
    return kept._replace(idle="lent") if kept.starts_at <= now else kept


def kept_of(found: Reservation, window: Window) -> Kept:
    path = found.quota.path if found.quota is not None else None
    return Kept(
        *(found.public_id or "new", window.starts_at, window.ends_at, path, found.job_class, found.gpu_type, found.shape, found.gpus_milli),
        *(found.nodes, found.level, found.notice_s, found.lead_s, found.idle, found.name),
    )


def floors_ahead(access: Access, now: datetime, *, only: Reservation | None = None) -> list[Outlook]:
    """For each window that lasts or comes within a week, and that the reader may see: will it be met? The next one of each reservation."""
    rows = windows_between(access, now, now + FLOOR_AHEAD)
    first: dict[int, Window] = {}
    for row in rows:
        ended = row.released_at is not None or (only is not None and row.reservation_id != only.pk)
        if not ended and row.reservation.state == ReservationState.APPROVED:
            first.setdefault(row.reservation_id, row)
    chosen = list(first.values())[:MOST_FLOORS]
    if not chosen:
        return []
    snapshot, snapshots = snapshot_now(now)
    return [found for window in chosen if (found := _in_snapshot(access, snapshot, snapshots, window, now)) is not None]


def _in_snapshot(access: Access, snapshot: Snapshot, snapshots: Snapshots, window: Window, now: datetime) -> Outlook | None:
    mine = [one for one in snapshot.scenario.windows if one.name.partition("/")[0] == window.name]
    if not mine:
        return None
    # A window that lasts and is told in parts is one of them at a time.
    start = min(one.start for one in mine)
    return _told(access, window, clearing_of(snapshot.scenario, [one for one in mine if one.start == start], snapshots.kinds), now)


def _told(access: Access, window: Window, clearing: Clearing, now: datetime) -> Outlook:
    named = jobs_named(access, [*(one.job for one in clearing.leavers), *clearing.displaced])
    at = max(now, window.starts_at - timedelta(seconds=window.reservation.notice_s))
    leaving = tuple(
        Leaving(one.job, named.get(one.job), one.milli, one.shrinks, one.lost_ms // 1000, at)
        for one in sorted(clearing.leavers, key=lambda one: (-one.milli, one.job))
    )
    return Outlook(window, clearing, leaving, tuple((name, named.get(name)) for name in clearing.displaced))


def asked_to_leave(access: Access, windows: Iterable[Window]) -> Sequence[Job]:
    """The jobs that were asked to leave for some windows, as far as the reader may see them."""
    names = [name for window in windows for name in window.leaving]
    return list(jobs_named(access, names).values()) if names else []


__all__ = ["Cancelling", "Leaving", "Outlook", "Preview", "asked_to_leave", "cancellation_preview", "floors_ahead", "reservation_preview"]
