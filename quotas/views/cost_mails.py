"""Costs by e-mail: who gets those of which subtree each month, and what became of each."""

from datetime import date
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST

from gpufleet.core.templatetags.shell import plural
from gpufleet.core.times import now
from gpufleet.web import Can, access_of, requires
from quotas.chargeback.months import Span, month_at
from quotas.forms import show_faults
from quotas.models import CostMail
from quotas.services.cost_mails import cost_mail_again, cost_mail_create, cost_mail_for, cost_mails_listed, due_at, mailings_listed
from quotas.services.cost_mails import cost_mail_remove as remove

LOG = 100


class CostMailForm(forms.Form):
    team = forms.CharField(max_length=500, label="Team or subtree", help_text="Its path, such as acme/research.")
    people = forms.CharField(
        max_length=2000, help_text="User names, separated by commas. They need a role that shows these costs, and an e-mail address."
    )
    day = forms.IntegerField(min_value=1, max_value=28, initial=3, label="Day of the month", help_text="Sent at 06:00 UTC, for the month before.")


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.MANAGE_COSTS, everywhere=True)
def cost_mails(request: HttpRequest) -> HttpResponse:
    access = access_of(request)
    form, status = CostMailForm(request.POST if request.method == "POST" else None), 200
    if request.method == "POST":
        status = 422
        if form.is_valid():
            data = form.cleaned_data
            try:
                cost_mail_create(access=access, path=data["team"].strip(), usernames=data["people"].split(","), day=data["day"], now=now())
            except ValidationError as fault:
                show_faults(form, fault)
            else:
                messages.success(request, f"The costs of {data['team']} are sent each month.")
                return redirect("cost_mails")
    rows = [(mail, _next(mail)) for mail in cost_mails_listed(access)]
    context: dict[str, Any] = {"form": form, "rows": rows, "log": mailings_listed(access)[:LOG]}
    return render(request, "quotas/cost_mails.html", context, status=status)


def _next(mail: CostMail) -> Any:
    """When the next one is due."""
    current: date = month_at(now())
    before = due_at(Span(current).before, mail.day)
    return before if before > now() else due_at(current, mail.day)


@require_POST
@requires(Can.MANAGE_COSTS, everywhere=True)
def cost_mail_remove(request: HttpRequest, public_id: str) -> HttpResponse:
    access = access_of(request)
    mail = cost_mail_for(access, public_id)
    remove(access=access, mail=mail, now=now())
    messages.success(request, f"The costs of {mail.node.path} are no longer sent.")
    return redirect("cost_mails")


@require_POST
@requires(Can.MANAGE_COSTS, everywhere=True)
def cost_mail_send(request: HttpRequest, public_id: str) -> HttpResponse:
    """Last month, now; also to those who got it before."""
    access, moment = access_of(request), now()
    count = cost_mail_again(access=access, mail=cost_mail_for(access, public_id), first=Span(month_at(moment)).before, now=moment)
    messages.success(request, f"Last month goes to {plural(count, 'person', 'people')} within five minutes.")
    return redirect("cost_mails")
