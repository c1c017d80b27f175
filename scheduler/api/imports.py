"""Import and discovery over HTTP: look first, then apply exactly what was shown."""

from datetime import datetime
from typing import Any, Literal

from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from ninja import Router, Schema
from pydantic import Field

from gpufleet.core.taken import Taken
from gpufleet.core.times import now
from gpufleet.web import access_of
from scheduler.api.lists import answered
from scheduler.hardware.discovery import NothingFound
from scheduler.imports.plan import Plan
from scheduler.models import InventoryImport
from scheduler.selectors.imports import import_for
from scheduler.services.hardware.discovery import machine_discover
from scheduler.services.hardware.imports import Preview, import_apply, import_preview

router = Router(tags=["Import"])


class ImportIn(Taken):
    """A file of hardware as text."""

    format: Literal["yaml", "json", "csv", "kubernetes"]
    text: str = Field(description="The file as it is.")
    remove_missing: bool = Field(False, description="Whether what the file does not name leaves the fleet.")
    cluster: str = Field(
        "", max_length=60, pattern=r"^[-a-zA-Z0-9_]*$", description="Of nodes of Kubernetes, which do not name one; by default `kubernetes`."
    )
    source: str = Field("API", description="What the import is listed as, such as the file's name.")


class DiscoverIn(Taken):
    cluster: str = Field("", description="The cluster that the machine belongs to; by default the one that it is in already.")


class ImportChangeOut(Schema):
    kind: Literal["added", "changed", "removed", "kept"]
    what: str
    name: str
    before: dict[str, Any]
    after: dict[str, Any]
    notes: list[str]


class PreviewOut(Schema):
    """`id` is null where there is nothing to apply."""

    id: str | None
    changes: list[ImportChangeOut]
    counts: dict[str, int]
    notes: list[str] = Field([], description="What an operator should know before applying it, such as nodes without a label that places them.")


class AppliedOut(Schema):
    id: str
    changes: int


class ImportOut(Schema):
    """`counts` has how much would change, or has changed, by kind. `applied_at` is null until it was applied."""

    id: str
    source: str = Field(description="The file's name, or the machine that was looked at.")
    format: str
    remove_missing: bool
    counts: dict[str, int]
    notes: list[str] = Field(description="What an operator should know before applying it, such as nodes without a label that places them.")
    created_at: datetime
    created_by: str
    applied_at: datetime | None


class NothingOut(Schema):
    detail: str
    tried: list[str]
    advice: list[str]


@router.post("/inventory/imports", response=PreviewOut, url_name="import_preview", summary="What a file would change")
def inventory_preview(request: HttpRequest, body: ImportIn) -> HttpResponse:
    """Nothing is written. A file with faults is answered with 422 and every fault, its path being `line:column`."""
    preview = import_preview(
        access=access_of(request),
        text=body.text,
        form=body.format,
        source=body.source,
        remove_missing=body.remove_missing,
        cluster=body.cluster,
        now=now(),
    )
    return answered(previewed(preview))


@router.get("/inventory/imports/{public_id}", response=ImportOut, url_name="import", summary="An import")
def inventory_import(request: HttpRequest, public_id: str) -> HttpResponse:
    return answered(_upload(import_for(access_of(request), public_id)))


@router.post("/inventory/imports/{public_id}/apply", response=AppliedOut, url_name="import_apply", summary="Apply what was previewed")
def inventory_apply(request: HttpRequest, public_id: str) -> HttpResponse:
    """All of it or nothing; 409 where the inventory has changed since, or it was applied already."""
    access = access_of(request)
    plan = import_apply(access=access, upload=import_for(access, public_id), now=now())
    return answered({"id": public_id, "changes": len(plan.effective)})


@router.post("/inventory/discovery", response={200: PreviewOut, 409: NothingOut}, url_name="discovery", summary="Look at this machine")
def inventory_discovery(request: HttpRequest, body: DiscoverIn) -> HttpResponse:
    """Asks the driver of the machine that runs the console. Without one the answer is 409, with what was tried and what may help."""
    try:
        found = machine_discover(access=access_of(request), cluster=body.cluster, now=now())
    except NothingFound as nothing:
        answer = answered({"detail": "No GPU could be read.", "tried": nothing.tried, "advice": nothing.advice})
        answer.status_code = 409
        return answer
    return answered(previewed(found.preview))


def previewed(preview: Preview) -> dict[str, Any]:
    """What a file would change. Raises ValidationError with every fault of the file."""
    if preview.faults:
        told: dict[str, list[str]] = {}
        for fault in preview.faults:
            told.setdefault(f"{fault.line}:{fault.column}", []).append(f"{fault.path}: {fault.message}" if fault.path else fault.message)
        raise ValidationError(told)
    upload, plan = preview.upload, preview.plan
    return {"id": upload.public_id if upload else None, "changes": _changes(plan), "counts": plan.counts, "notes": list(preview.notes)}


def _changes(plan: Plan) -> list[dict[str, Any]]:
    return [
        {"kind": change.kind, "what": change.what, "name": change.name, "before": change.before, "after": change.after, "notes": change.notes}
        for change in plan.changes
    ]


def _upload(upload: InventoryImport) -> dict[str, Any]:
    return {
        "id": upload.public_id,
        "source": upload.source,
        "format": upload.form,
        "remove_missing": upload.remove_missing,
        "counts": upload.counts,
        "notes": upload.notes,
        "created_at": upload.created_at,
        "created_by": upload.created_by_name,
        "applied_at": upload.applied_at,
    }
