"""Telling others of the fleet: a line on the page Activity, and a message to each webhook that chose the kind.

Messages are rows (`Delivery`) that the sender carries out later, written with what happened: nothing is lost between the two (docs/adr/0008).
"""

import json
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.conf import settings

from dashboards.models import ActivityEntry
from gpufleet.core.bulk import rows_insert
from gpufleet.core.models import User
from gpufleet.core.times import written
from quotas.models import Role, RoleBinding
from quotas.permissions import is_within
from scheduler.models import Delivery, HookForm, Webhook, WebhookState
from scheduler.notify.happenings import PAYLOAD_VERSION, FleetEvent
from scheduler.services.notify.outbox import delivery_of

LINE = ("at", "kind", "title", "text", "path", "job", "link", "by")
MESSAGE = ("hook_id", "public_id", "event", "kind", "job", "body", "made_at", "due_at")


@dataclass(frozen=True, slots=True)
class Event:
    """Something to tell. What concerns a node of the tree goes to the webhooks at and above it; what concerns the whole fleet, to those of the top.

    `also` names webhooks that are told whatever they chose.
    """

    kind: FleetEvent
    title: str
    text: str
    path: str = ""
    job: str = ""
    link: str = ""
    subject: Mapping[str, Any] = field(default_factory=dict)
    by: str = "gpufleet"
    also: frozenset[int] = frozenset()


def events_tell(events: Sequence[Event], *, now: datetime) -> int:
    """Write the lines and the messages of one moment in the caller's transaction. Returns how many messages that were.

    Three queries, however many. Chats get one message that lists what else would be several.
    """
    if not events:
        return 0
    rows = [(now, one.kind, one.title[:200], one.text[:500], one.path, one.job, one.link, one.by[:160]) for one in events]
    rows_insert(ActivityEntry, LINE, rows)
    said = [_said(one, now) for one in events]
    hooks = Webhook.objects.filter(state=WebhookState.ACTIVE, removed_at__isnull=True, node__isnull=False).select_related("node").order_by("pk")
    messages: list[Delivery] = []
    for hook in hooks:
        told = [(one, payload) for one, payload in zip(events, said, strict=True) if hook.pk in one.also or _wants(hook, one.kind, one.path)]
        if hook.form == HookForm.SLACK and len(told) > 1:
            listed = {"events": [payload for _, payload in told]}
            messages.append(delivery_of(hook, event=_id(), kind=told[0][0].kind, job="", body=_json(listed), now=now))
        else:
            messages += [delivery_of(hook, event=payload["id"], kind=one.kind, job=one.job, body=_json(payload), now=now) for one, payload in told]
    rows_insert(Delivery, MESSAGE, [[getattr(message, name) for name in MESSAGE] for message in messages])
    return len(messages)


def _said(one: Event, now: datetime) -> dict[str, Any]:
    return {
        "version": PAYLOAD_VERSION,
        "id": _id(),
        "kind": one.kind.value,
        "at": written(now),
        "console": settings.PUBLIC_URL.rstrip("/"),
        "title": one.title,
        "text": one.text,
        "quota": one.path or None,
        "link": one.link or "/",
        "subject": dict(one.subject),
        "by": one.by,
    }


def _id() -> str:
    return f"f-{secrets.token_hex(6)}"


def _json(said: Mapping[str, Any]) -> str:
    return json.dumps(said, ensure_ascii=False, separators=(",", ":"))


def _wants(hook: Webhook, kind: str, path: str) -> bool:
    assert hook.node is not None
    covers = is_within(path, hook.node.path) if path else "/" not in hook.node.path
    return kind in hook.kinds and covers


class People:
    """Who has which of some roles, and where. Two queries at most, however often it is asked."""

    def __init__(self, roles: Collection[str]) -> None:
        held = RoleBinding.objects.filter(role__in=sorted(roles), node__archived_at__isnull=True, user__is_active=True) if roles else None
        self._held = list(held.values_list("user_id", "role", "node__path")) if held is not None else []
        self._superusers: list[int] = []
        if Role.SUPERUSER in roles:
            self._superusers = list(User.objects.filter(is_superuser=True, is_active=True).values_list("pk", flat=True))

    def with_roles(self, roles: Collection[str], *, team: str = "") -> list[int]:
        """People with one of these roles on the whole fleet; of team leads, those of the team or of a node above it."""
        found = {
            user
            for user, role, path in self._held
            if role in roles and user is not None and (is_within(team, path) if role == Role.TEAM_LEAD else "/" not in path)
        }
        return sorted(found.union(self._superusers if Role.SUPERUSER in roles else ()))
