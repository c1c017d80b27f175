"""Rate cards: the line of cards, one card with what activating it would do, and the forms of those who manage costs."""

from typing import Any

from django.conf import settings
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from gpufleet.core.faults import Conflict
from gpufleet.core.live.feed import feed_revision
from gpufleet.core.times import now
from gpufleet.web import Access, Can, access_of, requires
from quotas.chargeback.cards import (
    card_activate,
    card_change,
    card_check,
    card_csv,
    card_discard,
    card_draft,
    card_for,
    cards_listed,
    lines_read,
    may_price,
    prices_of,
    types_needed,
    waits_for_another,
)
from quotas.chargeback.effects import effects_of
from quotas.chargeback.forms import CardForm, LineForms, card_typed, lines_typed
from quotas.chargeback.pricing import Price
from quotas.chargeback.public import SOURCE, public_prices
from quotas.forms import show_faults
from quotas.models import CardState, RateCard

MOST = 200


@require_safe
@requires(Can.SEE_COSTS)
def rate_cards(request: HttpRequest) -> HttpResponse:
    access, version = access_of(request), feed_revision()
    rows = list(cards_listed(access)[:MOST])
    active = [row for row in rows if row.state == CardState.ACTIVE]
    context = {"rows": rows, "version": version, "may_price": may_price(access), "none_active": not active, "moment": now()}
    return render(request, "quotas/rate_cards.html", context)


@require_safe
@requires(Can.SEE_COSTS)
def rate_card(request: HttpRequest, public_id: str) -> HttpResponse:
    access, version = access_of(request), feed_revision()
    card = card_for(access, public_id)
    if request.GET.get("format") == "csv":
        answer = HttpResponse(card_csv(card), content_type="text/csv; charset=utf-8; header=present")
        answer["Content-Disposition"] = f'attachment; filename="{card.public_id}.csv"'
        return answer
    before = {price.key: price for price in prices_of(card.replaces)} if card.replaces is not None else {}
    context = {
        "card": card,
        "version": version,
        "prices": [(price, before.get(price.key)) for price in prices_of(card)],
        "check": card_check(card) if card.state == CardState.DRAFT else None,
        "effects": effects_of(card, now()) if card.state == CardState.DRAFT and may_price(access) else [],
        "may_price": may_price(access),
        "waits": waits_for_another(access, card),
        "approval": settings.RATE_APPROVAL,
        "versions": cards_listed(access).filter(valid_from=card.valid_from).exclude(pk=card.pk),
    }
    return render(request, "quotas/rate_card.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.MANAGE_COSTS, everywhere=True)
def rate_card_new(request: HttpRequest) -> HttpResponse:
    """A new card, or with `?version=` a version of an active one; `?from=public` begins with public prices."""
    access = access_of(request)
    replaces = card_for(access, request.GET["version"][:24]) if request.GET.get("version") else None
    note = ""
    if replaces is not None:
        prices: list[Price] = list(prices_of(replaces))
    elif request.GET.get("from") == "public":
        prices, note = public_prices(types_needed()), SOURCE
    else:
        newest = cards_listed(access).filter(state=CardState.ACTIVE).first()
        prices = list(prices_of(newest)) if newest is not None else []
    initial = {"name": replaces.name if replaces else "", "note": note}

    def save(given: dict[str, Any]) -> RateCard:
        return card_draft(access=access, given=given, replaces=replaces, now=now())

    heading = f"New version of {replaces.name}" if replaces else "New rate card"
    return _form(request, save, initial, lines_typed(prices), fixed=replaces is not None, heading=heading, back=reverse("rate_cards"))


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.MANAGE_COSTS, everywhere=True)
def rate_card_edit(request: HttpRequest, public_id: str) -> HttpResponse:
    access = access_of(request)
    card = card_for(access, public_id)

    def save(given: dict[str, Any]) -> RateCard:
        revision = request.POST.get("revision", "")
        return card_change(access=access, card=card, given=given, revision=int(revision) if revision.isdigit() else None, now=now())

    back = reverse("rate_card", args=[public_id])
    fixed = card.replaces_id is not None
    return _form(request, save, card_typed(card), lines_typed(prices_of(card)), fixed=fixed, heading=f"Change {card.name}", back=back)


def _form(
    request: HttpRequest, save: Any, initial: dict[str, Any], lines: list[dict[str, Any]], *, fixed: bool, heading: str, back: str
) -> HttpResponse:
    posted = request.POST if request.method == "POST" else None
    form, forms = CardForm(posted, fixed=fixed, initial=initial), LineForms(posted, initial=None if posted else lines, prefix="line")
    status = 200
    if posted is not None:
        status = 422
        if form.is_valid() and forms.is_valid():
            try:
                text = form.cleaned_data["file"]
                prices = lines_read(text) if text else [line for one in forms if (line := one.line()) is not None]
                made = save(form.given() | {"lines": prices})
            except ValidationError as fault:
                show_faults(form, fault)
            except Conflict as fault:
                form.add_error(None, str(fault))
                status = 409
            else:
                return redirect("rate_card", made.public_id)
    context = {"form": form, "lines": forms, "heading": heading, "back": back, "types": types_needed()}
    return render(request, "quotas/rate_card_form.html", context, status=status)


@require_POST
@requires(Can.MANAGE_COSTS, everywhere=True)
def rate_card_activate(request: HttpRequest, public_id: str) -> HttpResponse:
    def act(access: Access, card: RateCard) -> str:
        card_activate(access=access, card=card, now=now())
        return f"{card.name} is active."

    return _act(request, public_id, act)


@require_POST
@requires(Can.MANAGE_COSTS, everywhere=True)
def rate_card_discard(request: HttpRequest, public_id: str) -> HttpResponse:
    def act(access: Access, card: RateCard) -> str:
        card_discard(access=access, card=card, now=now())
        return f"The draft {card.name} is discarded."

    return _act(request, public_id, act, after="rate_cards")


def _act(request: HttpRequest, public_id: str, act: Any, after: str = "") -> HttpResponse:
    access = access_of(request)
    card = card_for(access, public_id)
    try:
        messages.success(request, act(access, card))
    except ValidationError as fault:
        messages.error(request, " ".join(fault.messages))
    except Conflict as fault:
        messages.error(request, str(fault))
    else:
        if after:
            return redirect(after)
    return redirect("rate_card", public_id)
