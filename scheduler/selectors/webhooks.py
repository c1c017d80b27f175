"""Who sees and manages which webhooks. Their addresses and what they were sent are only for those who may manage them."""

from django.db.models import Q, QuerySet
from django.http import Http404

from quotas.models import QuotaNode
from quotas.permissions import Access, Can
from scheduler.models import Delivery, Webhook

# Who decides about people or keeps the machines decides who outside is told of the work; whoever only submits does not.
MANAGING = (Can.MANAGE_PEOPLE, Can.OPERATE)


def may_manage_hooks(access: Access, path: str) -> bool:
    return any(access.can(capability, path) for capability in MANAGING)


def must_manage_some_hooks(access: Access) -> None:
    if not any(access.can_somewhere(capability) for capability in MANAGING):
        raise access.refusal(*MANAGING)


def hook_places(access: Access) -> QuerySet[QuotaNode]:
    """Nodes for which somebody may make a webhook."""
    return QuotaNode.objects.filter(_managed(access, "path"), archived_at__isnull=True).order_by("path")


def hooks_managed(access: Access) -> QuerySet[Webhook]:
    return Webhook.objects.filter(_managed(access, "node__path"), node__isnull=False, removed_at__isnull=True).select_related("node")


def hook_for(access: Access, public_id: str) -> Webhook:
    hook = hooks_managed(access).filter(public_id=public_id).first()
    if hook is None:
        raise Http404
    return hook


def hook_deliveries(hook: Webhook) -> QuerySet[Delivery]:
    return Delivery.objects.filter(hook=hook)


def delivery_for(hook: Webhook, public_id: str) -> Delivery:
    delivery = Delivery.objects.filter(hook=hook, public_id=public_id).select_related("hook__node", "again_of").first()
    if delivery is None:
        raise Http404
    return delivery


def _managed(access: Access, column: str) -> Q:
    condition = Q(pk__in=[])
    for capability in MANAGING:
        if access.paths(capability) == ("",):
            return Q()  # everything; an empty condition joined to another one by “or” would say nothing
        condition |= access.visible(capability, column)
    return condition
