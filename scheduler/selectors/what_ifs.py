"""Which what-ifs there are."""

from django.db.models import Q, QuerySet
from django.shortcuts import get_object_or_404

from quotas.permissions import Access, Can
from quotas.selectors.changes import change_list
from scheduler.models import QuotaReplay


def what_ifs_listed(access: Access) -> QuerySet[QuotaReplay]:
    """Sums over the fleet are no team's secret. One of a change of the tree is seen by those who see the change; of its teams each sees his own."""
    access.must_somewhere(Can.SEE)
    return QuotaReplay.objects.filter(Q(change__isnull=True) | Q(change__in=change_list(access))).select_related("change", "asked_by")


def what_if_for(access: Access, public_id: str) -> QuotaReplay:
    return get_object_or_404(what_ifs_listed(access), public_id=public_id)
