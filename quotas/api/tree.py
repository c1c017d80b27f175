"""The quota tree for programs. The same selectors and services as the pages, so the same rules."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, ClassVar

from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from ninja import Query, Router, Schema, Status
from pydantic import Field

from gpufleet.core.etags import IF_MATCH, revision_wanted, stamped
from gpufleet.core.faults import Conflict, Stale
from gpufleet.core.taken import PutBack, Taken
from gpufleet.core.times import now
from gpufleet.navigation import access_of
from quotas.models import NodeKind, QuotaNode
from quotas.permissions import Can
from quotas.presenters import summed
from quotas.rules import CLASSES, GPU_TYPE, HEAVIEST, LONGEST_SECONDS, MOST_JOBS, NAME, NODE_FIELDS, POLICY, NodeValues, Share
from quotas.rules import MOST as MOST_MILLI
from quotas.selectors.nodes import node_for, tree_list, tree_page
from quotas.services.nodes import node_archive, node_create, node_move, node_restore, node_update
from scheduler.selectors.usage import held_by_quota

router = Router(tags=["Quotas"])
MOST = 1000
REVISION = "The one that was read; an older one is answered with 409. Not needed where `If-Match` says it."
# What the services refuse is told here and judged there, so that no rule is written twice.
RANGE: dict[str, Any] = {"minimum": 0, "maximum": HEAVIEST}
AMOUNT: dict[str, Any] = {"minimum": 0, "maximum": MOST_MILLI}
LENGTH: dict[str, Any] = {"minimum": 0, "maximum": LONGEST_SECONDS}
JOBS: dict[str, Any] = {"minimum": 0, "maximum": MOST_JOBS}
NODE_NAME: dict[str, Any] = {"pattern": f"^{NAME.pattern}$"}
BY_TYPE: dict[str, Any] = {"propertyNames": {"pattern": f"^{GPU_TYPE.pattern}$"}}


class ShareValues(Schema):
    guaranteed_milli: int | None = Field(0, description="Milli-GPU; null is unlimited.", json_schema_extra=AMOUNT)
    limit_milli: int | None = Field(None, description="Milli-GPU; null means unlimited.", json_schema_extra=AMOUNT)
    weight: int | None = Field(None, description="Null: the node's own.", json_schema_extra=RANGE)
    priority: int | None = Field(None, description="Null: the node's own.", json_schema_extra=RANGE)


class ShareIn(ShareValues, PutBack):
    read_along: ClassVar[frozenset[str]] = frozenset({"used_milli"})


class ShareOut(ShareValues):
    used_milli: int = Field(description="Held now, everything below included.")


class NodeIn(Schema):
    kind: str = Field(description="No wider than that of the node above.", json_schema_extra={"enum": list(NodeKind.values)})
    title: str = Field("", json_schema_extra={"maxLength": 120})
    cost_centre: str = Field("", json_schema_extra={"maxLength": 40})
    weight: int = Field(1, description="Of what is left over, against its siblings.", json_schema_extra=RANGE)
    priority: int = Field(100, description="A higher one is served first.", json_schema_extra=RANGE)
    overcommit: bool = Field(False, description="Whether those below may be promised more than it is.")
    preempt_min_runtime_s: int | None = Field(None, description="Null: the nearest value above.", json_schema_extra=LENGTH)
    reclaim_min_runtime_s: int | None = Field(None, description="Null: the nearest value above.", json_schema_extra=LENGTH)
    submits_per_minute: int | None = Field(None, description="Null: the nearest value above; 0: no limit.", json_schema_extra=JOBS)
    waiting_limit: int | None = Field(None, description="Null: the nearest value above; 0: no limit.", json_schema_extra=JOBS)
    default_class: str = Field("", description="Of jobs that state none; empty: as the node above.", json_schema_extra={"enum": ["", *CLASSES]})
    needs_approval: bool = Field(False, description="Whether a second person approves changes here and below.")
    policy: dict[str, int | str] = Field(
        default_factory=dict, description="Fleet-wide rules; the top alone has them.", json_schema_extra={"propertyNames": {"enum": list(POLICY)}}
    )
    shares: dict[str, ShareIn] = Field(
        default_factory=dict, description="By GPU type. A type that is not named is promised nothing.", json_schema_extra=BY_TYPE
    )
    reason: str = Field("", max_length=500)

    def values(self) -> NodeValues:
        shares = {gpu_type: Share(**share.model_dump()) for gpu_type, share in self.shares.items()}
        return NodeValues(**{name: getattr(self, name) for name in NODE_FIELDS if name != "shares"}, shares=shares)


class NodeNew(NodeIn, Taken):
    parent: str | None = Field(None, description="Id of the node above; null for the top of an empty tree.")
    name: str = Field(json_schema_extra=NODE_NAME)


class NodeChange(NodeIn, PutBack):
    read_along: ClassVar[frozenset[str]] = frozenset({"id", "path", "parent", "name", "archived_at"})
    revision: int | None = Field(None, description=REVISION)


class NodeMove(Taken):
    parent: str | None = Field(description="Id of the node above.")
    name: str = Field(json_schema_extra=NODE_NAME)
    revision: int | None = Field(None, description=REVISION)
    reason: str = Field("", max_length=500)


class NodeEnd(Taken):
    revision: int | None = Field(None, description=REVISION)
    reason: str = Field("", max_length=500)


class QuotaNodeFacts(Schema):
    """Of a node as it is, or as it was."""

    id: str
    path: str
    parent: str | None
    name: str
    kind: str
    title: str
    cost_centre: str
    weight: int
    priority: int
    overcommit: bool
    preempt_min_runtime_s: int | None
    reclaim_min_runtime_s: int | None
    submits_per_minute: int | None
    waiting_limit: int | None
    default_class: str
    needs_approval: bool
    policy: dict[str, int | str]


class NodeOut(QuotaNodeFacts):
    revision: int
    archived_at: datetime | None
    shares: dict[str, ShareOut]


class TreeQuery(Schema):
    q: str = Field("", description="Words that must all be found.")
    archived: bool = Field(False, description="The archived nodes instead.")
    size: int | None = Field(None, ge=1, le=MOST, description="Rows of a page; left out: the whole tree at once.")
    after: str = Field("", max_length=2000, description="The `X-Next` of the page before.")


def _out(nodes: list[QuotaNode], sums: dict[str, dict[str, int]]) -> list[NodeOut]:
    return [
        NodeOut(
            id=node.public_id,
            path=node.path,
            parent=node.parent.public_id if node.parent else None,
            shares=_shares(node, sums.get(node.path, {})),
            **{name: getattr(node, name) for name in NODE_COLUMNS},
        )
        for node in nodes
    ]


NODE_COLUMNS = ("name", *(name for name in NODE_FIELDS if name != "shares"), "revision", "archived_at")


def _shares(node: QuotaNode, used: dict[str, int]) -> dict[str, ShareOut]:
    shares = {
        share.gpu_type: ShareOut(
            guaranteed_milli=share.guaranteed_milli,
            limit_milli=share.limit_milli,
            weight=share.weight,
            priority=share.priority,
            used_milli=used.get(share.gpu_type, 0),
        )
        for share in node.shares.all()
    }
    # What is held of a type that nobody promised is borrowed, and must not go missing.
    return shares | {
        gpu_type: ShareOut(guaranteed_milli=0, limit_milli=None, weight=None, priority=None, used_milli=milli)
        for gpu_type, milli in used.items()
        if gpu_type not in shares
    }


def _one(request: HttpRequest, answer: HttpResponse, public_id: str) -> NodeOut:
    node = node_for(access_of(request), public_id)
    stamped(answer, node.revision)
    below = QuotaNode.objects.filter(path__startswith=node.path + "/")
    sums = summed({node.pk: node.path, **dict(below.values_list("pk", "path"))}, held_by_quota())
    return _out([node], sums)[0]


@contextmanager
def _revision_read(request: HttpRequest, node: QuotaNode, said: int | None) -> Iterator[int]:
    """The revision on which alone is written: that of `If-Match` (else 412), or the body's (else 409); one of both has to be there."""
    wanted = revision_wanted(request)
    if wanted is not None:
        yield wanted
        return
    if said is None and "If-Match" not in request.headers:
        raise ValidationError({"revision": "Say which revision you have read, here or as If-Match."})
    try:
        yield node.revision if said is None else said
    except Stale as fault:
        raise Conflict(str(fault)) from fault


@router.get("/quotas", response=list[NodeOut], summary="The quota tree")
def quota_list(request: HttpRequest, response: HttpResponse, asked: Query[TreeQuery]) -> list[NodeOut]:
    """All nodes that the caller may see, in the order of the tree.

    With a `size` a page of them: what to ask for next is in the header `Link` (`rel="next"`, RFC 8288), and its `after` alone in `X-Next`.
    """
    access = access_of(request)
    access.must_somewhere(Can.SEE)
    nodes = tree_list(access, search=asked.q, archived=asked.archived)
    paths = dict(tree_list(access).values_list("pk", "path"))
    if asked.size is None and not asked.after:
        return _out(list(nodes), summed(paths, held_by_quota()))
    page = tree_page(nodes, size=asked.size or MOST, after=asked.after)
    if page.after:
        parameters = request.GET.copy()
        parameters["after"] = response["X-Next"] = page.after
        response["Link"] = f'<{request.path}?{parameters.urlencode()}>; rel="next"'
    return _out(page.rows, summed(paths, held_by_quota()))


@router.post("/quotas", response={201: NodeOut}, summary="Add a node")
def quota_create(request: HttpRequest, response: HttpResponse, payload: NodeNew) -> Status[NodeOut]:
    access = access_of(request)
    access.must_somewhere(Can.EDIT_QUOTA)
    parent = node_for(access, payload.parent, Can.EDIT_QUOTA) if payload.parent else None
    node = node_create(access=access, parent=parent, name=payload.name, values=payload.values(), reason=payload.reason, now=now())
    return Status(201, _one(request, response, node.public_id))


@router.get("/quotas/{public_id}", response=NodeOut, summary="One node")
def quota_get(request: HttpRequest, response: HttpResponse, public_id: str) -> NodeOut:
    """Its `ETag` names the revision: sent as `If-Match` with a write, the write is done only if nothing has changed since (412 otherwise)."""
    access_of(request).must_somewhere(Can.SEE)
    return _one(request, response, public_id)


@router.put("/quotas/{public_id}", response=NodeOut, openapi_extra=IF_MATCH, summary="Change a node")
def quota_update(request: HttpRequest, response: HttpResponse, public_id: str, payload: NodeChange) -> NodeOut:
    """The whole node as it shall be. What it is promised is decided by those who may edit the node above it."""
    access = access_of(request)
    access.must_somewhere(Can.EDIT_QUOTA)
    node = node_for(access, public_id, Can.EDIT_QUOTA)
    with _revision_read(request, node, payload.revision) as revision:
        node_update(access=access, node=node, values=payload.values(), revision=revision, reason=payload.reason, now=now())
    return _one(request, response, public_id)


@router.post("/quotas/{public_id}/move", response=NodeOut, openapi_extra=IF_MATCH, summary="Move or rename a node")
def quota_move(request: HttpRequest, response: HttpResponse, public_id: str, payload: NodeMove) -> NodeOut:
    access = access_of(request)
    access.must_somewhere(Can.EDIT_QUOTA)
    node = node_for(access, public_id, Can.EDIT_QUOTA)
    parent = node_for(access, payload.parent, Can.EDIT_QUOTA) if payload.parent else None
    with _revision_read(request, node, payload.revision) as revision:
        node_move(access=access, node=node, parent=parent, name=payload.name, revision=revision, reason=payload.reason, now=now())
    return _one(request, response, public_id)


@router.post("/quotas/{public_id}/archive", response=NodeOut, openapi_extra=IF_MATCH, summary="Archive a node")
def quota_archive(request: HttpRequest, response: HttpResponse, public_id: str, payload: NodeEnd) -> NodeOut:
    access = access_of(request)
    access.must_somewhere(Can.EDIT_QUOTA)
    node = node_for(access, public_id, Can.EDIT_QUOTA)
    with _revision_read(request, node, payload.revision) as revision:
        node_archive(access=access, node=node, revision=revision, reason=payload.reason, now=now())
    return _one(request, response, public_id)


@router.post("/quotas/{public_id}/restore", response=NodeOut, openapi_extra=IF_MATCH, summary="Restore an archived node")
def quota_restore(request: HttpRequest, response: HttpResponse, public_id: str, payload: NodeEnd) -> NodeOut:
    access = access_of(request)
    access.must_somewhere(Can.EDIT_QUOTA)
    node = node_for(access, public_id, Can.EDIT_QUOTA)
    with _revision_read(request, node, payload.revision) as revision:
        node_restore(access=access, node=node, revision=revision, reason=payload.reason, now=now())
    return _one(request, response, public_id)
