"""Settings → Telemetry: Prometheus servers, how the last look at each went, and what was odd about its answers."""

from datetime import datetime
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from dashboards.prometheus.credentials import SECRET_LENGTH, WORD_LENGTH, is_unencrypted
from dashboards.prometheus.dcgm import ODDITIES
from dashboards.prometheus.models import PrometheusServer, SignIn
from dashboards.prometheus.services import server_change, server_create, server_facts, server_for, server_remove, server_test, servers_listed
from dashboards.selectors import FRESH
from gpufleet.core.faults import Conflict
from gpufleet.core.live.feed import feed_revision
from gpufleet.core.templatetags.shell import plural
from gpufleet.core.times import now
from gpufleet.web import Can, access_of, requires
from quotas.forms import ReasonForm, show_faults
from quotas.views.confirm import confirm
from scheduler.notify.outgoing import Rules


class ServerForm(forms.Form):
    name = forms.CharField(max_length=80)
    url = forms.CharField(max_length=500, label="Address", help_text="Such as https://prometheus.example.com; a path in front of /api is allowed.")
    enabled = forms.BooleanField(required=False, initial=True, label="Read GPUs every 15 seconds")
    for_services = forms.BooleanField(
        required=False,
        label="Answer queries of services",
        help_text="Owners of inference jobs may then query any number that it holds.",
    )
    sign_in = forms.ChoiceField(choices=SignIn.choices, initial=SignIn.NONE, required=False, label="Sign in")
    username = forms.CharField(max_length=WORD_LENGTH, required=False, label="User name", widget=forms.TextInput(attrs={"autocomplete": "off"}))
    secret = forms.CharField(
        max_length=SECRET_LENGTH,
        required=False,
        strip=False,
        label="Password or token",
        help_text="Stored encrypted and never shown.",
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
    )
    unencrypted = forms.BooleanField(
        required=False, label="Send it unencrypted", help_text="Only for http:// to another machine: anybody on the way can read it."
    )
    tenant = forms.CharField(
        max_length=WORD_LENGTH,
        required=False,
        help_text="Sent as X-Scope-OrgID (Mimir, Cortex) and THANOS-TENANT (Thanos).",
    )
    reason = forms.CharField(max_length=300, required=False, help_text="Kept in the audit log with your name.")
    revision = forms.IntegerField(widget=forms.HiddenInput, required=False)

    def __init__(self, *arguments: Any, server: PrometheusServer | None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if server is not None and server.sealed:
            self.fields["secret"].help_text = "Stored encrypted and never shown. Empty: the stored one is kept."
        if not Rules.of_settings().http:
            del self.fields["unencrypted"]

    def clean_sign_in(self) -> str:
        return self.cleaned_data["sign_in"] or str(self.initial.get("sign_in", SignIn.NONE))

    def values(self) -> dict[str, Any]:
        return {name: self.cleaned_data[name] for name in self.fields if name not in ("reason", "revision")}


def state_of(server: PrometheusServer, moment: datetime) -> str:
    if not server.enabled:
        return "off"
    if server.looked_at is None:
        return "new"
    return "fresh" if server.read_at is not None and moment - server.read_at <= FRESH else "stale"


@require_safe
@requires(Can.OPERATE, everywhere=True)
def source_list(request: HttpRequest) -> HttpResponse:
    moment = now()
    servers = servers_listed(access_of(request))
    rows = [{"server": one, "state": state_of(one, moment), "unencrypted": is_unencrypted(one)} for one in servers]
    odd = [(ODDITIES[key], [(one.name, one.oddities.get(key, 0)) for one in servers]) for key in ODDITIES]
    odd = [(label, [(name, count) for name, count in counts if count]) for label, counts in odd]
    context = {"rows": rows, "odd": [(label, counts) for label, counts in odd if counts], "version": feed_revision()}
    return render(request, "dashboards/sources.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.OPERATE, everywhere=True)
def source_new(request: HttpRequest) -> HttpResponse:
    return _form(request, None)


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.OPERATE, everywhere=True)
def source_edit(request: HttpRequest, public_id: str) -> HttpResponse:
    return _form(request, server_for(access_of(request), public_id))


def _form(request: HttpRequest, server: PrometheusServer | None) -> HttpResponse:
    access = access_of(request)
    initial = server_facts(server) | {"revision": server.revision, "unencrypted": is_unencrypted(server)} if server else {}
    form = ServerForm(request.POST if request.method == "POST" else None, initial=initial, server=server)
    status = 200
    if request.method == "POST":
        status = 422
        if form.is_valid():
            try:
                facts = {"access": access, "values": form.values(), "reason": form.cleaned_data["reason"], "now": now()}
                if server:
                    server_change(server=server, revision=form.cleaned_data["revision"], **facts)
                else:
                    server_create(**facts)
            except ValidationError as fault:
                show_faults(form, fault)
            except Conflict as fault:
                form.add_error(None, str(fault))
                status = 409
            else:
                return redirect("sources")
    heading = f"Edit {server.name}" if server else "New Prometheus server"
    context = {"form": form, "heading": heading, "send": "Save" if server else "Add server", "back": reverse("sources")}
    return render(request, "quotas/form.html", context, status=status)


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.OPERATE, everywhere=True)
def source_remove(request: HttpRequest, public_id: str) -> HttpResponse:
    access = access_of(request)
    server = server_for(access, public_id)
    form = ReasonForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        server_remove(access=access, server=server, reason=form.cleaned_data["reason"], now=now())
        messages.success(request, f"The server {server.name} is removed.")
        return redirect("sources")
    back = reverse("sources")
    effects = ["It is not read any more.", "GPUs that only it knows have no reading; nothing is done to them for that."]
    return confirm(request, form, heading=f"Remove {server.name}", send="Remove", effects=effects, above=[("Telemetry", back)], back=back)


@require_POST
@requires(Can.OPERATE, everywhere=True)
def source_test_write(request: HttpRequest, public_id: str) -> HttpResponse:
    access = access_of(request)
    server = server_for(access, public_id)
    answer = server_test(access=access, server=server, now=now())
    if answer.fault:
        messages.error(request, f"{server.name}: {answer.fault}")
    else:
        messages.success(request, f"{server.name} has readings of {plural(len(answer.look.gpus), 'GPU')} ({answer.duration_ms} ms).")
    return redirect("sources")
