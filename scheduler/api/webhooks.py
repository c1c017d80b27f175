"""Webhooks over HTTP: managed by who may manage them, with what they were sent."""

from datetime import datetime
from typing import Any, Literal

from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from ninja import Query, Router, Schema, Status
from pydantic import Field

from gpufleet.core.etags import IF_MATCH, revision_wanted, stamped
from gpufleet.core.taken import SAID, Taken
from gpufleet.core.times import now
from gpufleet.web import access_of
from quotas.api.lists import ReasonQuery
from scheduler.api.lists import answered, listed, parameters_of
from scheduler.models import Delivery, Webhook
from scheduler.notify.happenings import HOOK_KINDS
from scheduler.notify.lists import DELIVERIES, WEBHOOKS
from scheduler.selectors.webhooks import delivery_for, hook_deliveries, hook_for, hook_places, hooks_managed, must_manage_some_hooks
from scheduler.services.notify.webhooks import NAME_LENGTH, NewSecret, delivery_repeat, hook_change, hook_create, hook_remove, hook_secret, hook_test

router = Router(tags=["Webhooks"])


class WebhookOut(Schema):
    """`state`: active, paused or disabled (it only failed for days). `fingerprint` tells secrets apart: the first 12 digits of their SHA-256."""

    id: str
    name: str
    quota: str
    url: str
    kinds: list[str]
    form: str = Field(description="json: gpufleet's own, signed; slack: for chats that take Slack's webhooks.", examples=["json"])
    state: str
    fingerprint: str
    revision: int
    created_at: datetime
    author: str
    failing_since: datetime | None
    disabled_at: datetime | None


class WebhooksOut(Schema):
    items: list[WebhookOut]
    next: str | None
    previous: str | None


class WebhookMade(WebhookOut):
    secret: str = Field(description="What messages are signed with. Told this once.")


# What the service refuses is told here and judged there, so that no rule is written twice.
NAME: dict[str, Any] = SAID | {"maxLength": NAME_LENGTH}
KINDS: dict[str, Any] = {"items": {"type": "string", "enum": list(HOOK_KINDS)}, "minItems": 1}


class WebhookIn(Taken):
    quota: str = Field(max_length=500, description="The path of a node: the webhook reports the jobs below it.")
    name: str = Field(max_length=200, json_schema_extra=NAME)
    url: str = Field(max_length=2000, json_schema_extra={"maxLength": 500})
    kinds: list[str] = Field(max_length=50, description="Events it receives, such as job.started and job.failed.", json_schema_extra=KINDS)
    form: Literal["json", "slack"] = Field("json", description="json: gpufleet's own; slack: for chats that take Slack's webhooks.")
    reason: str = Field("", max_length=500)


class WebhookChange(Taken):
    """What is not named stays."""

    name: str | None = Field(None, max_length=200)
    url: str | None = Field(None, max_length=2000)
    kinds: list[str] | None = Field(None, max_length=50)
    form: Literal["json", "slack"] | None = Field(None, description="json or slack")
    state: str | None = Field(None, max_length=20, description="active or paused")
    reason: str = Field("", max_length=500)


class ReasonIn(Taken):
    reason: str = Field("", max_length=500)


class DeliveryOut(Schema):
    """`state`: waiting, delivered or parked (given up). `excerpt` is the beginning of the last answer; `due_at` says when it is tried next."""

    id: str
    event: str
    kind: str
    job: str | None
    state: str
    attempts: int
    made_at: datetime
    due_at: datetime | None
    done_at: datetime | None
    status: int | None
    duration_ms: int | None
    fault: str
    excerpt: str


class DeliveriesOut(Schema):
    items: list[DeliveryOut]
    next: str | None
    previous: str | None


class DeliveryDetailOut(DeliveryOut):
    body: str
    again_of: str | None


@router.get("/webhooks", response=WebhooksOut, url_name="webhooks", openapi_extra=parameters_of(WEBHOOKS), summary="Webhooks")
def webhooks(request: HttpRequest) -> HttpResponse:
    """Those that the caller may manage."""
    access = access_of(request)
    must_manage_some_hooks(access)
    return listed(request, WEBHOOKS, hooks_managed(access), _facts)


@router.post("/webhooks", response={201: WebhookMade}, url_name="webhook_new", summary="A new webhook")
def webhook_create(request: HttpRequest, response: HttpResponse, body: WebhookIn) -> HttpResponse:
    """The secret is in this answer and nowhere else."""
    access = access_of(request)
    must_manage_some_hooks(access)
    node = hook_places(access).filter(path=body.quota).first()
    if node is None:
        raise ValidationError({"quota": [f"There is no {body.quota} here whose webhooks you may manage."]})
    return _made(
        hook_create(access=access, node=node, name=body.name, url=body.url, kinds=body.kinds, form=body.form, reason=body.reason, now=now()), 201
    )


@router.get("/webhooks/{public_id}", response=WebhookOut, url_name="webhook", summary="A webhook")
def webhook(request: HttpRequest, public_id: str) -> HttpResponse:
    return _told(_hook(request, public_id))


@router.patch("/webhooks/{public_id}", response=WebhookOut, url_name="webhook", openapi_extra=IF_MATCH, summary="Change, pause or resume a webhook")
def webhook_update(request: HttpRequest, public_id: str, body: WebhookChange) -> HttpResponse:
    """With `If-Match` only if nothing has changed."""
    facts = body.dict(exclude_none=True)
    return _told(
        hook_change(access=access_of(request), hook=_hook(request, public_id), seen=revision_wanted(request), now=now(), **facts),
    )


@router.delete("/webhooks/{public_id}", response={204: None}, url_name="webhook", summary="Remove a webhook")
def webhook_delete(request: HttpRequest, public_id: str, query: Query[ReasonQuery]) -> Status[None]:
    hook_remove(access=access_of(request), hook=_hook(request, public_id), reason=query.reason[:500], now=now())
    return Status(204, None)


@router.post("/webhooks/{public_id}/secret", response=WebhookMade, url_name="webhook_secret", summary="Another secret for a webhook")
def webhook_rotate(request: HttpRequest, public_id: str, body: ReasonIn) -> HttpResponse:
    """Messages are signed with it from now on."""
    return _made(hook_secret(access=access_of(request), hook=_hook(request, public_id), reason=body.reason), 200)


@router.post("/webhooks/{public_id}/test", response={201: DeliveryOut}, url_name="webhook_test", summary="Send a test message")
def webhook_try(request: HttpRequest, public_id: str) -> HttpResponse:
    """Sent within seconds; read the delivery again to see what became of it. 409 while the last test is on its way."""
    answer = answered(_delivery(hook_test(access=access_of(request), hook=_hook(request, public_id), now=now())))
    answer.status_code = 201
    return answer


@router.get(
    "/webhooks/{public_id}/deliveries",
    response=DeliveriesOut,
    url_name="deliveries",
    openapi_extra=parameters_of(DELIVERIES),
    summary="What a webhook was sent",
)
def deliveries(request: HttpRequest, public_id: str) -> HttpResponse:
    return listed(request, DELIVERIES, hook_deliveries(_hook(request, public_id)), _delivery)


@router.get("/webhooks/{public_id}/deliveries/{delivery_id}", response=DeliveryDetailOut, url_name="delivery", summary="One message, as it was sent")
def delivery(request: HttpRequest, public_id: str, delivery_id: str) -> HttpResponse:
    found = delivery_for(_hook(request, public_id), delivery_id)
    return answered(_delivery(found) | {"body": found.body, "again_of": found.again_of.public_id if found.again_of else None})


@router.post(
    "/webhooks/{public_id}/deliveries/{delivery_id}/redeliver",
    response={201: DeliveryOut},
    url_name="delivery_repeat",
    summary="Send a message again",
)
def delivery_again(request: HttpRequest, public_id: str, delivery_id: str) -> HttpResponse:
    """Under an id of its own, about the same event. 409 while it is on its way."""
    found = delivery_for(_hook(request, public_id), delivery_id)
    answer = answered(_delivery(delivery_repeat(access=access_of(request), delivery=found, now=now())))
    answer.status_code = 201
    return answer


def _hook(request: HttpRequest, public_id: str) -> Webhook:
    access = access_of(request)
    must_manage_some_hooks(access)
    return hook_for(access, public_id)


def _told(hook: Webhook) -> HttpResponse:
    return stamped(answered(_facts(hook)), hook.revision)


def _made(new: NewSecret, status: int) -> HttpResponse:
    answer = stamped(answered(_facts(new.hook) | {"secret": new.secret}), new.hook.revision)
    answer["Cache-Control"] = "no-store"
    answer.status_code = status
    return answer


def _facts(hook: Webhook) -> dict[str, Any]:
    plain = ("name", "url", "kinds", "form", "state", "fingerprint", "revision", "created_at", "failing_since", "disabled_at")
    own = {"id": hook.public_id, "quota": hook.node.path if hook.node else None, "author": hook.author_name}
    return own | {name: getattr(hook, name) for name in plain}


def _delivery(one: Delivery) -> dict[str, Any]:
    plain = ("event", "kind", "state", "attempts", "made_at", "done_at", "status", "duration_ms", "fault", "excerpt")
    own = {"id": one.public_id, "job": one.job or None, "due_at": one.due_at if one.done_at is None else None}
    return own | {name: getattr(one, name) for name in plain}
