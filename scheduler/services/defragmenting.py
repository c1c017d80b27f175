"""Starting and stopping a defragmentation, and how a tick goes by it."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import NamedTuple

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Sum

from gpufleet.core.audit import SYSTEM, Actor, audit_record
from gpufleet.core.faults import Conflict
from gpufleet.core.ids import public_id
from gpufleet.core.live.feed import feed_publish
from gpufleet.core.prepared import Prepared
from quotas.permissions import Access, Can
from scheduler.engine.model.values import Settings
from scheduler.models import Defragmentation
from scheduler.services.loop.lease import lease_want

MOST_MOVES = 1000
LASTS = timedelta(hours=1)
FARTHEST = timedelta(days=7)
OPEN = Prepared[tuple[int, int, int, datetime, datetime]](
    lambda: (
        Defragmentation.objects.filter(state=Defragmentation.State.OPEN)
        .order_by("starts_at", "pk")
        .values_list("pk", "moves_most", "moves_done", "starts_at", "ends_at")
    )
)


class Leave(NamedTuple):
    """How many jobs a defragmentation may still move, from when on and until when."""

    key: int
    left: int
    starts_at: datetime
    ends_at: datetime


def defragmentation_start(*, access: Access, moves: int, reason: str, now: datetime, starts_at: datetime | None = None) -> Defragmentation:
    """Let so many more jobs be moved, from now on or from a time on, for an hour."""
    access.must_everywhere(Can.OPERATE)
    faults = defragmentation_faults(moves=moves, starts_at=starts_at, now=now)
    if not reason.strip():
        faults["reason"] = "A reason is required for the record."
    if faults:
        raise ValidationError(faults)
    return _started(actor=access.actor, moves=moves, reason=reason.strip(), now=now, starts_at=max(now, starts_at or now), by_rule=False)


def defragmentation_faults(*, moves: int, starts_at: datetime | None, now: datetime) -> dict[str, str]:
    """What is wrong with one that moves so many jobs from a time on, by field."""
    faults: dict[str, str] = {}
    if not 1 <= moves <= MOST_MOVES:
        faults["moves"] = f"The number of moves must be between 1 and {MOST_MOVES:,}."
    if starts_at is not None and not now - timedelta(minutes=1) <= starts_at <= now + FARTHEST:
        faults["starts_at"] = "The start must be within the next seven days."
    return faults


def defragmentation_rule(*, moves: int, reason: str, now: datetime) -> Defragmentation | None:
    """The same by rule, until one that is scheduled begins; None where one is open by now."""
    try:
        return _started(actor=SYSTEM, moves=moves, reason=reason, now=now, starts_at=now, by_rule=True)
    except Conflict:
        return None


def _started(*, actor: Actor, moves: int, reason: str, now: datetime, starts_at: datetime, by_rule: bool) -> Defragmentation:
    with transaction.atomic():
        _over(now)
        ends_at = starts_at + LASTS
        for other in Defragmentation.objects.select_for_update().filter(state=Defragmentation.State.OPEN):
            if by_rule and not other.by_rule and other.starts_at > now:
                ends_at = min(ends_at, other.starts_at)
            elif other.starts_at > now:
                raise Conflict(f"A defragmentation is scheduled for {other.starts_at:%Y-%m-%d %H:%M} UTC already. Stop it first.")
            elif by_rule or not other.by_rule or starts_at < other.ends_at:
                raise Conflict(f"A defragmentation is open until {other.ends_at:%Y-%m-%d %H:%M} UTC. Stop it first, or begin later.")
        found = Defragmentation.objects.create(
            public_id=public_id("df"),
            moves_most=moves,
            starts_at=starts_at,
            ends_at=ends_at,
            reason=reason[:300],
            by_rule=by_rule,
            asked_at=now,
            asked_by=actor.user,
            asked_by_name=actor.name,
        )
        after = {"moves": moves, "starts_at": starts_at.isoformat()}
        audit_record(actor=actor, action="defragmentation.start", kind="defragmentation", object_id=found.public_id, after=after, reason=reason[:500])
        feed_publish(changes={"fragmentation": [{"id": found.pk}]})
        lease_want()
    return found


def defragmentation_stop(*, access: Access, found: Defragmentation, now: datetime) -> Defragmentation:
    """No further job is moved for it. Moves that are under way are finished."""
    access.must_everywhere(Can.OPERATE)
    with transaction.atomic():
        found = Defragmentation.objects.select_for_update().get(pk=found.pk)
        if found.state != Defragmentation.State.OPEN:
            raise Conflict("It has ended already.")
        found.stopped_by = access.actor.user
        _end(found, f"Stopped by {access.actor.name}.", now)
        audit_record(actor=access.actor, action="defragmentation.stop", kind="defragmentation", object_id=found.public_id, after={"state": "ended"})
    return found


def leave_now(*, now: datetime) -> Leave | None:
    """What the defragmentation that is open allows, or that which begins next; those whose time is over are closed."""
    rows = OPEN()
    if any(ends_at <= now for *_, ends_at in rows):
        with transaction.atomic():
            _over(now)
    return next((Leave(key, most - done, starts_at, ends_at) for key, most, done, starts_at, ends_at in rows if ends_at > now), None)


def settings_with(engine: Settings, leave: Leave | None, *, now: datetime) -> Settings:
    """The engine's settings while it lasts: a plan may move as many jobs as are left of it, or as it may anyway."""
    if leave is None or leave.starts_at > now or engine.max_moves is None or leave.left <= engine.max_moves:
        return engine
    return replace(engine, max_moves=leave.left)


def moves_count(*, leave: Leave, moved: int, now: datetime) -> None:
    """Write down what a plan has moved while it lasted; within the transaction that carries the plan out."""
    if not moved or leave.starts_at > now:
        return
    found = Defragmentation.objects.select_for_update().get(pk=leave.key)
    if found.state != Defragmentation.State.OPEN:
        return
    found.moves_done = min(found.moves_most, found.moves_done + moved)
    if found.moves_done == found.moves_most:
        _end(found, "All of its moves are made.", now)
    else:
        found.save(update_fields=["moves_done"])
        feed_publish(changes={"fragmentation": [{"id": found.pk}]})


def _over(now: datetime) -> None:
    for found in Defragmentation.objects.select_for_update().filter(state=Defragmentation.State.OPEN, ends_at__lte=now):
        _end(found, "Its time is over.", now)


def _end(found: Defragmentation, because: str, now: datetime) -> None:
    found.state, found.ended_at, found.ended_because = Defragmentation.State.ENDED, now, because
    found.save(update_fields=["state", "ended_at", "ended_because", "moves_done", "stopped_by"])
    feed_publish(changes={"fragmentation": [{"id": found.pk}]})


def moves_by_rule(*, since: datetime) -> int:
    """How many jobs rules may have moved since then: all that an open one allows, and what those made that ended since, whenever they began."""
    rows = Defragmentation.objects.filter(by_rule=True)
    open_ones = rows.filter(state=Defragmentation.State.OPEN).aggregate(sum=Sum("moves_most"))["sum"] or 0
    ended = rows.filter(state=Defragmentation.State.ENDED, ended_at__gt=since).aggregate(sum=Sum("moves_done"))["sum"] or 0
    return int(open_ones + ended)
