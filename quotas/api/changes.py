"""Changes of the quota tree over HTTP: draft, preview, approve, apply, revert; and the tree as it was."""

from dataclasses import asdict
from datetime import datetime
from typing import Any

from django.conf import settings
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from ninja import Query, Router, Schema
from pydantic import Field

from gpufleet.core.etags import IF_MATCH, revision_wanted, stamped
from gpufleet.core.taken import AskedTime, Taken
from gpufleet.core.times import now
from gpufleet.web import Access, Can, access_of
from quotas.api.tree import QuotaNodeFacts
from quotas.drafts import MOST_EDITS, OPS
from quotas.exchange import FORMATS, rows_read, tree_written
from quotas.lists import CHANGES
from quotas.models import QuotaChange
from quotas.selectors.changes import (
    applied_lines,
    change_for,
    change_list,
    change_standing,
    edited_lines,
    steps_open,
    tree_visible,
    tree_visible_at,
)
from quotas.services.changes import STEPS, Wanted, change_draft, change_revise, change_step, edits_tried, tree_imported
from scheduler.api.lists import answered, listed, parameters_of
from scheduler.presenters.tree_changes import tree_sentences
from scheduler.selectors.windows import capacity_now
from scheduler.services.forecasts.previews import Preview, tree_preview

router = Router(tags=["Quotas"])


class QuotaEditIn(Taken):
    """One step. `set` holds only the fields that change, as in `PUT /quotas/{id}`; a share of null is taken away."""

    op: str = Field(max_length=20, json_schema_extra={"enum": list(OPS)})
    node: str = Field(max_length=120, description="Id of the node; of a new one, what the other edits call it.")
    parent: str | None = Field(None, max_length=120, description="Of create and move: id of the node above.")
    name: str | None = Field(None, max_length=120, description="Of create and move.")
    set: dict[str, Any] = Field(default_factory=dict, description="Of create and update.")


class QuotaEditsIn(Taken):
    edits: list[QuotaEditIn] = Field(max_length=MOST_EDITS)


class QuotaChangeIn(QuotaEditsIn):
    title: str = Field("", max_length=200, description="Empty: made from the edits.")
    reason: str = Field("", max_length=500)
    over_capacity: bool = Field(False, description="Guarantees may exceed the healthy capacity; the reason says why.")


class QuotaStepIn(Taken):
    """`rebase` keeps the edits as of the present tree, `allow` lets guarantees exceed the healthy capacity; both void an approval."""

    step: str = Field(max_length=20, json_schema_extra={"enum": list(STEPS)})
    reason: str = Field("", max_length=500)
    apply_at: datetime | None = Field(None, description="Of schedule: when it takes effect.")


class QuotaChangeLineOut(Schema):
    """Amounts are milli-GPU. `what`: created, moved, archived, restored, or empty for a value."""

    path: str
    node: str | None
    field: str
    before: Any
    after: Any
    what: str


class QuotaChangeOut(Schema):
    id: str
    title: str
    state: str
    reason: str
    author: str
    approver: str
    approved_at: datetime | None
    decision: str
    apply_at: datetime | None
    applied_at: datetime | None
    applied_by: str
    over_capacity: bool
    fault: str
    reverts: str | None
    made_at: datetime
    changed_at: datetime
    revision: int


class QuotaChangesOut(Schema):
    items: list[QuotaChangeOut]
    next: str | None
    previous: str | None


class QuotaChangeDetailOut(QuotaChangeOut):
    """Lines of nodes that the caller may see; `hidden_nodes` counts the others."""

    edits: list[dict[str, Any]]
    lines: list[QuotaChangeLineOut]
    hidden_nodes: int
    errors: list[dict[str, str]]
    overtaken: list[str]
    approval: str | None
    steps: list[str]


class ShareChangeOut(Schema):
    """Milli-GPU, before and after. A guarantee of null is unlimited."""

    path: str
    gpu_type: str
    used_milli: int
    fair_milli: list[int]
    guaranteed_milli: list[int | None]
    borrowed_milli: list[int]


class JobEffectOut(Schema):
    job: str
    name: str
    path: str
    effect: str
    detail: str
    gpus_milli: int


class WorthOut(Schema):
    """A guarantee or limit that the change gives or takes, of nodes whose costs the caller may view."""

    path: str
    gpu_type: str
    field: str = Field(description="guaranteed or limit.")
    milli: int = Field(description="By how much it rises, in milli-GPU; below zero: falls.")
    micros_per_month: int = Field(description="What they cost in 730 hours at the guaranteed rate, in micro-units; below zero where it falls.")


class TreePreviewOut(Schema):
    as_of: datetime
    sentences: list[str] = Field(description="The preview in words, as the console shows it.")
    worth: list[WorthOut] = Field(description="The largest sum first; empty where the caller may not view costs.")
    currency: str
    shares: list[ShareChangeOut]
    jobs: list[JobEffectOut]
    more_jobs: int
    hidden_effects: int
    warnings: list[str]


class PastNodeOut(QuotaNodeFacts):
    shares: dict[str, dict[str, int | None]]


class PastTreeOut(Schema):
    at: datetime
    items: list[PastNodeOut]


class TreeFileOut(Schema):
    """The tree as a file: GPUs are in GPUs, and what is left out has its default."""

    format: str
    text: str


class TreeFileQuery(Schema):
    format: str = Field("yaml", description="yaml or csv.", json_schema_extra={"enum": list(FORMATS)})


class TreeFileIn(Taken):
    """A file as `GET /quota-file` writes it. A node without an id is found by its path; one with an id may have moved."""

    format: str = Field("yaml", max_length=10, json_schema_extra={"enum": list(FORMATS)})
    text: str = Field(max_length=8_000_000, description="The file, at most 8,000,000 characters; the whole request is at most 16 MiB.")
    archive_missing: bool = Field(False, description="Archive nodes that the file does not name.")
    reason: str = Field("", max_length=500)
    dry_run: bool = Field(False, description="Only say what would change.")


class TreeDiffOut(Schema):
    """`change` is the draft that was made; null for a dry run."""

    change: str | None
    lines: list[QuotaChangeLineOut]
    hidden_nodes: int


class PastQuery(Schema):
    at: AskedTime = Field(description="The time.")


@router.get(
    "/quota-changes", response=QuotaChangesOut, url_name="quota-changes", openapi_extra=parameters_of(CHANGES), summary="Changes of the quota tree"
)
def quota_changes(request: HttpRequest) -> HttpResponse:
    access = access_of(request)
    access.must_somewhere(Can.SEE)
    return listed(request, CHANGES, change_list(access).select_related("reverts"), change_told)


@router.post("/quota-changes", response={201: QuotaChangeDetailOut}, url_name="quota-changes", summary="Draft a change")
def quota_change_make(request: HttpRequest, body: QuotaChangeIn) -> HttpResponse:
    """Nothing of the tree changes until it is applied. All problems are told at once, each at its edit."""
    access = access_of(request)
    access.must_somewhere(Can.EDIT_QUOTA)
    return _told(access, change_draft(access=access, wanted=_wanted(body), now=now()), status=201)


@router.post("/quota-changes/preview", response=TreePreviewOut, url_name="quota-change-preview", summary="Preview edits")
def quota_change_look(request: HttpRequest, body: QuotaEditsIn) -> HttpResponse:
    """What they would do if applied now: shares, and jobs that start, shrink, are preempted or become borrowers. Nothing is written."""
    access = access_of(request)
    access.must_somewhere(Can.EDIT_QUOTA)
    edited = edits_tried(access=access, wanted=Wanted([edit.model_dump() for edit in body.edits], reason="Preview"))
    return answered(preview_told(tree_preview(access=access, before=edited.before, after=edited.after, now=now())))


@router.get("/quota-changes/{public_id}", response=QuotaChangeDetailOut, url_name="quota-change", summary="A change")
def quota_change(request: HttpRequest, public_id: str) -> HttpResponse:
    access = access_of(request)
    access.must_somewhere(Can.SEE)
    return _told(access, change_for(access, public_id))


@router.put(
    "/quota-changes/{public_id}", response=QuotaChangeDetailOut, url_name="quota-change", openapi_extra=IF_MATCH, summary="Edit an open change"
)
def quota_change_edit(request: HttpRequest, public_id: str, body: QuotaChangeIn) -> HttpResponse:
    """The whole change as it shall be, as of the present tree. An approval is void."""
    access = access_of(request)
    access.must_somewhere(Can.EDIT_QUOTA)
    found = change_for(access, public_id)
    wanted = revision_wanted(request)
    revision = found.revision if wanted is None else wanted
    return _told(access, change_revise(access=access, change=found, wanted=_wanted(body), revision=revision, now=now()))


@router.post(
    "/quota-changes/{public_id}/steps", response=QuotaChangeDetailOut, url_name="quota-change-steps", openapi_extra=IF_MATCH, summary="Take a step"
)
def quota_change_step(request: HttpRequest, public_id: str, body: QuotaStepIn) -> HttpResponse:
    """`steps` of the change names those that the caller may take. `revert` answers with another change, a draft that undoes this one.

    A preview that is withdrawn is deleted.
    """
    access = access_of(request)
    access.must_somewhere(Can.EDIT_QUOTA)
    after = change_step(
        access=access,
        change=change_for(access, public_id),
        step=body.step,
        revision=revision_wanted(request),
        capacity=lambda: capacity_now().by_type,
        reason=body.reason,
        apply_at=body.apply_at,
        now=now(),
    )
    return _told(access, after)


@router.get("/quota-changes/{public_id}/preview", response=TreePreviewOut, url_name="quota-change-previewed", summary="Preview a change")
def quota_change_preview(request: HttpRequest, public_id: str) -> HttpResponse:
    """What an open change would do if applied now."""
    access = access_of(request)
    access.must_somewhere(Can.SEE)
    standing = change_standing(access, change_for(access, public_id))
    if standing.faults:
        raise ValidationError(dict(standing.faults))
    return answered(preview_told(tree_preview(access=access, before=standing.before, after=standing.after, now=now())))


@router.get("/quota-tree", response=PastTreeOut, url_name="quota-tree", summary="The tree as it was")
def quota_tree_then(request: HttpRequest, asked: Query[PastQuery]) -> HttpResponse:
    """Nodes that the caller may see, archived ones left out."""
    access = access_of(request)
    access.must_somewhere(Can.SEE)
    tree, states = tree_visible_at(access, asked.at)
    rows = [{key: value for key, value in state.as_json().items() if key not in ("archived", "revision")} for state in states]
    return answered({"at": asked.at, "items": [{**row, "path": tree.paths[state.id]} for row, state in zip(rows, states, strict=True)]})


@router.get("/quota-file", response=TreeFileOut, url_name="quota-file", summary="Export the tree")
def quota_file(request: HttpRequest, asked: Query[TreeFileQuery]) -> HttpResponse:
    access = access_of(request)
    access.must_somewhere(Can.SEE)
    if asked.format not in FORMATS:
        raise ValidationError({"format": [f"Choose one of {', '.join(FORMATS)}."]})
    return answered({"format": asked.format, "text": tree_written(*tree_visible(access), asked.format)})


@router.post("/quota-file", response={200: TreeDiffOut}, url_name="quota-file", summary="Import the tree")
def quota_file_import(request: HttpRequest, body: TreeFileIn) -> HttpResponse:
    """Becomes a draft with the difference. All faults of the file are told at once, each with its place."""
    access = access_of(request)
    access.must_somewhere(Can.EDIT_QUOTA)
    rows, faults = rows_read(body.text, body.format)
    edits, edited = tree_imported(access=access, rows=rows, faults=faults, archive_missing=body.archive_missing, reason=body.reason)
    wanted = Wanted([edit.as_json() for edit in edits], reason=body.reason)
    made = None if body.dry_run else change_draft(access=access, wanted=wanted, now=now()).public_id
    lines, hidden = edited_lines(access, edited)
    return answered({"change": made, "lines": [asdict(line) for line in lines], "hidden_nodes": hidden})


def _wanted(body: QuotaChangeIn) -> Wanted:
    return Wanted([edit.model_dump() for edit in body.edits], body.title, body.reason, body.over_capacity)


PLAIN = ("title", "state", "reason", "approved_at", "apply_at", "applied_at", "over_capacity", "fault", "made_at", "changed_at", "revision")


def change_told(found: QuotaChange) -> dict[str, Any]:
    people = {"author": found.author_name, "approver": found.approver_name, "applied_by": found.applied_by_name, "decision": found.decision_reason}
    reverts = found.reverts.public_id if found.reverts is not None else None
    return {"id": found.public_id, "reverts": reverts} | people | {name: getattr(found, name) for name in PLAIN}


def _told(access: Access, found: QuotaChange, status: int = 200) -> HttpResponse:
    standing = change_standing(access, found) if found.is_open else None
    lines, hidden = (standing.lines, standing.hidden) if standing is not None else applied_lines(access, found)
    detail = {
        "edits": [] if hidden else found.edits,
        "lines": [asdict(line) for line in lines],
        "hidden_nodes": hidden,
        "errors": [{"path": path, "message": text} for path, texts in (standing.faults if standing else {}).items() for text in texts],
        "overtaken": standing.overtaken if standing else (),
        "approval": standing.approval if standing else None,
        "steps": steps_open(access, found, standing),
    }
    answer = stamped(answered(change_told(found) | detail), found.revision)
    answer.status_code = status
    return answer


def preview_told(found: Preview) -> dict[str, Any]:
    return {
        "as_of": found.as_of,
        "sentences": tree_sentences(found),
        "worth": [asdict(one) for one in found.worth],
        "currency": settings.CURRENCY,
        "shares": [
            {
                "path": one.path,
                "gpu_type": one.gpu_type,
                "used_milli": one.used,
                "fair_milli": one.fair,
                "guaranteed_milli": one.guaranteed,
                "borrowed_milli": one.borrowed,
            }
            for one in found.shares
        ],
        "jobs": [{name: value for name, value in asdict(one).items() if name != "owner"} for one in found.jobs],
        "more_jobs": found.more_jobs,
        "hidden_effects": found.unseen,
        "warnings": found.warnings,
    }
