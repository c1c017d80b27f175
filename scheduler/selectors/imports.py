"""Imports that were previewed or applied. They name the whole fleet, so only its operators see them."""

from django.http import Http404

from quotas.permissions import Access, Can
from scheduler.models import InventoryImport

RECENT = 10


def import_for(access: Access, public_id: str) -> InventoryImport:
    access.must_everywhere(Can.OPERATE)
    found = InventoryImport.objects.filter(public_id=public_id).first()
    if found is None:
        raise Http404("This import does not exist. Previews that were not applied are deleted after seven days.")
    return found


def imports_recent(access: Access) -> list[InventoryImport]:
    """The latest, without their texts."""
    access.must_everywhere(Can.OPERATE)
    return list(InventoryImport.objects.defer("text").order_by("-created_at", "-id")[:RECENT])
