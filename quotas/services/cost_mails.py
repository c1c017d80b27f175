"""Costs by e-mail each month: who gets those of which subtree."""

from collections.abc import Sequence
from datetime import date, datetime, timedelta

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import QuerySet
from django.http import Http404

from gpufleet.core.audit import audit_record
from gpufleet.core.faults import Conflict
from gpufleet.core.ids import public_id
from gpufleet.core.models import User
from quotas.chargeback.months import Span
from quotas.models import CostMail, CostMailing, MailState, QuotaNode
from quotas.permissions import Access, Can, accesses_for_users
from quotas.rules import Faults, note

MOST_PEOPLE, MOST_MAILS = 50, 200
LATEST_DAY = 28
HOUR = timedelta(hours=6)


def cost_mails_listed(access: Access) -> QuerySet[CostMail]:
    access.must_everywhere(Can.MANAGE_COSTS)
    return CostMail.objects.filter(removed_at__isnull=True).select_related("node").prefetch_related("people").order_by("node__path", "pk")


def cost_mail_for(access: Access, given: str) -> CostMail:
    found = cost_mails_listed(access).filter(public_id=given).first()
    if found is None:
        raise Http404(f"There is no e-mail {given}.")
    return found


def mailings_listed(access: Access) -> QuerySet[CostMailing]:
    """The delivery log, the newest first; of e-mails that were removed too."""
    access.must_everywhere(Can.MANAGE_COSTS)
    return CostMailing.objects.select_related("mail__node", "user").order_by("-pk")


def due_at(first: date, day: int) -> datetime:
    """When the costs of a month are sent."""
    return Span(first).end + timedelta(days=day - 1) + HOUR


def cost_mail_create(*, access: Access, path: str, usernames: Sequence[str], day: int, now: datetime) -> CostMail:
    access.must_everywhere(Can.MANAGE_COSTS)
    faults: Faults = {}
    node = QuotaNode.objects.filter(path=path, archived_at__isnull=True).first()
    if node is None:
        note(faults, "team", f"{path or 'The empty path'} is not a team or node of the tree.")
    if not 1 <= day <= LATEST_DAY:
        note(faults, "day", f"Choose a day from 1 to {LATEST_DAY}.")
    people = _people(usernames, node, faults)
    if CostMail.objects.filter(removed_at__isnull=True).count() >= MOST_MAILS:
        note(faults, "team", f"There are {MOST_MAILS} e-mails, which is the most.")
    if faults or node is None:
        raise ValidationError(faults)
    with transaction.atomic():
        made = CostMail.objects.create(public_id=public_id("cm"), node=node, day=day, author_name=access.actor.name, created_at=now)
        made.people.set(people)
        facts = {"team": node.path, "day": day, "people": sorted(user.username for user in people)}
        audit_record(actor=access.actor, action="cost_mail.create", kind="cost_mail", object_id=made.public_id, quota=node, after=facts)
    return made


def _people(usernames: Sequence[str], node: QuotaNode | None, faults: Faults) -> list[User]:
    wanted = sorted({name.strip() for name in usernames if name.strip()})
    if not wanted or len(wanted) > MOST_PEOPLE:
        note(faults, "people", f"Name 1 to {MOST_PEOPLE} people.")
        return []
    found = {user.username: user for user in User.objects.filter(username__in=wanted, is_active=True)}
    accesses = accesses_for_users(found.values())
    for name in wanted:
        user = found.get(name)
        if user is None:
            note(faults, "people", f"{name} is not an active person.")
        elif node is not None and not accesses[user.pk].can(Can.SEE_COSTS, node.path):
            note(faults, "people", f"{name} cannot see the costs of {node.path}: give a role with costs first.")
        elif not user.email:
            note(faults, "people", f"{name} has no e-mail address.")
    return list(found.values())


def cost_mail_remove(*, access: Access, mail: CostMail, now: datetime) -> None:
    access.must_everywhere(Can.MANAGE_COSTS)
    with transaction.atomic():
        if CostMail.objects.filter(pk=mail.pk, removed_at__isnull=True).update(removed_at=now):
            mail.mailings.filter(state=MailState.WAITING).update(state=MailState.FAILED, done_at=now, fault="The e-mail was removed.")
            audit_record(actor=access.actor, action="cost_mail.remove", kind="cost_mail", object_id=mail.public_id, quota=mail.node)


def cost_mail_again(*, access: Access, mail: CostMail, first: date, now: datetime) -> int:
    """Send a month now: to everybody for whom it is not on its way already. Returns to how many."""
    access.must_everywhere(Can.MANAGE_COSTS)
    if now < Span(first).end:
        raise Conflict(f"{first:%Y-%m} is not over.")
    with transaction.atomic():
        made = mailings_make(mail=mail, first=first, now=now)
        again = mail.mailings.filter(first=first).exclude(state=MailState.WAITING)
        again = again.exclude(pk__in=[one.pk for one in made])
        count = len(made) + again.update(state=MailState.WAITING, attempts=0, due_at=now, done_at=None, fault="")
        facts = {"month": f"{first:%Y-%m}", "people": count}
        audit_record(actor=access.actor, action="cost_mail.send", kind="cost_mail", object_id=mail.public_id, quota=mail.node, after=facts)
    return count


def mailings_make(*, mail: CostMail, first: date, now: datetime) -> list[CostMailing]:
    """A row for each person of the e-mail who has none of this month yet."""
    there = set(mail.mailings.filter(first=first).values_list("user_id", flat=True))
    rows = [CostMailing(mail=mail, user=user, first=first, made_at=now, due_at=now) for user in mail.people.order_by("pk") if user.pk not in there]
    return CostMailing.objects.bulk_create(rows)
