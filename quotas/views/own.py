"""What belongs to the signed-in person: the profile, and service tokens."""

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from gpufleet.core.times import now
from gpufleet.web import Can, access_of, requires
from quotas.forms import ReasonForm, TokenForm, show_faults
from quotas.lists import TOKENS
from quotas.selectors.effects import token_revoke_effects
from quotas.selectors.nodes import tree_list
from quotas.selectors.people import roles_of, token_for, token_list
from quotas.services.tokens import token_create, token_revoke
from quotas.views.confirm import confirm


@require_safe
@requires()
def profile(request: HttpRequest) -> HttpResponse:
    access = access_of(request)
    user = access.actor.user
    assert user is not None
    context = {"roles": roles_of(access, user), "access": access, "has_password": user.has_usable_password()}
    return render(request, "quotas/profile.html", context | {"tokens": token_list(access).filter(owner=user, revoked_at__isnull=True).count()})


@require_safe
@requires()
def tokens(request: HttpRequest) -> HttpResponseBase:
    return TOKENS.respond(request, token_list(access_of(request)), "quotas/tokens.html", {"heading": "Service tokens", "can_add": True})


@require_http_methods(["GET", "POST"])
@requires(Can.SEE)
def token_new(request: HttpRequest) -> HttpResponse:
    """Make a token. Its secret is on the page that answers, and can't be shown again."""
    access = access_of(request)
    form = TokenForm(request.POST or None, nodes=tree_list(access))
    if request.method == "POST" and form.is_valid():
        moment, data = now(), form.cleaned_data
        assert access.actor.user is not None
        try:
            new = token_create(
                access=access,
                owner=access.actor.user,
                name=data["name"],
                scopes=data["scopes"],
                node=data["node"],
                expires_at=moment + form.valid_for,
                now=moment,
            )
        except ValidationError as fault:
            show_faults(form, fault)
        else:
            answer = render(request, "quotas/token_shown.html", {"token": new.token, "secret": new.secret})
            answer["Cache-Control"] = "no-store"
            return answer
    context = {"form": form, "heading": "New service token", "send": "Create token", "back": reverse("tokens")}
    return render(request, "quotas/form.html", context, status=422 if form.is_bound else 200)


@require_http_methods(["GET", "POST"])
@requires()
def token_revoke_page(request: HttpRequest, public_id: str) -> HttpResponse:
    access = access_of(request)
    token = token_for(access, public_id)
    form = ReasonForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        token_revoke(access=access, token=token, reason=form.cleaned_data["reason"], now=now())
        messages.success(request, f"{token.name} is revoked. Programs that use it are refused from now on.")
        return redirect("tokens")
    page = reverse("tokens")
    last = f"last used {token.last_used_at:%Y-%m-%d %H:%M} UTC" if token.last_used_at else "never used"
    return confirm(
        request,
        form,
        heading=f"Revoke {token.name}",
        sub=f"gf_{token.prefix}_… of {token.owner}, {last}",
        send="Revoke",
        effects=token_revoke_effects(token),
        above=[("Service tokens", page)],
        back=page,
    )
