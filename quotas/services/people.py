"""People's accounts. They belong to the whole installation, so writing them needs MANAGE_PEOPLE everywhere.

Nobody takes over the account of someone who can do more.
"""

import re
from typing import Any

from django.contrib.auth.tokens import default_token_generator
from django.core.exceptions import PermissionDenied, ValidationError
from django.core.validators import validate_email
from django.db import transaction
from django.utils.encoding import force_bytes
from django.utils.http import urlsafe_base64_encode

from gpufleet.core.audit import Actor, audit_record
from gpufleet.core.etags import revision_of
from gpufleet.core.faults import Stale
from gpufleet.core.models import User
from quotas.models import Role, RoleBinding
from quotas.permissions import Access, Can, access_for_user, exceeds
from quotas.services.nodes import lock_tree

USERNAME = re.compile(r"[a-z0-9][a-z0-9._@+-]{0,149}")


def may_manage(access: Access, person: User) -> bool:
    """Whether this access may write the person's account: it must hold whatever they hold."""
    if not access.can_everywhere(Can.MANAGE_PEOPLE):
        return False
    return not exceeds(_access_when_active(person), access)


def person_create(*, access: Access, username: str, display_name: str, email: str = "") -> User:
    """Make an account that nobody can sign in to yet: hand its person the link of `first_password_path`."""
    access.must_everywhere(Can.MANAGE_PEOPLE)
    username = username.strip().lower()
    faults = _faults(display_name, email)
    if not USERNAME.fullmatch(username):
        faults["username"] = "Use small letters, digits and . _ @ + -, beginning with a letter or a digit."
    elif User.objects.filter(username__iexact=username).exists():
        faults["username"] = "There is a person of this name already."
    if faults:
        raise ValidationError(faults)
    with transaction.atomic():
        person = User(username=username, display_name=display_name.strip(), email=email.strip())
        person.set_unusable_password()
        person.save()
        _record(access.actor, "person.create", person, after=_facts(person))
    return person


def person_revision(person: User) -> int:
    """Another one when the account is another than was read."""
    return revision_of(person.username, person.display_name, person.email, person.is_active)


def person_update(*, access: Access, person: User, display_name: str, email: str, revision: int | None = None) -> None:
    """`revision` is the one on which alone it is written."""
    must_manage(access, person)
    faults = _faults(display_name, email)
    if faults:
        raise ValidationError(faults)
    with transaction.atomic():
        there = User.objects.select_for_update(no_key=True).get(pk=person.pk)
        if revision is not None and revision != person_revision(there):
            raise Stale(f"The account of {there} has changed: reload it and try again.", person_revision(there))
        before = _facts(there)
        person.display_name, person.email = display_name.strip(), email.strip()
        person.save(update_fields=["display_name", "email"])
        _record(access.actor, "person.update", person, before=before, after=_facts(person))


def person_deactivate(*, access: Access, person: User, reason: str = "") -> None:
    """Shut the person out at once: sessions and tokens stop working with the next request. Everything they did stays."""
    must_manage(access, person)
    if person == access.actor.user:
        raise ValidationError("You can't deactivate yourself; ask somebody else.")
    with transaction.atomic():
        # Two superusers that shut each other out at once must not both find the other one left.
        lock_tree()
        if _is_last_superuser(person):
            raise ValidationError("This is the last superuser; make another one first.")
        _set_active(access, person, False, "person.deactivate", reason)


def person_activate(*, access: Access, person: User, reason: str = "") -> None:
    must_manage(access, person)
    _set_active(access, person, True, "person.activate", reason)


def person_reset_password(*, access: Access, person: User, reason: str = "") -> None:
    """Make the present password useless and end all sessions. The person sets a new one through the link of `first_password_path`."""
    must_manage(access, person)
    if person == access.actor.user:
        raise ValidationError("Change your own password on your profile page.")
    with transaction.atomic():
        person.set_unusable_password()
        person.save(update_fields=["password"])
        _record(access.actor, "person.reset_password", person, after={"password": "reset"}, reason=reason)


def first_password_key(person: User) -> dict[str, str]:
    """What the link to set a password carries. It works once and, as Django's setting says, for three days."""
    return {"uidb64": urlsafe_base64_encode(force_bytes(person.pk)), "token": default_token_generator.make_token(person)}


def person_set_clock(*, access: Access, person: User, clock_utc: bool) -> None:
    """One's own choice of how times are shown."""
    with transaction.atomic():
        before = {"clock_utc": person.clock_utc}
        person.clock_utc = clock_utc
        person.save(update_fields=["clock_utc"])
        _record(access.actor, "person.update", person, before=before, after={"clock_utc": clock_utc})


def _access_when_active(person: User) -> Access:
    """What the person may do, or may do again once activated."""
    active = User.objects.get(pk=person.pk)
    active.is_active = True
    return access_for_user(active)


def must_manage(access: Access, person: User) -> None:
    """Raise `PermissionDenied` unless this access may write the person's account."""
    access.must_everywhere(Can.MANAGE_PEOPLE)
    if not may_manage(access, person):
        raise PermissionDenied("This person may do more than you; ask a superuser.")


def _is_last_superuser(person: User) -> bool:
    if not _access_when_active(person).can_everywhere(Can.ADMINISTER):
        return False
    others = User.objects.filter(is_active=True).exclude(pk=person.pk)
    if others.filter(is_superuser=True).exists():
        return False
    top = RoleBinding.objects.filter(role=Role.SUPERUSER, node__parent__isnull=True, node__archived_at__isnull=True)
    return not top.filter(user__in=others).exists()


def _set_active(access: Access, person: User, active: bool, action: str, reason: str) -> None:
    with transaction.atomic():
        before = _facts(person)
        person.is_active = active
        person.save(update_fields=["is_active"])
        _record(access.actor, action, person, before=before, after=_facts(person), reason=reason)


def _faults(display_name: str, email: str) -> dict[str, Any]:
    faults: dict[str, Any] = {}
    if not display_name.strip() or len(display_name.strip()) > 120:
        faults["display_name"] = "Give the name by which people know them, at most 120 characters."
    if email.strip():
        try:
            validate_email(email.strip())
        except ValidationError as fault:
            faults["email"] = fault.messages
    return faults


def _facts(person: User) -> dict[str, Any]:
    return {"username": person.username, "display_name": person.display_name, "email": person.email, "active": person.is_active}


def _record(actor: Actor, action: str, person: User, **sides: Any) -> None:
    audit_record(actor=actor, action=action, kind="person", object_id=person.public_id, **sides)
