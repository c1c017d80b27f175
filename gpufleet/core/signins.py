"""Coming and going in the audit log: sign-in, failed sign-in, sign-out, and passwords that people change themselves."""

from typing import Any

from allauth.account.adapter import get_adapter
from allauth.account.signals import password_changed
from django.contrib.auth.signals import user_logged_in, user_logged_out, user_login_failed
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest

from gpufleet.core.audit import Actor, audit_record
from gpufleet.core.models import User


def connect() -> None:
    user_logged_in.connect(_signed_in, dispatch_uid="audit")
    user_login_failed.connect(_sign_in_failed, dispatch_uid="audit")
    user_logged_out.connect(_signed_out, dispatch_uid="audit")
    password_changed.connect(_password_changed, dispatch_uid="audit")


def _address(request: HttpRequest | None) -> dict[str, str]:
    """Where the caller sits, as far as the trusted proxies tell."""
    if request is None or "REMOTE_ADDR" not in request.META:
        return {}
    try:
        return {"address": get_adapter().get_client_ip(request)}
    except PermissionDenied:
        return {"address": "not known"}


def _record(action: str, user: User | None, request: HttpRequest | None, object_id: str) -> None:
    name = str(user) if user else "not signed in"
    actor = Actor(user=user, name=name, via="session", request_id=getattr(request, "request_id", ""))
    audit_record(actor=actor, action=action, kind="person", object_id=object_id[:120], after=_address(request))


def _signed_in(sender: Any, request: HttpRequest | None, user: User, **rest: Any) -> None:
    _record("sign_in", user, request, user.public_id)


def _sign_in_failed(sender: Any, credentials: dict[str, Any], request: HttpRequest | None = None, **rest: Any) -> None:
    _record("sign_in.failed", None, request, str(credentials.get("username", "")))


def _signed_out(sender: Any, request: HttpRequest | None, user: User | None, **rest: Any) -> None:
    if user is not None:
        _record("sign_out", user, request, user.public_id)


def _password_changed(sender: Any, request: HttpRequest, user: User, **rest: Any) -> None:
    _record("person.password", user, request, user.public_id)
