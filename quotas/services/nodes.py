"""Writing single nodes of the tree at once: each is a change of one edit that is applied where it is made (`quotas.services.changes`).

What a node is promised is decided above it: its shares, weight, priority, name and place need EDIT_QUOTA on its parent (for the top: on itself).
"""

from collections.abc import Callable
from datetime import datetime

from django.db import transaction

from gpufleet.core.faults import Conflict, Stale
from quotas.drafts import Edit, difference_of
from quotas.models import NodeKind, QuotaNode
from quotas.permissions import Access, Can
from quotas.rules import NodeValues
from quotas.services.changes import CHANGED_MEANWHILE, edit_at_once
from quotas.services.ledger import ledger_held
from quotas.services.writing import DECIDED_ABOVE, lock_tree, values_of

__all__ = [
    "CHANGED_MEANWHILE",
    "DECIDED_ABOVE",
    "lock_tree",
    "may_decide",
    "node_archive",
    "node_create",
    "node_move",
    "node_restore",
    "node_update",
    "node_values",
]
NEW = "new"


def node_create(*, access: Access, parent: QuotaNode | None, name: str, values: NodeValues, reason: str = "", now: datetime) -> QuotaNode:
    """Add a node. The first one becomes the top of the tree; there is one top, so that a role on it means the whole fleet."""
    wanted = difference_of(NodeValues(NodeKind.PROJECT), values) | {"kind": values.kind}
    edit = Edit("create", NEW, parent.public_id if parent else None, name, wanted)
    with transaction.atomic():
        at = ledger_held(now=now)
        lock_tree()
        made = edit_at_once(access=access, edit=edit, at=at, reason=reason, now=now)
        return QuotaNode.objects.get(public_id=made[NEW])


def node_update(*, access: Access, node: QuotaNode, values: NodeValues, revision: int, reason: str = "", now: datetime) -> QuotaNode:
    """Change what a node says of itself. `revision` is the one that the caller saw."""

    def edit(fresh: QuotaNode) -> Edit:
        return Edit("update", node.public_id, set=difference_of(values_of(fresh), values))

    return _written(access, node, revision, reason, now, edit)


def node_move(*, access: Access, node: QuotaNode, parent: QuotaNode | None, name: str, revision: int, reason: str = "", now: datetime) -> QuotaNode:
    """Give a node another name, another parent, or both. The paths of all below it change in the same step."""

    def edit(fresh: QuotaNode) -> Edit | None:
        place = (parent.pk if parent else None, name)
        return None if (fresh.parent_id, fresh.name) == place else Edit("move", node.public_id, parent.public_id if parent else None, name)

    return _written(access, node, revision, reason, now, edit)


def node_archive(*, access: Access, node: QuotaNode, revision: int, reason: str = "", now: datetime) -> QuotaNode:
    """Take a node out of use. Its history stays; its guarantee is free for its siblings, and roles on it end."""
    return _written(access, node, revision, reason, now, lambda fresh: Edit("archive", node.public_id))


def node_restore(*, access: Access, node: QuotaNode, revision: int, reason: str = "", now: datetime) -> QuotaNode:
    """Put an archived node back, if its guarantee still fits."""
    return _written(access, node, revision, reason, now, lambda fresh: Edit("restore", node.public_id), archived=True)


def _written(
    access: Access, node: QuotaNode, revision: int, reason: str, now: datetime, edit: Callable[[QuotaNode], Edit | None], *, archived: bool = False
) -> QuotaNode:
    with transaction.atomic():
        at = ledger_held(now=now)
        lock_tree()
        wanted = edit(_fresh_at(node, revision, archived=archived))
        if wanted is not None:
            edit_at_once(access=access, edit=wanted, at=at, reason=reason, now=now)
        return QuotaNode.objects.select_related("parent").get(pk=node.pk)


def _fresh_at(node: QuotaNode, revision: int, *, archived: bool) -> QuotaNode:
    fresh = QuotaNode.objects.select_related("parent").prefetch_related("shares").get(pk=node.pk)
    if fresh.revision != revision:
        raise Stale(CHANGED_MEANWHILE, fresh.revision)
    if (fresh.archived_at is not None) != archived:
        raise Conflict(CHANGED_MEANWHILE)
    return fresh


def may_decide(access: Access, node: QuotaNode) -> bool:
    """Whether this access decides what the node is promised: that is done on the node above."""
    return access.can(Can.EDIT_QUOTA, node.parent.path if node.parent else node.path)


def node_values(node: QuotaNode) -> NodeValues:
    return values_of(node)
