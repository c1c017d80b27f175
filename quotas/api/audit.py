"""The audit log for programs."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Router, Schema
from pydantic import Field

from gpufleet.core.list_parameters import parameters_of
from gpufleet.core.models import AuditEntry
from gpufleet.navigation import access_of
from quotas.api.lists import listed
from quotas.lists import AUDIT
from quotas.permissions import Can
from quotas.selectors.audit import audit_entry_for, audit_list

router = Router(tags=["Audit"])


class AuditOut(Schema):
    id: int
    at: datetime
    actor: str
    via: str
    action: str
    object_kind: str
    object_id: str
    quota_path: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    reason: str
    request_id: str


class AuditPage(Schema):
    items: list[AuditOut]
    next: str = Field(description="Send it as `after` to get the next page; empty at the end.")


@router.get("/audit", response=AuditPage, openapi_extra=parameters_of(AUDIT), summary="The audit log")
def audit_entries(request: HttpRequest) -> AuditPage:
    """The newest first, as far as the caller may see the audit."""
    access = access_of(request)
    access.must_somewhere(Can.SEE_AUDIT)
    page = listed(AUDIT, request, audit_list(access))
    return AuditPage(items=[_entry(entry) for entry in page.slice.rows], next=page.slice.after or "")


@router.get("/audit/{entry_id}", response=AuditOut, summary="One entry of the audit log")
def audit_entry(request: HttpRequest, entry_id: int) -> AuditOut:
    access = access_of(request)
    access.must_somewhere(Can.SEE_AUDIT)
    return _entry(audit_entry_for(access, entry_id))


def _entry(entry: AuditEntry) -> AuditOut:
    names = ("id", "at", "via", "action", "object_kind", "object_id", "quota_path", "before", "after", "reason", "request_id")
    return AuditOut(actor=entry.actor_name, **{name: getattr(entry, name) for name in names})
