"""People and their roles: the list, one person, accounts, and giving and taking roles on a node."""

from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from gpufleet.core.models import User
from gpufleet.core.ranges import range_of
from gpufleet.core.times import now
from gpufleet.web import Can, access_of, requires
from quotas.forms import GrantForm, PersonForm, ReasonForm, show_faults
from quotas.links import password_link
from quotas.lists import PEOPLE
from quotas.models import Role
from quotas.selectors.effects import deactivate_effects, reset_effects, role_end_effects
from quotas.selectors.nodes import node_for
from quotas.selectors.people import binding_for, group_rules, people_list, person_for, person_named, roles_of
from quotas.services.people import (
    may_manage,
    must_manage,
    person_activate,
    person_create,
    person_deactivate,
    person_reset_password,
    person_update,
)
from quotas.services.roles import may_hand_out, must_hand_out, role_grant, role_revoke, roles_to_hand_out
from quotas.views.confirm import confirm
from quotas.views.tree import node_context

GROUP = "group:"


@require_safe
@requires(Can.MANAGE_PEOPLE)
def people(request: HttpRequest) -> HttpResponseBase:
    access = access_of(request)
    context = {"heading": "People", "may_create": access.can_everywhere(Can.MANAGE_PEOPLE), "rules": list(group_rules(access))}
    return PEOPLE.respond(request, people_list(access), "quotas/people.html", context)


@require_safe
@requires(Can.MANAGE_PEOPLE)
def person(request: HttpRequest, public_id: str) -> HttpResponse:
    return _person_page(request, person_for(access_of(request), public_id))


def _person_page(request: HttpRequest, shown: User, **extra: Any) -> HttpResponse:
    access = access_of(request)
    roles = [{"binding": row, "revocable": may_hand_out(access, row.role, row.node.path)} for row in roles_of(access, shown)]
    context = {"person": shown, "roles": roles, "may_manage": may_manage(access, shown) and shown != request.user}
    context["has_password"] = shown.has_usable_password()
    answer = render(request, "quotas/person.html", context | extra)
    if "link" in extra:
        answer["Cache-Control"] = "no-store"
    return answer


@require_http_methods(["GET", "POST"])
@requires(Can.MANAGE_PEOPLE, everywhere=True)
def person_new(request: HttpRequest) -> HttpResponse:
    form = PersonForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            made = person_create(access=access_of(request), **form.cleaned_data)
        except ValidationError as fault:
            show_faults(form, fault)
        else:
            return _person_page(request, made, link=password_link(request, made))
    context = {"form": form, "heading": "New person", "send": "Create", "back": reverse("people")}
    return render(request, "quotas/form.html", context, status=422 if form.is_bound else 200)


@require_http_methods(["GET", "POST"])
@requires(Can.MANAGE_PEOPLE, everywhere=True)
def person_edit(request: HttpRequest, public_id: str) -> HttpResponse:
    access = access_of(request)
    shown = person_for(access, public_id)
    form = PersonForm(request.POST or None, new=False, initial={"display_name": shown.display_name, "email": shown.email})
    if request.method == "POST" and form.is_valid():
        try:
            person_update(access=access, person=shown, **form.cleaned_data)
        except ValidationError as fault:
            show_faults(form, fault)
        else:
            messages.success(request, f"{shown} is changed.")
            return redirect("person", shown.public_id)
    context = {"form": form, "heading": f"Edit {shown}", "send": "Save", "back": reverse("person", args=[shown.public_id])}
    return render(request, "quotas/form.html", context, status=422 if form.is_bound else 200)


@require_http_methods(["GET", "POST"])
@requires(Can.MANAGE_PEOPLE, everywhere=True)
def person_active(request: HttpRequest, public_id: str) -> HttpResponse:
    """Deactivate, after saying what that does; or activate, which takes nothing away and is done at once."""
    access = access_of(request)
    shown = person_for(access, public_id)
    activate = request.POST.get("active") == "yes"
    form = ReasonForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        try:
            (person_activate if activate else person_deactivate)(access=access, person=shown, reason=form.cleaned_data["reason"])
        except ValidationError as fault:
            show_faults(form, fault)
        else:
            messages.success(request, f"{shown} is active." if activate else f"{shown} is deactivated and shut out.")
            return redirect("person", shown.public_id)
    must_manage(access, shown)
    return _confirm_person(request, shown, form, f"Deactivate {shown}", "Deactivate", deactivate_effects(shown))


@require_http_methods(["GET", "POST"])
@requires(Can.MANAGE_PEOPLE, everywhere=True)
def person_reset(request: HttpRequest, public_id: str) -> HttpResponse:
    """End the present password, after saying what that does, and show the link to set a new one, once."""
    access = access_of(request)
    shown = person_for(access, public_id)
    form = ReasonForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        try:
            person_reset_password(access=access, person=shown, reason=form.cleaned_data["reason"])
        except ValidationError as fault:
            show_faults(form, fault)
        else:
            return _person_page(request, shown, link=password_link(request, shown))
    must_manage(access, shown)
    return _confirm_person(request, shown, form, f"New password for {shown}", "Reset password", reset_effects(shown))


def _confirm_person(request: HttpRequest, shown: User, form: ReasonForm, heading: str, send: str, effects: list[str]) -> HttpResponse:
    page = reverse("person", args=[shown.public_id])
    above = [("People", reverse("people")), (str(shown), page)]
    return confirm(request, form, heading=heading, send=send, effects=effects, above=above, back=page)


@require_POST
@requires(Can.MANAGE_PEOPLE)
def role_new(request: HttpRequest, public_id: str) -> HttpResponse:
    """Give a role on a node to a person, or to a group of the sign-on provider."""
    access = access_of(request)
    node = node_for(access, public_id, Can.MANAGE_PEOPLE)
    form = GrantForm(request.POST, roles=[(role.value, role.label) for role in roles_to_hand_out(access, node.path)])
    if form.is_valid():
        holder = form.cleaned_data["holder"].strip()
        group = holder.removeprefix(GROUP).strip() if holder.startswith(GROUP) else ""
        user = None if group else person_named(holder)
        try:
            if not group and user is None:
                raise ValidationError({"holder": "No person has this user name."})
            binding = role_grant(access=access, node=node, role=form.cleaned_data["role"], user=user, group=group, now=now())
        except ValidationError as fault:
            show_faults(form, fault)
        else:
            messages.success(request, f"{binding.user or group} is {Role(binding.role).label.lower()} on {node.path}.")
            return redirect("quota", node.public_id)
    return render(request, "quotas/node.html", node_context(access, node, form, chosen=range_of(request.GET)), status=422)


@require_http_methods(["GET", "POST"])
@requires(Can.MANAGE_PEOPLE)
def role_end(request: HttpRequest, public_id: str, pk: int) -> HttpResponse:
    """Take a role, or a group's rule, away, after saying what that does."""
    access = access_of(request)
    node = node_for(access, public_id)
    binding = binding_for(access, pk)
    if binding.node_id != node.pk:
        raise Http404
    must_hand_out(access, binding.role, node)
    holder, role = str(binding.user or f"group {binding.group}"), Role(binding.role).label.lower()
    form = ReasonForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        try:
            role_revoke(access=access, binding=binding, reason=form.cleaned_data["reason"])
        except ValidationError as fault:
            show_faults(form, fault)
        else:
            messages.success(request, f"{holder} is no longer {role} on {node.path}.")
            # Who took away their own last role here may not see the node any more.
            return redirect("quota", node.public_id) if binding.user != access.actor.user else redirect("profile")
    page = reverse("quota", args=[node.public_id])
    effects = role_end_effects(binding, access.actor.user)
    heading, above = f"Take {role} away from {holder}", [("Quotas", reverse("quotas")), (node.path, page)]
    return confirm(request, form, heading=heading, send="Remove role", effects=effects, above=above, back=page)
