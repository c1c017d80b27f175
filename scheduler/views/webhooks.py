"""Webhooks: which there are, one with what it was sent, and one message."""

import json
from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from gpufleet.core.faults import Conflict
from gpufleet.core.times import now
from gpufleet.web import access_of, requires
from quotas.forms import ReasonForm, show_faults
from quotas.views.confirm import confirm
from scheduler.forms import WebhookForm
from scheduler.models import Webhook, WebhookState
from scheduler.notify.happenings import LABELS
from scheduler.notify.lists import DELIVERIES, WEBHOOKS
from scheduler.selectors.webhooks import delivery_for, hook_deliveries, hook_for, hook_places, hooks_managed, must_manage_some_hooks
from scheduler.services.notify.webhooks import NewSecret, delivery_repeat, hook_change, hook_create, hook_remove, hook_secret, hook_test


@require_safe
@requires()
def webhook_list(request: HttpRequest) -> HttpResponseBase:
    access = access_of(request)
    must_manage_some_hooks(access)
    return WEBHOOKS.respond(request, hooks_managed(access), "scheduler/webhooks.html", {"heading": "Webhooks", "can_add": True})


@require_http_methods(["GET", "HEAD", "POST"])
@requires()
def webhook_new(request: HttpRequest) -> HttpResponse:
    access = access_of(request)
    must_manage_some_hooks(access)
    places = hook_places(access)
    form = WebhookForm(request.POST if request.method == "POST" else None, places=places)
    if request.method == "POST" and form.is_valid():
        data = form.cleaned_data
        try:
            facts = {name: data[name] for name in ("name", "url", "kinds", "form", "reason")}
            return _shown(request, hook_create(access=access, node=data["node"], now=now(), **facts))
        except ValidationError as fault:
            show_faults(form, fault)
    context = {"form": form, "heading": "New webhook", "send": "Create webhook", "back": reverse("webhooks")}
    return render(request, "quotas/form.html", context, status=422 if form.is_bound else 200)


@require_safe
@requires()
def webhook_page(request: HttpRequest, public_id: str) -> HttpResponseBase:
    hook = _hook(request, public_id)
    context = {"heading": hook.name, "hook": hook, "kinds": [(kind, LABELS[kind]) for kind in hook.kinds]}
    return DELIVERIES.respond(request, hook_deliveries(hook).select_related("hook"), "scheduler/webhook.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@requires()
def webhook_edit(request: HttpRequest, public_id: str) -> HttpResponse:
    hook = _hook(request, public_id)
    initial = {"name": hook.name, "url": hook.url, "kinds": hook.kinds, "form": hook.form, "revision": hook.revision}
    form = WebhookForm(request.POST if request.method == "POST" else None, initial=initial)
    status = 200
    if request.method == "POST":
        status = 422
        if form.is_valid():
            data = form.cleaned_data
            facts = {name: data[name] for name in ("name", "kinds", "form", "reason")}
            facts |= {"url": data["url"]} if data["url"] != hook.url else {}
            try:
                hook_change(access=access_of(request), hook=hook, seen=data["revision"], now=now(), **facts)
            except ValidationError as fault:
                show_faults(form, fault)
            except Conflict as fault:
                form.add_error(None, str(fault))
                status = 409
            else:
                messages.success(request, f"{data['name']} is saved.")
                return redirect("webhook", hook.public_id)
    context = {"form": form, "heading": f"Change {hook.name}", "send": "Save", "back": reverse("webhook", args=[hook.public_id])}
    return render(request, "quotas/form.html", context, status=status)


@require_POST
@requires()
def webhook_switch(request: HttpRequest, public_id: str) -> HttpResponse:
    """Pause it, or let it go on."""
    hook = _hook(request, public_id)
    active = request.POST.get("to") == WebhookState.ACTIVE
    try:
        hook_change(access=access_of(request), hook=hook, state=WebhookState.ACTIVE if active else WebhookState.PAUSED, now=now())
    except Conflict as fault:
        messages.error(request, str(fault))
    else:
        becomes = "receives events from now on" if active else "receives nothing until you resume it"
        messages.success(request, f"{hook.name} {becomes}.")
    return redirect("webhook", hook.public_id)


@require_http_methods(["GET", "HEAD", "POST"])
@requires()
def webhook_secret_page(request: HttpRequest, public_id: str) -> HttpResponse:
    hook = _hook(request, public_id)
    form = ReasonForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        return _shown(request, hook_secret(access=access_of(request), hook=hook, reason=form.cleaned_data["reason"]))
    effects = ["Every message from now on is signed with the new secret.", "A receiver that still checks with the old one turns them away."]
    return _confirm(request, form, hook, heading=f"A new secret for {hook.name}", send="Make a new secret", effects=effects)


@require_http_methods(["GET", "HEAD", "POST"])
@requires()
def webhook_remove_page(request: HttpRequest, public_id: str) -> HttpResponse:
    hook = _hook(request, public_id)
    form = ReasonForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        try:
            hook_remove(access=access_of(request), hook=hook, reason=form.cleaned_data["reason"], now=now())
        except Conflict as fault:
            messages.error(request, str(fault))
        else:
            messages.success(request, f"{hook.name} is removed.")
        return redirect("webhooks")
    waiting = hook_deliveries(hook).filter(state="waiting").count()
    effects = ["Nothing is sent to it any more, for good. To stop it for a while, pause it."]
    effects += [f"{waiting} {'message that waits is' if waiting == 1 else 'messages that wait are'} not sent."] if waiting else []
    return _confirm(request, form, hook, heading=f"Remove {hook.name}", send="Remove", effects=effects)


@require_POST
@requires()
def webhook_test_write(request: HttpRequest, public_id: str) -> HttpResponse:
    hook = _hook(request, public_id)
    try:
        sent = hook_test(access=access_of(request), hook=hook, now=now())
    except Conflict as fault:
        messages.error(request, str(fault))
        return redirect("webhook", public_id)
    messages.success(request, "A test is on its way: this page says what becomes of it.")
    return redirect("delivery", hook.public_id, sent.public_id)


@require_safe
@requires()
def delivery_page(request: HttpRequest, public_id: str, delivery: str) -> HttpResponse:
    found = delivery_for(_hook(request, public_id), delivery)
    body = json.dumps(json.loads(found.body), indent=2, ensure_ascii=False)
    context = {"delivery": found, "hook": found.hook, "body": body, "label": LABELS.get(found.kind, found.kind)}
    return render(request, "scheduler/delivery.html", context)


@require_POST
@requires()
def delivery_repeat_write(request: HttpRequest, public_id: str, delivery: str) -> HttpResponse:
    found = delivery_for(_hook(request, public_id), delivery)
    try:
        fresh = delivery_repeat(access=access_of(request), delivery=found, now=now())
    except Conflict as fault:
        messages.error(request, str(fault))
        return redirect("delivery", public_id, found.public_id)
    messages.success(request, "It is on its way again.")
    return redirect("delivery", public_id, fresh.public_id)


def _hook(request: HttpRequest, public_id: str) -> Webhook:
    access = access_of(request)
    must_manage_some_hooks(access)
    return hook_for(access, public_id)


def _shown(request: HttpRequest, new: NewSecret) -> HttpResponse:
    """The only page that ever shows the secret."""
    answer = render(request, "scheduler/webhook_secret.html", {"hook": new.hook, "secret": new.secret})
    answer["Cache-Control"] = "no-store"
    return answer


def _confirm(request: HttpRequest, form: ReasonForm, hook: Webhook, **said: Any) -> HttpResponse:
    page = reverse("webhook", args=[hook.public_id])
    return confirm(request, form, above=[("Webhooks", reverse("webhooks")), (hook.name, page)], back=page, **said)
