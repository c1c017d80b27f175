"""Webhooks: made, changed, paused, removed; a test, and a message sent again."""

import hashlib
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import transaction
from django.utils.crypto import salted_hmac

from gpufleet.core.audit import audit_record
from gpufleet.core.faults import Conflict, Stale
from gpufleet.core.ids import public_id
from gpufleet.core.models import User
from gpufleet.core.times import written
from quotas.models import QuotaNode
from quotas.permissions import Access
from scheduler.models import Delivery, HookForm, Webhook, WebhookState
from scheduler.notify.happenings import HOOK_KINDS, PAYLOAD_VERSION, TEST
from scheduler.notify.outgoing import Refused, Rules, target_of
from scheduler.selectors.webhooks import MANAGING, may_manage_hooks
from scheduler.services.jobs.revisions import row_locked, unchanged_or_stale
from scheduler.services.notify.notices import Way, own_hook, way_leave
from scheduler.services.notify.outbox import delivery_of

MOST_A_NODE = 20
NAME_LENGTH = 80
REASON_LENGTH = 500
MARK = "whs"
OWN_NAME = "Own notices"


@dataclass(frozen=True, slots=True)
class NewSecret:
    """A webhook and what its messages are signed with, told this once."""

    hook: Webhook
    secret: str


def secret_of(hook: Webhook) -> str:
    """Made from the installation's key, so that a copy of the database alone signs nothing."""
    return f"{MARK}_{salted_hmac('gpufleet.webhook', hook.salt, algorithm='sha256').hexdigest()}"


def fingerprint_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()[:12]


def hook_create(
    *, access: Access, node: QuotaNode, name: str, url: str, kinds: Sequence[str], form: str = HookForm.JSON, reason: str = "", now: datetime
) -> NewSecret:
    """A webhook for the jobs of a subtree. The secret is in the answer and nowhere else."""
    _must_manage(access, node)
    faults = _faults(name, url, kinds, reason) | _form_faults(form)
    with transaction.atomic():
        # Locked, so that two at once do not both find room.
        QuotaNode.objects.select_for_update(no_key=True).get(pk=node.pk)
        if Webhook.objects.filter(node=node, removed_at__isnull=True).count() >= MOST_A_NODE:
            faults["node"] = [f"{node.path} has {MOST_A_NODE} webhooks already, which is the most."]
        if faults:
            raise ValidationError(faults)
        hook = Webhook(
            public_id=public_id("w"),
            name=name.strip(),
            node=node,
            url=url.strip(),
            kinds=_ordered(kinds),
            form=form,
            created_at=now,
            author=access.actor.user,
            author_name=access.actor.name,
        )
        secret = _new_secret(hook)
        hook.save(force_insert=True)
        _record(access, "webhook.create", hook, after=_facts(hook), reason=reason)
    return NewSecret(hook, secret)


def hook_change(
    *,
    access: Access,
    hook: Webhook,
    name: str | None = None,
    url: str | None = None,
    kinds: Sequence[str] | None = None,
    form: str | None = None,
    state: str | None = None,
    seen: int | None = None,
    reason: str = "",
    now: datetime,
) -> Webhook:
    """Change what is given. Made active again it begins anew: what it failed before is forgotten, what was given up stays so."""
    _must_manage_hook(access, hook)
    with transaction.atomic():
        hook = _locked(hook, seen)
        before = _facts(hook)
        faults = _faults(
            name if name is not None else hook.name, url if url is not None else hook.url, kinds if kinds is not None else hook.kinds, reason
        )
        if hook.person is not None:
            faults.pop("kinds", None)  # a person says by his own choices of what he is told
        if url is None:
            faults.pop("url", None)  # what was allowed when it was typed in is looked at again when it is sent to
        if state is not None and state not in (WebhookState.ACTIVE, WebhookState.PAUSED):
            faults["state"] = ["active or paused is wanted."]
        faults |= _form_faults(form if form is not None else hook.form)
        if faults:
            raise ValidationError(faults)
        hook.form = form if form is not None else hook.form
        hook.name = name.strip() if name is not None else hook.name
        hook.url = url.strip() if url is not None else hook.url
        hook.kinds = _ordered(kinds) if kinds is not None else hook.kinds
        if state is not None and state != hook.state:
            hook.state, hook.disabled_at = state, None
            hook.failing_since = None if state == WebhookState.ACTIVE else hook.failing_since
        hook.revision += 1
        hook.save(update_fields=["name", "url", "kinds", "form", "state", "disabled_at", "failing_since", "revision"])
        _record(access, "webhook.update", hook, before=before, after=_facts(hook), reason=reason)
    return hook


def hook_secret(*, access: Access, hook: Webhook, seen: int | None = None, reason: str = "") -> NewSecret:
    """Another secret, from the next message on."""
    _must_manage_hook(access, hook)
    with transaction.atomic():
        hook = _locked(hook, seen)
        before = {"fingerprint": hook.fingerprint}
        secret = _new_secret(hook)
        hook.revision += 1
        hook.save(update_fields=["salt", "fingerprint", "revision"])
        _record(access, "webhook.secret", hook, before=before, after={"fingerprint": hook.fingerprint}, reason=reason)
    return NewSecret(hook, secret)


def own_hook_save(*, access: Access, url: str, now: datetime, seen: int | None = None) -> NewSecret | None:
    """Where a person's own notices are sent. With a secret where there was none before; changing the address keeps the one there is.

    `seen` is the revision that was read, 0 where there was none: it is written on that alone."""
    user = access.actor.user
    if user is None:
        raise PermissionDenied
    faults = _faults(OWN_NAME, url, list(HOOK_KINDS), "")
    if faults:
        raise ValidationError(faults)
    with transaction.atomic():
        User.objects.select_for_update(no_key=True).get(pk=user.pk)
        hook = own_hook(user)
        if hook is None and seen:
            raise Stale("The webhook was removed. Reload the list and try again.", 0)
        if hook is not None:
            unchanged_or_stale(hook, seen, "The webhook")
            hook_change(access=access, hook=hook, url=url, state=WebhookState.ACTIVE, now=now)
            return None
        author = {"author": user, "author_name": access.actor.name}
        hook = Webhook(public_id=public_id("w"), name=OWN_NAME, person=user, url=url.strip(), created_at=now, **author)
        secret = _new_secret(hook)
        hook.save(force_insert=True)
        _record(access, "webhook.create", hook, after=_facts(hook))
    return NewSecret(hook, secret)


def own_hook_remove(*, access: Access, now: datetime, seen: int | None = None) -> bool:
    """Nothing is sent there any more, and nothing is chosen to be."""
    hook = own_hook(access.actor.user) if access.actor.user is not None else None
    if hook is None:
        return False
    unchanged_or_stale(hook, seen, "The webhook")
    with transaction.atomic():
        way_leave(access=access, way=Way.WEBHOOK)
        hook_remove(access=access, hook=hook, now=now)
    return True


def hook_remove(*, access: Access, hook: Webhook, reason: str = "", now: datetime) -> None:
    """Nothing is sent to it any more; what was sent stays in its log for as long as that is kept."""
    _must_manage_hook(access, hook)
    with transaction.atomic():
        hook = _locked(hook, None)
        hook.removed_at = now
        hook.revision += 1
        hook.save(update_fields=["removed_at", "revision"])
        _record(access, "webhook.remove", hook, before=_facts(hook), reason=reason)


def hook_test(*, access: Access, hook: Webhook, now: datetime) -> Delivery:
    """A message that says only that it is a test. It goes out also where the webhook is paused or switched off, once, and one at a time."""
    _must_manage_hook(access, hook)
    event = f"t-{secrets.token_hex(6)}"
    said = {
        "version": PAYLOAD_VERSION,
        "id": event,
        "kind": TEST,
        "at": written(now),
        "console": settings.PUBLIC_URL.rstrip("/"),
        "by": access.actor.name,
    }
    body = json.dumps(said, ensure_ascii=False, separators=(",", ":"))
    return _send(access, "webhook.test", delivery_of(hook, event=event, kind=TEST, job="", body=body, now=now))


def delivery_repeat(*, access: Access, delivery: Delivery, now: datetime) -> Delivery:
    """The same message once more, under an id of its own."""
    hook = delivery.hook
    _must_manage_hook(access, hook)
    fresh = delivery_of(hook, event=delivery.event, kind=delivery.kind, job=delivery.job, body=delivery.body, now=now, again_of=delivery)
    return _send(access, "webhook.redeliver", fresh)


def _send(access: Access, action: str, delivery: Delivery) -> Delivery:
    with transaction.atomic():
        hook = _locked(delivery.hook, None)
        waiting = Delivery.objects.filter(hook=hook, state="waiting", kind=delivery.kind)
        if delivery.kind == TEST and waiting.exists():
            raise Conflict("A test is on its way already: see what becomes of it before the next.")
        if waiting.filter(event=delivery.event).exists():
            raise Conflict("It is on its way already.")
        delivery.save(force_insert=True)
        _record(access, action, hook, after={"delivery": delivery.public_id, "event": delivery.event})
    return delivery


def _new_secret(hook: Webhook) -> str:
    hook.salt = secrets.token_hex(32)
    secret = secret_of(hook)
    hook.fingerprint = fingerprint_of(secret)
    return secret


def _must_manage(access: Access, node: QuotaNode) -> None:
    if not may_manage_hooks(access, node.path):
        raise access.refusal(*MANAGING, path=node.path)


def _must_manage_hook(access: Access, hook: Webhook) -> None:
    if hook.node is not None:
        _must_manage(access, hook.node)
    elif access.actor.user is None or hook.person_id != access.actor.user.pk:
        raise PermissionDenied


def _locked(hook: Webhook, seen: int | None) -> Webhook:
    there = Webhook.objects.select_related("node", "person").filter(removed_at__isnull=True)
    return row_locked(there, hook.pk, name=hook.name, revision=seen, gone=Conflict(f"{hook.name} was removed."))


def _ordered(kinds: Sequence[str]) -> list[str]:
    return [kind.value for kind in HOOK_KINDS if kind in kinds]


def _faults(name: str, url: str, kinds: Sequence[str], reason: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    if not name.strip() or len(name.strip()) > NAME_LENGTH or not name.isprintable():
        found["name"] = [f"Give it a name of at most {NAME_LENGTH} characters, so that people know what stops when it is removed."]
    try:
        target_of(url.strip(), Rules.of_settings())
    except Refused as refusal:
        found["url"] = [str(refusal)]
    unknown = sorted(set(kinds) - set(HOOK_KINDS))
    if unknown or not kinds:
        found["kinds"] = [f"Choose at least one of {', '.join(HOOK_KINDS)}."]
    if len(reason) > REASON_LENGTH or "\0" in reason:
        found["reason"] = [f"At most {REASON_LENGTH} characters."]
    return found


def _form_faults(form: str) -> dict[str, list[str]]:
    return {} if form in HookForm.values else {"form": [f"Choose {' or '.join(HookForm.values)}."]}


def _facts(hook: Webhook) -> dict[str, Any]:
    return {"name": hook.name, "address": address_told(hook.url), "kinds": hook.kinds, "form": hook.form, "state": hook.state}


def address_told(url: str) -> str:
    """An address as the audit log has it, which more people read than may see it: what follows the host is often a password of its own.

    The mark tells whether it is the same as another one. It is made with the installation's key, so nobody finds the rest by trying.
    """
    parts = urlsplit(url)
    mark = salted_hmac("gpufleet.webhook.address", url, algorithm="sha256").hexdigest()[:8]
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]} ({mark})"


def _record(access: Access, action: str, hook: Webhook, *, before: Any = None, after: Any = None, reason: str = "") -> None:
    facts = {"before": before, "after": after, "reason": reason, "quota": hook.node}
    audit_record(actor=access.actor, action=action, kind="webhook", object_id=hook.public_id, **facts)
