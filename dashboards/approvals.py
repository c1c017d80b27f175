"""Notifications about quota changes, reservations and budgets, to people, to webhooks and on Activity.

Notifies approvers that a change waits, and its author of the decision. Nobody is notified of their own actions.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dashboards.telling import Event, events_tell
from gpufleet.core.audit import Actor
from gpufleet.core.live.news import News
from gpufleet.core.models import User
from gpufleet.core.templatetags.shell import gpus, gpus_told
from quotas.models import BudgetUnit, ChangeState, QuotaChange, Reservation, ReservationState, Role, RoleBinding
from quotas.permissions import Access, accesses_for_users
from quotas.selectors.changes import may_decide
from quotas.services.budgets import Turned
from quotas.services.changes import edited_now
from scheduler.notify.happenings import FleetEvent
from scheduler.selectors.windows import may_decide_on
from scheduler.services.notify.notices import Kind, Word, notices_say

MOST_TOLD = 50
WORDS = ("name", "purpose")  # of a reservation; other words need no approval
CHANGES = {
    ChangeState.PROPOSED: (FleetEvent.QUOTA_PROPOSED, "Approval needed"),
    ChangeState.APPROVED: (FleetEvent.QUOTA_APPROVED, "Approved"),
    ChangeState.REJECTED: (FleetEvent.QUOTA_REJECTED, "Rejected"),
    ChangeState.APPLIED: (FleetEvent.QUOTA_APPLIED, "In force"),
    ChangeState.FAILED: (FleetEvent.QUOTA_FAILED, "Could not take effect"),
}
BUDGETS = {"warned": FleetEvent.BUDGET_WARNED, "stopped": FleetEvent.BUDGET_STOPPED, "resumed": FleetEvent.BUDGET_RESUMED}


@dataclass(frozen=True, slots=True)
class Told:
    """What a step of a reservation is to others. `event` None: its requester alone is told."""

    title: str
    text: str
    event: FleetEvent | None = None
    kind: Kind = Kind.RESERVATION


def change_told(sender: object, *, change: QuotaChange, actor: Actor, now: datetime, **_: Any) -> None:
    """In the transaction of the step."""
    if change.state not in CHANGES:
        return
    event, head = CHANGES[ChangeState(change.state)]
    title, link = f"{head}: {change.title}", f"/quotas/changes/{change.public_id}/"
    text = _change_text(change, actor)
    if change.state == ChangeState.PROPOSED:
        edited = edited_now(change)
        people = _deciders(lambda access: may_decide(access, edited), but=change.author_id)
    else:
        people = _but_himself([change.author_id], actor)
    _tell(Kind.APPROVAL, people, title, text, link, now)
    path = _above_all(change.nodes.values_list("path", flat=True))
    subject = {"change": change.public_id, "state": change.state, "author": change.author_name}
    events_tell([Event(kind=event, title=title, text=text, path=path, link=link, subject=subject, by=actor.name)], now=now)


def _change_text(change: QuotaChange, actor: Actor) -> str:
    said = change.decision_reason if change.state in (ChangeState.APPROVED, ChangeState.REJECTED) else change.reason
    if change.state == ChangeState.FAILED:
        return f"{change.public_id}: {change.fault}"
    by = change.author_name if change.state == ChangeState.PROPOSED else actor.name
    return f"{change.public_id}, by {by}.{f' {said}' if said else ''}"


def reservation_told(
    sender: object,
    *,
    reservation: Reservation,
    action: str,
    actor: Actor,
    facts: dict[str, Any],
    before: Mapping[str, Any] | None = None,
    now: datetime,
    **_: Any,
) -> None:
    """In the transaction of the step."""
    is_reworded = before is not None and all(before.get(name) == value for name, value in facts.items() if name not in WORDS)
    told = _reservation_words(reservation, action, actor, facts, is_reworded)
    if told is None:
        return
    link = f"/reservations/{reservation.public_id}/"
    if told.event == FleetEvent.RESERVE_REQUESTED:
        people = _deciders(lambda access: may_decide_on(access, reservation.quota), but=actor.user.pk if actor.user is not None else None)
        others = [key for key in _but_himself([reservation.requested_by_id], actor) if key not in people]
        name = f"{reservation.name} ({reservation.owner_label})"
        _tell(Kind.RESERVATION, others, f"Changed, needs approval: {name}", told.text, link, now)
    else:
        people = _but_himself([reservation.requested_by_id], actor)
    _tell(told.kind, people, told.title, told.text, link, now)
    if told.event is not None:
        path = reservation.quota.path if reservation.quota is not None else ""
        subject = {"reservation": reservation.public_id, "state": reservation.state, "gpu_type": reservation.gpu_type}
        subject |= {name: facts[name] for name in ("window", "missing_milli") if name in facts}
        events_tell([Event(kind=told.event, title=told.title, text=told.text, path=path, link=link, subject=subject, by=actor.name)], now=now)


def _reservation_words(reservation: Reservation, action: str, actor: Actor, facts: dict[str, Any], is_reworded: bool) -> Told | None:
    name = f"{reservation.name} ({reservation.owner_label})"
    what = f"{reservation.public_id}, {gpus(reservation.gpus_milli)} {reservation.gpu_type} from {reservation.starts_at:%Y-%m-%d %H:%M} UTC"
    by = f"{what}, by {actor.name}."
    decided = f"{by}{f' {reservation.decision}' if reservation.decision else ''}"
    match action:
        case "reservation.request" | "reservation.change" if reservation.state == ReservationState.REQUESTED and not is_reworded:
            return Told(f"Approval needed: {name}", by, FleetEvent.RESERVE_REQUESTED, Kind.APPROVAL)
        case "reservation.request":
            return Told(f"Approved: {name}", by, FleetEvent.RESERVE_APPROVED, Kind.APPROVAL)
        case "reservation.approve":
            return Told(f"Approved: {name}", decided, FleetEvent.RESERVE_APPROVED, Kind.APPROVAL)
        case "reservation.deny":
            return Told(f"Denied: {name}", decided, FleetEvent.RESERVE_DENIED, Kind.APPROVAL)
        case "reservation.cancel":
            return Told(f"Cancelled: {name}", decided, FleetEvent.RESERVE_CANCELLED)
        case "reservation.change":
            return Told(f"Changed: {name}", by)
        case "reservation.end_window":
            return Told(f"Window ended: {name}", by)
        case "reservation.clear" if facts["missing_milli"]:
            lacks = f"{gpus(facts['missing_milli'])} of {gpus_told(reservation.gpus_milli)} missing"
            text = f"{facts['window']}: {lacks}, as running jobs cannot be asked to leave or hardware is out of service."
            return Told(f"Starts short of GPUs: {name}", text, FleetEvent.RESERVE_SHORT)
        case "reservation.release":
            return Told(f"Released unused: {name}", f"{facts['window']}: no job claimed it in time.", FleetEvent.RESERVE_RELEASED)
    return None


def budget_told(sender: object, *, turned: Turned, title: str, text: str, actor: Actor, now: datetime, **_: Any) -> None:
    """Those who look after it have their notices already. Amounts of money are for those alone who see costs."""
    standing = turned.standing
    budget = standing.budget
    if budget.unit == BudgetUnit.MONEY:
        text = f"{standing.percent}% used."
    subject = {"budget": budget.public_id, "percent": standing.percent, "unit": budget.unit, "what": turned.what}
    link = f"/budgets/{budget.public_id}/"
    events_tell(
        [Event(kind=BUDGETS[turned.what], title=title, text=text, path=budget.quota.path, link=link, subject=subject, by=actor.name)], now=now
    )


def _deciders(may: Callable[[Access], bool], *, but: int | None) -> list[int]:
    """People whose role lets them approve it; superusers where there is nobody else."""
    held = RoleBinding.objects.filter(role__in=(Role.QUOTA_ADMIN, Role.SUPERUSER), node__archived_at__isnull=True)
    people = User.objects.filter(is_active=True).exclude(pk__in=[but] if but is not None else []).order_by("pk")
    found = [key for key, access in accesses_for_users(people.filter(pk__in=held.values("user"))).items() if may(access)]
    return (found or list(people.filter(is_superuser=True).values_list("pk", flat=True)))[:MOST_TOLD]


def _but_himself(people: Iterable[int | None], actor: Actor) -> list[int]:
    """The people other than the actor. Whatever runs on a schedule is nobody's own action."""
    himself = actor.user.pk if actor.user is not None and actor.via != "schedule" else None
    return [key for key in people if key is not None and key != himself]


def _tell(kind: Kind, people: Iterable[int], title: str, text: str, link: str, now: datetime) -> None:
    news = News()
    notices_say(kind=kind, words=[Word(key, title, text, link=link) for key in people], now=now, news=news)
    news.publish()


def _above_all(paths: Iterable[str]) -> str:
    """The nearest node at or above all of them."""
    together = zip(*(path.split("/") for path in paths), strict=False)
    return "/".join(steps[0] for steps in itertools.takewhile(lambda steps: len(set(steps)) == 1, together))
