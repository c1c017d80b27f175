"""Service tokens: shown once, kept as a hash, narrowed to scopes and a subtree, and never valid for more than a year."""

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import transaction

from gpufleet.core.audit import NAME_LENGTH, Actor, audit_record
from gpufleet.core.ids import public_id
from gpufleet.core.models import User
from gpufleet.core.prepared import Prepared
from quotas.models import QuotaNode, ServiceToken
from quotas.permissions import SCOPE_CAPABILITIES, Access, Can, Scope, access_for_user, is_within
from quotas.selectors.people import VIA, token_of

log = structlog.get_logger(__name__)

MARK = "gf"
LONGEST = timedelta(days=365)
USE_WRITTEN_EVERY = timedelta(minutes=1)


BY_PREFIX = Prepared[ServiceToken](lambda prefix: ServiceToken.objects.select_related("owner", "node").filter(prefix=prefix))


class TokenRefused(Exception):
    """The token is unknown, wrong, expired or revoked. The message is fit for its holder."""


@dataclass(frozen=True, slots=True)
class NewToken:
    token: ServiceToken
    secret: str


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _facts(token: ServiceToken) -> dict[str, object]:
    return {
        "name": token.name,
        "owner": token.owner.username,
        "scopes": token.scopes,
        "subtree": token.node.path if token.node else "",
        "expires_at": token.expires_at.isoformat(),
        "revoked_at": token.revoked_at.isoformat() if token.revoked_at else None,
    }


def token_create(
    *, access: Access, owner: User, name: str, scopes: list[str], node: QuotaNode | None, expires_at: datetime, now: datetime
) -> NewToken:
    """Make a token for oneself, from the console or with another token that administers. The secret is in the answer and nowhere else."""
    if access.actor.user != owner:
        raise PermissionDenied("A token is made by its owner.")
    maker = token_of(access.actor)
    if maker is not None and Scope.ADMIN not in maker.scopes:
        raise PermissionDenied("Only a token with the scope admin makes tokens.")
    faults: dict[str, str] = {}
    if not name.strip() or len(name.strip()) > 80:
        faults["name"] = "Give it a name of at most 80 characters, so that people know what breaks when it is revoked."
    if not scopes or not set(scopes) <= set(Scope):
        faults["scopes"] = "Choose at least one of " + ", ".join(Scope) + "."
    if not now < expires_at <= now + LONGEST:
        faults["expires_at"] = "It must lie between now and one year from now."
    if node is not None and not access.can(Can.SEE, node.path):
        faults["node"] = "You have no role on that node."
    if maker is not None:
        faults |= _beyond(maker, scopes, node, expires_at)
    if faults:
        raise ValidationError(faults)
    prefix = secrets.token_hex(4)
    secret = f"{MARK}_{prefix}_{secrets.token_urlsafe(32)}"
    with transaction.atomic():
        if maker is not None and not ServiceToken.objects.select_for_update().filter(pk=maker.pk, revoked_at__isnull=True).exists():
            raise PermissionDenied("This token was revoked.")
        token = ServiceToken.objects.create(
            public_id=public_id("t"),
            name=name.strip(),
            owner=owner,
            prefix=prefix,
            digest=_digest(secret),
            scopes=sorted(set(scopes)),
            node=node,
            made_with=maker,
            created_at=now,
            expires_at=expires_at,
        )
        audit_record(
            actor=access.actor,
            action="token.create",
            kind="token",
            object_id=token.public_id,
            quota=node,
            after=_facts(token),
        )
    return NewToken(token, secret)


def token_revoke(*, access: Access, token: ServiceToken, reason: str = "", now: datetime) -> None:
    """End a token at once, with those that were made with it. Revoking twice is no fault, and is recorded once."""
    if access.actor.user != token.owner:
        access.must_everywhere(Can.ADMINISTER)
    own = token_of(access.actor)
    if own is not None and own != token and Scope.ADMIN not in own.scopes:
        raise PermissionDenied("Only a token with the scope admin revokes other tokens.")
    with transaction.atomic():
        # Each generation is locked before its children are looked for, so a child that is being made is met, or is refused.
        generation, first = [token.pk], True
        while generation:
            ended = list(ServiceToken.objects.select_for_update(of=("self",)).select_related("owner", "node").filter(pk__in=generation))
            for row in ended:
                _revoke_one(access.actor, row, reason if first else f"Made with {token.public_id}, which was revoked.", now)
            generation, first = list(ServiceToken.objects.filter(made_with__in=ended).values_list("pk", flat=True)), False
    token.refresh_from_db(fields=["revoked_at"])


def _revoke_one(actor: Actor, token: ServiceToken, reason: str, now: datetime) -> None:
    if token.revoked_at is not None:
        return
    before = _facts(token)
    token.revoked_at = now
    token.save(update_fields=["revoked_at"])
    audit_record(
        actor=actor,
        action="token.revoke",
        kind="token",
        object_id=token.public_id,
        quota=token.node,
        before=before,
        after=_facts(token),
        reason=reason,
    )


def _beyond(maker: ServiceToken, scopes: list[str], node: QuotaNode | None, expires_at: datetime) -> dict[str, str]:
    """How the wanted token would reach further than the one that makes it."""
    faults: dict[str, str] = {}
    more = sorted(set(scopes) - set(maker.scopes))
    if more:
        faults["scopes"] = f"The token that makes it does not have {', '.join(more)}."
    if expires_at > maker.expires_at:
        faults["expires_at"] = f"It can't outlive the token that makes it, which ends at {maker.expires_at:%Y-%m-%d %H:%M:%S} UTC."
    if maker.node is not None and (node is None or not is_within(node.path, maker.node.path)):
        faults["node"] = f"The token that makes it is worth nothing outside {maker.node.path}: name a node there."
    return faults


def token_access(*, secret: str, now: datetime, request_id: str = "") -> Access:
    """What the holder of this secret may do: the owner's roles as they are now, cut down to the token's scopes and subtree."""
    prefix = secret.split("_")[1] if secret.count("_") >= 2 else ""
    token = BY_PREFIX.first(prefix)
    # A hash is compared also where there is no such token, so the time taken does not tell which prefixes exist.
    matches = hmac.compare_digest(token.digest if token else _digest(""), _digest(secret))
    if token is None or not matches:
        _note_refusal(token, "wrong secret", request_id)
        raise TokenRefused("This token is not known here.")
    if token.revoked_at is not None:
        _note_refusal(token, "revoked", request_id)
        raise TokenRefused("This token was revoked.")
    if token.expires_at <= now:
        _note_refusal(token, "expired", request_id)
        raise TokenRefused("This token has expired.")
    if not token.owner.is_active or (token.node and token.node.archived_at):
        _note_refusal(token, "owner or subtree is gone", request_id)
        raise TokenRefused("The person or the part of the tree behind this token is gone.")
    if token.last_used_at is None or token.last_used_at <= now - USE_WRITTEN_EVERY:
        ServiceToken.objects.filter(pk=token.pk).update(last_used_at=now)
    actor = Actor(user=token.owner, name=f"{token.owner} ({token.name})"[:NAME_LENGTH], via=f"{VIA}{token.prefix}", request_id=request_id)
    let_through = frozenset[Can]().union(*(SCOPE_CAPABILITIES[scope] for scope in token.scopes))
    return access_for_user(token.owner).narrowed(let_through, token.node.path if token.node else "", actor)


def _note_refusal(token: ServiceToken | None, why: str, request_id: str) -> None:
    """A refusal of a token that exists belongs to the audit; guesses at none would let a stranger fill it, so they go to the log only."""
    log.warning("token_refused", why=why, prefix=token.prefix if token else None)
    if token is not None:
        actor = Actor(user=None, name="unknown caller", via=f"{VIA}{token.prefix}", request_id=request_id)
        audit_record(actor=actor, action="token.refused", kind="token", object_id=token.public_id, reason=why)
