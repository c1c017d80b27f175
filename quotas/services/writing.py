"""Carrying edits of the tree out: the one place that writes nodes. Whatever comes here is one transaction under the tree's lock."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

from django.core.exceptions import PermissionDenied

from gpufleet.core.audit import audit_record
from gpufleet.core.ids import public_ids
from gpufleet.core.live.feed import feed_publish
from quotas.drafts import Edit, Edited, NodeState, Tree, state_of, tree_edited
from quotas.models import QuotaChange, QuotaNode, QuotaPath, QuotaShare, QuotaVersion
from quotas.permissions import Access, Can
from quotas.rules import NODE_FIELDS, SHARE_FIELDS, SUBMISSION_LIMITS, NodeValues, Share
from quotas.services.ledger import ledger_tree_changed

DECIDED_ABOVE = ("kind", "weight", "priority", "shares", "preempt_min_runtime_s", "reclaim_min_runtime_s", *SUBMISSION_LIMITS)
COLUMNS = tuple(name for name in NODE_FIELDS if name != "shares")
ASIDE = "~"  # no name of a node begins so


def lock_tree() -> None:
    """One writer of the tree, or of who may do all, at a time: sums over siblings are only right while no sibling changes.

    (SQLite has one writer anyway.)
    """
    list(QuotaNode.objects.select_for_update(no_key=True).filter(parent__isnull=True).values_list("pk"))


def tree_read() -> Tree:
    """The whole tree as a value, for reading: no model instance is made of its rows. Two queries."""
    shares: dict[int, dict[str, Share]] = defaultdict(dict)
    for key, gpu_type, *amounts in QuotaShare.objects.values_list("node_id", "gpu_type", *SHARE_FIELDS):
        shares[key][gpu_type] = Share(*amounts)
    rows = list(QuotaNode.objects.order_by("path").values_list("pk", "public_id", "parent_id", "name", "archived_at", "revision", *COLUMNS))
    ids = {row[0]: row[1] for row in rows}

    def values(key: int, stated: Sequence[Any]) -> NodeValues:
        return NodeValues(**dict(zip(COLUMNS, stated, strict=True)), shares=shares.get(key, {}))

    return Tree(
        NodeState(public, ids.get(parent), name, values(key, stated), gone is not None, revision)
        for key, public, parent, name, gone, revision, *stated in rows
    )


def tree_now() -> tuple[Tree, dict[str, QuotaNode]]:
    """The whole tree as a value, and its rows by public id, to be written. Two queries."""
    rows = list(QuotaNode.objects.prefetch_related("shares").order_by("path"))
    ids = {row.pk: row.public_id for row in rows}
    return Tree(_state(row, ids) for row in rows), {row.public_id: row for row in rows}


def _state(row: QuotaNode, ids: dict[int, str]) -> NodeState:
    parent = ids[row.parent_id] if row.parent_id is not None else None
    return NodeState(row.public_id, parent, row.name, values_of(row), row.archived_at is not None, row.revision)


def values_of(node: QuotaNode) -> NodeValues:
    shares = {share.gpu_type: Share(*(getattr(share, name) for name in SHARE_FIELDS)) for share in node.shares.all()}
    return NodeValues(**{name: getattr(node, name) for name in COLUMNS}, shares=shares)


def facts_of(state: NodeState, path: str) -> dict[str, Any]:
    """What the audit keeps of a node: one flat value per field, so that a difference reads as one line."""
    facts: dict[str, Any] = {"path": path, "archived": state.archived}
    facts |= {name: getattr(state.values, name) for name in COLUMNS if name != "policy"}
    facts |= {f"policy.{name}": value for name, value in sorted(state.values.policy.items())}
    for gpu_type, share in sorted(state.values.shares.items()):
        facts |= {f"{gpu_type}.{name}": getattr(share, name) for name in SHARE_FIELDS}
    return facts


def edits_judged(tree: Tree, edits: Sequence[Edit]) -> Edited:
    """What the edits make of a tree that was read from the database."""
    parents = [state.parent for edit in edits if (state := tree.get(edit.node)) is not None]
    about = {key for key in (*(edit.node for edit in edits), *(edit.parent for edit in edits), *parents) if key}
    busy = QuotaNode.objects.filter(public_id__in=about, jobs__isnull=False, jobs__ended_at__isnull=True).distinct()
    return tree_edited(tree, edits, busy.values_list("public_id", flat=True))


def rights_checked(access: Access, edited: Edited) -> None:
    """Raise unless the access decides all that differs. What a node is promised, its name and its place are decided on the node above."""
    before, after = edited.before, edited.after
    for key in edited.touched:
        old, new = before.get(key), after[key]
        if old is None:
            _must_at(access, before, after, new.parent)
        elif (old.parent, old.name) != (new.parent, new.name):
            _must_at(access, before, after, old.parent)
            _must_at(access, before, after, new.parent)
        if old is not None and old.archived != new.archived and not access.can(Can.EDIT_QUOTA, before.paths[old.parent or key]):
            raise PermissionDenied("It needs the right to edit the node above.")
        if old is not None and old.values != new.values:
            access.must(Can.EDIT_QUOTA, before.paths[key])
            above = before.paths[old.parent or key]
            if not access.can(Can.EDIT_QUOTA, above) and any(getattr(old.values, name) != getattr(new.values, name) for name in DECIDED_ABOVE):
                raise PermissionDenied("Only managers of the parent node can change what this node is guaranteed.")


def _must_at(access: Access, before: Tree, after: Tree, parent: str | None) -> None:
    """The right to edit the node `parent`, or the nearest one above that was there before."""
    there = next((state.id for state in after.above(parent) if state.id in before.states), None)
    if there is None:
        access.must_everywhere(Can.ADMINISTER)
    else:
        access.must(Can.EDIT_QUOTA, before.paths[there])


def approval_asked(edited: Edited) -> str | None:
    """The path of a node that wants a second person for this; None: nobody does."""
    for key in edited.touched:
        for state in (*edited.before.above(key), *edited.before.above(edited.after[key].parent)):
            if state.values.needs_approval and not state.archived:
                return edited.before.paths[state.id]
    return None


def tree_write(
    *,
    access: Access,
    edited: Edited,
    rows: dict[str, QuotaNode],
    at: datetime | None,
    now: datetime,
    reason: str,
    change: QuotaChange | None,
    also: Sequence[str] = (),
) -> dict[str, str]:
    """Write the difference down, with audit and versions, and `also` nodes that are written as they are. `at` is the moment of the ledger.

    Returns the public ids of new nodes by what edits call them.
    """
    before, after = edited.before, edited.after
    touched = list(dict.fromkeys([*edited.touched, *also]))
    fresh = [key for key in touched if key not in before.states]
    ids = dict(zip(fresh, public_ids("q", len(fresh)), strict=True))
    after = _renamed(after, ids)
    touched = [ids.get(key, key) for key in touched]
    _first_versions(before, touched, rows)
    _set_aside(before, after, rows)
    for key in touched:
        _node_write(after, key, rows, now)
    moved = _paths_write(after, rows, frozenset(touched))
    left = [key for key in moved if key in before.states]
    QuotaPath.objects.bulk_create([QuotaPath(node=rows[key], path=before.paths[key], until=at or now) for key in left], batch_size=500)
    for key in touched:
        _said(access, before, after, key, rows[key], reason)
    QuotaVersion.objects.bulk_create(
        QuotaVersion(node=rows[key], at=now, said=replace(after[key], revision=rows[key].revision).as_json(), change=change) for key in touched
    )
    if any(key in before.states for key in touched):
        ledger_tree_changed(at=at)
    around = {after[key].parent for key in touched} | {old.parent for key in touched if (old := before.get(key))}
    keys = {rows[key].pk for key in (*touched, *around, *moved) if key is not None}
    feed_publish(changes={"quotas": [{"id": pk} for pk in sorted(keys)]})
    return ids


def _renamed(tree: Tree, ids: dict[str, str]) -> Tree:
    if not ids:
        return tree
    return Tree(replace(state, id=ids.get(state.id, state.id), parent=ids.get(state.parent or "", state.parent)) for state in tree.states.values())


def _first_versions(before: Tree, touched: Iterable[str], rows: dict[str, QuotaNode]) -> None:
    """What a node said of itself before its first change has a version as well."""
    old = [rows[key] for key in touched if key in before.states]
    known = set(QuotaVersion.objects.filter(node__in=old).values_list("node_id", flat=True))
    QuotaVersion.objects.bulk_create(
        QuotaVersion(node=row, at=row.created_at, said=before[row.public_id].as_json()) for row in old if row.pk not in known
    )


def _set_aside(before: Tree, after: Tree, rows: dict[str, QuotaNode]) -> None:
    """Nodes that change their places among each other leave them first, as no two may have one name at once."""
    moved = [key for key, old in before.states.items() if (old.parent, old.name) != ((new := after[key]).parent, new.name)]
    places = {(before[key].parent, before[key].name) for key in moved}
    for key in moved:
        if (after[key].parent, after[key].name) in places:
            row = rows[key]
            QuotaNode.objects.filter(pk=row.pk).update(name=f"{ASIDE}{row.pk}", path=f"{ASIDE}{row.pk}")


def _node_write(after: Tree, key: str, rows: dict[str, QuotaNode], now: datetime) -> None:
    state = after[key]
    columns = {name: getattr(state.values, name) for name in COLUMNS if name != "policy"} | {"policy": dict(state.values.policy)}
    parent = rows[state.parent] if state.parent is not None else None
    row = rows.get(key)
    if row is None:
        path = after.paths[key]
        depth = path.count("/")
        row = QuotaNode(public_id=key, path=path, depth=depth, created_at=now, name=state.name, parent=parent, **columns)
        row.save(force_insert=True)
        rows[key] = row
        held: dict[str, QuotaShare] = {}
    else:
        for column, value in columns.items():
            setattr(row, column, value)
        row.name, row.parent = state.name, parent
        row.archived_at = (row.archived_at or now) if state.archived else None
        row.revision += 1
        row.save(update_fields=[*columns, "name", "parent", "archived_at", "revision"])
        held = {share.gpu_type: share for share in row.shares.all()}
    _shares_write(row, state, held)


def _shares_write(row: QuotaNode, state: NodeState, held: dict[str, QuotaShare]) -> None:
    gone = [share.pk for gpu_type, share in held.items() if gpu_type not in state.values.shares]
    if gone:
        QuotaShare.objects.filter(pk__in=gone).delete()
    fresh = []
    for gpu_type, share in state.values.shares.items():
        known, said = held.get(gpu_type), asdict(share)
        if known is None:
            fresh.append(QuotaShare(node=row, gpu_type=gpu_type, **said))
        elif any(getattr(known, name) != value for name, value in said.items()):
            QuotaShare.objects.filter(pk=known.pk).update(**said)
    QuotaShare.objects.bulk_create(fresh)
    if hasattr(row, "_prefetched_objects_cache"):
        row._prefetched_objects_cache.pop("shares", None)


def _paths_write(after: Tree, rows: dict[str, QuotaNode], counted: frozenset[str]) -> list[str]:
    """Give every node whose path is another one now its path, from the top down. Returns the ids of those."""
    stale = [state.id for state in after.in_order() if rows[state.id].path != after.paths[state.id]]
    taken = {rows[key].path for key in stale}
    for key in stale:
        row = rows[key]
        if after.paths[key] in taken:
            QuotaNode.objects.filter(pk=row.pk).update(path=f"{ASIDE}{row.pk}")
    for key in stale:
        row = rows[key]
        row.path = after.paths[key]
        row.depth = row.path.count("/")
        row.revision += key not in counted
    QuotaNode.objects.bulk_update([rows[key] for key in stale], ["path", "depth", "revision"], batch_size=500)
    return stale


def _said(access: Access, before: Tree, after: Tree, key: str, row: QuotaNode, reason: str) -> None:
    """An audit entry for each thing that was done to a node."""
    old, new = before.get(key), after[key]
    common: dict[str, Any] = {"actor": access.actor, "kind": "quota", "object_id": key, "quota": row, "reason": reason}
    now = facts_of(new, after.paths[key])
    if old is None:
        audit_record(action="quota.create", after=now, **common)
        return
    was = facts_of(old, before.paths[key])
    actions = []
    if (old.parent, old.name) != (new.parent, new.name):
        actions.append("quota.move")
    if old.archived != new.archived:
        actions.append("quota.archive" if new.archived else "quota.restore")
    if old.values != new.values or not actions:
        actions.insert(0, "quota.update")
    for action in actions:
        audit_record(action=action, before=was, after=now, **common)
    if old.parent != new.parent and old.parent is not None and new.parent is not None:
        # Those who watch over the old place see that it went; they may not see where to.
        left = QuotaNode.objects.get(public_id=old.parent)
        sides = {"before": {"path": before.paths[key]}, "after": {"path": None}}
        audit_record(**common | {"quota": left} | sides, action="quota.move_away", quota_path=before.paths[key])


def tree_at(moment: datetime) -> Tree:
    """The tree as it was then. A node that was never changed is as it is."""
    tree, rows = tree_now()
    newest: dict[str, NodeState] = {}
    earliest: dict[str, NodeState] = {}
    for public_id, at, said in QuotaVersion.objects.order_by("at", "id").values_list("node__public_id", "at", "said"):
        if at <= moment:
            newest[public_id] = state_of(said)
        earliest.setdefault(public_id, state_of(said))
    there = [key for key, row in rows.items() if row.created_at <= moment]
    return Tree(newest.get(key) or earliest.get(key) or tree[key] for key in there)
