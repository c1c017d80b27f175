"""Costs of months by e-mail: made when they are due, sent until the server takes them or a day has passed."""

import random
from collections.abc import Iterator
from datetime import datetime, timedelta
from smtplib import SMTPException

from django.conf import settings
from django.core.mail import EmailMessage
from django.db import transaction
from django.template.loader import render_to_string

from gpufleet.core.audit import SYSTEM
from quotas.chargeback.files import file_of
from quotas.chargeback.months import Span, month_at
from quotas.chargeback.periods import Period
from quotas.chargeback.report import report, rows_shown
from quotas.models import ChargeMonth, CostMail, CostMailing, MailState
from quotas.permissions import Access, Can, Grant, access_for_user
from quotas.services.cost_mails import due_at, mailings_make
from scheduler.notify.outgoing import FAULT_LENGTH, inert
from scheduler.services.notify.delivering import GIVE_UP, pause_after

CLAIM = timedelta(minutes=5)
MOST_A_TURN = 100
SHOWN = 50


def cost_mails_turn(*, now: datetime, rng: random.Random) -> int:
    """Returns how many were tried."""
    with transaction.atomic():
        _make(now)
    tried = 0
    for mailing in _claimed(now):
        _send(mailing, now, rng)
        tried += 1
    return tried


def _make(now: datetime) -> None:
    """The month before is due from its day on; what was due before an e-mail was set up is not sent."""
    first = Span(month_at(now)).before
    if not ChargeMonth.objects.filter(first=first).exists():
        return
    for mail in CostMail.objects.select_for_update().filter(removed_at__isnull=True).order_by("pk"):
        if mail.created_at <= due_at(first, mail.day) <= now:
            mailings_make(mail=mail, first=first, now=now)


def _claimed(now: datetime) -> Iterator[CostMailing]:
    """One after another, each moved on before it is sent, so that no other worker sends it meanwhile."""
    due = CostMailing.objects.filter(state=MailState.WAITING, due_at__lte=now)
    for mailing in due.select_related("mail__node", "user").order_by("due_at", "pk")[:MOST_A_TURN]:
        moved = due.filter(pk=mailing.pk, attempts=mailing.attempts).update(attempts=mailing.attempts + 1, due_at=now + CLAIM)
        if moved:
            mailing.attempts += 1
            yield mailing


def _send(mailing: CostMailing, now: datetime, rng: random.Random) -> None:
    user, path = mailing.user, mailing.mail.node.path
    ours = CostMailing.objects.filter(pk=mailing.pk, state=MailState.WAITING)
    if not user.is_active or not access_for_user(user).can(Can.SEE_COSTS, path):
        ours.update(state=MailState.FAILED, done_at=now, fault=f"{user.username} can no longer see the costs of {path}.")
        return
    fault = ""
    try:
        if not settings.EMAIL_HOST or not user.email:
            fault = "There is no address, or this console sends no mail (GPUFLEET_EMAIL_URL)."
        else:
            mail_of(mailing, now).send()
    except (OSError, SMTPException, ValueError) as error:
        fault = inert(f"{type(error).__name__}: {error}".encode())[:FAULT_LENGTH]
    if not fault:
        ours.update(state=MailState.SENT, done_at=now, fault="")
    elif now - mailing.made_at >= GIVE_UP and mailing.attempts > 1:
        ours.update(state=MailState.FAILED, done_at=now, fault=fault)
    else:
        ours.filter(attempts=mailing.attempts).update(due_at=now + pause_after(mailing.attempts, rng), fault=fault)


def mail_of(mailing: CostMailing, now: datetime) -> EmailMessage:
    """The subtree's costs, whatever else its reader may see: a table by team, and the same as CSV."""
    node = mailing.mail.node
    access = Access(SYSTEM, (Grant(node.path, frozenset({Can.SEE_COSTS})),))
    period = Period.of(mailing.first)
    found = report(access, period, by="team", now=now)
    file = file_of(access, period, "summary", by="team", now=now)
    facts = {
        "name": str(mailing.user),
        "node": node,
        "report": found,
        "rows": rows_shown(found.rows, found.total)[:SHOWN],
        "more": max(0, len(found.rows) - SHOWN) + found.more,
        "currency": found.month.currency if found.month else settings.CURRENCY,
        "console": settings.PUBLIC_URL.rstrip("/"),
    }
    title = f"gpufleet: costs of {node.path}, {mailing.first:%B %Y}"
    subject = "".join(letter for letter in title if letter.isprintable())
    mail = EmailMessage(subject, render_to_string("quotas/cost_mail.txt", facts), settings.DEFAULT_FROM_EMAIL, [mailing.user.email])
    mail.attach(file.name, b"".join(file.pieces).decode(), "text/csv")
    mail.extra_headers["Auto-Submitted"] = "auto-generated"
    return mail
