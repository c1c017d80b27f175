"""Which defragmentations there are."""

from django.db.models import QuerySet
from django.shortcuts import get_object_or_404

from quotas.permissions import Access, Can
from scheduler.models import Defragmentation


def defragmentations_listed(access: Access) -> QuerySet[Defragmentation]:
    """The newest first. What was moved and when is no team's secret; which jobs, their own events say."""
    access.must_somewhere(Can.SEE)
    return Defragmentation.objects.order_by("-asked_at", "-id")


def defragmentation_for(access: Access, public_id: str) -> Defragmentation:
    return get_object_or_404(defragmentations_listed(access), public_id=public_id)
