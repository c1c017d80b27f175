"""Finding nodes of the quota tree, and people, by a part of their name."""

from collections.abc import Sequence

from django.db.models import Q

from gpufleet.core.models import User
from gpufleet.core.ranking import by_closeness
from quotas.models import QuotaNode
from quotas.permissions import Access, Can


def quotas_search(access: Access, text: str, *, limit: int, by_id: bool = False) -> Sequence[QuotaNode]:
    """`by_id`: only the one whose id the text is."""
    named = Q(public_id=text)
    if not by_id:
        named = Q(name__icontains=text) | Q(title__icontains=text) | Q(cost_centre__iexact=text) | Q(public_id__iexact=text)
    nodes = QuotaNode.objects.filter(access.visible(Can.SEE), named, archived_at__isnull=True)
    return list(nodes.order_by(by_closeness("name", text), "path")[:limit])


def people_search(access: Access, text: str, *, limit: int) -> Sequence[User]:
    """People are found by those who give roles to people."""
    if not access.can_somewhere(Can.MANAGE_PEOPLE):
        return []
    named = Q(username__icontains=text) | Q(display_name__icontains=text) | Q(email__iexact=text) | Q(public_id__iexact=text)
    return list(User.objects.filter(named).order_by(by_closeness("username", text), "username")[:limit])
