"""Reading changes of the quota tree. A reader sees a change that concerns a node he may see, and of its lines those of such nodes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.shortcuts import get_object_or_404

from quotas.drafts import Edited, NodeState, Tree, state_of
from quotas.models import ChangeState, QuotaChange, QuotaNode
from quotas.permissions import Access, Can
from quotas.services.changes import edited_now, overtaken_lines
from quotas.services.writing import approval_asked, facts_of, rights_checked, tree_at, tree_read


@dataclass(frozen=True, slots=True)
class Line:
    """One field of one node, before and after. `what` is empty for its values, else created, moved, archived or restored."""

    path: str
    node: str | None
    field: str
    before: Any
    after: Any
    what: str = ""


@dataclass(frozen=True, slots=True)
class Standing:
    """How an open change stands against the tree of now."""

    lines: tuple[Line, ...]
    hidden: int  # nodes that the reader may not see
    faults: Mapping[str, list[str]]
    overtaken: tuple[str, ...]
    approval: str | None
    before: Tree
    after: Tree
    decides: bool  # whether the reader has the rights that applying it takes


def change_list(access: Access) -> QuerySet[QuotaChange]:
    seen = QuotaNode.objects.filter(access.visible(Can.SEE)).values("pk")
    found = QuotaChange.objects.filter(pk__in=QuotaChange.nodes.through.objects.filter(quotanode__in=seen).values("quotachange_id"))
    return found.exclude(state=ChangeState.PREVIEW)


def change_for(access: Access, public_id: str) -> QuotaChange:
    """One that the reader may see, or his own preview."""
    seen = Q(pk__in=change_list(access).values("pk"))
    if access.actor.user is not None:
        seen |= Q(state=ChangeState.PREVIEW, author=access.actor.user)
    found = QuotaChange.objects.filter(seen)
    return get_object_or_404(found.select_related("author", "approver", "reverts"), public_id=public_id)


def change_standing(access: Access, change: QuotaChange) -> Standing:
    """What an open change would do to the tree of now."""
    tree = tree_read()
    edited = edited_now(change, tree)
    keys = edited.touched
    lines, hidden = _lines(access, {key: tree.get(key) for key in keys}, {key: edited.after[key] for key in keys}, tree.paths, edited.after.paths)
    overtaken = tuple(_visible_lines(access, change, tree))
    return Standing(lines, hidden, edited.faults, overtaken, approval_asked(edited), edited.before, edited.after, may_decide(access, edited))


def _visible_lines(access: Access, change: QuotaChange, tree: Tree) -> Iterable[str]:
    """What others changed meanwhile, of nodes that the reader may see."""
    for line in overtaken_lines(change, tree):
        if access.can(Can.SEE, line.split(":", 1)[0].split(" was ", 1)[0]):
            yield line
        else:
            yield "Other nodes were changed."


def may_decide(access: Access, edited: Edited) -> bool:
    """Whether the reader has the rights that applying these edits takes."""
    try:
        rights_checked(access, edited)
    except PermissionDenied:
        return False
    return True


def steps_open(access: Access, change: QuotaChange, standing: Standing | None) -> tuple[str, ...]:
    """The steps that the reader may take next. `standing` is that of an open change."""
    if standing is None:
        return ("revert",) if change.state == ChangeState.APPLIED and access.can_somewhere(Can.EDIT_QUOTA) else ()
    user = access.actor.user
    author = user is not None and user.pk == change.author_id
    own = author or access.can_everywhere(Can.ADMINISTER)
    state, decides = change.state, standing.decides
    approved = standing.approval is None or change.approved_at is not None
    steps = []
    if own and standing.overtaken and not standing.faults:
        steps.append("rebase")
    elif decides and approved and state != ChangeState.PROPOSED and not standing.faults:
        steps += ["apply", "schedule"]
    elif own and not approved and not standing.faults and state in (ChangeState.PREVIEW, ChangeState.DRAFT, ChangeState.FAILED):
        steps.append("propose")
    if state == ChangeState.PREVIEW and own and not standing.faults:
        steps.append("save")
    if state == ChangeState.PROPOSED and decides and not author:
        steps.append("approve")
    if state in (ChangeState.PROPOSED, ChangeState.APPROVED, ChangeState.SCHEDULED) and decides:
        steps.append("reject")
    return (*steps, "withdraw") if own else tuple(steps)


def applied_lines(access: Access, change: QuotaChange) -> tuple[tuple[Line, ...], int]:
    """What an applied change did, and how many nodes of it the reader may not see."""
    before = {key: state_of(said) if said else None for key, said in change.before.items()}
    after = {key: state_of(said) for key, said in change.after.items()}
    paths = dict(QuotaNode.objects.filter(public_id__in=after).values_list("public_id", "path"))
    old_paths, new_paths = _paths_then(change, before) if any(_is_moved(before[key], new) for key, new in after.items()) else (paths, paths)
    return _lines(access, before, after, old_paths, new_paths, seen_at=paths)


def _paths_then(change: QuotaChange, before: Mapping[str, NodeState | None]) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """The paths before and after an applied change, as they were then."""
    assert change.applied_at is not None
    then = tree_at(change.applied_at)
    was = [before.get(key, state) for key, state in then.states.items()]
    return Tree(state for state in was if state is not None).paths, then.paths


def _is_moved(old: NodeState | None, new: NodeState) -> bool:
    return old is not None and (old.parent, old.name) != (new.parent, new.name)


def _lines(
    access: Access,
    before: Mapping[str, NodeState | None],
    after: Mapping[str, NodeState],
    old_paths: Mapping[str, str],
    new_paths: Mapping[str, str],
    *,
    seen_at: Mapping[str, str] | None = None,
) -> tuple[tuple[Line, ...], int]:
    """`seen_at`: where the nodes are now, which decides on who sees them, if the other paths are of earlier."""
    found: list[Line] = []
    hidden = 0
    for key, new in after.items():
        old, path = before.get(key), new_paths.get(key, new.name)
        places = (old_paths.get(key, path), path) if seen_at is None else (seen_at.get(key, path),)
        if not any(access.can(Can.SEE, place) for place in places):
            hidden += 1
            continue
        found += _node_lines(key, old, new, old_paths.get(key, path), path)
    return tuple(found), hidden


def _node_lines(key: str, old: NodeState | None, new: NodeState, old_path: str, path: str) -> Iterable[Line]:
    if old is None:
        yield Line(path, None, "", None, None, "created")
        for name, value in facts_of(new, path).items():
            if (
                name not in ("path", "archived", "kind")
                and value not in (None, "", False, {})
                and not (name.endswith("guaranteed_milli") and not value)
            ):
                yield Line(path, None, name, None, value)
        return
    if old.archived != new.archived:
        yield Line(path, key, "", None, None, "archived" if new.archived else "restored")
    if _is_moved(old, new):
        yield Line(path, key, "path", old_path, path, "moved")
    was, now = facts_of(old, old_path), facts_of(new, path)
    for name in {**was, **now}:
        if name not in ("path", "archived") and was.get(name) != now.get(name):
            yield Line(path, key, name, was.get(name), now.get(name))


def lines_since(old: NodeState, node: QuotaNode) -> tuple[Line, ...]:
    """What of a node is another than it was."""
    tree = tree_read()
    above = tree.paths.get(old.parent or "", "")
    return tuple(_node_lines(node.public_id, old, tree[node.public_id], f"{above}/{old.name}" if above else old.name, node.path))


def edited_lines(access: Access, edited: Edited) -> tuple[tuple[Line, ...], int]:
    """What edits would change, and how many nodes of it the reader may not see."""
    before, after = edited.before, edited.after
    keys = edited.touched
    return _lines(access, {key: before.get(key) for key in keys}, {key: after[key] for key in keys}, before.paths, after.paths)


def tree_visible(access: Access) -> tuple[Tree, list[NodeState]]:
    """The tree as it is, and its nodes that the reader may see, in order, archived ones left out."""
    tree = tree_read()
    return tree, [state for state in tree.in_order() if not state.archived and access.can(Can.SEE, tree.paths[state.id])]


def node_changes(access: Access, node: QuotaNode) -> QuerySet[QuotaChange]:
    """Changes that concerned a node, the newest first."""
    return change_list(access).filter(nodes=node).order_by("-changed_at", "-id")


def tree_visible_at(access: Access, moment: datetime) -> tuple[Tree, list[NodeState]]:
    """The tree as it was, and its nodes that the reader may see, in order: by their paths then or now."""
    tree = tree_at(moment)
    now = dict(QuotaNode.objects.values_list("public_id", "path"))
    seen = [state for state in tree.in_order() if not state.archived and access.can(Can.SEE, now.get(state.id, tree.paths[state.id]))]
    return tree, seen
