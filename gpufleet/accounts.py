"""Signing in and out, and one's own password: the few pages of allauth that this console uses. Every other address of it does not exist here."""

from typing import Any, NoReturn

from allauth.account import views as account
from allauth.socialaccount.providers.openid_connect import views as sign_on
from django.contrib import messages
from django.contrib.auth.forms import SetPasswordForm
from django.contrib.auth.views import PasswordResetConfirmView
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import URLPattern, path, reverse_lazy
from django.views.decorators.http import require_http_methods

from gpufleet.core.audit import Actor, audit_record
from gpufleet.web import requires


@require_http_methods(["GET", "POST"])
@requires()
def password_change(request: HttpRequest) -> HttpResponse:
    """Changing it needs the old one, and ends the person's other sessions."""
    user = request.user
    if user.is_authenticated and not user.has_usable_password():
        messages.info(request, "You sign in by single sign-on; your password is kept there.")
        return redirect("profile")
    answer: HttpResponse = account.password_change(request)
    return answer


class FirstPasswordView(PasswordResetConfirmView):
    """Where the link leads that an admin hands to a person: it sets a password once, then it is used up."""

    template_name = "account/first_password.html"
    success_url = reverse_lazy("account_login")

    def form_valid(self, form: SetPasswordForm) -> HttpResponse:
        answer = super().form_valid(form)
        person = form.user
        actor = Actor(user=person, name=str(person), via="password link", request_id=getattr(self.request, "request_id", ""))
        audit_record(actor=actor, action="person.password", kind="person", object_id=person.public_id)
        messages.success(self.request, "Your password is set. Sign in with it.")
        return answer

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        return super().get_context_data(**context) | {"bare": True}


@require_http_methods(["GET", "POST"])
def sign_on_login(request: HttpRequest, provider_id: str) -> HttpResponse:
    """Off to the provider, by a page that goes on by itself.

    A browser holds `form-action` against every redirect that a form leads to, and where a provider sends people next is not ours to list.
    """
    answer: HttpResponse = sign_on.login(request, provider_id)
    if answer.status_code != 302:
        return answer
    page = render(request, "socialaccount/login_redirect.html", {"redirect_to": answer["Location"]})
    page["Cache-Control"] = "no-store"
    return page


def not_offered(request: HttpRequest, **parts: Any) -> NoReturn:
    """allauth looks these names up while it builds other pages, so they need an address. Nobody is ever sent to it."""
    raise Http404


login = require_http_methods(["GET", "POST"])(account.login)
# A link on another site can't sign anybody out: following one only asks.
logout = require_http_methods(["GET", "POST"])(account.logout)

urlpatterns: list[URLPattern] = [
    path("login/", login, name="account_login"),
    path("logout/", logout, name="account_logout"),
    path("password/change/", password_change, name="account_change_password"),
    path("password/first/<uidb64>/<token>/", require_http_methods(["GET", "POST"])(FirstPasswordView.as_view()), name="first_password"),
    path("oidc/<slug:provider_id>/login/", sign_on_login, name="openid_connect_login"),
    path("oidc/<slug:provider_id>/login/callback/", require_http_methods(["GET"])(sign_on.callback), name="openid_connect_callback"),
    path("signup/", not_offered, name="account_signup"),
    path("inactive/", not_offered, name="account_inactive"),
    path("password/set/", not_offered, name="account_set_password"),
    path("password/reset/", not_offered, name="account_reset_password"),
    path("reauthenticate/", not_offered, name="account_reauthenticate"),
    path("email/", not_offered, name="account_email"),
    path("3rdparty/", not_offered, name="socialaccount_connections"),
    path("3rdparty/signup/", not_offered, name="socialaccount_signup"),
    path("3rdparty/login/cancelled/", not_offered, name="socialaccount_login_cancelled"),
    path("3rdparty/login/error/", not_offered, name="socialaccount_login_error"),
]
