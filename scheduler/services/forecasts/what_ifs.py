"""Asking for a what-if, cancelling it, and what came of it by team (QTA-7, UI-10)."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from gpufleet.core.audit import audit_record
from gpufleet.core.faults import Conflict
from gpufleet.core.findings import some
from gpufleet.core.ids import public_id
from gpufleet.core.live.feed import feed_publish
from gpufleet.core.prepared import together
from quotas.models import NodeKind, QuotaChange, QuotaNode
from quotas.permissions import Access, Can
from scheduler.engine.model.values import Settings
from scheduler.models import GOING_ON, LOST, LOST_AFTER, QuotaReplay, ReplayState, Trace
from scheduler.selectors.traces import queues_seen
from scheduler.snapshots.fleet import fleet_asked, fleet_view
from scheduler.snapshots.overrun import settings_now
from scheduler.whatifs.telling import TeamWait, changes_told
from scheduler.whatifs.traces import places_of
from scheduler.whatifs.wanted import (
    NodesThere,
    Wanted,
    differing,
    nodes_there,
    wanted_faults,
)


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


def may_ask(access: Access) -> bool:
    return access.can_somewhere(Can.EDIT_QUOTA) or access.can_everywhere(Can.OPERATE)


def must_ask(access: Access) -> None:
    if not may_ask(access):
        raise access.refusal(Can.EDIT_QUOTA, Can.OPERATE)


def present(now: datetime) -> tuple[Settings, list[NodesThere]]:
    """What a what-if changes, as it is: the settings that the scheduler goes by, and the nodes by kind."""
    return settings_now(), nodes_there(fleet_view(tuple(together(*fleet_asked(now)))).nodes)


def what_if_ask(
    *,
    access: Access,
    wanted: Wanted,
    change: QuotaChange | None,
    now: datetime,
    begin: Callable[[int], Any],
    trace: Trace | None = None,
    there: tuple[Settings, list[NodesThere]] | None = None,
) -> QuotaReplay:
    """`begin` is given the key after the commit. One at a time of each change, and of each person without one; the caller may see the change.

    `there` is what is changed of a trace's own fleet.
    """
    must_ask(access)
    settings, fleet = there or present(now)
    if faults := wanted_faults(wanted, fleet) | _queue_faults(access, wanted, change, trace):
        raise ValidationError(faults)
    named = {name: value for name, value in wanted.policy.items() if value is not None}
    wanted = differing(wanted, settings, fleet)
    if change is not None:  # which may change the same settings
        wanted = replace(wanted, policy=named)
    if change is None and not wanted.policy and not wanted.changes_fleet:
        raise ValidationError({"": [NOTHING_OF_TRACE if wanted.on_own_fleet else NOTHING]})
    told = changes_told(wanted, settings, fleet)
    return _ask(access=access, wanted=wanted, told=told, change=change, now=now, begin=begin, trace=trace)


LONG_ONE = "Another what-if of more than a minute is still being simulated. Choose 1 minute, or wait for it."
NOTHING = "Nothing differs from today. Choose a quota draft, a setting or nodes to change."
NOTHING_OF_TRACE = "Nothing differs from the trace. Choose a setting or nodes to change."


def _queue_faults(access: Access, wanted: Wanted, change: QuotaChange | None, trace: Trace | None) -> dict[str, list[str]]:
    """Of a trace: on its own fleet it has its own queues, on this one a quota node that there is."""
    faults: dict[str, list[str]] = {}
    if wanted.on_own_fleet and change is not None:
        faults["change"] = ["A trace on its own fleet has its own queues. Replay it on this fleet."]
    if trace is not None and wanted.from_hour >= trace.hours:
        faults["from_hour"] = [f"The trace has {trace.hours:,} hours."]
    if wanted.here and trace is not None:
        paths = frozenset(QuotaNode.objects.filter(archived_at__isnull=True).values_list("path", flat=True))
        if wanted.queue and not (wanted.queue in paths and access.can(Can.SEE, wanted.queue)):
            faults["queue"] = [f"There is no quota node {wanted.queue}."]
        elif without := sorted(set(trace.queues) - places_of(trace.queues, paths, wanted.queue).keys()):
            seen = queues_seen(access)
            named = some([name for name in without if seen(name)])
            faults["queue"] = [f"Choose a quota node for queues that have none of their name{named and f': {named}'}."]
    return faults


def replay_ask(*, access: Access, change: QuotaChange, now: datetime, begin: Callable[[int], Any]) -> QuotaReplay:
    """The last 7 days under a drafted tree, and nothing else changed."""
    access.must_somewhere(Can.EDIT_QUOTA)
    return _ask(access=access, wanted=Wanted(), told=[], change=change, now=now, begin=begin)


def _ask(
    *,
    access: Access,
    wanted: Wanted,
    told: Sequence[str],
    change: QuotaChange | None,
    now: datetime,
    begin: Callable[[int], Any],
    trace: Trace | None = None,
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
                trace=trace,
                is_long=wanted.minutes > 1,
                asked=wanted.stored() | {"told": told} | ({"trace_title": trace.title} if trace is not None else {}),
                asked_by=access.actor.user,
                asked_at=now,
                seen_at=now,
            )
            after = wanted.stored() | ({} if change is None else {"change": change.public_id})
            audit_record(actor=access.actor, action="what_if.start", kind="what_if", object_id=made.public_id, after=after)
            what_if_tell(made)
            transaction.on_commit(lambda: begin(made.pk))
    except IntegrityError:
        if wanted.minutes > 1 and QuotaReplay.objects.filter(state__in=GOING_ON, is_long=True).exists():
            raise ValidationError({"minutes": [LONG_ONE]}) from None
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
            what_if_tell(found)
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


def what_if_tell(replay: QuotaReplay) -> None:
    feed_publish(changes={"what_ifs": [{"id": replay.pk}]})


def replay_teams(access: Access, replay: QuotaReplay) -> list[TeamWeek]:
    """By team where one is above, as far as the reader may see it, or by queue of a trace; those whose wait changes most come first."""
    if replay.on_own_fleet:
        seen = queues_seen(access)
        return _by_change([_team_week(str(key), figures) for key, *figures in replay.rows if seen(str(key))])
    nodes = {key: (path, kind) for key, path, kind in QuotaNode.objects.values_list("pk", "path", "kind")}
    teams = {path for path, kind in nodes.values() if kind == NodeKind.TEAM}
    sums: dict[str, list[int]] = defaultdict(lambda: [0] * 7)
    for key, *figures in replay.rows:
        path = nodes[key][0] if key in nodes else ""
        steps = path.split("/")
        team = next((upper for depth in range(len(steps), 0, -1) if (upper := "/".join(steps[:depth])) in teams), path)
        if access.can(Can.SEE, path):
            sums[team] = [mine + theirs for mine, theirs in zip(sums[team], figures, strict=True)]
    return _by_change([_team_week(path, figures) for path, figures in sums.items()])


def _team_week(path: str, figures: Sequence[int]) -> TeamWeek:
    jobs, begun, begun_then, waited, waited_then, held, held_then = figures
    return TeamWeek(path, jobs, (begun, begun_then), (waited, waited_then), (held, held_then))


def _by_change(found: Sequence[TeamWeek]) -> list[TeamWeek]:
    return sorted(found, key=lambda one: (-abs(one.waited[1] - one.waited[0]), one.path))


def team_waits(teams: Sequence[TeamWeek]) -> list[TeamWait]:
    return [TeamWait(one.path, *one.mean_wait_seconds) for one in teams if one.jobs]
