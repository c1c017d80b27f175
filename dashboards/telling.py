"""Telling others of the fleet: a line on the page Activity, and a message to each webhook that chose the kind.

Messages are rows (`Delivery`) that the sender carries out later, written with what happened: nothing is lost between the two (docs/adr/0008).
"""

import json
import secrets
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.conf import settings

from dashboards.models import ActivityEntry
from gpufleet.core.times import written
from quotas.permissions import is_within
from scheduler.models import Delivery, Webhook, WebhookState
from scheduler.notify.happenings import PAYLOAD_VERSION, FleetEvent
from scheduler.services.notify.outbox import delivery_of


def event_tell(
    *,
    kind: FleetEvent,
    title: str,
    text: str,
    now: datetime,
    path: str = "",
    job: str = "",
    link: str = "",
    subject: Mapping[str, Any] | None = None,
    by: str = "gpufleet",
    also: frozenset[int] = frozenset(),
) -> int:
    """Write the line and the messages in the caller's transaction. Returns how many messages that were.

    What concerns a node of the tree goes to the webhooks at and above it; what concerns the whole fleet, to those of the top. `also` names webhooks
    that are told whatever they chose.
    """
    ActivityEntry.objects.create(at=now, kind=kind, title=title[:200], text=text[:500], path=path, job=job, link=link, by=by[:160])
    hooks = Webhook.objects.filter(state=WebhookState.ACTIVE, removed_at__isnull=True, node__isnull=False).select_related("node").order_by("pk")
    told = [hook for hook in hooks if hook.pk in also or _wants(hook, kind, path)]
    if not told:
        return 0
    event = f"f-{secrets.token_hex(6)}"
    said = {
        "version": PAYLOAD_VERSION,
        "id": event,
        "kind": kind.value,
        "at": written(now),
        "console": settings.PUBLIC_URL.rstrip("/"),
        "title": title,
        "text": text,
        "quota": path or None,
        "link": link or "/",
        "subject": dict(subject or {}),
        "by": by,
    }
    body = json.dumps(said, ensure_ascii=False, separators=(",", ":"))
    Delivery.objects.bulk_create([delivery_of(hook, event=event, kind=kind.value, job=job, body=body, now=now) for hook in told])
    return len(told)


def _wants(hook: Webhook, kind: str, path: str) -> bool:
    assert hook.node is not None
    covers = is_within(path, hook.node.path) if path else "/" not in hook.node.path
    return kind in hook.kinds and covers
