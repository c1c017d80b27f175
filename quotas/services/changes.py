"""Changes of the quota tree (QTA-7): drafted, approved by a second person where a node asks for it, applied at once or at a time, reverted.

A change is applied whole or not at all. If a node that it edits is another one than its author saw, it is refused with what has changed.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.core.exceptions import PermissionDenied, ValidationError
from django.db import transaction
from django.dispatch import Signal

from gpufleet.core.audit import Actor, audit_record
from gpufleet.core.faults import Conflict, Stale
from gpufleet.core.ids import public_id
from gpufleet.core.live.feed import feed_publish
from quotas.drafts import Edit, Edited, NodeState, Tree, difference_of, edits_read, over_capacity, state_of
from quotas.exchange import Row, edits_of
from quotas.models import ChangeState, QuotaChange, QuotaNode
from quotas.permissions import Access, Can, access_for_user
from quotas.rules import Faults, field_word, note, said
from quotas.services.ledger import ledger_held
from quotas.services.writing import approval_asked, edits_judged, facts_of, lock_tree, rights_checked, tree_now, tree_read, tree_write

# Sent as the last write of a transaction that changed the tree: what plans with it has to plan anew.
tree_changed = Signal()
# Sent in the transaction of each step of a change that others decide or wait for: `change`, `actor`, `now`. Its state says which.
change_stepped = Signal()
CHANGED_MEANWHILE = "Somebody else changed this node while you were editing it. Look at it again; nothing of yours was written."
CHANGE_MOVED_ON = "This change was edited or decided meanwhile. Look at it again."
CHANGES_NOTHING = "These edits change nothing."
SECOND_PERSON = "{path} requires approval of changes by a second person. Draft a change and request approval."


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an author says of a change."""

    edits: Any
    title: str = ""
    reason: str = ""
    over_capacity: bool = False


class Overtaken(Conflict):
    """Nodes of the change were changed by others since it was drafted. `lines` say which, what and how."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__(f"Changed by others since this was drafted: {'; '.join(lines)}. Rebase the change to keep yours.")
        self.lines = tuple(lines)


PREVIEW_KEPT = timedelta(days=1)


def change_draft(*, access: Access, wanted: Wanted, reverts: QuotaChange | None = None, preview: bool = False, now: datetime) -> QuotaChange:
    """Keep edits as a draft, after the same checks as when it is applied. Nothing of the tree changes.

    `preview`: they are only looked at. It is in no list, is its author's alone, and goes after a day unless it is saved.
    """
    edits, edited = _judged(access, wanted)
    actor = access.actor
    change = QuotaChange(public_id=public_id("qc"), author=actor.user, author_name=actor.name, reverts=reverts, made_at=now)
    _describe(change, wanted, edits, edited, now)
    with transaction.atomic():
        if preview:
            change.state = ChangeState.PREVIEW
        change.save(force_insert=True)
        _follow_nodes(change, edited)
        if not preview:
            _record(change, access.actor, "quota_change.draft", after=_facts(change))
    return change


def preview_save(*, access: Access, change: QuotaChange, revision: int, now: datetime) -> QuotaChange:
    """Make a preview a draft."""
    with transaction.atomic():
        change = _locked(change, revision, ChangeState.PREVIEW)
        _must_be_author(access, change)
        change.state, change.made_at, change.changed_at = ChangeState.DRAFT, now, now
        change.save(update_fields=["state", "made_at", "changed_at"])
        _record(change, access.actor, "quota_change.draft", after=_facts(change))
    return change


def preview_discard(*, access: Access, change: QuotaChange, revision: int) -> QuotaChange:
    """Leave nothing of a preview, also where it is gone already. What is returned says that it is withdrawn, and has no key."""
    _must_be_author(access, change)
    with suppress(QuotaChange.DoesNotExist), transaction.atomic():
        _locked(change, revision, ChangeState.PREVIEW).delete()
    change.pk, change.state = None, ChangeState.WITHDRAWN
    return change


def change_revise(*, access: Access, change: QuotaChange, wanted: Wanted, revision: int, now: datetime) -> QuotaChange:
    """Give an open change other edits, as of the tree of now. An approval of what it said before is void. A preview stays one."""
    edits, edited = _judged(access, wanted)
    with transaction.atomic():
        change = _locked(change, revision, ChangeState.PREVIEW, *_OPEN)
        _must_be_author(access, change)
        before, preview = _facts(change), change.state == ChangeState.PREVIEW
        _describe(change, wanted, edits, edited, now)
        change.state = ChangeState.PREVIEW if preview else ChangeState.DRAFT
        change.approver, change.approver_name, change.approved_at = None, "", None
        change.apply_at, change.fault, change.revision = None, "", change.revision + 1
        change.save()
        _follow_nodes(change, edited)
        if not preview:
            _record(change, access.actor, "quota_change.revise", before, _facts(change))
    return change


def change_propose(*, access: Access, change: QuotaChange, revision: int, now: datetime) -> QuotaChange:
    """Request the approval of a second person, for edits that still differ from the tree of now and have no faults."""
    edited = edited_now(change)
    if edited.faults:
        raise ValidationError(edited.faults)
    if not edited.touched:
        raise ValidationError({"edits": [CHANGES_NOTHING]})
    return _decided(access, change, revision, (ChangeState.DRAFT, ChangeState.FAILED), ChangeState.PROPOSED, "quota_change.propose", now)


def change_approve(*, access: Access, change: QuotaChange, revision: int, reason: str = "", now: datetime) -> QuotaChange:
    """Approve what somebody else proposed, with the rights that applying it takes."""
    with transaction.atomic():
        change = _locked(change, revision, ChangeState.PROPOSED)
        rights_checked(access, edited_now(change))
        actor = access.actor
        if actor.user is None or actor.user.pk == change.author_id:
            raise PermissionDenied("A change is approved by another person than its author.")
        before = _facts(change)
        change.state, change.approver, change.approver_name, change.approved_at = ChangeState.APPROVED, actor.user, actor.name, now
        change.decision_reason = reason[:500]
        _saved(change, actor, "quota_change.approve", before, now, reason)
    return change


def change_reject(*, access: Access, change: QuotaChange, revision: int, reason: str = "", now: datetime) -> QuotaChange:
    with transaction.atomic():
        change = _locked(change, revision, ChangeState.PROPOSED, ChangeState.APPROVED, ChangeState.SCHEDULED)
        rights_checked(access, edited_now(change))
        before = _facts(change)
        change.state, change.decision_reason, change.apply_at = ChangeState.REJECTED, reason[:500], None
        _saved(change, access.actor, "quota_change.reject", before, now, reason)
    return change


def change_withdraw(*, access: Access, change: QuotaChange, revision: int, now: datetime) -> QuotaChange:
    with transaction.atomic():
        change = _locked(change, revision, *_OPEN)
        _must_be_author(access, change)
        before = _facts(change)
        change.state, change.apply_at = ChangeState.WITHDRAWN, None
        _saved(change, access.actor, "quota_change.withdraw", before, now)
    return change


def change_schedule(
    *, access: Access, change: QuotaChange, revision: int, apply_at: datetime, capacity: Mapping[str, int], now: datetime
) -> QuotaChange:
    """Let a change take effect by itself at a time. It is checked now, and again then."""
    if apply_at <= now:
        raise ValidationError({"apply_at": ["Choose a time in the future."]})
    with transaction.atomic():
        change = _locked(change, revision, ChangeState.DRAFT, ChangeState.APPROVED, ChangeState.SCHEDULED, ChangeState.FAILED)
        edited = edited_now(change)
        _may_take_effect(access, change, edited, capacity)
        before = _facts(change)
        change.state, change.apply_at, change.fault = ChangeState.SCHEDULED, apply_at, ""
        _saved(change, access.actor, "quota_change.schedule", before, now)
    return change


def change_apply(*, access: Access, change: QuotaChange, revision: int, capacity: Mapping[str, int], now: datetime) -> QuotaChange:
    """Let a change take effect."""
    with transaction.atomic():
        at = ledger_held(now=now)
        lock_tree()
        change = _locked(change, revision, ChangeState.DRAFT, ChangeState.APPROVED, ChangeState.SCHEDULED, ChangeState.FAILED)
        tree, rows = tree_now()
        edited = edited_now(change, tree)
        _may_take_effect(access, change, edited, capacity)
        return _applied(access, change, edited, rows, at, now)


def change_revert(*, access: Access, change: QuotaChange, reason: str = "", now: datetime) -> QuotaChange:
    """A draft that undoes an applied change: what it set is as it was. Nodes that it made are archived."""
    if change.state != ChangeState.APPLIED:
        raise Conflict("Only an applied change can be reverted.")
    edits = _undoing(change)
    wanted = Wanted(
        [edit.as_json() for edit in edits], f"Revert {change.public_id}: {change.title}"[:200], reason, over_capacity=change.over_capacity
    )
    return change_draft(access=access, wanted=wanted, reverts=change, now=now)


STEPS = ("propose", "approve", "reject", "withdraw", "schedule", "apply", "rebase", "allow", "revert")


def change_step(
    *,
    access: Access,
    change: QuotaChange,
    step: str,
    revision: int | None,
    capacity: Callable[[], Mapping[str, int]],
    reason: str = "",
    apply_at: datetime | None = None,
    now: datetime,
) -> QuotaChange:
    """One step of a change, by its name. `rebase` keeps its edits as of the tree of now; `allow` lets it exceed the healthy capacity; both void an
    approval. `revert` returns another change, a draft. Without a revision it is done on the newest one.

    `propose`, `schedule` and `apply` make a preview a draft first; `withdraw` discards it.
    """
    if change.state == ChangeState.PREVIEW and step in ("propose", "schedule", "apply"):
        with transaction.atomic():  # what is refused stays a preview
            change = preview_save(access=access, change=change, revision=change.revision if revision is None else revision, now=now)
            facts: dict[str, Any] = {"step": step, "revision": revision, "capacity": capacity, "reason": reason, "apply_at": apply_at, "now": now}
            return change_step(access=access, change=change, **facts)
    common: dict[str, Any] = {"access": access, "change": change, "now": now}
    if step == "revert":
        return change_revert(**common, reason=reason)
    common["revision"] = change.revision if revision is None else revision
    if step in ("approve", "reject"):
        return (change_approve if step == "approve" else change_reject)(**common, reason=reason)
    if step == "withdraw" and change.state == ChangeState.PREVIEW:
        return preview_discard(access=access, change=change, revision=common["revision"])
    if step in ("propose", "withdraw"):
        return (change_propose if step == "propose" else change_withdraw)(**common)
    if step == "schedule":
        if apply_at is None:
            raise ValidationError({"apply_at": ["Apply at is required."]})
        return change_schedule(**common, apply_at=apply_at, capacity=capacity())
    if step == "apply":
        return change_apply(**common, capacity=capacity())
    if step in ("rebase", "allow"):
        beyond = change.over_capacity or step == "allow"
        return change_revise(**common, wanted=Wanted(change.edits, change.title, reason or change.reason, over_capacity=beyond))
    raise ValidationError({"step": [f"Choose one of {', '.join(STEPS)}."]})


def edits_tried(*, access: Access, wanted: Wanted) -> Edited:
    """What edits would make of the tree of now, after the same checks as for a draft. Nothing is written."""
    return _judged(access, wanted)[1]


def tree_imported(*, access: Access, rows: Sequence[Row], faults: Faults, archive_missing: bool, reason: str) -> tuple[list[Edit], Edited]:
    """The edits that make the tree what a file says. Raises with every fault of the file and of the tree that it describes, by its place there."""
    tree = tree_read()
    seen = frozenset(key for key, path in tree.paths.items() if access.can(Can.SEE, path))
    edits, places, wrong = edits_of(rows, tree, seen, archive_missing=archive_missing)
    told: Faults = {**faults, **wrong}
    edited = edits_judged(tree, edits)
    for at, texts in (edited.faults | _reason_faults(edited, reason)).items():
        steps = at.split(".", 2)
        node = edits[int(steps[1])].node if steps[0] == "edits" else ""
        told.setdefault(f"{places.get(node, tree.paths.get(node, node))}.{steps[-1]}" if node else at, []).extend(texts)
    if told:
        raise ValidationError(told)
    if not edited.touched:
        raise ValidationError({"text": ["The tree is as the file says: nothing changes."]})
    return edits, edited


def changes_turn(*, capacity: Callable[[], Mapping[str, int]], now: datetime) -> int:
    """Apply the changes whose time has come, with the rights that their authors have by now. What can't be applied says why. Old previews go."""
    QuotaChange.objects.filter(state=ChangeState.PREVIEW, made_at__lte=now - PREVIEW_KEPT).delete()
    due = QuotaChange.objects.filter(state=ChangeState.SCHEDULED, apply_at__lte=now).select_related("author").order_by("apply_at", "id")
    applied = 0
    for change in list(due):
        try:
            if change.author is None:
                raise PermissionDenied("Its author no longer exists.")
            change_apply(access=access_for_user(change.author, via="schedule"), change=change, revision=change.revision, capacity=capacity(), now=now)
            applied += 1
        except (ValidationError, PermissionDenied, Conflict) as fault:
            _failed(change, fault, now)
    return applied


def edit_at_once(*, access: Access, edit: Edit, at: datetime | None, reason: str, now: datetime) -> dict[str, str]:
    """One edit, applied where it is made, under the tree's lock. Faults are at the edit's own fields."""
    tree, rows = tree_now()
    edited = edits_judged(tree, [edit])
    rights_checked(access, edited)
    faults = {key.removeprefix("edits.0."): messages for key, messages in edited.faults.items()}
    faults |= _reason_faults(edited, reason)
    if faults:
        raise ValidationError(faults)
    if path := approval_asked(edited):
        raise Conflict(SECOND_PERSON.format(path=path))
    change = QuotaChange(public_id=public_id("qc"), author=access.actor.user, author_name=access.actor.name, made_at=now)
    _describe(change, Wanted(None, reason=reason), [edit], edited, now)
    change.save(force_insert=True)
    made: dict[str, str] = {}
    _applied(access, change, edited, rows, at, now, made=made, also=[edit.node] if edit.op == "update" else [])
    return made


_OPEN = (ChangeState.DRAFT, ChangeState.PROPOSED, ChangeState.APPROVED, ChangeState.SCHEDULED, ChangeState.FAILED)


def _judged(access: Access, wanted: Wanted) -> tuple[list[Edit], Edited]:
    """The edits of a draft and what they make of the tree of now, or all that is wrong with them."""
    edits, faults = edits_read(wanted.edits)
    if len(wanted.title) > 200:
        note(faults, "title", "It can have 200 characters.")
    if len(wanted.reason) > 500:
        note(faults, "reason", "It can have 500 characters.")
    if not edits or faults:
        raise ValidationError(faults)
    tree = tree_read()
    _must_see(access, tree, edits)
    edited = edits_judged(tree, edits)
    faults = {**edited.faults, **_reason_faults(edited, wanted.reason)}
    if wanted.over_capacity and not wanted.reason.strip():
        note(faults, "reason", "State why the guarantees may exceed the healthy capacity.")
    if faults:
        raise ValidationError(faults)
    if not edited.touched:
        raise ValidationError({"edits": [CHANGES_NOTHING]})
    rights_checked(access, edited)
    return edits, edited


def _must_see(access: Access, tree: Tree, edits: Sequence[Edit]) -> None:
    """A node that the author may not see does not exist for him."""
    faults: Faults = {}
    for place, edit in enumerate(edits):
        for name in ("node", "parent"):
            path = tree.paths.get(getattr(edit, name) or "")
            if path is not None and not access.can(Can.SEE, path):
                note(faults, f"edits.{place}.{name}", "There is no such node.")
    if faults:
        raise ValidationError(faults)


def _reason_faults(edited: Edited, reason: str) -> Faults:
    """Promising more below a node than it has is allowed by those who say why."""
    opened = [
        key for key in edited.touched if edited.after[key].values.overcommit and not ((old := edited.before.get(key)) and old.values.overcommit)
    ]
    if opened and not reason.strip():
        return {"reason": [f"State why {edited.after.paths[opened[0]]} may be overcommitted."]}
    return {}


def _describe(change: QuotaChange, wanted: Wanted, edits: Sequence[Edit], edited: Edited, now: datetime) -> None:
    change.edits = [edit.as_json() for edit in edits]
    change.bases = {key: old.as_json() for key in edited.touched if (old := edited.before.get(key))}
    change.title = (wanted.title.strip() or title_of(edited))[:200]
    change.reason, change.over_capacity, change.changed_at = wanted.reason[:500], wanted.over_capacity, now


def _follow_nodes(change: QuotaChange, edited: Edited) -> None:
    """What the change concerns: the nodes it touches, and the parents of new ones."""
    keys = {key if key in edited.before.states else edited.after[key].parent for key in edited.touched}
    change.nodes.set(QuotaNode.objects.filter(public_id__in=[key for key in keys if key]))


def title_of(edited: Edited) -> str:
    """What a change does, in one line."""
    touched = edited.touched
    if len(touched) != 1:
        paths = sorted(edited.after.paths.get(key, key) for key in touched)
        return f"{len(touched)} nodes: {', '.join(paths[:3])}{' and others' if len(paths) > 3 else ''}"
    key = touched[0]
    old, new, path = edited.before.get(key), edited.after[key], edited.after.paths[key]
    if old is None:
        return f"Create {path}"
    if old.archived != new.archived:
        return f"{'Archive' if new.archived else 'Restore'} {path}"
    if (old.parent, old.name) != (new.parent, new.name):
        return f"Move {edited.before.paths[key]} to {path}"
    return f"Update {path}: {', '.join(line.split(': ', 1)[-1] for line in difference_lines(old, new, path, path)[:3])}"


def difference_lines(old: NodeState, new: NodeState, old_path: str, new_path: str) -> list[str]:
    """`acme/nlp: H100.guaranteed 8 → 6`, a line for each field that differs."""
    was, now = facts_of(old, old_path), facts_of(new, new_path)
    return [
        f"{new_path}: {key.removesuffix('_milli') if '.' in key else field_word(key)} {_worded(key, was.get(key))} → {_worded(key, now.get(key))}"
        for key in {**was, **now}
        if was.get(key) != now.get(key)
    ]


def _worded(key: str, value: Any) -> str:
    if key.endswith("_milli"):
        return said(value) if value is not None or key.endswith("guaranteed_milli") else "none"
    return "–" if value is None or value == "" else str(value)


def edited_now(change: QuotaChange, tree: Tree | None = None) -> Edited:
    """What a kept change makes of the tree of now."""
    edits, _ = edits_read(change.edits)
    return edits_judged(tree if tree is not None else tree_read(), edits)


def overtaken_lines(change: QuotaChange, tree: Tree) -> list[str]:
    """What others changed of its nodes since it was drafted."""
    lines = []
    for key, base in change.bases.items():
        seen, there = state_of(base), tree.get(key)
        if there is not None and seen != there:
            path = tree.paths[key]
            changed = difference_lines(seen, there, path, path)
            lines += changed or [f"{path} was moved or renamed"]
    return lines


def _may_take_effect(access: Access, change: QuotaChange, edited: Edited, capacity: Mapping[str, int]) -> None:
    """Raise unless the change can be applied now by this access."""
    if lines := overtaken_lines(change, edited.before):
        raise Overtaken(lines)
    if edited.faults:
        raise ValidationError(edited.faults)
    rights_checked(access, edited)
    if (path := approval_asked(edited)) and change.approved_at is None:
        raise Conflict(SECOND_PERSON.format(path=path))
    beyond = capacity_lines(edited.before, edited.after, capacity)
    if beyond and not change.over_capacity:
        raise ValidationError({"over_capacity": [f"{' '.join(beyond)} Lower the guarantees, or allow it with a reason."]})


def capacity_lines(before: Tree, after: Tree, capacity: Mapping[str, int]) -> list[str]:
    """Where a change promises more than is healthy, or makes that worse."""
    already = over_capacity(before, capacity)
    return [
        f"{said(total)} GPUs of {gpu_type} would be guaranteed; {said(has)} are healthy."
        for gpu_type, (total, has) in over_capacity(after, capacity).items()
        if total > already.get(gpu_type, (0, 0))[0]
    ]


def _applied(
    access: Access,
    change: QuotaChange,
    edited: Edited,
    rows: dict[str, QuotaNode],
    at: datetime | None,
    now: datetime,
    *,
    made: dict[str, str] | None = None,
    also: Sequence[str] = (),
) -> QuotaChange:
    ids = tree_write(access=access, edited=edited, rows=rows, at=at, now=now, reason=change.reason, change=change, also=also)
    if made is not None:
        made.update(ids)
    touched = [ids.get(key, key) for key in edited.touched]
    fresh = tree_read()
    change.before = {key: old.as_json() if (old := edited.before.get(key)) else None for key in touched}
    change.after = {key: fresh[key].as_json() for key in touched}
    change.state, change.applied_at, change.applied_by_name, change.fault = ChangeState.APPLIED, now, access.actor.name, ""
    change.changed_at, change.revision = now, change.revision + 1
    change.save()
    change.nodes.set([rows[key] for key in touched])
    if made is None:  # of an edit at once the entries of its node say all
        _record(change, access.actor, "quota_change.apply", after=_facts(change), reason=change.reason)
        change_stepped.send(QuotaChange, change=change, actor=access.actor, now=now)
    tree_changed.send(QuotaChange)
    return change


def _undoing(change: QuotaChange) -> list[Edit]:
    restores, moves, updates, archives = [], [], [], []
    for key, after_json in change.after.items():
        after, before_json = state_of(after_json), change.before.get(key)
        if before_json is None:
            archives.append(Edit("archive", key))
            continue
        before = state_of(before_json)
        if after.archived and not before.archived:
            restores.append(Edit("restore", key))
        if before.archived and not after.archived:
            archives.append(Edit("archive", key))
        if (after.parent, after.name) != (before.parent, before.name):
            moves.append(Edit("move", key, before.parent, before.name))
        if wanted := difference_of(after.values, before.values):
            updates.append(Edit("update", key, set=wanted))
    return [*restores, *moves, *updates, *reversed(archives)]


def _locked(change: QuotaChange, revision: int, *states: str) -> QuotaChange:
    fresh = QuotaChange.objects.select_for_update().get(pk=change.pk)
    if fresh.revision != revision:
        raise Stale(CHANGE_MOVED_ON, fresh.revision)
    if fresh.state not in states:
        raise Conflict(f"{fresh.public_id} is {fresh.get_state_display().lower()}, so this can't be done with it.")
    return fresh


def _must_be_author(access: Access, change: QuotaChange) -> None:
    user = access.actor.user
    if (user is None or user.pk != change.author_id) and not access.can_everywhere(Can.ADMINISTER):
        raise PermissionDenied("Only its author edits or withdraws a change.")


def _decided(access: Access, change: QuotaChange, revision: int, states: Sequence[str], to: str, action: str, now: datetime) -> QuotaChange:
    with transaction.atomic():
        change = _locked(change, revision, *states)
        _must_be_author(access, change)
        before = _facts(change)
        change.state, change.fault = to, ""
        _saved(change, access.actor, action, before, now)
    return change


def _saved(change: QuotaChange, actor: Actor, action: str, before: Mapping[str, Any], now: datetime, reason: str = "") -> None:
    change.changed_at, change.revision = now, change.revision + 1
    change.save()
    _record(change, actor, action, before, _facts(change), reason)
    change_stepped.send(QuotaChange, change=change, actor=actor, now=now)


def _failed(change: QuotaChange, fault: Exception, now: datetime) -> None:
    messages = [f"{key}: {' '.join(said)}" for key, said in fault.message_dict.items()] if isinstance(fault, ValidationError) else [str(fault)]
    with transaction.atomic():
        fresh = QuotaChange.objects.select_for_update().get(pk=change.pk)
        if fresh.state != ChangeState.SCHEDULED or fresh.revision != change.revision:
            return
        before = _facts(fresh)
        fresh.state, fresh.fault = ChangeState.FAILED, " ".join(messages) or "It is no longer allowed."
        _saved(fresh, Actor(None, "gpufleet", "schedule"), "quota_change.fail", before, now, fresh.fault[:500])


def _facts(change: QuotaChange) -> dict[str, Any]:
    return {
        "title": change.title,
        "state": change.state,
        "edits": len(change.edits),
        "apply_at": change.apply_at.isoformat() if change.apply_at else None,
        "approver": change.approver_name,
    }


def _record(
    change: QuotaChange, actor: Actor, action: str, before: Mapping[str, Any] | None = None, after: Mapping[str, Any] | None = None, reason: str = ""
) -> None:
    """Where it touches one node the entry belongs there; else to what lies above all of its nodes."""
    nodes = list(change.nodes.order_by("depth", "path"))
    feed_publish(changes={"quota_changes": [{"id": change.pk}]})
    audit_record(
        actor=actor,
        action=action,
        kind="quota_change",
        object_id=change.public_id,
        quota=nodes[0] if nodes else None,
        before=before,
        after=after,
        reason=reason or change.reason,
    )
