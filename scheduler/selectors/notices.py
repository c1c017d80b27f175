"""What one person was told, and how it was sent. Everybody sees only his own."""

from typing import Any

from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.utils.crypto import salted_hmac

from gpufleet.core.models import User
from quotas.permissions import Access, Can
from scheduler.models import Delivery, Job, JobFollow, Notice, NoticeChoices, Sending

LOG_SHOWN = 25
# Beyond it a bell says “more than”: counting on would cost without telling more.
MOST_COUNTED = 99
READING = frozenset({Can.SEE, Can.SEE_COSTS, Can.SEE_AUDIT})


def notices_of(access: Access) -> QuerySet[Notice]:
    return Notice.objects.filter(user=access.actor.user, in_console=True) if access.actor.user is not None else Notice.objects.none()


def sendings_of(access: Access) -> QuerySet[Sending]:
    if access.actor.user is None:
        return Sending.objects.none()
    return Sending.objects.filter(user=access.actor.user).select_related("notice").order_by("-pk")


def own_deliveries(access: Access) -> QuerySet[Delivery]:
    if access.actor.user is None:
        return Delivery.objects.none()
    return Delivery.objects.filter(hook__person=access.actor.user, hook__removed_at__isnull=True).order_by("-pk")


def unread_count(user: User) -> int:
    """At most one more than is told."""
    return Notice.objects.filter(user=user, in_console=True, read_at__isnull=True)[: MOST_COUNTED + 1].count()


def bell_mark(user_id: int) -> str:
    """Tells a page that its own bell is meant, and nobody else whose bell it is."""
    return str(salted_hmac("gpufleet.bell", str(user_id), algorithm="sha256").hexdigest()[:16])


def bell_of(user: User) -> dict[str, Any]:
    return {"count": unread_count(user), "mark": bell_mark(user.pk)}


def choices_row(access: Access) -> NoticeChoices | None:
    return NoticeChoices.objects.filter(user=access.actor.user).first()


def follows_job(access: Access, job: Job) -> bool:
    return access.actor.user is not None and JobFollow.objects.filter(user=access.actor.user, job=job).exists()


def must_be_whole(access: Access) -> None:
    """What a person is told is of all that he may see, so a token for a part of the tree learns none of it."""
    if access.within:
        raise PermissionDenied(f"This token is for {access.within} alone, and notices are of everything that its owner sees.")


def must_be_signed_in(access: Access) -> None:
    """Where one's notices go is said by nobody else: a token that is lost would have them sent elsewhere."""
    if access.actor.via != "session":
        raise PermissionDenied("Only a signed-in person can choose where notifications go.")


def must_write_own(access: Access) -> None:
    """One's own choices are the person's; a token that only reads makes none."""
    if access.actor.via != "session" and not any(grant.capabilities - READING for grant in access.grants):
        raise PermissionDenied("A token that only reads changes nothing.")
