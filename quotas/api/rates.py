"""Rate cards over HTTP: read them; those who manage costs draft, activate and discard them."""

from datetime import date, datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from ninja import Query, Router, Schema, Status
from pydantic import Field

from gpufleet.core.etags import IF_MATCH, revision_wanted, stamped
from gpufleet.core.taken import Taken
from gpufleet.core.times import now
from gpufleet.web import access_of
from quotas.api.lists import ReasonQuery
from quotas.chargeback.cards import card_activate, card_change, card_check, card_discard, card_draft, card_for, cards_listed, prices_of
from quotas.chargeback.effects import effects_of
from quotas.models import CardState, RateCard
from quotas.permissions import Can

router = Router(tags=["Costs"])
MOST = 200


class PriceOut(Schema):
    """Micro-units of the currency for a GPU hour."""

    gpu_type: str
    share_class: str
    tier: str
    pool: str
    list_micros: int
    contracted_micros: int
    discount_ppm: int
    effective_micros: int


class RateCardOut(Schema):
    id: str
    name: str
    state: str
    currency: str
    valid_from: datetime
    valid_to: datetime | None
    version: int
    replaces: str | None
    note: str
    author: str
    approved_by: str
    approved_at: datetime | None
    prices: list[PriceOut]
    problems: list[str] = Field(description="What keeps a draft from being activated: overlaps and holes.")
    revision: int


class RateCardsOut(Schema):
    items: list[RateCardOut]


class CardEffectOut(Schema):
    month: date | None = Field(
        description="First day of the month. Null: 30 days with the use of the last 30, for a card that begins later.", examples=["2026-10-01"]
    )
    closed: bool = Field(description="The change becomes correction lines in the open month.", examples=[True])
    before_nanos: int = Field(description="Cost of the used GPU-hours at the prices that are active.", examples=[542461324071027])
    after_nanos: int = Field(description="The same once this card is active.", examples=[533280151402811])


class CardEffectsOut(Schema):
    items: list[CardEffectOut]


class PriceIn(Taken):
    """Empty class, tier and pool stand for any. Without a contracted price the list price is it."""

    gpu_type: str = Field(max_length=60)
    share_class: str = Field("", max_length=12)
    tier: str = Field("", max_length=60)
    pool: str = Field("", max_length=130)
    list_micros: int
    contracted_micros: int | None = None
    discount_ppm: int = 0


class RateCardIn(Taken):
    """With `replaces` it is a version of that card and has its times; otherwise `valid_from` is required."""

    name: str = Field("", max_length=80)
    valid_from: datetime | None = None
    valid_to: datetime | None = None
    note: str = Field("", max_length=280)
    replaces: str | None = Field(None, max_length=24)
    prices: list[PriceIn] = Field(max_length=500)


class RateCardPut(Taken):
    """A draft as it shall be; times and note that are left out stay. A version of a card keeps that card's times."""

    name: str = Field(max_length=80)
    valid_from: datetime | None = Field(None, description="Null: as it was.")
    valid_to: datetime | None = Field(None, description="Null: no end.")
    note: str = Field("", max_length=280)
    prices: list[PriceIn] = Field(max_length=500)


@router.get("/rate-cards", response=RateCardsOut, url_name="rate_cards", summary="Rate cards")
def rate_cards(request: HttpRequest) -> dict[str, Any]:
    """For those who may see costs."""
    return {"items": [card_told(card) for card in cards_listed(access_of(request)).select_related("replaces")[:MOST]]}


@router.post("/rate-cards", response={201: RateCardOut}, url_name="rate_cards", summary="Draft a rate card")
def rate_card_make(request: HttpRequest, body: RateCardIn) -> Status[dict[str, Any]]:
    """A draft changes no cost. By those who manage the costs of the whole fleet."""
    access = access_of(request)
    replaces = card_for(access, body.replaces) if body.replaces else None
    given = body.dict(exclude={"prices", "replaces"}) | {"lines": [price.dict() for price in body.prices]}
    if replaces is not None and not body.name:
        del given["name"]
    return Status(201, card_told(card_draft(access=access, given=given, replaces=replaces, now=now())))


@router.get("/rate-cards/{public_id}", response=RateCardOut, url_name="rate_card", summary="A rate card")
def rate_card(request: HttpRequest, public_id: str, response: HttpResponse) -> dict[str, Any]:
    found = card_for(access_of(request), public_id)
    stamped(response, found.revision)
    return card_told(found)


@router.get("/rate-cards/{public_id}/effects", response=CardEffectsOut, url_name="rate_card_effects", summary="What activating a card changes")
def rate_card_effects(request: HttpRequest, public_id: str) -> dict[str, Any]:
    """Of a draft, the newest month first; of others nothing. By those who manage the costs of the whole fleet."""
    access = access_of(request)
    access.must_everywhere(Can.MANAGE_COSTS)
    card = card_for(access, public_id)
    found = effects_of(card, now()) if card.state == CardState.DRAFT else []
    return {"items": [{"month": one.first, "closed": one.is_closed, "before_nanos": one.before, "after_nanos": one.after} for one in found]}


@router.put("/rate-cards/{public_id}", response=RateCardOut, url_name="rate_card", openapi_extra=IF_MATCH, summary="Edit a draft")
def rate_card_put(request: HttpRequest, public_id: str, body: RateCardPut, response: HttpResponse) -> dict[str, Any]:
    """409 where it is a draft no longer. With `If-Match` only if nothing has changed."""
    access = access_of(request)
    given = body.dict(exclude={"prices"}, exclude_unset=True) | {"lines": [price.dict() for price in body.prices]}
    if body.valid_from is None:
        given.pop("valid_from", None)
    changed = card_change(access=access, card=card_for(access, public_id), given=given, revision=revision_wanted(request), now=now())
    stamped(response, changed.revision)
    return card_told(changed)


@router.post(
    "/rate-cards/{public_id}/activate", response=RateCardOut, url_name="rate_card_activate", openapi_extra=IF_MATCH, summary="Activate a card"
)
def rate_card_activate(request: HttpRequest, public_id: str, query: Query[ReasonQuery]) -> dict[str, Any]:
    """Refused where it would overlap an active card or leave a hole."""
    access = access_of(request)
    found = card_for(access, public_id)
    return card_told(card_activate(access=access, card=found, reason=query.reason, revision=revision_wanted(request), now=now()))


@router.delete("/rate-cards/{public_id}", response={204: None}, url_name="rate_card", openapi_extra=IF_MATCH, summary="Discard a draft")
def rate_card_delete(request: HttpRequest, public_id: str, query: Query[ReasonQuery]) -> Status[None]:
    access = access_of(request)
    card_discard(access=access, card=card_for(access, public_id), reason=query.reason, revision=revision_wanted(request), now=now())
    return Status(204, None)


def card_told(card: RateCard) -> dict[str, Any]:
    plain = ("name", "state", "currency", "valid_from", "valid_to", "version", "note", "approved_at", "revision")
    columns = ("gpu_type", "share_class", "tier", "pool", "list_micros", "contracted_micros", "discount_ppm", "effective_micros")
    return {name: getattr(card, name) for name in plain} | {
        "id": card.public_id,
        "replaces": card.replaces.public_id if card.replaces else None,
        "author": card.author_name,
        "approved_by": card.approved_name,
        "prices": [{name: getattr(price, name) for name in columns} for price in prices_of(card)],
        "problems": [problem.text for problem in card_check(card).problems] if card.state == CardState.DRAFT else [],
    }
