"""Writing the quota tree. Every write takes the tree's lock, checks the rules on what is there now, records before and after, and tells the pages.

What a node is promised is decided above it: its shares, weight, priority, name and place need EDIT_QUOTA on its parent (for the top: on itself).
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from django.core.exceptions import PermissionDenied, ValidationError
from django.db import transaction
from django.db.models import F, Value
from django.db.models.functions import Concat, Substr

from gpufleet.core.audit import audit_record
from gpufleet.core.faults import Conflict, Stale
from gpufleet.core.ids import public_id
from gpufleet.core.live.feed import feed_publish
from quotas.models import QuotaNode, QuotaShare
from quotas.permissions import Access, Can
from quotas.rules import (
    Faults,
    Guarantees,
    NodeValues,
    Share,
    guarantees,
    name_faults,
    note,
    overpromised,
    place_faults,
    said,
    value_faults,
)
from quotas.services.ledger import ledger_held, ledger_tree_changed

DECIDED_ABOVE = ("kind", "weight", "priority", "shares")
CHANGED_MEANWHILE = "Somebody else changed this node while you were editing it. Look at it again; nothing of yours was written."


def node_create(*, access: Access, parent: QuotaNode | None, name: str, values: NodeValues, reason: str = "", now: datetime) -> QuotaNode:
    """Add a node. The first one becomes the top of the tree; there is one top, so that a role on it means the whole fleet."""
    with transaction.atomic():
        lock_tree()
        parent = _fresh(parent)
        if parent is None:
            access.must_everywhere(Can.ADMINISTER)
        else:
            access.must(Can.EDIT_QUOTA, parent.path)
        path = f"{parent.path}/{name}" if parent else name
        depth = parent.depth + 1 if parent else 0
        faults = {**name_faults(name), **value_faults(values)}
        faults |= place_faults(kind=values.kind, parent_kind=parent.kind if parent else None, path=path, depth=depth)
        faults |= _room_faults(parent, name)
        if not faults and parent is not None:
            faults |= _parent_faults(parent, guarantees(values.shares), apart_from=None)
        _refuse(faults)
        node = QuotaNode.objects.create(
            public_id=public_id("q"), parent=parent, name=name, path=path, depth=depth, created_at=now, **_columns(values)
        )
        _write_shares(node, values.shares)
        audit_record(
            actor=access.actor, action="quota.create", kind="quota", object_id=node.public_id, quota=node, after=node_facts(node), reason=reason
        )
        feed_publish(changes={"quotas": _keys([node.pk, *([parent.pk] if parent else [])])})
    return node


def node_update(*, access: Access, node: QuotaNode, values: NodeValues, revision: int, reason: str = "", now: datetime) -> QuotaNode:
    """Change what a node says of itself. `revision` is the one that the caller saw."""
    with transaction.atomic():
        at = ledger_held(now=now)
        lock_tree()
        node = _fresh_at(node, revision)
        access.must(Can.EDIT_QUOTA, node.path)
        before = node_facts(node)
        now_held = node_values(node)
        if not may_decide(access, node):
            touched = [name for name in DECIDED_ABOVE if getattr(values, name) != getattr(now_held, name)]
            if touched:
                raise PermissionDenied("Only managers of the parent node can change what this node is guaranteed.")
        faults = value_faults(values)
        faults |= place_faults(kind=values.kind, parent_kind=node.parent.kind if node.parent else None, path=node.path, depth=node.depth)
        if not faults and node.parent is not None and guarantees(values.shares) != guarantees(now_held.shares):
            faults |= _parent_faults(node.parent, guarantees(values.shares), apart_from=node)
        if not faults:
            faults |= _children_faults(node, values)
        _refuse(faults)
        for column, value in _columns(values).items():
            setattr(node, column, value)
        node.revision += 1
        node.save(update_fields=[*_columns(values), "revision"])
        _write_shares(node, values.shares)
        ledger_tree_changed(at=at)
        audit_record(
            actor=access.actor,
            action="quota.update",
            kind="quota",
            object_id=node.public_id,
            quota=node,
            before=before,
            after=node_facts(node),
            reason=reason,
        )
        feed_publish(changes={"quotas": _keys([node.pk])})
    return node


def node_move(*, access: Access, node: QuotaNode, parent: QuotaNode | None, name: str, revision: int, reason: str = "", now: datetime) -> QuotaNode:
    """Give a node another name, another parent, or both. The paths of all below it change in the same step."""
    with transaction.atomic():
        at = ledger_held(now=now)
        lock_tree()
        node, parent = _fresh_at(node, revision), _fresh(parent)
        for place in (node.parent, parent):
            if place is None:
                access.must_everywhere(Can.ADMINISTER)
            else:
                access.must(Can.EDIT_QUOTA, place.path)
        path = f"{parent.path}/{name}" if parent else name
        if path == node.path:
            return node
        _refuse(name_faults(name) | _move_faults(node, parent, name, path))
        before, old_path, old_parent = node_facts(node), node.path, node.parent
        moved = _rewrite_paths(node, path, parent.depth + 1 - node.depth if parent else -node.depth)
        node.name, node.parent, node.path, node.depth = name, parent, path, parent.depth + 1 if parent else 0
        node.revision += 1
        node.save(update_fields=["name", "parent", "path", "depth", "revision"])
        ledger_tree_changed(at=at)
        common = {"actor": access.actor, "kind": "quota", "object_id": node.public_id, "reason": reason}
        audit_record(action="quota.move", quota=node, before=before, after=node_facts(node), **common)  # type: ignore[arg-type]
        if parent is not None and old_parent is not None and old_parent != parent:
            # Those who watch over the old place see that it went; they may not see where to.
            sides = {"before": {"path": old_path}, "after": {"path": None}}
            audit_record(action="quota.move_away", quota=old_parent, quota_path=old_path, **sides, **common)  # type: ignore[arg-type]
        feed_publish(changes={"quotas": _keys([node.pk, *moved, *(place.pk for place in (old_parent, parent) if place)])})
    return node


def node_archive(*, access: Access, node: QuotaNode, revision: int, reason: str = "", now: datetime) -> QuotaNode:
    """Take a node out of use. Its history stays; its guarantee is free for its siblings, and roles on it end."""
    with transaction.atomic():
        lock_tree()
        node = _fresh_at(node, revision)
        _must_decide(access, node)
        faults: Faults = {}
        if node.parent is None:
            note(faults, "node", "The root of the tree cannot be archived: every role on it would end.")
        if node.children.filter(archived_at__isnull=True).exists():
            note(faults, "node", "Archive what lies below it first.")
        if node.jobs.filter(ended_at__isnull=True).exists():
            note(faults, "node", "Jobs of this node are waiting or running. Let them end, or cancel them.")
        _refuse(faults)
        _set_archived(access, node, now, "quota.archive", reason)
    return node


def node_restore(*, access: Access, node: QuotaNode, revision: int, reason: str = "") -> QuotaNode:
    """Put an archived node back, if its guarantee still fits."""
    with transaction.atomic():
        lock_tree()
        node = _fresh_at(node, revision, archived=True)
        _must_decide(access, node)
        faults: Faults = {}
        if node.parent is not None and node.parent.archived_at is not None:
            note(faults, "node", "Restore the node above it first.")
        elif node.parent is not None:
            faults = _room_faults(node.parent, None) | _parent_faults(node.parent, guarantees(node_values(node).shares), apart_from=node)
        _refuse(faults)
        _set_archived(access, node, None, "quota.restore", reason)
    return node


def may_decide(access: Access, node: QuotaNode) -> bool:
    """Whether this access decides what the node is promised: that is done on the node above."""
    return access.can(Can.EDIT_QUOTA, node.parent.path if node.parent else node.path)


def node_values(node: QuotaNode) -> NodeValues:
    shares = {share.gpu_type: Share(share.guaranteed_milli, share.limit_milli, share.weight, share.priority) for share in node.shares.all()}
    return NodeValues(node.kind, node.title, node.cost_centre, node.weight, node.priority, node.overcommit, shares)


def node_facts(node: QuotaNode) -> dict[str, Any]:
    """What the audit keeps of a node: one flat value per field, so that a difference reads as one line."""
    facts: dict[str, Any] = {"path": node.path, "archived": node.archived_at is not None}
    facts |= {column: getattr(node, column) for column in ("kind", "title", "cost_centre", "weight", "priority", "overcommit")}
    for share in QuotaShare.objects.filter(node=node).order_by("gpu_type"):
        for column in ("guaranteed_milli", "limit_milli", "weight", "priority"):
            facts[f"{share.gpu_type}.{column}"] = getattr(share, column)
    return facts


def lock_tree() -> None:
    """One writer of the tree, or of who may do all, at a time: sums over siblings are only right while no sibling changes.

    (SQLite has one writer anyway.)
    """
    list(QuotaNode.objects.select_for_update().filter(parent__isnull=True).values_list("pk"))


def _fresh(node: QuotaNode | None) -> QuotaNode | None:
    if node is None:
        return None
    fresh = QuotaNode.objects.get(pk=node.pk)
    if fresh.archived_at is not None:
        raise ValidationError({"parent": "This node is archived."})
    return fresh


def _fresh_at(node: QuotaNode, revision: int, *, archived: bool = False) -> QuotaNode:
    fresh = QuotaNode.objects.select_related("parent").get(pk=node.pk)
    if fresh.revision != revision:
        raise Stale(CHANGED_MEANWHILE, fresh.revision)
    if (fresh.archived_at is not None) != archived:
        raise Conflict(CHANGED_MEANWHILE)
    return fresh


def _must_decide(access: Access, node: QuotaNode) -> None:
    if not may_decide(access, node):
        raise PermissionDenied("It needs the right to edit the node above.")


def _refuse(faults: Faults) -> None:
    if faults:
        raise ValidationError(faults)


def _room_faults(parent: QuotaNode | None, name: str | None) -> Faults:
    """Whether a child may be put there: leaves hold jobs, so what has jobs stays a leaf."""
    faults: Faults = {}
    if parent is None:
        top = QuotaNode.objects.filter(parent__isnull=True).first()
        if top is not None:
            note(faults, "parent", f"There is one top of the tree, {top.path}; put the node below it.")
        return faults
    if parent.jobs.filter(ended_at__isnull=True).exists():
        note(faults, "parent", f"{parent.path} has jobs that are waiting or running; jobs live on nodes without children.")
    taken = QuotaNode.objects.filter(parent=parent, name=name).first() if name else None
    if taken is not None and taken.archived_at is not None:
        note(faults, "name", "An archived node has this name here; restore that one, or choose another name.")
    elif taken is not None:
        note(faults, "name", "A node of this name is already there.")
    return faults


def _move_faults(node: QuotaNode, parent: QuotaNode | None, name: str, path: str) -> Faults:
    faults: Faults = {}
    if parent is not None and (parent.pk == node.pk or parent.path.startswith(node.path + "/")):
        note(faults, "parent", "A node can't be moved below itself.")
        return faults
    if parent is None and node.parent is not None:
        note(faults, "parent", "There is one top of the tree; choose a node to put this one below.")
        return faults
    below = QuotaNode.objects.filter(path__startswith=node.path + "/")
    depths, paths = [node.depth], [len(path)]
    for depth, length in below.values_list("depth", "path"):
        depths.append(depth)
        paths.append(len(path) + len(length) - len(node.path))
    new_depth = parent.depth + 1 if parent else 0
    deepest = new_depth + max(depths) - node.depth
    faults |= place_faults(kind=node.kind, parent_kind=parent.kind if parent else None, path="x" * max(paths), depth=deepest)
    if parent is not None:
        moves = node.parent_id != parent.pk
        faults |= _room_faults(parent, name) if moves else {key: value for key, value in _room_faults(parent, name).items() if key == "name"}
        if moves and not faults:
            faults |= _parent_faults(parent, guarantees(node_values(node).shares), apart_from=node)
    return faults


def _live_children(node: QuotaNode) -> Iterable[QuotaNode]:
    return QuotaNode.objects.filter(parent=node, archived_at__isnull=True).prefetch_related("shares")


def _held(node: QuotaNode) -> Guarantees:
    return {share.gpu_type: share.guaranteed_milli for share in node.shares.all()}


def _parent_faults(parent: QuotaNode, own: Guarantees, *, apart_from: QuotaNode | None) -> Faults:
    """Whether a child with these guarantees fits below the parent, beside its siblings."""
    if parent.overcommit:
        return {}
    siblings = [_held(child) for child in _live_children(parent) if apart_from is None or child.pk != apart_from.pk]
    over = overpromised(_held(parent), [*siblings, own])
    faults: Faults = {}
    for gpu_type, (total, has) in over.items():
        if own.get(gpu_type, 0) == 0:
            continue  # its siblings were too many before; that is not this node's doing
        message = f"With it, all below {parent.path} are promised {said(total)} of {gpu_type}; {parent.path} itself has {said(has)}."
        note(faults, f"shares.{gpu_type}.guaranteed_milli", message)
    return faults


def _children_faults(node: QuotaNode, values: NodeValues) -> Faults:
    """Whether the children's guarantees still fit below the node's own."""
    if values.overcommit:
        return {}
    faults: Faults = {}
    over = overpromised(guarantees(values.shares), [_held(child) for child in _live_children(node)])
    for gpu_type, (total, has) in over.items():
        message = (
            f"Its children are promised {said(total)} of {gpu_type}, and it would have {said(has)}. Raise it, lower theirs, or allow overcommit."
        )
        note(faults, f"shares.{gpu_type}.guaranteed_milli", message)
    return faults


def _columns(values: NodeValues) -> dict[str, Any]:
    return {name: getattr(values, name) for name in ("kind", "title", "cost_centre", "weight", "priority", "overcommit")}


def _write_shares(node: QuotaNode, shares: Mapping[str, Share]) -> None:
    QuotaShare.objects.filter(node=node).exclude(gpu_type__in=shares).delete()
    for gpu_type, share in shares.items():
        row = {"guaranteed_milli": share.guaranteed_milli, "limit_milli": share.limit_milli, "weight": share.weight, "priority": share.priority}
        QuotaShare.objects.update_or_create(node=node, gpu_type=gpu_type, defaults=row)


def _rewrite_paths(node: QuotaNode, path: str, deeper: int) -> list[int]:
    """Put the subtree below its new path, in one statement. Returns the keys of what moved along."""
    below = QuotaNode.objects.filter(path__startswith=node.path + "/")
    moved = list(below.values_list("pk", flat=True))
    below.update(path=Concat(Value(path), Substr("path", len(node.path) + 1)), depth=F("depth") + deeper, revision=F("revision") + 1)
    return moved


def _set_archived(access: Access, node: QuotaNode, moment: datetime | None, action: str, reason: str) -> None:
    before = node_facts(node)
    node.archived_at = moment
    node.revision += 1
    node.save(update_fields=["archived_at", "revision"])
    audit_record(
        actor=access.actor,
        action=action,
        kind="quota",
        object_id=node.public_id,
        quota=node,
        before=before,
        after=node_facts(node),
        reason=reason,
    )
    feed_publish(changes={"quotas": _keys([node.pk, *([node.parent_id] if node.parent_id else [])])})


def _keys(pks: Iterable[int]) -> list[dict[str, int]]:
    return [{"id": pk} for pk in sorted(set(pks))]
