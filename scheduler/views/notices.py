"""One's own notices: the list behind the bell, the choices, and what was sent."""

import re
from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from gpufleet.core.faults import Conflict
from gpufleet.core.live.feed import feed_revision
from gpufleet.core.models import User
from gpufleet.core.times import now
from gpufleet.web import Can, access_of, requires
from scheduler.notify.lists import NOTICES
from scheduler.selectors.jobs import job_for
from scheduler.selectors.notices import LOG_SHOWN, bell_of, choices_row, notices_of, own_deliveries, sendings_of, unread_count
from scheduler.services.notify.notices import (
    KIND_LABELS,
    QUIET_RULES,
    WAY_LABELS,
    Choices,
    Kind,
    Way,
    choices_of,
    job_follow,
    mail_is_on,
    notice_test,
    notices_choose,
    notices_read,
    own_hook,
)
from scheduler.services.notify.webhooks import own_hook_remove, own_hook_save

_TIME = re.compile(r"([01]\d|2[0-3]):([0-5]\d)")


def _person(request: HttpRequest) -> User:
    user = access_of(request).actor.user
    assert user is not None
    return user


@require_safe
@requires()
def notice_list(request: HttpRequest) -> HttpResponseBase:
    user = _person(request)
    context = {"heading": "Notifications", "unread": lambda: unread_count(user)}
    return NOTICES.respond(request, notices_of(access_of(request)), "scheduler/notices.html", context)


@require_safe
@requires()
def notices_unread(request: HttpRequest) -> HttpResponse:
    """What the bell shows. The revision is read first, so that nothing is missed after it."""
    version = feed_revision()
    answer = JsonResponse({"version": version, **bell_of(_person(request))})
    answer["Cache-Control"] = "no-store"
    return answer


@require_POST
@requires()
def notices_mark(request: HttpRequest) -> HttpResponse:
    """One, or with `all` every one."""
    said = request.POST.get("id", "")
    keys = [int(said)] if said.isascii() and said.isdigit() and len(said) < 19 else []
    notices_read(access=access_of(request), keys=None if "all" in request.POST else keys, now=now())
    return redirect("notices")


@require_http_methods(["GET", "HEAD", "POST"])
@requires()
def notice_settings(request: HttpRequest) -> HttpResponse:
    access = access_of(request)
    if request.method != "POST":
        return _settings(request, _typed(choices_of(choices_row(access))))
    typed = _read(request)
    minutes = {name: _minutes(typed[name]) for name in ("quiet_from", "quiet_until")}
    faults = {name: ["Write a time such as 22:00."] for name, value in minutes.items() if value == -1}
    if not faults:
        try:
            notices_choose(
                access=access,
                ways=typed["ways"],
                zone=typed["zone"],
                quiet_rule=typed["quiet_rule"],
                urgent=typed["urgent"],
                seen=int(typed["seen"]) if typed["seen"].isascii() and typed["seen"].isdigit() and len(typed["seen"]) < 10 else None,
                **minutes,
            )
        except ValidationError as fault:
            faults = dict(fault.message_dict)
        except Conflict as fault:
            return _settings(request, typed, {"all": [str(fault)]}, status=409)
    if faults:
        return _settings(request, typed, faults, status=422)
    messages.success(request, "Your choices are saved.")
    return redirect("notice_settings")


def _read(request: HttpRequest) -> dict[str, Any]:
    plain = {name: request.POST.get(name, "").strip()[:100] for name in ("zone", "quiet_from", "quiet_until", "quiet_rule", "seen")}
    sent = {name.removeprefix("ways-"): request.POST.getlist(name) for name in request.POST if name.startswith("ways-")}
    return plain | {"ways": {kind.value: [] for kind in Kind} | sent, "urgent": request.POST.getlist("urgent")}


def _minutes(text: str) -> int | None:
    """Minutes after midnight; None for nothing, -1 for what is no time."""
    found = _TIME.fullmatch(text)
    return None if not text else 60 * int(found[1]) + int(found[2]) if found else -1


def _typed(chosen: Choices) -> dict[str, Any]:
    quiet = chosen.quiet
    return {
        "ways": chosen.ways,
        "zone": chosen.zone,
        "quiet_from": f"{quiet.begins // 60:02}:{quiet.begins % 60:02}" if quiet else "",
        "quiet_until": f"{quiet.ends // 60:02}:{quiet.ends % 60:02}" if quiet else "",
        "quiet_rule": "drop" if chosen.drops else "hold",
        "urgent": chosen.urgent,
        "seen": chosen.revision,
    }


def _settings(request: HttpRequest, typed: dict[str, Any], faults: dict[str, list[str]] | None = None, *, status: int = 200) -> HttpResponse:
    access, user, found = access_of(request), _person(request), faults or {}
    can_mail = mail_is_on() and bool(user.email)
    hook = own_hook(user)
    rows = [
        {
            "kind": kind.value,
            "label": KIND_LABELS[kind],
            "cells": [
                {
                    "way": way.value,
                    "label": label,
                    "chosen": way in typed["ways"][kind],
                    "possible": way == Way.CONSOLE or (can_mail if way == Way.EMAIL else hook is not None) or way in typed["ways"][kind],
                }
                for way, label in WAY_LABELS.items()
            ],
            "urgent": kind in typed["urgent"],
            "faults": found.get(f"ways.{kind}", []),
        }
        for kind in Kind
    ]
    # Of kinds that have no row there is nowhere else to say what is wrong.
    rest = [fault for name, said in found.items() if name.startswith("ways.") and name.removeprefix("ways.") not in set(Kind) for fault in said]
    context = {
        "typed": typed,
        "faults": found | {"all": [*found.get("all", []), *rest]},
        "quiet_rules": QUIET_RULES,
        "rows": rows,
        "ways": list(WAY_LABELS.values()),
        "address": user.email if can_mail else "",
        "mail_is_on": mail_is_on(),
        "hook": hook,
        "sendings": [(one, WAY_LABELS[Way(one.way)]) for one in sendings_of(access)[:LOG_SHOWN]],
        "deliveries": own_deliveries(access)[:LOG_SHOWN] if hook else [],
    }
    return render(request, "scheduler/notice_settings.html", context, status=status)


@require_POST
@requires()
def notices_try(request: HttpRequest) -> HttpResponse:
    try:
        ways = notice_test(access=access_of(request), now=now())
    except Conflict as fault:
        messages.error(request, str(fault))
        return redirect("notice_settings")
    named = ", ".join(WAY_LABELS[Way(way)].lower() for way in sorted(ways))
    # The bell is rung at once; only what leaves the console has a log.
    log = "" if set(ways) == {Way.CONSOLE} else " What becomes of it is in the log below."
    messages.success(request, f"A test is on its way: {named}.{log}")
    return redirect("notice_settings")


@require_POST
@requires()
def own_webhook_write(request: HttpRequest) -> HttpResponse:
    access = access_of(request)
    if "remove" in request.POST:
        if own_hook_remove(access=access, now=now()):
            messages.success(request, "Your webhook is removed.")
        return redirect("notice_settings")
    try:
        new = own_hook_save(access=access, url=request.POST.get("url", "")[:2000], now=now())
    except ValidationError as fault:
        return _settings(request, _typed(choices_of(choices_row(access))), {"url": fault.message_dict.get("url", fault.messages)}, status=422)
    if new is None:
        messages.success(request, "Your webhook leads there from now on. Its secret is the same.")
        return redirect("notice_settings")
    answer = render(request, "scheduler/webhook_secret.html", {"hook": new.hook, "secret": new.secret})
    answer["Cache-Control"] = "no-store"
    return answer


@require_POST
@requires(Can.SEE)
def job_follow_write(request: HttpRequest, public_id: str) -> HttpResponse:
    access = access_of(request)
    job = job_for(access, public_id)
    follows = request.POST.get("to") != "no"
    job_follow(access=access, job=job, follows=follows, now=now())
    messages.success(request, f"You are notified about {job.name}." if follows else f"You are no longer notified about {job.name}.")
    return redirect("job", public_id)
