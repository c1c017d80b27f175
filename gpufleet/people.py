"""How people come in: rules for local log-in and for the sign-on provider."""

from collections.abc import Mapping
from typing import Any

import structlog
from allauth.account.adapter import DefaultAccountAdapter
from allauth.core.exceptions import ImmediateHttpResponse
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from allauth.socialaccount.models import SocialAccount, SocialLogin
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from gpufleet import errors
from gpufleet.core.audit import Actor
from gpufleet.core.models import User
from gpufleet.core.times import now
from quotas.services.roles import SIGN_ON, roles_follow_groups

log = structlog.get_logger(__name__)
SILENT = ("account/messages/logged_in.txt", "account/messages/logged_out.txt")


class AccountAdapter(DefaultAccountAdapter):
    def is_open_for_signup(self, request: HttpRequest) -> bool:
        """Accounts are made by an admin or by single sign-on, never by a stranger."""
        return False

    def add_message(self, request: HttpRequest, level: int, message_template: str | None = None, *rest: Any, **options: Any) -> None:
        """That they are in, or out, people see by themselves."""
        if message_template not in SILENT:
            super().add_message(request, level, message_template, *rest, **options)

    def get_password_change_redirect_url(self, request: HttpRequest) -> str:
        return reverse("profile")

    def respond_user_inactive(self, request: HttpRequest, user: User) -> HttpResponse:
        return errors.deactivated(request)

    def post_login(self, request: HttpRequest, user: User, *, signal_kwargs: dict[str, Any] | None = None, **rest: Any) -> HttpResponse:
        sociallogin = (signal_kwargs or {}).get("sociallogin")
        if sociallogin is not None:
            actor = Actor(user=user, name=str(user), via=SIGN_ON, request_id=getattr(request, "request_id", ""))
            roles_follow_groups(user=user, groups=groups_of(sociallogin.account.extra_data), actor=actor, now=now())
        answer: HttpResponse = super().post_login(request, user, signal_kwargs=signal_kwargs, **rest)
        return answer


class SignOnAdapter(DefaultSocialAccountAdapter):
    def is_open_for_signup(self, request: HttpRequest, sociallogin: SocialLogin) -> bool:
        return bool(settings.SOCIALACCOUNT_PROVIDERS["openid_connect"]["APPS"])

    def pre_social_login(self, request: HttpRequest, sociallogin: SocialLogin) -> None:
        """Meet the account that an admin prepared, if there is one. Otherwise the person gets a new one: names alone never open an old account."""
        if sociallogin.is_existing:
            return
        prepared = _prepared_account(_claims(sociallogin.account.extra_data))
        if prepared is not None:
            sociallogin.connect(request, prepared)
        # Addresses are kept on the person only; a second table of them would ask for confirmations that nobody sends.
        sociallogin.email_addresses = []

    def populate_user(self, request: HttpRequest, sociallogin: SocialLogin, data: Mapping[str, Any]) -> User:
        user: User = super().populate_user(request, sociallogin, data)
        user.username = user.username.lower()[:150]
        user.display_name = str(data.get("name") or user.username or "")[:120]
        return user

    def on_authentication_error(
        self, request: HttpRequest, provider: Any, error: Any = None, exception: Any = None, extra_context: Any = None
    ) -> None:
        log.warning("sign_on_failed", error=str(error), exc_info=exception)
        raise ImmediateHttpResponse(errors.sign_on_failed(request))


def groups_of(extra_data: Mapping[str, Any]) -> list[str]:
    """The groups that the provider names. Some send a list, some one text; where the claim is missing there are none."""
    for part in (extra_data.get("userinfo"), extra_data.get("id_token")):
        groups = part.get(settings.OIDC_GROUPS_CLAIM) if isinstance(part, Mapping) else None
        if isinstance(groups, str):
            return [groups]
        if isinstance(groups, list):
            return [group for group in groups if isinstance(group, str)]
    return []


def _claims(extra_data: Mapping[str, Any]) -> Mapping[str, Any]:
    claims: Mapping[str, Any] = extra_data.get("userinfo") or extra_data.get("id_token") or {}
    return claims


def _prepared_account(claims: Mapping[str, Any]) -> User | None:
    """The one account with the verified address that nobody can sign in to yet: no password, no other sign-on."""
    email = claims.get("email")
    if not email or claims.get("email_verified") is not True:
        return None
    found = [user for user in User.objects.filter(email__iexact=email, is_active=True)[:2] if not user.has_usable_password()]
    if len(found) != 1 or SocialAccount.objects.filter(user=found[0]).exists():
        return None
    return found[0]
