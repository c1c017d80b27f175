"""Reading the audit log: by subtree, and by installation for what concerns no subtree."""

from typing import Any

from django.db.models import Q, QuerySet
from django.shortcuts import get_object_or_404

from gpufleet.core.models import AuditEntry
from quotas.models import QuotaNode
from quotas.permissions import Access, Can


def audit_list(access: Access) -> QuerySet[AuditEntry]:
    """Entries of the subtrees where the reader may see the audit, by their path then or their place now, so that moving and renaming hide nothing.

    Sign-ins and fleet-wide ones are for those who see the audit everywhere.
    """
    entries = AuditEntry.objects.select_related("actor")
    if access.can_everywhere(Can.SEE_AUDIT):
        return entries
    return entries.filter(access.visible(Can.SEE_AUDIT, "quota_path") | Q(quota_id__in=_keys(access.visible(Can.SEE_AUDIT))))


def audit_below(path: str) -> Q:
    """Entries of the subtrees whose path begins so, then or now."""
    return Q(quota_path__istartswith=path) | Q(quota_id__in=_keys(Q(path__istartswith=path)))


def _keys(condition: Q) -> QuerySet[QuotaNode, Any]:
    return QuotaNode.objects.filter(condition).values("pk")


def audit_entry_for(access: Access, pk: int) -> AuditEntry:
    return get_object_or_404(audit_list(access), pk=pk)
