"""Notices on their way: those of one person that are due by one way go out together, as one mail or one message to the person's webhook."""

import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from smtplib import SMTPException
from typing import Any

from django.conf import settings
from django.core.mail import EmailMultiAlternatives
from django.db import connection, transaction
from django.db.models import Value
from django.db.models.functions import Coalesce
from django.template.loader import render_to_string

from gpufleet.core.times import MomentField, written
from scheduler.loop.measures import MAILS
from scheduler.models import Delivery, Notice, Sending, SendingState, Webhook, WebhookState
from scheduler.notify.happenings import NOTICES, PAYLOAD_VERSION
from scheduler.notify.outgoing import FAULT_LENGTH, inert
from scheduler.services.loop.measuring import tally
from scheduler.services.notify.delivering import GIVE_UP, pause_after
from scheduler.services.notify.notices import BETWEEN_MAILS, KIND_LABELS, Way, own_hook
from scheduler.services.notify.outbox import A_TURN, delivery_of

PEOPLE_A_TURN = 20
MOST_TOGETHER = 1000
SHOWN_IN_A_MAIL = 50
# How long a claim holds. A mail takes a dozen exchanges with its server, and connecting may be tried at several addresses: each of them may take
# EMAIL_TIMEOUT, and whoever is still at it must not be thought dead.
CLAIM = timedelta(minutes=5)
NO_HOOK = "There is no webhook of your own any more."
HOOK_OFF = "Your own webhook is switched off, as it had only failed for days. Press Change there to use it again."


def sendings_turn(*, clock: Callable[[], datetime], rng: random.Random) -> int:
    """Send what is due. Returns how many notices went out or were tried."""
    began, tried = clock(), 0
    tried += _to_webhooks(now=began)
    while clock() - began < A_TURN:
        rows = _claim(Way.EMAIL, now=clock())
        if not rows:
            break
        _mail(rows, now=clock(), rng=rng)
        tried += len(rows)
    return tried


def _claim(way: str, *, now: datetime) -> list[Sending]:
    """All that is due to one person by one way, moved on so that nobody else takes it meanwhile."""
    due = Sending.objects.filter(way=way, state=SendingState.WAITING, delivery__isnull=True, due_at__lte=now)
    with transaction.atomic():
        oldest = due.order_by("due_at", "pk").first()
        if oldest is None:
            return []
        locked = connection.features.has_select_for_update_skip_locked
        own = due.filter(user=oldest.user_id).order_by("pk").select_for_update(of=("self",), skip_locked=locked)
        rows = list(own.select_related("notice", "user")[:MOST_TOGETHER])
        for row in rows:
            row.attempts += 1
            row.tried_since = row.tried_since or now
        keys = [row.pk for row in rows]
        for attempts in {row.attempts for row in rows}:
            same = [row.pk for row in rows if row.attempts == attempts]
            since = Coalesce("tried_since", Value(now, output_field=MomentField()))
            Sending.objects.filter(pk__among=same).update(attempts=attempts, due_at=now + CLAIM, tried_since=since)
        # What comes after this is gathered for the next one.
        later = Sending.objects.filter(way=way, user=oldest.user_id, state=SendingState.WAITING, due_at__lt=now + BETWEEN_MAILS)
        if way == Way.EMAIL:
            later.exclude(pk__in=keys[:MOST_TOGETHER]).update(due_at=now + BETWEEN_MAILS)
    return rows


def _mail(rows: Sequence[Sending], *, now: datetime, rng: random.Random) -> None:
    if not rows:
        return
    user, notices = rows[0].user, [row.notice for row in rows]
    fault = ""
    try:
        if not settings.EMAIL_HOST or not user.email:
            fault = "There is no address, or this console sends no mail any more."
        else:
            mail_of(user.email, str(user), notices).send()
    except (OSError, SMTPException, ValueError) as error:
        fault = inert(f"{type(error).__name__}: {error}".encode())[:FAULT_LENGTH]
    tally.count(MAILS, "failed" if fault else "sent")
    # Whoever comes late, after somebody else has claimed them anew, only tells of success.
    waiting = Sending.objects.filter(state=SendingState.WAITING)
    again = now + pause_after(max(row.attempts for row in rows), rng)
    alike: dict[tuple[int, bool], list[int]] = defaultdict(list)
    for row in rows:
        # The day of trying begins with the first try: quiet hours or a worker that was away may have come before it.
        alike[row.attempts, now - (row.tried_since or now) >= GIVE_UP].append(row.pk)
    with transaction.atomic():
        if not fault:
            waiting.filter(pk__among=[row.pk for row in rows]).update(state=SendingState.SENT, done_at=now, fault="")
            return
        for (attempts, over), keys in alike.items():
            ours = waiting.filter(pk__among=keys, attempts=attempts)
            if over:
                ours.update(state=SendingState.FAILED, done_at=now, fault=fault)
            else:
                ours.update(due_at=again, fault=fault)


def mail_of(address: str, name: str, notices: Sequence[Notice]) -> EmailMultiAlternatives:
    """One mail, however much it tells of."""
    total = sum(notice.count for notice in notices)
    about = " about your jobs" if not any(notice.link for notice in notices) else ""
    subject = notices[0].title if len(notices) == 1 else f"{total:,} notices{about}"
    facts = {
        "name": name,
        "notices": notices[:SHOWN_IN_A_MAIL],
        "more": len(notices) - SHOWN_IN_A_MAIL,
        "counts": [(KIND_LABELS.get(kind, "Other"), count) for kind, count in _counts(notices).items()],
        "console": settings.PUBLIC_URL.rstrip("/"),
    }
    clean = "".join(letter for letter in f"gpufleet: {subject}" if letter.isprintable())
    mail = EmailMultiAlternatives(clean, render_to_string("scheduler/mail.txt", facts), settings.DEFAULT_FROM_EMAIL, [address])
    mail.attach_alternative(render_to_string("scheduler/mail.html", facts), "text/html")
    mail.extra_headers["Auto-Submitted"] = "auto-generated"
    return mail


def _counts(notices: Sequence[Notice]) -> Counter[str]:
    found: Counter[str] = Counter()
    for notice in notices:
        found[notice.kind] += notice.count
    return found


def _to_webhooks(*, now: datetime) -> int:
    """Hand what is due over to people's own webhooks, whose deliveries are then sent and logged like all others."""
    tried = 0
    for _ in range(PEOPLE_A_TURN):
        rows = _claim(Way.WEBHOOK, now=now)
        if not rows:
            break
        hook = own_hook(rows[0].user)
        with transaction.atomic():
            ours = Sending.objects.filter(pk__among=[row.pk for row in rows], state=SendingState.WAITING)
            if hook is None or hook.state != WebhookState.ACTIVE:
                ours.update(state=SendingState.FAILED, done_at=now, fault=NO_HOOK if hook is None else HOOK_OFF)
            else:
                message = message_of(hook, rows, now)
                message.save(force_insert=True)
                # They are sent when the message is, and given up when it is.
                ours.update(delivery=message, due_at=now + GIVE_UP)
        tried += len(rows)
    return tried


def message_of(hook: Webhook, rows: Sequence[Sending], now: datetime) -> Delivery:
    """Everything that is due as one message."""
    event = f"n-{rows[0].pk}"
    said = {
        "version": PAYLOAD_VERSION,
        "id": event,
        "kind": NOTICES,
        "at": written(now),
        "console": settings.PUBLIC_URL.rstrip("/"),
        "notices": [_notice(row.notice) for row in rows],
    }
    body = json.dumps(said, ensure_ascii=False, separators=(",", ":"))
    job = rows[0].notice.job if len(rows) == 1 else ""
    return delivery_of(hook, event=event, kind=NOTICES, job=job, body=body, now=now)


def _notice(notice: Notice) -> dict[str, Any]:
    plain = {name: getattr(notice, name) for name in ("kind", "title", "text", "count")}
    return plain | {"at": written(notice.at), "job": notice.job or None, "link": notice.link or None}
