"""Service tokens for programs. A secret is in the answer to the request that made it, and nowhere else."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from ninja import Query, Router, Schema, Status
from pydantic import AwareDatetime, Field

from gpufleet.core.list_parameters import parameters_of
from gpufleet.core.taken import SAID, Taken
from gpufleet.core.times import now, whole_millis
from gpufleet.navigation import access_of
from quotas.api.lists import ReasonQuery, listed
from quotas.lists import TOKENS
from quotas.models import ServiceToken
from quotas.permissions import Can, Scope
from quotas.selectors.nodes import node_for
from quotas.selectors.people import token_for, token_list
from quotas.services.tokens import token_create, token_revoke

router = Router(tags=["Tokens"])


# What the service refuses is told here and judged there, so that no rule is written twice.
SCOPES: dict[str, Any] = {"items": {"type": "string", "enum": list(Scope)}, "minItems": 1}


class TokenIn(Taken):
    name: str = Field(json_schema_extra=SAID | {"maxLength": 80})
    scopes: list[str] = Field(description="Of read, submit, operate and admin.", json_schema_extra=SCOPES)
    node: str | None = Field(None, description="Id of a node: the token is worth nothing outside its subtree. Null: all that its owner may see.")
    expires_at: AwareDatetime = Field(description="At most a year from now.")


class TokenOut(Schema):
    id: str
    name: str
    owner: str
    prefix: str
    scopes: list[str]
    node: str | None
    made_with: str | None = Field(description="Id of the token that made it; null: a person in the console.")
    state: str
    created_at: datetime
    expires_at: datetime
    last_used_at: datetime | None


class TokensOut(Schema):
    items: list[TokenOut]
    next: str = Field(description="Send it as `after` to get the next page; empty at the end.")


class TokenMade(TokenOut):
    secret: str = Field(description="Shown this once; only its hash is kept.")


def _facts(token: ServiceToken) -> dict[str, Any]:
    facts = {name: getattr(token, name) for name in ("name", "prefix", "scopes", "state", "created_at", "expires_at", "last_used_at")}
    return facts | {
        "id": token.public_id,
        "owner": token.owner.username,
        "node": token.node.path if token.node else None,
        "made_with": token.made_with.public_id if token.made_with else None,
    }


@router.get("/tokens", response=TokensOut, openapi_extra=parameters_of(TOKENS), summary="Service tokens")
def token_all(request: HttpRequest) -> TokensOut:
    """One's own; for administrators everybody's."""
    page = listed(TOKENS, request, token_list(access_of(request)).select_related("made_with"))
    return TokensOut(items=[TokenOut(**_facts(token)) for token in page.slice.rows], next=page.slice.after or "")


@router.post("/tokens", response={201: TokenMade}, summary="Make a token")
def token_new(request: HttpRequest, response: HttpResponse, payload: TokenIn) -> Status[TokenMade]:
    """For oneself. A token with the scope admin makes others that have no more scopes, no longer life and no wider subtree than its own.

    When it is revoked, so are they.
    """
    access = access_of(request)
    access.must_somewhere(Can.SEE)
    assert access.actor.user is not None
    new = token_create(
        access=access,
        owner=access.actor.user,
        name=payload.name,
        scopes=payload.scopes,
        node=node_for(access, payload.node) if payload.node else None,
        expires_at=whole_millis(payload.expires_at),
        now=now(),
    )
    response["Cache-Control"] = "no-store"
    return Status(201, TokenMade(**_facts(new.token), secret=new.secret))


@router.delete("/tokens/{public_id}", response={204: None}, summary="Revoke a token")
def token_delete(request: HttpRequest, public_id: str, query: Query[ReasonQuery]) -> Status[None]:
    """At once and for good, with the tokens that were made with it. A token without the scope admin revokes itself only."""
    access = access_of(request)
    token_revoke(access=access, token=token_for(access, public_id), reason=query.reason[:500], now=now())
    return Status(204, None)
